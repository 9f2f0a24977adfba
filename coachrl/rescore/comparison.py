"""Two sets of scores of the same actions, side by side: a run's own and those of a rescore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from coachrl.audit.data.sample import Sample
from coachrl.rescore.rescoring import ScoredAction
from coachrl.stats import SCORE_CHANGE, SHARE, Estimate
from coachrl.types import CoachScore, Usage

NEAR_POINTS = 1.0


@dataclass(frozen=True)
class ScoreCounts:
    """What a set of scores came to. unscored: actions that were not asked about. cost_usd: None where the price of any
    call is not known."""

    scored: int
    abstained: int
    failed: int
    unscored: int
    tokens: int
    cost_usd: float | None

    @property
    def failed_fraction(self) -> float:
        asked = self.scored + self.abstained + self.failed
        return self.failed / asked if asked else 0.0


@dataclass(frozen=True)
class MeanDifference:
    """Mean scores of one group of actions, before and after, and the mean of after - before."""

    before: float
    after: float
    shift: Estimate


@dataclass(frozen=True)
class Comparison:
    """Over the actions that both sets scored; None and empty where there is none. Intervals are 95 %, tasks resampled.

    pearson, spearman: None where one side is constant. near: share of actions within `NEAR_POINTS` of each other.
    """

    before: ScoreCounts
    after: ScoreCounts
    pearson: Estimate | None
    spearman: Estimate | None
    near: Estimate | None
    overall: MeanDifference | None
    by_role: Mapping[str, MeanDifference]
    by_category: Mapping[str, MeanDifference]

    def record(self) -> dict[str, Any]:
        """Plain data, for --json."""
        record = asdict(self)
        for key, counts in (("before", self.before), ("after", self.after)):
            record[key]["failed_fraction"] = counts.failed_fraction
        return record


def compare(actions: Sequence[ScoredAction], scores: Mapping[str, CoachScore], seed: int = 0) -> Comparison:
    """`actions` with the run's own scores against `scores`, by action id."""
    counts = (
        _counts([action.score for action in actions]),
        _counts([scores.get(action.action_id) for action in actions]),
    )
    both = [
        (action, before, after)
        for action in actions
        if (before := _points(action.score)) is not None
        and (after := _points(scores.get(action.action_id))) is not None
    ]
    if not both:
        return Comparison(*counts, None, None, None, None, {}, {})
    before_N, after_N = np.array([before for _, before, _ in both]), np.array([after for *_, after in both])
    sample = Sample.of_tasks([action.task_id for action, *_ in both], seed=seed)

    def differences(groups: Sequence[str]) -> dict[str, MeanDifference]:
        """By group, in the order of first use."""
        places = {group: place for place, group in enumerate(dict.fromkeys(groups))}  # NumPy cuts a name at a NUL
        codes_N = np.array([places[group] for group in groups])
        shifts = sample.assign(group=codes_N).means(("group",), after_N - before_N, limits=SCORE_CHANGE).values()
        before_G, after_G = (np.bincount(codes_N, side_N) / np.bincount(codes_N) for side_N in (before_N, after_N))
        return dict(zip(places, map(MeanDifference, before_G.tolist(), after_G.tolist(), shifts), strict=True))

    return Comparison(
        *counts,
        pearson=sample.correlation(before_N, after_N),
        spearman=sample.correlation(stats.rankdata(before_N), stats.rankdata(after_N)),
        near=sample.mean((np.abs(after_N - before_N) <= NEAR_POINTS).astype(np.float64), limits=SHARE),
        overall=differences(["all"] * len(both))["all"],
        by_role=differences([action.role for action, *_ in both]),
        by_category=differences([action.task_category for action, *_ in both]),
    )


def _points(score: CoachScore | None) -> float | None:
    """None for a call that failed, and for an abstention."""
    return score.process_0_10 if score is not None and score.status == "scored" else None


def _counts(scores: Sequence[CoachScore | None]) -> ScoreCounts:
    known = [score for score in scores if score is not None]
    usage = sum((score.usage for score in known), Usage())
    statuses = [score.status for score in known]
    return ScoreCounts(
        scored=statuses.count("scored"),
        abstained=statuses.count("abstained"),
        failed=statuses.count("failed"),
        unscored=len(scores) - len(known),
        tokens=usage.tokens_in + usage.tokens_out,
        cost_usd=usage.cost_usd,
    )
