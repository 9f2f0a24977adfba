"""Runs episodes of a pipeline side by side, and hands each finished action to the coach without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coachrl.coach.base import CoachRequest, OutcomeTo, episode_requests, make_request, sees_outcome
from coachrl.errors import ContextOverflow, SandboxError, SandboxUnavailable
from coachrl.pipelines.base import Drawing, EpisodeRecorder, Pipeline, Team, make_team
from coachrl.pipelines.state import Scene, SceneWorkspace
from coachrl.sandbox.base import Sandbox
from coachrl.trainers.backends.base import EpisodeGenerator
from coachrl.trainers.rollout.tree import Tree
from coachrl.types import Action, Episode, Outcome, Role, Task

log = logging.getLogger(__name__)

Submit = Callable[[CoachRequest], None]


@dataclass(frozen=True)
class Job:
    """One episode to run. seed fixes every draw in it."""

    episode_id: str
    task: Task
    seed: int


@dataclass(frozen=True)
class Stage:
    """What all episodes of a rollout share. `submit` is None where no coach is asked (evaluation).

    outcome_to: whose actions the coach sees the measured outcome for; those wait until the episode has been graded.
    submit_episode: takes all actions of an episode, in order and each with its outcome, once it has been graded.
    tree: how candidates are drawn and rewarded; None is parallel sampling.
    episode_timeout_s: seconds of one episode, its waits included; None sets no limit.
    players: processes that play the episodes; None plays them here.
    """

    pipeline: Pipeline
    backend: EpisodeGenerator
    sandbox: Sandbox | None
    temperature: float
    top_p: float = 1.0
    submit: Submit | None = None
    submit_episode: Callable[[Sequence[CoachRequest]], None] | None = None
    outcome_to: OutcomeTo = "last"
    on_episode: Callable[[Episode], None] | None = None
    tree: Tree | None = None
    episode_timeout_s: float | None = None
    players: Players | None = None


class Players(Protocol):
    """Processes that episodes are shared out over."""

    async def play(self, jobs: Sequence[Job], stage: Stage) -> list[Episode]:
        """As `rollout`. Coach, tree and `on_episode` of the stage are called in the process that this is called in."""
        ...

    async def close(self) -> None: ...


async def rollout(jobs: Sequence[Job], stage: Stage) -> list[Episode]:
    """One episode for each job, in the order of `jobs`. An episode that breaks carries its fault; others go on."""
    if stage.players is not None:
        return await stage.players.play(jobs, stage)
    tasks = [asyncio.create_task(_run_episode(job, stage)) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they close their workspaces before the sandbox goes


async def _run_episode(job: Job, stage: Stage) -> Episode:
    began = time.monotonic()
    scribe = _Scribe(job, stage)
    outcome, fault, overflowed = Outcome(False), None, False
    clock = asyncio.timeout(stage.episode_timeout_s)
    try:
        async with clock, stage.backend.episode(), _scene(job.task, stage) as scene:
            workspace = SceneWorkspace(scene) if stage.tree and scene.workspace else scene.workspace
            outcome = await stage.pipeline.run(job.task, scribe.team(scene), workspace)
    except ContextOverflow as error:
        overflowed = True
        outcome = Outcome(False, reason=f"context overflow: {error}", summary=f"The episode ended early: {error}")
        log.warning("episode %s: %s", job.episode_id, outcome.reason)
    except TimeoutError:
        if not clock.expired():
            raise
        fault = f"timeout: the episode did not end within {stage.episode_timeout_s:g} s"
        log.warning("episode %s: %s", job.episode_id, fault)
    except SandboxUnavailable:
        raise
    except SandboxError as error:
        fault = f"sandbox: {error}"
        log.warning("episode %s: %s", job.episode_id, fault)
    if fault is None and any(action.fault for action in scribe.recorder.actions):
        fault = "infrastructure: an execution broke for a reason that was not the agent's"
    if fault is None:  # else there is no outcome to judge by: what waited for it stays without a score
        scribe.submit_waiting(outcome)
    episode = Episode(
        id=job.episode_id,
        task_id=job.task.id,
        task_kind=job.task.kind,
        pipeline=stage.pipeline.name,
        actions=tuple(scribe.recorder.actions),
        outcome=outcome,
        wall_s=time.monotonic() - began,
        fault=fault,
        overflowed=overflowed,
        alternatives=tuple(scribe.recorder.alternatives),
    )
    if stage.on_episode is not None:
        stage.on_episode(episode)
    return episode


@contextlib.asynccontextmanager
async def _scene(task: Task, stage: Stage) -> AsyncIterator[Scene]:
    scene = Scene(await stage.sandbox.open(task.files) if stage.sandbox is not None else None)
    try:
        yield scene
    finally:
        await scene.close()


class _Scribe:
    """Records one episode, and sends each action to the coach as early as it may go."""

    def __init__(self, job: Job, stage: Stage) -> None:
        self._job, self._stage = job, stage
        self._waiting: list[tuple[Role, Action, tuple[Action, ...]]] = []
        self.recorder = EpisodeRecorder(job.episode_id, self._on_action, self._judge)

    def team(self, scene: Scene) -> Team:
        stage = self._stage
        candidates = stage.tree.candidates if stage.tree is not None else 1
        drawing = Drawing(stage.temperature, stage.top_p, self._job.seed, candidates)
        return make_team(stage.pipeline.roles, stage.backend, self.recorder, drawing, scene)

    def submit_waiting(self, outcome: Outcome) -> None:
        """Send the actions that had to wait for the outcome, and the episode as a whole."""
        for role, action, previous in self._waiting:
            self._submit(role, action, previous, outcome)
        if self._stage.submit_episode is not None:
            self._stage.submit_episode(
                episode_requests(self._job.task, self._stage.pipeline.roles, self.recorder.actions, outcome)
            )

    def _on_action(self, role: Role, action: Action) -> None:
        if self._stage.submit is None or action.fault is not None:
            return
        previous = tuple(self.recorder.actions[:-1])
        if sees_outcome(role.name, self._stage.pipeline.roles, self._stage.outcome_to):
            self._waiting.append((role, action, previous))
        else:
            self._submit(role, action, previous, None)

    async def _judge(self, role: Role, candidates: Sequence[Action]) -> list[float | None]:
        """Rewards of the candidates of one state; None for those whose execution broke."""
        if self._stage.tree is None:
            raise ValueError("only tree sampling has candidates to judge")
        previous = tuple(self.recorder.actions)
        sound = [action for action in candidates if action.fault is None]
        requests = [
            make_request(self._job.task, self._stage.pipeline.roles, role, action, previous, None) for action in sound
        ]
        given = dict(zip([action.id for action in sound], await self._stage.tree.rewards(requests), strict=True))
        return [given.get(action.id) for action in candidates]

    def _submit(self, role: Role, action: Action, previous: tuple[Action, ...], outcome: Outcome | None) -> None:
        if self._stage.submit is not None:
            team = self._stage.pipeline.roles
            self._stage.submit(make_request(self._job.task, team, role, action, previous, outcome))
