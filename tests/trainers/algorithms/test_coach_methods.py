"""Ensembles, strategic coaches and retrospective credit in whole runs: the real LiteLLM over real sockets."""

import asyncio
import json
import shutil
from pathlib import Path

import command_line
import pytest
from scripted_server import Received, ScriptedServer, Step, say, status
from two_step import Silent, TwoStep, make_tasks, reply

from coachrl.commands.build import make_coach_pool
from coachrl.config import load_config
from coachrl.errors import BudgetExceeded, ConfigError
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.loop import Trainer

pytest.importorskip("litellm", reason="needs the llm extra")
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")


def make_trainer(folder: Path, overrides, policy=None, run=None) -> Trainer:
    settings = ["train.steps=3", "train.tasks_per_step=4", "train.checkpoint_every=1", "coach.max_attempts=1"]
    config = load_config(None, [*settings, f"out={folder}", "name=run", *overrides])
    run = run or Run.create(config)
    return Trainer(
        config,
        run,
        pipeline=TwoStep(),
        backend=policy or ScriptedPolicy(reply),
        sandbox=None,
        coach=make_coach_pool(config, run.ledger),
        train_tasks=make_tasks(6),
        heldout_tasks=make_tasks(3, "heldout"),
        callback=Silent(),
    )


async def trained(trainer: Trainer) -> Run:
    try:
        await trainer.train()
    finally:
        await trainer.coach.close()
    return trainer.run


def scores_of(run: Run, step: int, role: str):
    episodes, scores = run.read_episodes(f"step-{step:06d}")
    return [scores[action.id] for episode in episodes for action in episode.actions if action.role == role]


def judge(server: ScriptedServer) -> list[str]:
    return ["coach.name=openai/judge", f"coach.api_base={server.openai_base}"]


async def test_an_ensemble_scores_a_run_though_one_member_always_fails(tmp_path: Path) -> None:
    def script(received: Received) -> Step:
        if received.body["model"] == "broken":
            return status(500)
        return say(f"PROCESS_SCORE: {9 if received.body['model'] == 'kind' else 3}")

    async with ScriptedServer(script) as server:
        members = [{"name": f"openai/{name}", "api_base": server.openai_base} for name in ("kind", "harsh", "broken")]
        members[1]["prompt"] = "strict"
        run = await trained(make_trainer(tmp_path, [f"coach.ensemble={json.dumps(members)}", "train.steps=1"]))
        prompts = {request.body["model"]: request.prompt for request in server.requests}
    [score, *_] = scores_of(run, 1, "speaker")
    assert (score.status, score.process_0_10, score.disagreement) == ("scored", 6.0, 3.0)
    assert "openai/kind 9" in score.rationale and "no score: coach openai/broken" in score.rationale
    metrics = run.metrics()[1]
    assert (metrics["coach/failed_fraction"], metrics["coach/disagreement"]) == (0.0, 3.0)
    assert "Start at 10 and take off" in prompts["harsh"] and "Start at 10" not in prompts["kind"]


async def test_the_strategic_coach_reads_the_run_and_a_resumed_run_reads_the_same(tmp_path: Path) -> None:
    settings = ["coach.strategic.window_steps=2"]

    def third_step(server: ScriptedServer) -> list[str]:
        return sorted(r.prompt for r in server.requests if "Steps 1 to 2, 8 episodes" in r.prompt)

    async with ScriptedServer([say("PROCESS_SCORE: 7")]) as server:
        run = await trained(make_trainer(tmp_path / "whole", [*settings, *judge(server)]))
        whole = third_step(server)
        assert len([r for r in server.requests if "No step of this run is finished yet" in r.prompt]) == 8
    assert len(whole) == 8 and all("planner: even 7.0 (steady" in prompt for prompt in whole)
    assert {score.process_0_10 for score in scores_of(run, 3, "speaker")} == {7.0}

    async with ScriptedServer([say("PROCESS_SCORE: 7")]) as server:
        cut = make_trainer(tmp_path / "cut", [*settings, *judge(server)])
        cut.config = cut.config.model_copy(update={"train": cut.config.train.model_copy(update={"steps": 2})})
        await trained(cut)
        before = len(server.requests)
        again = make_trainer(tmp_path / "cut", [*settings, *judge(server)], run=Run.open(cut.run.folder))
        again.resume(again.run.last_checkpoint())
        await trained(again)
        assert len(server.requests) - before == 8
        assert third_step(server) == whole


