"""What goes wrong in an episode: the agents' doing, infrastructure's, or the end of the run. A test for each row of the
table in docs/pipelines.md."""

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import virtual_time

from coachrl.config import PipelineConfig, SandboxConfig
from coachrl.errors import (
    BackendError,
    BudgetExceeded,
    CoachUnavailable,
    ConfigError,
    EngineLost,
    PolicyError,
    SandboxError,
    SandboxUnavailable,
    TaskError,
    WorkerLost,
)
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.team.trajectory import ReadPrompt
from coachrl.prompts import parse_prompt
from coachrl.runs.records import episode_line
from coachrl.sandbox import make_sandbox
from coachrl.seeding import derive_seed
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, end_episode, rollout
from coachrl.types import Episode, Execution, Outcome, Role, Task

PROMPT = parse_prompt("---\nfields: [problem]\n---\n{{problem}}", "ask")
TASKS = [Task(f"t{number}", "k", f"Problem {number}.") for number in range(3)]
SPECS = [EpisodeSpec(task.id, task, number) for number, task in enumerate(TASKS)]


class Pair(Pipeline):
    """Two agents in a row; then whatever `after` does with the task."""

    name = "pair"
    roles = (Role("first", "first", PROMPT, python=True), Role("second", "second", PROMPT))

    def __init__(self, after=None):
        super().__init__(PipelineConfig())
        self.after = after

    async def run(self, task, team, workspace):
        await team.first.act(problem=task.prompt)
        await team.second.act(problem=task.prompt)
        if self.after is not None:
            await self.after(task)
        return Outcome(True, summary="measured")


def failing(error, task_id="t1"):
    """What breaks the episode of one task."""

    async def after(task):
        if task.id == task_id:
            raise error

    return after


class Heard:
    """Everything that a coach would be sent."""

    def __init__(self):
        self.actions, self.episodes = [], []

    def context(self, pipeline, policy=None, **more):
        return RolloutContext(
            pipeline,
            policy or ScriptedPolicy(lambda call: "reply"),
            more.pop("sandbox", None),
            submit=self.actions.append,
            submit_episode=self.episodes.append,
            **more,
        )

    def of(self, episode_id):
        return [(r.role.name, r.outcome) for r in self.actions if r.action.episode_id == episode_id]


async def test_a_sound_episode_is_scored_early_and_the_last_agent_with_the_outcome():
    heard = Heard()
    episodes = await rollout(SPECS, heard.context(Pair()))
    for episode in episodes:
        assert episode.infra_error is None and episode.outcome.success
        assert heard.of(episode.id) == [("first", None), ("second", episode.outcome)]
    assert [[r.action.id for r in requests] for requests in heard.episodes] == [
        [action.id for action in episode.actions] for episode in episodes
    ]


async def test_an_action_reaches_the_coach_before_the_next_agent_is_asked():
    order = []
    policy = ScriptedPolicy(lambda call: order.append(f"ask {call.policy}") or "reply")
    heard = RolloutContext(Pair(), policy, None, submit=lambda request: order.append(f"score {request.role.name}"))
    await rollout(SPECS[:1], heard)
    assert order == ["ask first", "score first", "ask second", "score second"]


async def test_every_draw_of_an_episode_comes_of_its_seed_and_its_end_is_told_to_who_watches():
    policy, ended = ScriptedPolicy(lambda call: "reply"), []
    episodes = await rollout(SPECS, RolloutContext(Pair(), policy, None, on_episode=ended.append))
    assert sorted(call.sampling.seed for call in policy.calls) == sorted(
        derive_seed(spec.seed, role, 0) for spec in SPECS for role in ("first", "second")
    )
    assert sorted(episode.id for episode in ended) == [episode.id for episode in episodes] == ["t0", "t1", "t2"]


async def test_an_episode_lasts_from_its_begin_to_its_end_and_has_the_patience_of_its_pipeline(monkeypatch):
    class Patient(ScriptedPolicy):
        patience = ()

        def episode(self, patience_s=None):
            self.patience = (*self.patience, patience_s)
            return super().episode(patience_s)

    policy, pipeline, now = Patient(lambda call: "reply"), Pair(), iter((10.0, 12.5))
    pipeline.patience_s = 7.0
    monkeypatch.setattr("coachrl.trainers.rollout.rollout.time", SimpleNamespace(monotonic=lambda: next(now)))
    [episode] = await rollout(SPECS[:1], RolloutContext(pipeline, policy, None))
    assert (episode.wall_s, policy.patience) == (2.5, (7.0,))


