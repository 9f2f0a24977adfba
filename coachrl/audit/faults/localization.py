"""Does the coach give the lowest score to the action whose fault it was? Teams with planted faults, whose culprits are
known because they were planted (`planted`), scored beside the same teams without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coachrl.audit.data.sample import Sample
from coachrl.audit.faults.planted import Place
from coachrl.audit.faults.play import FaultPair, Play, PlayedFaults, sound_action
from coachrl.audit.probes.probes import ask
from coachrl.coach.pool import CoachPool
from coachrl.stats import RESAMPLES, SCORE_CHANGE, SHARE, Estimate, Limits
from coachrl.types import Action, CoachScore, ran


@dataclass(frozen=True)
class FaultCase:
    """How one planted fault was scored. Actions are called "modeler, turn 2". scores: action -> its score with the
    fault; sound: that of the action which stands for it in the sound play. None: no score. crashed: the actions whose
    code failed with the fault alone."""

    task: str
    culprits: Sequence[str]
    fault: str
    scores: Mapping[str, float | None]
    sound: Mapping[str, float | None]
    crashed: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """'modeler: labels sorted'; of several culprits the fault alone."""
        roles = sorted({name.partition(",")[0] for name in self.culprits})
        return f"{roles[0]}: {self.fault}" if len(roles) == 1 else self.fault

    @property
    def losses(self) -> dict[str, float]:
        """Points lost against the sound play."""
        return {place: (self.sound[place] or 0.0) - (score or 0.0) for place, score in self.scores.items()}


@dataclass(frozen=True)
class FaultLocalization:
    """What the coach did with planted faults. accuracy: share of the cases in which a culprit has the lowest score of
    the episode, ties shared out; against_sound: in which one loses most against the sound play of the same task.
    ordered: of the pairs of a culprit and an innocent action, the share in which the culprit loses more, ties half.
    blind: the accuracy of blaming without reading (`BLIND`). innocent_loss, culprit_loss: points lost against the sound
    play. by_fault: `against_sound` of each fault. notes: what could not be measured."""

    cases: Sequence[FaultCase]
    accuracy: Estimate | None
    innocent_loss: Estimate | None
    culprit_loss: Estimate | None
    by_fault: Mapping[str, Estimate]
    notes: Sequence[str]
    against_sound: Estimate | None = None
    ordered: Estimate | None = None
    blind: Mapping[str, Estimate] = field(default_factory=dict)


async def localize_faults(
    pool: CoachPool, played: PlayedFaults, resamples: int = RESAMPLES, seed: int = 0
) -> FaultLocalization:
    """Let the coach score every action of what was played. Raises CoachUnavailable where it cannot be asked."""
    scores = await ask(pool, played.requests)
    return summarize_cases([_case(pair, scores) for pair in played.pairs], resamples, seed, played.left_out)


def summarize_cases(
    cases: Sequence[FaultCase], resamples: int = RESAMPLES, seed: int = 0, notes: Sequence[str] = ()
) -> FaultLocalization:
    """The figures from the cases. A case without a score for every action says nothing, and is counted in a note."""
    whole = [case for case in cases if None not in (*case.scores.values(), *case.sound.values()) and case.scores]
    if len(whole) < len(cases):
        notes = [*notes, f"{len(cases) - len(whole)} of {len(cases)} planted faults have an action without a score"]
    if not whole:
        return FaultLocalization(cases, None, None, None, {}, notes or ["no fault was played"])
    sample = Sample.of_tasks([case.task for case in whole], resamples, seed)

    def mean(figure: Callable[[FaultCase], float], limits: Limits = SHARE) -> Estimate:
        return sample.mean(np.array([figure(case) for case in whole]), of="cases", limits=limits)

    lost_most_N = np.array([_lost_most(case) for case in whole])
    kinds = sample.assign(fault=[case.kind for case in whole])
    by_fault = kinds.means(("fault",), lost_most_N, of="cases", limits=SHARE)
    return FaultLocalization(
        cases=cases,
        accuracy=mean(_scored_lowest),
        innocent_loss=mean(lambda case: _loss(case, of_culprits=False), SCORE_CHANGE),
        culprit_loss=mean(lambda case: _loss(case, of_culprits=True), SCORE_CHANGE),
        by_fault={fault: share for (fault,), share in by_fault.items()},
        notes=notes,
        against_sound=mean(_lost_most),
        ordered=mean(_ordered),
        blind={name: mean(blames) for name, blames in BLIND.items()},
    )


def _scored_lowest(case: FaultCase) -> float:
    return _share_of_culprits(case, {place: -(score or 0.0) for place, score in case.scores.items()})


def _lost_most(case: FaultCase) -> float:
    """An agent that is scored lower than others whatever it does is not blamed for that."""
    return _share_of_culprits(case, case.losses)


def _share_of_culprits(case: FaultCase, blame: Mapping[str, float]) -> float:
    """The share of culprits among the actions with the most blame."""
    most = [place for place, amount in blame.items() if amount >= max(blame.values()) - 1e-9]
    return float(np.mean([place in case.culprits for place in most]))


def _ordered(case: FaultCase) -> float:
    innocent = [loss for place, loss in case.losses.items() if place not in case.culprits]
    pairs = [(case.losses[place], other) for place in case.culprits for other in innocent]
    return float(np.mean([0.5 if abs(mine - other) < 1e-9 else mine > other for mine, other in pairs] or [0.5]))


def _loss(case: FaultCase, of_culprits: bool) -> float:
    return float(np.mean([loss for place, loss in case.losses.items() if (place in case.culprits) == of_culprits]))


def _blames_all(case: FaultCase) -> float:
    return len(case.culprits) / len(case.scores)


def _blames_who_crashed(case: FaultCase) -> float:
    """The first whose code failed; all alike where none did."""
    crashed = [place for place in case.scores if place in case.crashed]
    return float(crashed[0] in case.culprits) if crashed else _blames_all(case)


BLIND: Mapping[str, Callable[[FaultCase], float]] = {
    "the same score for all": _blames_all,
    "always the first action": lambda case: float(next(iter(case.scores)) in case.culprits),
    "always the last action": lambda case: float(list(case.scores)[-1] in case.culprits),
    "the first whose code fails": _blames_who_crashed,
}
"""What a coach must beat: blame that reads nothing."""


def _case(pair: FaultPair, scores: Mapping[str, CoachScore]) -> FaultCase:
    def score(action: Action | None) -> float | None:
        found = scores.get(action.id) if action is not None else None
        return found.process_0_10 if found is not None else None

    actions = pair.faulty.actions
    crashed = _crashed(pair.faulty) - _crashed(pair.sound)
    return FaultCase(
        task=pair.planted.task.id,
        culprits=sorted(map(_called, pair.planted.culprits)),
        fault=pair.planted.fault,
        scores={_called(place): score(action) for place, action in actions.items()},
        sound={_called(place): score(sound_action(pair.sound, place)) for place in actions},
        crashed=[_called(place) for place in actions if place in crashed],
    )


def _called(place: Place) -> str:
    role, turn = place
    return f"{role}, turn {turn + 1}"


def _crashed(play: Play) -> frozenset[Place]:
    return frozenset(
        place for place, action in play.actions.items() if action.execution is not None and not ran(action.execution)
    )
