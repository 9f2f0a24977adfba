"""Several coaches as one: each scores, and the score is their mean, median or trimmed mean (MAPPA, Sec. 4.4)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from coachrl.coach.base import Checkable, Coach, CoachRequest
from coachrl.coach.clients.retrying import all_or_error
from coachrl.coach.repeated_warnings import RepeatedWarnings
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.types import CoachScore, CriterionScore, Usage

log = logging.getLogger(__name__)

Combine = Literal["mean", "median", "trimmed"]


class EnsembleCoach:
    """Asks every member at once. A member that fails or abstains leaves the rest; where none scored, the ensemble
    abstains if one abstained, and fails if all failed.

    The spread of the members' scores stays on the score as `disagreement`, their words one below the other as its
    rationale; the first member that suggests a better reply is heard.
    """

    def __init__(self, members: Sequence[Coach], combine: Combine = "mean") -> None:
        """Raises ValueError without members."""
        if not members:
            raise ValueError("an ensemble needs members")
        self._warnings = RepeatedWarnings(log)
        self._members = tuple(members)
        self._combine = COMBINE[combine]
        self.name = f"{combine} of {', '.join(member.name for member in members)}"

    async def check(self) -> None:
        """Raises CoachUnavailable where one member cannot be used: a run begins with all of them."""
        await all_or_error(member.check() for member in self._members if isinstance(member, Checkable))

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where every member fails, CoachUnavailable where none can be used any more."""
        answers = await asyncio.gather(*(self._ask(member, request) for member in self._members))
        errors = [answer for answer in answers if isinstance(answer, CoachError)]
        scores = [answer for answer in answers if isinstance(answer, CoachScore)]
        if not scores:
            kind = CoachUnavailable if all(isinstance(error, CoachUnavailable) for error in errors) else CoachError
            failed = kind("every coach of the ensemble failed: " + "; ".join(map(str, errors)))
            failed.price_known = all(error.price_known for error in errors)
            raise failed
        return self._combined(request.action.id, scores, errors)

    async def close(self) -> None:
        self._warnings.sum_up()
        for member in self._members:
            await member.close()

    async def _ask(self, member: Coach, request: CoachRequest) -> CoachScore | CoachError:
        try:
            return await member.score(request)
        except CoachError as error:
            self._warnings.warn(f"action {request.action.id}", f"{member.name} leaves the ensemble's score: {error}")
            return error

    def _combined(self, action_id: str, scores: list[CoachScore], errors: Sequence[CoachError]) -> CoachScore:
        values = [score.process_0_10 for score in scores if score.process_0_10 is not None]
        outcomes = [score.outcome_0_1 for score in scores if score.outcome_0_1 is not None]
        usage = sum((score.usage for score in scores), Usage())
        return CoachScore(
            action_id=action_id,
            status="scored" if values else "abstained",
            process_0_10=self._combine(values) if values else None,
            outcome_0_1=statistics.fmean(outcomes) if outcomes else None,
            rationale="\n\n".join([*map(_said, scores), *(f"no score: {error}" for error in errors)]),
            model=self.name,
            prompt_hash=hash_of([score.prompt_hash for score in scores]),
            usage=replace(usage, latency_s=max(score.usage.latency_s for score in scores)),  # they answer side by side
            fallbacks=max(score.fallbacks for score in scores),
            disagreement=statistics.pstdev(values) if len(values) > 1 else None,
            suggestion=next((score.suggestion for score in scores if score.suggestion), ""),
            criteria=self._combined_criteria([score for score in scores if score.process_0_10 is not None]),
        )

    def _combined_criteria(self, scores: Sequence[CoachScore]) -> tuple[CriterionScore, ...]:
        """Each criterion's scores as one, where all members that scored judge by the same criteria."""
        asked = {tuple((one.name, one.weight) for one in score.criteria) for score in scores}
        if len(asked) != 1:
            return ()
        return tuple(
            replace(
                same[0],
                score_0_10=self._combine([one.score_0_10 for one in same]),
                reason="\n".join(one.reason for one in same),
            )
            for same in zip(*(score.criteria for score in scores), strict=True)
        )


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the highest and the lowest; of fewer than three values the plain mean."""
    return statistics.fmean(sorted(values)[1:-1] if len(values) > 2 else values)


COMBINE: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "trimmed": trimmed_mean,
}


def _said(score: CoachScore) -> str:
    given = score.status if score.process_0_10 is None else f"{score.process_0_10:g}"
    return f"{score.model} {given}: {score.rationale}"


def hash_of(hashes: Sequence[str]) -> str:
    """The members' own where they share one prompt, else a hash of all."""
    distinct = sorted(set(hashes))
    return distinct[0] if len(distinct) == 1 else hashlib.sha256(" ".join(distinct).encode()).hexdigest()
