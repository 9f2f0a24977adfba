"""Plays episodes of a pipeline side by side, and hands each finished action to the coach without waiting.

Five things take part:

`EpisodeSpec`      what to play: a task, under a name, with a seed.
`RolloutContext`   with what: the pipeline and all that its episodes share.
`Team`             an episode in the making: its agents, what they have done, and the state that they act on.
`Agent`            one role at work in it.
`AgentTrajectory`  what an agent did in one part, for the pipeline to go on with.

The calls go one way. `rollout` makes a `Team` and gives it to `Pipeline.run`, which lets agents act; the team sends
what they did to the coach; at the end the rollout makes an `Episode` of what the team holds.

What goes wrong is sorted here, in `_run_episode`, by the `blame` of its class (`coachrl.errors`): the agents' doing
fails the episode, infrastructure's leaves it out, and everything else ends the rollout.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coachrl.coach.base import CoachRequest, OutcomeTo, episode_requests, sees_outcome
from coachrl.config.choices import awaited, is_own_doing, raised_in
from coachrl.errors import CoachrlError, ConfigError, ContextOverflow, EpisodeTimeout, ReplayDiverged
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.checked import checked_outcome
from coachrl.pipelines.team.team import Submit, Team, Tree
from coachrl.sandbox.base import Sandbox
from coachrl.text import said
from coachrl.trainers.backends.base import EpisodeGenerator
from coachrl.types import Action, Episode, Outcome, SamplingParams, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to play. seed fixes every draw in it."""

    episode_id: str
    task: Task
    seed: int


@dataclass(frozen=True)
class RolloutContext:
    """What all episodes of a rollout share.

    sampling: how replies are drawn; length and seed are each reply's own. submit: takes an action to be scored; None
    where no coach is asked (evaluation).
    outcome_to: whose actions the coach sees the measured outcome for; those wait until the episode has been graded.
    submit_episode: takes the actions of an episode, in order and each with its outcome, once it has been graded.
    tree: how candidates are drawn and rewarded; None is parallel sampling.
    episode_timeout_s: seconds of one episode, its waits included; None sets no limit.
    executor: processes that play the episodes; None plays them here.
    """

    pipeline: Pipeline
    backend: EpisodeGenerator
    sandbox: Sandbox | None
    sampling: SamplingParams = field(default_factory=SamplingParams)
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


def end_episode(
    spec: EpisodeSpec,
    context: RolloutContext,
    actions: Sequence[Action],
    ended: Outcome | CoachrlError,
    rejected_candidates: Sequence[Action] = (),
    wall_s: float = 0.0,
) -> Episode:
    """The episode that came of `spec`. ended: what its pipeline measured, or the agents' or infrastructure's error that
    broke it off."""
    outcome, infra_error = Outcome(False), None
    if isinstance(ended, Outcome):
        outcome = ended
    elif ended.blame == "agent":
        outcome = Outcome(False, reason=f"{ended.label}: {ended}", summary=f"The episode ended early: {ended}")
    else:
        infra_error = f"{ended.label}: {ended}"
    if infra_error is None and any(action.infra_error for action in actions):
        infra_error = "infrastructure: an execution broke for a reason that was not the agent's"
    return Episode(
        id=spec.episode_id,
        task_id=spec.task.id,
        task_category=spec.task.category,
        pipeline=context.pipeline.name,
        actions=tuple(actions),
        outcome=outcome,
        wall_s=wall_s,
        infra_error=infra_error,
        overflowed=isinstance(ended, ContextOverflow),
        rejected_candidates=tuple(rejected_candidates),
        task_prompt=spec.task.prompt,
    )


async def _run_episode(spec: EpisodeSpec, context: RolloutContext) -> Episode:
    began = time.monotonic()
    roles = context.pipeline.roles
    waiting: list[CoachRequest] = []

    def submit(request: CoachRequest) -> None:
        if sees_outcome(request.role.name, roles, context.outcome_to):
            waiting.append(request)
        elif context.submit is not None:
            context.submit(request)

    sampling = replace(context.sampling, seed=spec.seed)
    team = Team(spec.episode_id, spec.task, roles, context.backend, sampling, submit, context.tree)
    try:
        ended: Outcome | CoachrlError = await _play(spec, context, team)
    except CoachrlError as error:
        if error.blame == "run":
            raise
        ended = error
    episode = end_episode(spec, context, team.actions, ended, team.rejected_candidates, time.monotonic() - began)
    # Of those that were to be reproduced `measure` tells, once for all.
    if (episode.infra_error is not None or episode.overflowed) and not isinstance(ended, ReplayDiverged):
        log.warning("episode %s: %s", episode.id, episode.infra_error or episode.outcome.reason)
    if episode.infra_error is None:  # else there is no outcome to judge by: what waited for it stays without a score
        _ask_with_outcome(episode, waiting, spec, context)
    if context.on_episode is not None:
        context.on_episode(episode)
    return episode


def _ask_with_outcome(
    episode: Episode, waiting: Sequence[CoachRequest], spec: EpisodeSpec, context: RolloutContext
) -> None:
    """Send the coach what waited for the episode's outcome, and the episode as a whole where it is asked for that."""
    if context.submit is not None:
        for request in waiting:
            context.submit(replace(request, outcome=episode.outcome))
    if context.submit_episode is not None:
        requests = episode_requests(spec.task, context.pipeline.roles, episode.actions, episode.outcome)
        context.submit_episode([request for request in requests if not request.action.is_given_up])


async def _play(spec: EpisodeSpec, context: RolloutContext, team: Team) -> Outcome:
    """What the pipeline measured. Raises EpisodeTimeout, and whatever comes up in it."""
    clock = asyncio.timeout(context.episode_timeout_s)
    try:
        async with clock, context.pipeline.place(), context.backend.episode(context.pipeline.patience_s):
            try:
                workspace = await team.open(context.sandbox)
                # What it does to its task, others that play the same one do not see.
                running = context.pipeline.run(copy.deepcopy(spec.task), team, workspace)
                outcome: object = await awaited(running)
                return checked_outcome(outcome, f"pipeline {context.pipeline.name}: run()")
            finally:
                await team.close()
    except AttributeError as error:
        place = f"pipeline {context.pipeline.name}: {raised_in(error)}"
        if error.obj is team:
            raise ConfigError(place) from error
        if "'coroutine' object has" in said(error):
            raise ConfigError(f"{place}: `await` is missing, as in `await team.ROLE.act(…)`") from error
        raise
    except TimeoutError as error:
        if not clock.expired():  # a limit of the pipeline's own, whose error has no words
            raise ConfigError(f"pipeline {context.pipeline.name} failed: {raised_in(error)}") from error
        raise EpisodeTimeout(f"the episode did not end within {context.episode_timeout_s:g} s") from error
    except OSError as error:
        # The command shows only what the system says; the note says where the pipeline met it.
        error.add_note(f"pipeline {context.pipeline.name}: {raised_in(error)}")
        raise
    except BaseException as error:
        # As Python shows them, an exit() would end the run without a word, and a cancelled task of the pipeline's own
        # would pass for the end of the episode.
        if isinstance(error, Exception) or not is_own_doing(error):
            raise
        raise ConfigError(f"pipeline {context.pipeline.name} failed: {raised_in(error)}") from error
