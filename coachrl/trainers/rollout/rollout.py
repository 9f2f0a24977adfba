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
from coachrl.pipelines.state import CurrentWorkspace, EpisodeState
from coachrl.sandbox.base import Sandbox
from coachrl.trainers.backends.base import EpisodeGenerator
from coachrl.trainers.rollout.tree import Tree
from coachrl.types import Action, Episode, Outcome, Role, Task

log = logging.getLogger(__name__)

Submit = Callable[[CoachRequest], None]


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to run. seed fixes every draw in it."""

    episode_id: str
    task: Task
    seed: int


@dataclass(frozen=True)
class RolloutContext:
    """What all episodes of a rollout share. `submit` is None where no coach is asked (evaluation).

    outcome_to: whose actions the coach sees the measured outcome for; those wait until the episode has been graded.
    submit_episode: takes all actions of an episode, in order and each with its outcome, once it has been graded.
    tree: how candidates are drawn and rewarded; None is parallel sampling.
    episode_timeout_s: seconds of one episode, its waits included; None sets no limit.
    executor: processes that play the episodes; None plays them here.
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
    executor: RolloutExecutor | None = None


class RolloutExecutor(Protocol):
    """Processes that episodes are shared out over."""

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Episode]:
        """As `rollout`. Coach, tree and `on_episode` of the context are called in the process that this is called
        in."""
        ...

    async def close(self) -> None: ...


async def rollout(specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Episode]:
    """One episode for each spec, in the order of `specs`. An episode that breaks carries its infra_error; others go
    on."""
    if context.executor is not None:
        return await context.executor.play(specs, context)
    tasks = [asyncio.create_task(_run_episode(spec, context)) for spec in specs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they close their workspaces before the sandbox goes


async def _run_episode(spec: EpisodeSpec, context: RolloutContext) -> Episode:
    began = time.monotonic()
    scribe = _Scribe(spec, context)
    outcome, infra_error, overflowed = Outcome(False), None, False
    clock = asyncio.timeout(context.episode_timeout_s)
    try:
        async with clock, context.backend.episode(), _state(spec.task, context) as state:
            workspace = CurrentWorkspace(state) if context.tree and state.workspace else state.workspace
            outcome = await context.pipeline.run(spec.task, scribe.team(state), workspace)
    except ContextOverflow as error:
        overflowed = True
        outcome = Outcome(False, reason=f"context overflow: {error}", summary=f"The episode ended early: {error}")
        log.warning("episode %s: %s", spec.episode_id, outcome.reason)
    except TimeoutError:
        if not clock.expired():
            raise
        infra_error = f"timeout: the episode did not end within {context.episode_timeout_s:g} s"
        log.warning("episode %s: %s", spec.episode_id, infra_error)
    except SandboxUnavailable:
        raise
    except SandboxError as error:
        infra_error = f"sandbox: {error}"
        log.warning("episode %s: %s", spec.episode_id, infra_error)
    if infra_error is None and any(action.infra_error for action in scribe.recorder.actions):
        infra_error = "infrastructure: an execution broke for a reason that was not the agent's"
    if infra_error is None:  # else there is no outcome to judge by: what waited for it stays without a score
        scribe.submit_waiting(outcome)
    episode = Episode(
        id=spec.episode_id,
        task_id=spec.task.id,
        task_category=spec.task.category,
        pipeline=context.pipeline.name,
        actions=tuple(scribe.recorder.actions),
        outcome=outcome,
        wall_s=time.monotonic() - began,
        infra_error=infra_error,
        overflowed=overflowed,
        rejected_candidates=tuple(scribe.recorder.rejected_candidates),
    )
    if context.on_episode is not None:
        context.on_episode(episode)
    return episode


@contextlib.asynccontextmanager
async def _state(task: Task, context: RolloutContext) -> AsyncIterator[EpisodeState]:
    state = EpisodeState(await context.sandbox.open(task.files) if context.sandbox is not None else None)
    try:
        yield state
    finally:
        await state.close()


class _Scribe:
    """Records one episode, and sends each action to the coach as early as it may go."""

    def __init__(self, spec: EpisodeSpec, context: RolloutContext) -> None:
        self._spec, self._context = spec, context
        self._waiting: list[tuple[Role, Action, tuple[Action, ...]]] = []
        self.recorder = EpisodeRecorder(spec.episode_id, self._on_action, self._judge)

    def team(self, state: EpisodeState) -> Team:
        context = self._context
        candidates = context.tree.candidates if context.tree is not None else 1
        drawing = Drawing(context.temperature, context.top_p, self._spec.seed, candidates)
        return make_team(context.pipeline.roles, context.backend, self.recorder, drawing, state)

    def submit_waiting(self, outcome: Outcome) -> None:
        """Send the actions that had to wait for the outcome, and the episode as a whole."""
        for role, action, previous in self._waiting:
            self._submit(role, action, previous, outcome)
        if self._context.submit_episode is not None:
            self._context.submit_episode(
                episode_requests(self._spec.task, self._context.pipeline.roles, self.recorder.actions, outcome)
            )

    def _on_action(self, role: Role, action: Action) -> None:
        if self._context.submit is None or action.infra_error is not None:
            return
        previous = tuple(self.recorder.actions[:-1])
        if sees_outcome(role.name, self._context.pipeline.roles, self._context.outcome_to):
            self._waiting.append((role, action, previous))
        else:
            self._submit(role, action, previous, None)

    async def _judge(self, role: Role, candidates: Sequence[Action]) -> list[float | None]:
        """Rewards of the candidates of one state; None for those whose execution broke."""
        if self._context.tree is None:
            raise ValueError("only tree sampling has candidates to judge")
        previous = tuple(self.recorder.actions)
        valid = [action for action in candidates if action.infra_error is None]
        requests = [
            make_request(self._spec.task, self._context.pipeline.roles, role, action, previous, None)
            for action in valid
        ]
        given = dict(zip([action.id for action in valid], await self._context.tree.rewards(requests), strict=True))
        return [given.get(action.id) for action in candidates]

    def _submit(self, role: Role, action: Action, previous: tuple[Action, ...], outcome: Outcome | None) -> None:
        if self._context.submit is not None:
            team = self._context.pipeline.roles
            self._context.submit(make_request(self._spec.task, team, role, action, previous, outcome))