def test_an_episode_holds_all_that_is_known_of_it():
    actions, rejected = (make_action(index=0),), (make_action(index=0, id="e/0.1", candidate=1),)
    spec = EpisodeSpec("e", Task("t", "kind", "Problem."), 5)
    context = RolloutContext(Pair(), ScriptedPolicy(lambda call: ""), None)
    won = Outcome(True, {"near": 0.5})
    whole = Episode(
        "e", "t", "kind", "pair", actions, won, wall_s=2.5, rejected_candidates=rejected, task_prompt="Problem."
    )
    assert end_episode(spec, context, actions, won, rejected, 2.5) == whole
    broken = replace(actions[0], infra_error="infrastructure")
    told = end_episode(spec, context, (broken,), SandboxError("gone"), rejected, 2.5)
    assert told == replace(whole, actions=(broken,), outcome=Outcome(False), infra_error="sandbox: gone")


async def test_agents_a_prompt_that_does_not_fit_is_a_failure_with_its_reason(caplog):
    heard = Heard()
    long = EpisodeSpec("long", Task("long", "k", "x" * 5000), 0)
    policy = ScriptedPolicy(lambda call: "reply", context_length=5000)
    [broken, sound] = await rollout([long, SPECS[0]], heard.context(Pair(), policy))
    assert broken.infra_error is None and broken.overflowed and not broken.outcome.success
    assert broken.outcome.reason.startswith("context overflow: ")
    assert broken.outcome.summary.startswith("The episode ended early: ")
    assert sound.outcome.success and not sound.overflowed
    assert len(heard.episodes) == 2, "a failure is scored as any other episode"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"episode long: {broken.outcome.reason}")
    ]


@pytest.mark.parametrize(
    ("code", "state"), [("1 / 0", "error"), ("while True: pass", "timeout"), ("import os; os._exit(3)", "error")]
)
async def test_agents_code_that_breaks_is_what_the_action_says(code, state):
    heard = Heard()
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=2 if state == "timeout" else 60))
    policy = ScriptedPolicy(lambda call: f"```python\n{code}\n```")
    try:
        [episode] = await rollout(SPECS[:1], heard.context(Pair(), policy, sandbox=sandbox))
    finally:
        await sandbox.close()
    assert episode.actions[0].execution.state == state
    assert episode.infra_error is None and episode.actions[0].infra_error is None
    assert [name for name, _ in heard.of("t0")] == ["first", "second"]


async def test_infrastructure_a_sandbox_that_breaks_leaves_its_episode_out(caplog):
    heard = Heard()
    episodes = await rollout(SPECS, heard.context(Pair(failing(SandboxError("gone")))))
    assert [episode.infra_error for episode in episodes] == [None, "sandbox: gone", None]
    assert heard.of("t1") == [("first", None)], "no outcome was measured that the last agent could be judged by"
    assert len(heard.episodes) == 2
    assert [r.getMessage() for r in caplog.records] == ["episode t1: sandbox: gone"]


async def test_a_coach_that_is_shown_no_outcome_scores_all_actions_early_and_one_shown_all_waits_with_all():
    for outcome_to, first_sees, second_sees in (("none", False, False), ("last", False, True), ("all", True, True)):
        heard = Heard()
        [episode] = await rollout(SPECS[:1], heard.context(Pair(), outcome_to=outcome_to))
        shown = {"first": episode.outcome if first_sees else None, "second": episode.outcome if second_sees else None}
        assert dict(heard.of("t0")) == shown
        broken = Heard()
        await rollout(SPECS[1:2], broken.context(Pair(failing(SandboxError("gone"))), outcome_to=outcome_to))
        assert [name for name, _ in broken.of("t1")] == [name for name, outcome in shown.items() if outcome is None]


async def test_a_retrospective_pass_leaves_out_a_reply_that_nobody_waited_for():
    class Leaves(Pair):
        async def run(self, task, team, workspace):
            team.first.given_up(ReadPrompt((), "Well?"))
            return await super().run(task, team, workspace)

    passes = []
    context = replace(Heard().context(Leaves()), submit_episode=passes.append)
    [episode] = await rollout(SPECS[:1], context)
    assert len(episode.actions) == 3
    assert [[request.action.id for request in one] for one in passes] == [[a.id for a in episode.actions[1:]]]


