"""Does the coach give the lowest score to the agent whose fault it was? Teams with one planted fault, whose culprit is
known because it was planted.

The episodes are real: programs are played through the DSBench pipeline on made-up tables, in the sandbox. Each fault is
played beside the same team without it, so that what an innocent agent loses is its score there minus its score here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.planted_faults import PlantedFault, fault_names, write_planted_faults
from coachrl.audit.probes.probes import ask
from coachrl.coach.base import CoachRequest, make_request
from coachrl.coach.pool import CoachPool
from coachrl.config import PipelineConfig, RoleConfig
from coachrl.pipelines.dsbench import ROLES, DSBench
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import derive_seed
from coachrl.stats import RESAMPLES, SCORE_CHANGE, SHARE, Estimate
from coachrl.testing.scripted import Call, ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import CoachScore, Episode, Task


@dataclass(frozen=True)
class FaultCase:
    """How one planted fault was scored. scores: role -> its score with the fault; sound: without. None: no score.
    crashed: the roles whose code failed with the fault, and not without it."""

    table: str
    culprit: str
    fault: str
    scores: Mapping[str, float | None]
    sound: Mapping[str, float | None]
    crashed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FaultLocalization:
    """What the coach did with planted faults. accuracy: share of the cases in which the culprit has the lowest score of
    the team, ties shared out; against_sound: in which it loses most against the sound play of the same task. blind: the
    accuracy of blaming without reading (`BLIND`). innocent_loss, culprit_loss: points lost against the same team
    without the fault.
    by_fault: accuracy of each fault. notes: what could not be measured."""

    cases: Sequence[FaultCase]
    accuracy: Estimate | None
    innocent_loss: Estimate | None
    culprit_loss: Estimate | None
    by_fault: Mapping[str, Estimate]
    notes: Sequence[str]
    against_sound: Estimate | None = None
    blind: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pair:
    """The same team on the same table, played without the planted fault and with it."""

    planted: PlantedFault
    sound: Episode
    faulty: Episode


def calls_needed(tables: int) -> int:
    """Coach calls of `localize_faults`, one for each action."""
    return tables * len(fault_names()) * 2 * len(ROLES)


async def localize_faults(
    pool: CoachPool, sandbox: Sandbox, tables: int = 4, resamples: int = RESAMPLES, seed: int = 0
) -> FaultLocalization:
    """Play every fault on `tables` tables, with and without it, and let the coach score every action.

    Raises ConfigError where fewer tables are shipped, SandboxError where programs cannot be run, CoachUnavailable where
    the coach cannot be asked."""
    one_turn = {role.name: RoleConfig(max_turns=1) for role in ROLES}
    pipeline = DSBench(PipelineConfig(name="dsbench", prompt_style="short", roles=one_turn))
    with tempfile.TemporaryDirectory(prefix="coachrl-faults-") as folder:
        pairs = []
        for number, planted in enumerate(write_planted_faults(Path(folder), tables)):
            sound = await _play(f"{number}.sound", planted.task, planted.sound, pipeline, sandbox, seed)
            faulty = await _play(f"{number}.faulty", planted.task, planted.faulty, pipeline, sandbox, seed)
            pairs.append(_Pair(planted, sound, faulty))
        requests = [
            request
            for pair in pairs
            for episode in (pair.sound, pair.faulty)
            if episode.infra_error is None
            for request in _requests(episode, pair.planted.task, pipeline)
        ]
        scores = await ask(pool, requests)
    return summarize_cases([_case(pair, scores) for pair in pairs], resamples, seed)


def summarize_cases(cases: Sequence[FaultCase], resamples: int = RESAMPLES, seed: int = 0) -> FaultLocalization:
    """The figures from the cases. A case without a score for every agent says nothing, and is counted in a note."""
    whole = [case for case in cases if None not in (*case.scores.values(), *case.sound.values()) and case.scores]
    notes = [f"{len(cases) - len(whole)} of {len(cases)} planted faults have an action without a score"]
    notes = notes if len(whole) < len(cases) else []
    if not whole:
        return FaultLocalization(cases, None, None, None, {}, notes or ["no fault was played"])
    frame = pd.DataFrame({"task": [case.table for case in whole], "score": 0.0, "outcome": np.nan, "step": 0})
    frame["fault"] = [f"{case.culprit}: {case.fault}" for case in whole]
    frame["task"] = frame["task"].astype("category")
    sample = Sample.of(frame, resamples, seed)
    right_N = np.array([_found(case) for case in whole])
    by_fault = sample.means(("fault",), right_N, of="cases", limits=SHARE)
    return FaultLocalization(
        cases=cases,
        accuracy=sample.means((), right_N, of="cases", limits=SHARE)[0],
        innocent_loss=sample.mean(
            np.array([_loss(case, culprit=False) for case in whole]), of="cases", limits=SCORE_CHANGE
        ),
        culprit_loss=sample.mean(
            np.array([_loss(case, culprit=True) for case in whole]), of="cases", limits=SCORE_CHANGE
        ),
        by_fault=dict(zip(sorted(frame["fault"].unique()), by_fault, strict=True)),
        notes=notes,
        against_sound=sample.means((), np.array([_lost_most(case) for case in whole]), of="cases", limits=SHARE)[0],
        blind={
            name: sample.means((), np.array([blames(case) for case in whole]), of="cases", limits=SHARE)[0]
            for name, blames in BLIND.items()
        },
    )


def _found(case: FaultCase) -> float:
    """1 where the culprit alone has the lowest score, 1 / k where k agents share it, else 0."""
    scores = {role: score for role, score in case.scores.items() if score is not None}
    lowest = [role for role, score in scores.items() if score <= min(scores.values()) + 1e-9]
    return 1 / len(lowest) if case.culprit in lowest else 0.0


def _lost_most(case: FaultCase) -> float:
    """1 where the culprit alone loses most against the sound play, 1 / k where k agents do, else 0. An agent that is
    scored lower than others whatever it does is not blamed for that."""
    losses = {role: (case.sound[role] or 0.0) - (score or 0.0) for role, score in case.scores.items()}
    most = [role for role, loss in losses.items() if loss >= max(losses.values()) - 1e-9]
    return 1 / len(most) if case.culprit in most else 0.0


def _blames_all(case: FaultCase) -> float:
    return 1 / len(case.scores)


def _blames_the_first(case: FaultCase) -> float:
    return float(next(iter(case.scores)) == case.culprit)


def _blames_who_crashed(case: FaultCase) -> float:
    """The first whose code failed; all alike where none did."""
    crashed = [role for role in case.scores if role in case.crashed]
    return float(crashed[0] == case.culprit) if crashed else _blames_all(case)


BLIND: Mapping[str, Callable[[FaultCase], float]] = {
    "the same score for all": _blames_all,
    "always the first agent": _blames_the_first,
    "the first whose code fails": _blames_who_crashed,
}
"""What a coach must beat: blame that reads nothing."""


def _loss(case: FaultCase, culprit: bool) -> float:
    concerned = [role for role in case.scores if (role == case.culprit) == culprit]
    return float(np.mean([(case.sound[role] or 0.0) - (case.scores[role] or 0.0) for role in concerned]))


async def _play(
    name: str, task: Task, programs: Mapping[str, str], pipeline: DSBench, sandbox: Sandbox, seed: int
) -> Episode:
    def reply(call: Call) -> str:
        return f"```python\n{programs[call.policy]}\n```"

    context = RolloutContext(pipeline=pipeline, backend=ScriptedPolicy(reply), sandbox=sandbox)
    [episode] = await rollout([EpisodeSpec(name, task, derive_seed(seed, name))], context)
    return episode


def _requests(episode: Episode, task: Task, pipeline: DSBench) -> list[CoachRequest]:
    """As in training: the last agent's action comes with the measured outcome (MAPPA, Sec. 2.2)."""
    roles, last = {role.name: role for role in pipeline.roles}, pipeline.roles[-1].name
    return [
        make_request(
            task,
            pipeline.roles,
            roles[action.role],
            action,
            episode.actions[:place],
            episode.outcome if action.role == last else None,
        )
        for place, action in enumerate(episode.actions)
    ]


def _case(pair: _Pair, scores: Mapping[str, CoachScore]) -> FaultCase:
    return FaultCase(
        table=pair.planted.task.id,
        culprit=pair.planted.culprit,
        fault=pair.planted.fault,
        scores=_by_role(pair.faulty, scores),
        sound=_by_role(pair.sound, scores),
        crashed=_crashed(pair.faulty) - _crashed(pair.sound),
    )


def _crashed(episode: Episode) -> frozenset[str]:
    return frozenset(
        action.role for action in episode.actions if action.execution is not None and action.execution.state != "ok"
    )


def _by_role(episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, float | None]:
    found = {action.role: scores.get(action.id) for action in episode.actions}
    return {role: score.process_0_10 if score is not None else None for role, score in found.items()}