def backprop(received: Received) -> Step:
    """The planner is blamed for 6, or credited with 2, by what the episode came to; the speaker takes its own part."""
    if "CONTRIBUTION" not in received.prompt:
        assert "The environment measured" not in received.prompt  # forward scores know no outcome
        return say("PROCESS_SCORE: 7")
    lost = "The environment measured failure" in received.prompt
    if "## The action: speaker" in received.prompt:
        return say(f"CONTRIBUTION: {-4 if lost else 8}\nRESIDUAL: the plan")
    assert "the plan" in received.prompt
    return say(f"CONTRIBUTION: {-6 if lost else 2}\nRESIDUAL: nothing")


BACKPROP = ["algorithm.name=retrospective", "coach.evidence.ground_truth=none", "train.steps=1"]


async def test_reward_backpropagation_trains_on_both_passes(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda call: "?" if {"word0", "word2", "word4"} & {reply(call)} else reply(call))
    async with ScriptedServer(backprop) as server:
        trainer = make_trainer(tmp_path, [*BACKPROP, *judge(server), "algorithm.kl_beta=0"], policy=policy)
        run = await trained(trainer)
    episodes, scores = run.read_episodes("step-000001")
    assert {e.outcome.success for e in episodes} == {True, False}
    for episode in episodes:
        planner, speaker = (scores[action.id] for action in episode.actions)
        won = episode.outcome.success
        assert (planner.process_0_10, planner.contribution) == (7.0, 2 if won else -6)
        assert (speaker.contribution, speaker.residual) == (8 if won else -4, "the plan")
    lost = sum(not e.outcome.success for e in episodes) / len(episodes)
    metrics = run.metrics()[1]
    assert metrics["coach/contribution/planner"] == pytest.approx(2 - 8 * lost)
    assert metrics["train/reward/planner"] == pytest.approx(9 - 8 * lost)  # 7 + 2, or 7 - 6
    assert metrics["train/reward/speaker"] == pytest.approx(15 - 12 * lost)  # 7 + 8, or 7 - 4
    won_ids = {e.id for e in episodes if e.outcome.success}
    speakers = policy.updates[0]["speaker"]
    assert all((s.advantages_L[0] > 0) == (s.episode_id in won_ids) for s in speakers)
    assert {line["kind"] for line in read_jsonl(run.ledger)} == {"call", "score", "contribution"}


async def test_rules_may_score_forward_and_a_model_walk_back(tmp_path: Path) -> None:
    async with ScriptedServer(backprop) as server:
        retrospective = ["coach.retrospective.name=openai/walker", f"coach.retrospective.api_base={server.openai_base}"]
        normalized = [
            *BACKPROP,
            *retrospective,
            "algorithm.consistency=normalize",
            "algorithm.beta=0.5",
        ]
        run = await trained(make_trainer(tmp_path, normalized))
        assert {request.body["model"] for request in server.requests} == {"walker"}
    [planner, *_] = scores_of(run, 1, "planner")
    assert run.metrics()[1]["train/reward/planner"] == pytest.approx(planner.process_0_10 + 0.5 * 2)


async def test_a_backward_pass_that_fails_masks_and_never_invents(tmp_path: Path) -> None:
    def script(received: Received) -> Step:
        failing = "CONTRIBUTION" in received.prompt and "## The action: speaker" in received.prompt
        return say("It was the speaker.") if failing else backprop(received)

    async with ScriptedServer(script) as server:
        trainer = make_trainer(tmp_path, [*BACKPROP, *judge(server)])
        with pytest.raises(BudgetExceeded, match="100% of the coach's calls failed"):
            await trained(trainer)
    assert trainer.run.metrics()[1]["train/masked/unscored"] == 8
    assert {score.process_0_10 for score in scores_of(trainer.run, 1, "planner")} == {None}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.name=retrospective"], "walks back over episodes with a language model"),
        (["algorithm.name=retrospective", "coach.name=x/y"], "set coach.evidence.ground_truth=none .it is last"),
        (["algorithm.name=retrospective", "coach.ensemble=[{name: x/y}, {name: rules}]"], "an ensemble cannot"),
        (["algorithm.name=retrospective", "reward.source=environment"], "leave reward.source=coach"),
        (["coach.ensemble=[{name: rules}]"], "needs 2 coaches or more, not 1"),
        (["coach.ensemble=[{name: rules}, {name: x/y}]", "coach.combine=trimmed"], "needs 3 coaches or more, not 2"),
        (["coach.ensemble=[{name: rules}, {name: x/y}]", "coach.name=x/y"], "ensemble lists every coach"),
        (["coach.ensemble=[{name: rules}, {nam: x/y}]"], "unknown key 'coach.ensemble.1.nam', did you mean 'name'"),
        (["coach.strategic.window_steps=2"], "rules read no statistics"),
        (["coach.evidence.tool_log=false"], "all but ground_truth is for language models"),
        (["coach.evidence.window_tokens=3", "coach.name=x/y"], "coach.evidence.window_tokens"),
        (["coach.evidence.tool_logs=false"], "did you mean 'tool_log'"),
        (["coach.combine=max"], "coach.combine"),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_line(overrides, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, overrides)
    assert "\n" not in str(caught.value)


