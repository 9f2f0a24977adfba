"""Plays planted faults through a pipeline, each beside the same team without them, in the sandbox.

What is planted is only kept where it did harm that was measured: the team fails where the sound one succeeds, its
result is worse, or the environment gives the culprit less than it gives the sound agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from coachrl.audit.faults.arithmetic import math_duo_faults, mathchat_faults
from coachrl.audit.faults.planted import Place, PlantedFault, Replies
from coachrl.audit.faults.programs import code_faults
from coachrl.audit.faults.tables import table_faults
from coachrl.coach.base import CoachRequest, OutcomeTo
from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.base import Pipeline
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import derive_seed
from coachrl.testing.scripted import Call, ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Action, Episode, Outcome, Task

FAMILIES = ("mathchat", "math_duo", "code", "dsbench")
_TASKS_AT_ONCE, _PLAYS_AT_ONCE = 4, 4
_MOST_TRIED = 4  # times as many faults as are asked for, so that harmless ones end nothing
_REPLY_TOKENS = 4096  # what agents say is written down: no limit of the run's may cut it
_WORSE = {"accuracy": -0.02, "rmse_pct_range": 1.0}  # the least change of a result that counts as harm


@dataclass(frozen=True)
class Play:
    """An episode, and what a coach is asked about its actions."""

    episode: Episode
    requests: Sequence[CoachRequest]

    @property
    def actions(self) -> dict[Place, Action]:
        """By role and by how many turns the agent had taken before."""
        return {(action.role, action.turn): action for action in self.episode.actions}


@dataclass(frozen=True)
class FaultPair:
    """One team on one task, played without the planted faults and with them."""

    planted: PlantedFault
    sound: Play
    faulty: Play


@dataclass(frozen=True)
class PlayedFaults:
    """pairs: those whose faults did harm. left_out: what became of the others, in words."""

    pairs: Sequence[FaultPair]
    left_out: Sequence[str]

    @property
    def requests(self) -> list[CoachRequest]:
        """What a coach is to be asked: about each sound play once, whatever is planted in it."""
        plays = {play.episode.id: play for pair in self.pairs for play in (pair.sound, pair.faulty)}
        return [request for play in plays.values() for request in play.requests]


async def play_faults(
    settings: PipelineConfig, sandbox: Sandbox, folder: Path, count: int, outcome_to: OutcomeTo = "last", seed: int = 0
) -> PlayedFaults:
    """`count` planted faults in the pipeline that `settings` describe, on made-up tasks whose files go to `folder`.
    outcome_to: whose actions the coach sees the measured outcome for.

    Raises ConfigError for a pipeline without planted faults, or where it plays too few of them; SandboxError."""
    pipeline = _scripted(settings)
    kept: list[FaultPair] = []
    left_out: Counter[str] = Counter()
    tasks, tried = _by_task(pipeline, folder, seed), 0
    while len(kept) < count and tried < _MOST_TRIED * count + 16:
        planted = [fault for group in islice(tasks, _TASKS_AT_ONCE) for fault in group]
        planted = planted[: count - len(kept) + 2]
        tried += len(planted)
        for pair in await _play_all(planted, pipeline, sandbox, outcome_to, seed):
            if why := _why_left_out(pair):
                left_out[why] += 1
            elif len(kept) < count:
                kept.append(pair)
    notes = [f"{number} of {tried} planted faults {why}" for why, number in sorted(left_out.items())]
    if len(kept) < count:
        raise ConfigError(f"--fault-localization {count}: only {len(kept)} could be played: {'; '.join(notes)}")
    return PlayedFaults(kept, notes)


def _by_task(pipeline: Pipeline, folder: Path, seed: int) -> Iterator[list[PlantedFault]]:
    match pipeline.name:
        case "mathchat":
            return mathchat_faults(seed)
        case "math_duo":
            return math_duo_faults(pipeline, seed)
        case "code":
            return code_faults(seed)
        case _:
            return table_faults(pipeline, folder, seed)


def _scripted(settings: PipelineConfig) -> Pipeline:
    """The run's pipeline, its prompts, turns and options, each role with a policy of its own to speak for it.

    Raises ConfigError."""
    if settings.name not in FAMILIES:
        raise ConfigError(
            f"--fault-localization: no faults are planted in pipeline {settings.name}, only in {', '.join(FAMILIES)}"
        )
    roles = {}
    for role in make_pipeline(settings).roles:
        own = settings.roles.get(role.name, RoleConfig())
        roles[role.name] = own.model_copy(update={"policy": role.name, "max_new_tokens": _REPLY_TOKENS})
    pipeline = make_pipeline(settings.model_copy(update={"roles": roles}))
    several = [name for name in roles if name.rpartition("_")[2].isdigit()]
    if several:
        raise ConfigError(
            f"--fault-localization: faults are planted in teams with one agent of a kind; this run's team has "
            f"{', '.join(several)}"
        )
    return pipeline


async def _play_all(
    planted: Sequence[PlantedFault], pipeline: Pipeline, sandbox: Sandbox, outcome_to: OutcomeTo, seed: int
) -> list[FaultPair]:
    free = asyncio.Semaphore(_PLAYS_AT_ONCE)

    async def play(name: str, task: Task, replies: Replies) -> Play:
        requests: list[CoachRequest] = []
        spoken: Counter[str] = Counter()

        def reply(call: Call) -> str:
            spoken[call.policy] += 1
            said = replies[call.policy]
            return said[min(spoken[call.policy], len(said)) - 1]

        context = RolloutContext(
            pipeline, ScriptedPolicy(reply), sandbox, submit=requests.append, outcome_to=outcome_to
        )
        async with free:
            [episode] = await rollout([EpisodeSpec(name, task, derive_seed(seed, name))], context)
        return Play(episode, requests)

    tasks = {fault.task.id: fault for fault in planted}
    sound = await asyncio.gather(*(play(f"{name}.sound", one.task, one.sound) for name, one in tasks.items()))
    of_task = dict(zip(tasks, sound, strict=True))
    faulty = await asyncio.gather(
        *(play(f"{one.task.id}.faulty-{number}", one.task, one.faulty) for number, one in enumerate(planted))
    )
    return [FaultPair(one, of_task[one.task.id], play) for one, play in zip(planted, faulty, strict=True)]


def _why_left_out(pair: FaultPair) -> str:
    """Empty where the faults were played and did harm."""
    if pair.sound.episode.infra_error or pair.faulty.episode.infra_error:
        return "were broken off by infrastructure"
    if not pair.planted.culprits <= set(pair.faulty.actions):
        return "are in turns that the run's agents do not take"
    worse = _is_worse(pair.faulty.episode.outcome, pair.sound.episode.outcome)
    return "" if worse or any(_paid_less(pair, place) for place in pair.planted.culprits) else "did no harm"


def _is_worse(faulty: Outcome, sound: Outcome) -> bool:
    if not sound.success or not faulty.success:
        return sound.success and not faulty.success
    changes = {name: faulty.metrics[name] - sound.metrics[name] for name in _WORSE if name in sound.metrics}
    return any(change * _WORSE[name] >= _WORSE[name] ** 2 for name, change in changes.items())


def _paid_less(pair: FaultPair, place: Place) -> bool:
    """Whether the environment gives the culprit less than the sound agent got for its last action."""
    faulty, sound = pair.faulty.actions[place].reward, sound_action(pair.sound, place)
    return faulty is not None and sound is not None and sound.reward is not None and faulty.local < sound.reward.local


def sound_action(play: Play, place: Place) -> Action | None:
    """What stands in the sound play for an action: the same turn of the same agent, or the last one that it took."""
    role, turn = place
    own = [action for (name, number), action in play.actions.items() if name == role and number <= turn]
    return own[-1] if own else None