class Broken:
    """A workspace whose executions break for no reason of the code's."""

    async def open(self, files):
        return self

    async def files(self):
        return ()

    async def run(self, code, timeout_s=None):
        return Execution("infrastructure", stderr="the server is gone")

    async def close(self):
        pass


async def test_infrastructure_an_execution_that_breaks_leaves_its_episode_out():
    heard = Heard()
    policy = ScriptedPolicy(lambda call: "```python\n1\n```")
    [episode] = await rollout(SPECS[:1], heard.context(Pair(), policy, sandbox=Broken()))
    assert episode.infra_error == "infrastructure: an execution broke for a reason that was not the agent's"
    assert episode.actions[0].infra_error == "infrastructure" and heard.actions == heard.episodes == []


def test_infrastructure_an_episode_out_of_time_is_left_out():
    async def wait(task):
        if task.id == "t1":
            await asyncio.Event().wait()

    heard = Heard()
    episodes = virtual_time.run(rollout(SPECS, heard.context(Pair(wait), episode_timeout_s=3)))
    assert [episode.infra_error for episode in episodes] == [
        None,
        "timeout: the episode did not end within 3 s",
        None,
    ]
    assert len(episodes[1].actions) == 2, "what was done before is kept"


def test_a_pipeline_that_goes_on_though_its_time_is_over_ends_the_rollout_and_is_named():
    class Stubborn(Pair):
        goes_on = True

        async def run(self, task, team, workspace):
            while self.goes_on:
                with contextlib.suppress(BaseException):
                    await asyncio.sleep(100)

    async def played(pipeline):
        asyncio.get_running_loop().call_later(99, setattr, pipeline, "goes_on", False)
        with pytest.raises(ConfigError, match=r"Stubborn\.run goes on 30 s after it was told to end"):
            await rollout(SPECS[:1], Heard().context(pipeline, episode_timeout_s=3))
        pipeline.goes_on = False

    virtual_time.run(played(Stubborn()))


def test_a_pipeline_that_tidies_up_when_its_time_is_over_is_waited_for():
    class Tidy(Pair):
        async def run(self, task, team, workspace):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(20)

    [episode] = virtual_time.run(rollout(SPECS[:1], Heard().context(Tidy(), episode_timeout_s=3)))
    assert episode.infra_error == "timeout: the episode did not end within 3 s"


def test_infrastructure_an_episode_whose_process_died_is_left_out():
    context = Heard().context(Pair())
    episode = end_episode(SPECS[0], context, (), WorkerLost("the process that played the episode died"))
    assert episode.infra_error == "worker: the process that played the episode died"
    assert not episode.outcome.success and not episode.outcome.reason


@pytest.mark.parametrize(
    "error",
    [
        SandboxUnavailable("no user namespaces"),
        ConfigError("wrong"),
        TaskError("of another pipeline"),
        PolicyError("no policy"),
        CoachUnavailable("wrong key"),
        BudgetExceeded("spent"),
        EngineLost("died twice"),
        BackendError("not finite"),
        ZeroDivisionError("a bug of the pipeline's own"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_runs_what_no_episode_can_carry_ends_the_rollout(error):
    ended = []
    context = Heard().context(Pair(failing(error)), on_episode=ended.append, episode_timeout_s=60)
    with pytest.raises(type(error), match=str(error)):
        await rollout(SPECS, context)
    assert "t1" not in [episode.id for episode in ended]


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), GeneratorExit(), BaseException("odd"), TimeoutError()],
    ids=lambda each: type(each).__name__,
)
async def test_what_would_end_the_program_without_a_word_names_the_pipeline(error):
    words = rf"^pipeline pair failed: {type(error).__name__}: {error}.*\(test_rollout.py, line \d+\)$"
    with pytest.raises(ConfigError, match=words):
        await rollout(SPECS, Heard().context(Pair(failing(error)), episode_timeout_s=60))


