"""Saved runs to replay, rescore and export: the real pipeline and sandbox, a scripted policy, the rules coach."""

import itertools
import json
import shutil
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

from coachrl.coach import make_coach
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig, SandboxConfig, find_config, load_config
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.sandbox import make_sandbox
from coachrl.tasks import load_tasks
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout

# Two turns of the executor, so that later turns have a history.
SETTINGS = (
    "pipeline.roles.code_executor.max_turns=2",
    "pipeline.max_new_tokens=400",
    "pipeline.roles.problem_solver.max_new_tokens=400",
    "pipeline.roles.code_executor.max_new_tokens=400",
    "pipeline.roles.verifier.max_new_tokens=400",
    "tasks.levels=[1, 2]",
    "tasks.train_count=4",
    "tasks.heldout_count=2",
)


def every_other_reply():
    """Of the solver's replies to a problem every second one is careless, for some problems the first one, whichever
    episode is played first; the executor mends a crash in its second turn."""
    counts = {}

    def reply(call):
        if call.policy == "problem_solver":
            count = counts.setdefault(call.prompt, itertools.count(zlib.crc32(call.prompt.encode())))
            return "2 + 3" if next(count) % 2 else "I would rather not say."
        if call.policy == "code_executor":
            return "```python\nprint(2 + 3)\n```" if "Output: error" in call.prompt else "```python\nprint(x)\n```"
        return "The answer is \\boxed{5}"

    return reply


_PLAYED: dict[tuple[object, ...], tempfile.TemporaryDirectory[str]] = {}  # until this process ends


async def save_run(root, *, reply=None, asked=None, **wish) -> Run:
    """A run folder below `root`/runs with `steps` files of scored episodes, and one of an evaluation.

    asked: a list that gets every request as the coach is asked it. wish: see `_play`. What is wished for with the usual
    replies is played once in a process, which takes a second, and copied from then on."""
    if reply is not None or asked is not None:
        return await _play(root, reply=reply, asked=asked, **wish)
    key = tuple(sorted((name, tuple(value) if name == "overrides" else value) for name, value in wish.items()))
    if key not in _PLAYED:
        place = tempfile.TemporaryDirectory(prefix="saved-run-")
        await _play(Path(place.name), **wish)
        _PLAYED[key] = place
    run = Run(Path(shutil.copytree(f"{_PLAYED[key].name}/runs", root / "runs", symlinks=True)) / "saved")
    settings = (run.folder / "config.yaml").read_text(encoding="utf-8")
    (run.folder / "config.yaml").write_text(settings.replace(_PLAYED[key].name, str(root)), encoding="utf-8")
    return run


def reply_otherwise(run, place=0):
    """Another reply under the id of an action of the first step, as where a run that goes on plays it anew; the id."""
    path = run.episode_files("step")[0]
    first, *others = path.read_text(encoding="utf-8").splitlines()
    episode = json.loads(first)
    action = episode["actions"][place]
    action["text"] += " Or so."
    path.write_text("\n".join([json.dumps(episode), *others, ""]), encoding="utf-8")
    return action["id"]


async def _play(root, *, reply=None, overrides=(), steps=1, samples_per_task=2, write_team=True, asked=None) -> Run:
    config = load_config(find_config("quickstart"), ["name=saved", *SETTINGS, *overrides], {"out": str(root / "runs")})
    run, pipeline = Run.create(config), make_pipeline(config.pipeline)
    if write_team:
        run.write_roles(pipeline.roles)
    tasks, heldout = load_tasks(config)
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe"))
    pool = CoachPool(make_coach(CoachConfig()), ledger=run.ledger)

    def submit(request):
        if asked is not None:
            asked.append(request)
        pool.submit(request)

    policy = ScriptedPolicy(reply or every_other_reply())
    context = RolloutContext(pipeline, policy, sandbox, outcome_to=config.coach.evidence.ground_truth)
    await sandbox.start()
    try:
        for step in range(1, steps + 1):
            specs = [
                EpisodeSpec(f"{step}.{i}.{draw}", task, seed=step * 100 + i * 10 + draw)
                for i, task in enumerate(tasks)
                for draw in range(samples_per_task)
            ]
            episodes = await rollout(specs, replace(context, submit=submit))
            run.write_episodes(f"step-{step:06d}", episodes, await pool.settle(episodes))
        run.write_episodes("eval-000001", await rollout([EpisodeSpec("eval.0.0", heldout[0], seed=1)], context), {})
    finally:
        await pool.close()
        await sandbox.close()
    return run
