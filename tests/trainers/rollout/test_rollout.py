"""What goes wrong in an episode: the agents' doing, infrastructure's, or the end of the run. A test for each row of the
table in docs/pipelines.md."""

import asyncio
import contextlib
import json

import numpy as np
import pytest

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
from coachrl.prompts import parse_prompt
from coachrl.runs.records import episode_line
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, end_episode, rollout
from coachrl.types import Execution, Outcome, Role, Task

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


async def test_agents_a_prompt_that_does_not_fit_is_a_failure_with_its_reason():
    heard = Heard()
    long = EpisodeSpec("long", Task("long", "k", "x" * 5000), 0)
    policy = ScriptedPolicy(lambda call: "reply", context_length=5000)
    [broken, sound] = await rollout([long, SPECS[0]], heard.context(Pair(), policy))
    assert broken.infra_error is None and broken.overflowed and not broken.outcome.success
    assert broken.outcome.reason.startswith("context overflow: ")
    assert broken.outcome.summary.startswith("The episode ended early: ")
    assert sound.outcome.success and not sound.overflowed
    assert len(heard.episodes) == 2, "a failure is scored as any other episode"


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


async def test_infrastructure_a_sandbox_that_breaks_leaves_its_episode_out():
    heard = Heard()
    episodes = await rollout(SPECS, heard.context(Pair(failing(SandboxError("gone")))))
    assert [episode.infra_error for episode in episodes] == [None, "sandbox: gone", None]
    assert heard.of("t1") == [("first", None)], "no outcome was measured that the last agent could be judged by"
    assert len(heard.episodes) == 2


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


async def test_infrastructure_an_episode_out_of_time_is_left_out():
    async def wait(task):
        if task.id == "t1":
            await asyncio.Event().wait()

    heard = Heard()
    episodes = await rollout(SPECS, heard.context(Pair(wait), episode_timeout_s=3))
    assert [episode.infra_error for episode in episodes] == [
        None,
        "timeout: the episode did not end within 3 s",
        None,
    ]
    assert len(episodes[1].actions) == 2, "what was done before is kept"


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
        TimeoutError("not the episode's clock"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_runs_what_no_episode_can_carry_ends_the_rollout(error):
    ended = []
    context = Heard().context(Pair(failing(error)), on_episode=ended.append, episode_timeout_s=60)
    with pytest.raises(type(error), match=str(error)):
        await rollout(SPECS, context)
    assert "t1" not in [episode.id for episode in ended]


async def test_a_pipeline_that_returns_no_outcome_is_named_as_the_fault():
    class Forgetful(Pair):
        async def run(self, task, team, workspace):
            await super().run(task, team, workspace)

    with pytest.raises(ConfigError, match=r"run\(\) gave NoneType, where it must return an Outcome"):
        await rollout(SPECS, Heard().context(Forgetful()))


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