async def test_what_the_system_refuses_a_pipeline_says_where_it_did():
    refused = FileNotFoundError(2, "No such file or directory", "/nope")
    with pytest.raises(FileNotFoundError) as caught:
        await rollout(SPECS, Heard().context(Pair(failing(refused))))
    [note] = caught.value.__notes__[:1]
    assert re.fullmatch(r"pipeline pair: FileNotFoundError: .*'/nope' \(test_rollout.py, line \d+\)", note)


async def test_a_task_of_its_own_that_a_pipeline_has_cancelled_is_not_the_end_of_the_episode():
    class Canceller(Pair):
        async def run(self, task, team, workspace):
            sleeping = asyncio.ensure_future(asyncio.sleep(60))
            sleeping.cancel()
            await sleeping

    for timeout_s in (None, 60):
        with pytest.raises(ConfigError, match=r"^pipeline pair failed: CancelledError: \(test_rollout.py, line \d+\)$"):
            await rollout(SPECS, Heard().context(Canceller(), episode_timeout_s=timeout_s))


async def test_a_pipeline_that_cancels_the_task_it_runs_in_is_named_as_the_fault():
    class Canceller(Pair):
        async def run(self, task, team, workspace):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    with pytest.raises(ConfigError, match=r"^pipeline pair failed: CancelledError: \(test_rollout.py, line \d+\)$"):
        await rollout(SPECS, Heard().context(Canceller()))


async def test_a_pipeline_that_returns_no_outcome_is_named_as_the_fault():
    class Forgetful(Pair):
        async def run(self, task, team, workspace):
            await super().run(task, team, workspace)

    with pytest.raises(ConfigError, match=r"run\(\) gave NoneType, where it must return an Outcome"):
        await rollout(SPECS, Heard().context(Forgetful()))


async def test_a_role_that_the_team_has_not_is_told_with_its_line():
    class Mistaken(Pair):
        async def run(self, task, team, workspace):
            await team.solvr.act()

    with pytest.raises(
        ConfigError,
        match=r"^pipeline pair: AttributeError: this team has no role 'solvr'.* \(test_rollout.py, line \d+\)$",
    ):
        await rollout(SPECS, Heard().context(Mistaken()))


async def test_a_forgotten_await_is_told():
    class Hasty(Pair):
        async def run(self, task, team, workspace):
            forgotten = team[self.roles[0].name].act()
            try:
                return Outcome(forgotten.text == "1")
            finally:
                forgotten.close()

    with pytest.raises(
        ConfigError, match=r"no attribute 'text' \(test_rollout.py, line \d+\): `await` is missing, as in"
    ):
        await rollout(SPECS, Heard().context(Hasty()))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Outcome("yes"), "success is 'yes', neither True nor False"),
        (Outcome(True, ["x"]), r"metrics are \['x'\], no numbers by name"),
        (Outcome(True, {"near": float("nan")}), "metric 'near' is nan, no finite number"),
        (Outcome(True, {"near": 10**400}), r"metric 'near' is 1000.*, no finite number"),
        (Outcome(True, {"near": "high"}), "metric 'near' is 'high', no finite number"),
        (Outcome(False, reason=5), "reason is 5, no text"),
    ],
)
async def test_an_outcome_that_cannot_be_written_down_is_named_as_the_fault(given, words):
    class Odd(Pair):
        async def run(self, task, team, workspace):
            return given

    with pytest.raises(ConfigError, match=rf"run\(\) gave an Outcome whose {words}"):
        await rollout(SPECS, Heard().context(Odd()))


async def test_numbers_of_numpy_make_an_outcome():
    class Numeric(Pair):
        async def run(self, task, team, workspace):
            return Outcome(np.bool_(True), {"near": np.float32(0.5), "right": True})

    [episode, *_] = await rollout(SPECS, Heard().context(Numeric()))
    assert episode.outcome.success is True and episode.outcome.metrics == {"near": 0.5, "right": 1.0}
    assert {type(value) for value in episode.outcome.metrics.values()} == {float}
    assert json.loads(episode_line(episode, {}))


async def test_every_workspace_is_closed_whatever_ends_the_episode():
    opened = []

    class Counting(Broken):
        async def open(self, files):
            opened.append(Counting())
            return opened[-1]

        async def close(self):
            opened.remove(self)

    for error in (SandboxError("gone"), ConfigError("wrong")):
        with contextlib.suppress(ConfigError):
            await rollout(SPECS, Heard().context(Pair(failing(error)), sandbox=Counting()))
        assert opened == []