@needs_sandbox
async def test_all_of_it_from_the_command_line(tmp_path: Path, tiny_model: Path) -> None:
    """One run with an ensemble, the run's statistics and a retrospective pass; then single actions before coaches."""

    def script(received: Received) -> Step:
        if "CONTRIBUTION" in received.prompt:
            return say("Its share.\nCONTRIBUTION: -3\nRESIDUAL: 7 points.")
        return say(f"Fair.\nPROCESS_SCORE: {4 if received.body['model'] == 'judge' else 8}")

    async def coachrl(*arguments: str) -> str:
        done = await asyncio.to_thread(command_line.coachrl, *arguments, cwd=tmp_path)  # the server goes on here
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with ScriptedServer(script) as server:
        base = server.openai_base
        members = [{"name": f"openai/{name}", "api_base": base} for name in ("judge", "other")]
        (tmp_path / "mine.yaml").write_text(
            f"""
model: {tiny_model}
name: whole
pipeline: {{name: mathchat, prompt_style: short, max_new_tokens: 12, roles: {{code_executor: {{max_turns: 1}}}}}}
coach:
  ensemble: {json.dumps(members)}
  combine: median
  strategic: {{window_steps: 2}}
  retrospective: {{name: openai/walker, api_base: "{base}"}}
  evidence: {{ground_truth: none, files: false, window_tokens: 300}}
algorithm: {{name: retrospective, kl_beta: 0.0, consistency: normalize}}
tasks: {{heldout_count: 1}}
train: {{steps: 2, tasks_per_step: 2, mask_truncated: false}}
"""
        )
        plan = await coachrl("train", "--config", "mine.yaml", "--dry-run")
        assert "median of openai/judge, openai/other: 36 calls" in plan  # two members and a retrospective pass
        await coachrl("train", "--config", "mine.yaml")
        run = Run.open(tmp_path / "runs" / "whole")
        episodes, scores = run.read_episodes("step-000002")
        assert {(s.process_0_10, s.disagreement, s.contribution) for s in scores.values()} == {(6.0, 2.0, -3.0)}
        assert len(scores) == sum(len(episode.actions) for episode in episodes) >= 6
        rewards = [run.metrics()[2][f"train/reward/{role}"] for role in ("problem_solver", "verifier")]
        assert all(-4 <= reward <= 4 for reward in rewards)  # 6, and a share of -10 among three actions or more
        assert any("N/A: not shown to you." in request.prompt for request in server.requests)  # the files
        assert any("Steps 1 to 1, 2 episodes" in request.prompt for request in server.requests)

        model = ("--coach", "openai/judge", "--coach-api-base", base)
        tried = await coachrl("coaches", "try", "mathchat-strict", "--action", "runs/whole#2", *model)
        assert "Check each step yourself" in tried and "Fair." in tried
        assert (
            ": 4\n" in tried
            and "in the run: 6, contribution -3, members differ by 2.0" in tried
            and "cost unknown" in tried
        )
        back = json.loads(
            await coachrl(
                "coaches",
                "try",
                "retrospective",
                "--action",
                f"runs/whole#{episodes[0].actions[0].id}",
                *model,
                "--json",
            )
        )
        assert back["score"]["contribution"] == -3 and "7 points." in back["calls"][0]["messages"][0]["content"]
