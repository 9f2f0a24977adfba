"""Episodes that are shared out over two worker processes, with real engines, a real sandbox and one coach."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest
from whole_runs import MATHCHAT, Judge, configured, needs_sandbox

from coachrl.coach.pool import CoachPool
from coachrl.config import SandboxConfig
from coachrl.errors import BackendError, BudgetExceeded, ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.team.adviser import Advice
from coachrl.sandbox import make_sandbox
from coachrl.tasks import load_tasks
from coachrl.trainers.backends.openrlhf.rollout.workers import RolloutWorkers
from coachrl.trainers.rollout.rollout import RolloutContext, rollout
from coachrl.trainers.schedule import first_specs

pytestmark = needs_sandbox
TEAM = MATHCHAT | {f"pipeline.roles.{role}.policy": "team" for role in ("problem_solver", "code_executor", "verifier")}
SILENCE_S = 5.0
SANDBOX = partial(make_sandbox, SandboxConfig(timeout_s=10, concurrency=1), ())  # without packages: quick to start


@pytest.fixture(scope="module")
def backend(start):
    """One policy that is not trained: engines alone."""
    return start("team", trainable={"team": False})


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return configured(tmp_path_factory.mktemp("workers"), TEAM)


@pytest.fixture(scope="module")
def specs(config):
    return first_specs(load_tasks(config)[0], config, 8)


@pytest.fixture(scope="module")
def workers(backend):
    made = RolloutWorkers(backend, 2, SANDBOX)
    yield made
    asyncio.run(made.close())


@pytest.fixture
async def context(backend, config, workers):
    return RolloutContext(make_pipeline(config.pipeline), backend, None, executor=workers)


async def test_workers_play_the_episodes_that_the_driver_would(context, specs, backend):
    sandbox = SANDBOX()
    here = await rollout(specs, replace(context, sandbox=sandbox, executor=None))
    await sandbox.close()
    heard = []
    there = await rollout(specs, replace(context, on_episode=heard.append))
    assert [episode.id for episode in there] == [spec.episode_id for spec in specs]
    assert sorted(episode.id for episode in heard) == sorted(spec.episode_id for spec in specs)
    for ours, theirs in zip(here, there, strict=True):
        assert [action.role for action in theirs.actions] == ["problem_solver", "code_executor", "verifier"]
        assert ours.actions[0].prompt_ids == theirs.actions[0].prompt_ids
        assert {action.weights_version for action in theirs.actions} == {backend.engines()[1]}
    # What runs beside a request changes its rounding, and so now and then a draw.
    alike = [o.actions[0].response_ids == t.actions[0].response_ids for o, t in zip(here, there, strict=True)]
    assert np.mean(alike) > 0.7


async def test_all_workers_share_one_limit_of_the_coach(context, specs, tmp_path):
    judge = Judge(latency_s=0.5)
    coach = CoachPool(judge, concurrency=3, ledger=tmp_path / "ledger.jsonl")
    episodes = await rollout(specs, replace(context, submit=coach.submit, outcome_to="last"))
    scores = await coach.settle(episodes)
    await coach.close()
    assert 1 < judge.most_at_once <= 3
    assert set(scores) == {action.id for episode in episodes for action in episode.actions}
    assert all(score.status == "scored" for score in scores.values())


async def test_what_ends_the_coach_ends_the_rollout_and_the_next_one_can_begin(context, specs):
    def spent(request):
        raise BudgetExceeded("nothing is left")

    with pytest.raises(BudgetExceeded, match="nothing is left"):
        await rollout(specs, replace(context, submit=spent))
    assert all(episode.infra_error is None for episode in await rollout(specs[:2], context))


async def test_a_worker_that_dies_leaves_faults_and_is_started_again(context, specs, workers, ray_cluster):
    requests = []

    def kill_one(request):
        if not requests:
            ray_cluster.kill(workers._handles[0])
        requests.append(request)

    episodes = await rollout(specs, replace(context, submit=kill_one, outcome_to="none"))
    broken = [place for place, episode in enumerate(episodes) if episode.infra_error]
    assert broken and all(place % 2 == 0 for place in broken)  # every second episode is the first worker's
    assert {episodes[place].infra_error for place in broken} == {"worker: the process that played the episode died"}
    submitted = {request.action.id for request in requests}
    assert submitted == {action.id for episode in episodes for action in episode.actions}  # each has its score
    assert all(episode.infra_error is None for episode in await rollout(specs, context))


def pid_of(ray, worker):
    return ray.get(worker.__ray_call__.remote(lambda actor: os.getpid()))


def is_gone(pid, patience_s=60.0):
    deadline = time.monotonic() + patience_s
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not psutil.pid_exists(pid)


@pytest.mark.thorough
async def test_a_worker_that_stands_still_is_ended_and_replaced_as_one_that_dies(
    context, specs, workers, ray_cluster, monkeypatch
):
    monkeypatch.setattr(workers, "_silence_s", SILENCE_S)
    await workers.start()  # one that stands still before that has longer: `start_timeout_s`
    pid, requests = pid_of(ray_cluster, workers._handles[0]), []

    def stop_one(request):
        if not requests:
            os.kill(pid, signal.SIGSTOP)
        requests.append(request)

    episodes = await rollout(specs, replace(context, submit=stop_one, outcome_to="none"))
    broken = [place for place, episode in enumerate(episodes) if episode.infra_error]
    assert broken and all(place % 2 == 0 for place in broken)  # every second episode is the first worker's
    silent = f"worker: the process that played the episode gave no sign of life for {SILENCE_S:g} s and was ended"
    assert {episodes[place].infra_error for place in broken} == {silent}
    assert is_gone(pid), "it must not keep its core"
    assert all(episode.infra_error is None for episode in await rollout(specs, context))
    assert pid_of(ray_cluster, workers._handles[0]) != pid


@pytest.mark.thorough
async def test_a_worker_whose_episode_takes_long_is_left_alone(context, specs, workers, ray_cluster, monkeypatch):
    """Also where the episode keeps its event loop busy all the while."""
    monkeypatch.setattr(workers, "_silence_s", SILENCE_S)
    before = [pid_of(ray_cluster, worker) for worker in workers._handles]
    episodes = await rollout(specs[:2], replace(context, pipeline=Slow(context.pipeline)))
    assert all(episode.infra_error is None and episode.outcome.success for episode in episodes)
    assert [pid_of(ray_cluster, worker) for worker in workers._handles] == before


async def test_an_engine_that_dies_is_replaced_for_all_workers(context, specs, backend, ray_cluster):
    backend.processes._replaced.clear()
    replaced, killed = backend.engines()[0]["team"].replaced, []

    process = ray_cluster.get(
        backend.processes.engines["team"].handles[0].__ray_call__.remote(lambda actor: os.getpid())
    )
    [core] = [child for child in psutil.Process(process).children() if "EngineCore" in " ".join(child.cmdline())]

    def kill_engine(request):
        """vLLM's process within the engine; the engine's own lives on."""
        if not killed:
            killed.append(core)
            core.kill()

    episodes = await rollout(specs, replace(context, submit=kill_engine, outcome_to="none"))
    assert all(episode.infra_error is None and len(episode.actions) == 3 for episode in episodes)
    assert backend.engines()[0]["team"].replaced == replaced + 1


class Advised:
    """Asks its adviser once in each episode, and keeps what no other process can have where `lock` is set."""

    patience_s = None
    place = contextlib.nullcontext

    def __init__(self, pipeline, adviser, lock=None):
        self.name, self.roles, self.adviser, self.lock = pipeline.name, pipeline.roles, adviser, lock

    async def run(self, task, team, workspace):
        from coachrl.types import Outcome

        advice = await self.adviser.advise({"problem": task.id})
        return Outcome(True, summary=advice.text)


class Slow:
    """Waits, and then computes, for twice as long as a worker may be silent."""

    patience_s = None
    place = contextlib.nullcontext

    def __init__(self, pipeline):
        self.name, self.roles, self.adviser, self.long_s = pipeline.name, pipeline.roles, None, 2 * SILENCE_S

    async def run(self, task, team, workspace):
        from coachrl.types import Outcome

        await asyncio.sleep(self.long_s)
        end = time.monotonic() + self.long_s
        while time.monotonic() < end:
            pass
        return Outcome(True)


class Echo:
    async def advise(self, values):
        if values["problem"] == "wrong":
            raise BackendError("asked in vain")
        return Advice(f"think of {values['problem']}")


async def test_the_adviser_is_asked_in_the_driver(context, specs):
    episodes = await rollout(specs, replace(context, pipeline=Advised(context.pipeline, Echo())))
    assert [episode.outcome.summary for episode in episodes] == [f"think of {spec.task.id}" for spec in specs]
    wrong = [replace(specs[0], task=replace(specs[0].task, id="wrong")), *specs[1:]]
    with pytest.raises(BackendError, match="asked in vain"):
        await rollout(wrong, replace(context, pipeline=Advised(context.pipeline, Echo())))


class Unsendable:
    def __reduce__(self):
        raise RuntimeError("it lives\nhere alone")


@pytest.mark.parametrize(
    ("held", "why"), [(threading.Lock(), "cannot pickle '_thread.lock' object"), (Unsendable(), "it lives here alone")]
)
async def test_a_pipeline_or_a_ground_truth_that_cannot_be_sent_is_refused(context, specs, held, why):
    words = rf"^rollout\.workers: %s cannot be sent to other processes \({why}\); set rollout\.workers=1$"
    with pytest.raises(ConfigError, match=words % "pipeline mathchat"):
        await rollout(specs, replace(context, pipeline=Advised(context.pipeline, Echo(), lock=held)))
    with pytest.raises(ConfigError, match=words % "a ground truth of the tasks"):
        await rollout([*specs[1:], replace(specs[0], task=replace(specs[0].task, ground_truth=held))], context)
