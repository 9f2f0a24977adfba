"""Two sets of scores of the same actions, side by side: a run's own and those of a rescore."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coachrl.rescore.rescoring import ScoredAction
from coachrl.stats import SCORE_CHANGE, SHARE, Estimate, Resampler, correlation, equal_clusters, estimate, ratio
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
    pairs = _Pairs([action for action in actions if _both_scored(action, scores)], scores, seed)
    before_N, after_N = pairs.before_N, pairs.after_N
    enough = len(pairs.actions) > 0
    return Comparison(
        before=_counts([action.score for action in actions]),
        after=_counts([scores.get(action.action_id) for action in actions]),
        pearson=pairs.correlation(before_N, after_N) if enough else None,
        spearman=pairs.correlation(stats.rankdata(before_N), stats.rankdata(after_N)) if enough else None,
        near=pairs.near() if enough else None,
        overall=pairs.shifts(lambda action: "all").get("all"),
        by_role=pairs.shifts(lambda action: action.role),
        by_category=pairs.shifts(lambda action: action.task_category),
    )


class _Pairs:
    """The actions that both sides scored, N of them, and one set of resamples of their tasks."""

    def __init__(self, actions: Sequence[ScoredAction], scores: Mapping[str, CoachScore], seed: int) -> None:
        self.actions = actions
        self.before_N = np.array([_number(action.score) for action in actions])
        self.after_N = np.array([_number(scores[action.action_id]) for action in actions])
        self._tasks, self._task_N = _codes([action.task_id for action in actions])
        self._resampler = Resampler(len(self._tasks), seed=seed)

    def shifts(self, group: Callable[[ScoredAction], str]) -> dict[str, MeanDifference]:
        names, cell_N = _codes([group(action) for action in self.actions])
        if not names:
            return {}
        sums = self._resampler.sums(self._task_N, cell_N, (self.before_N, self.after_N), len(names))
        found = {}
        for cell, name in enumerate(names):
            n, before, after = sums.point_KV[cell]
            boot_R = ratio(sums.boot_RKV[:, cell, 2] - sums.boot_RKV[:, cell, 1], sums.boot_RKV[:, cell, 0])
            rows_T = np.bincount(self._task_N[cell_N == cell])
            tasks, equal = np.count_nonzero(rows_T), equal_clusters(rows_T)
            shift = estimate((after - before) / n, boot_R, int(n), int(tasks), limits=SCORE_CHANGE, clusters=equal)
            found[name] = MeanDifference(before / n, after / n, shift)
        return found

    def near(self) -> Estimate:
        within_N = (np.abs(self.after_N - self.before_N) <= NEAR_POINTS).astype(np.float64)
        together_N = np.zeros(len(self.actions), dtype=np.int64)
        sums = self._resampler.sums(self._task_N, together_N, (within_N,), 1).boot_RKV[:, 0]
        share_R, equal = ratio(sums[:, 1], sums[:, 0]), equal_clusters(np.bincount(self._task_N))
        n, tasks = len(within_N), len(self._tasks)
        return estimate(float(within_N.mean()), share_R, n, tasks, limits=SHARE, clusters=equal)

    def correlation(self, x_N: NDArray[np.float64], y_N: NDArray[np.float64]) -> Estimate | None:
        """Pearson's; of ranks it is Spearman's. None where one side is constant."""
        return correlation(x_N, y_N, self._task_N, self._resampler)


def _both_scored(action: ScoredAction, scores: Mapping[str, CoachScore]) -> bool:
    again = scores.get(action.action_id)
    return all(score is not None and score.status == "scored" for score in (action.score, again))


def _number(score: CoachScore | None) -> float:
    return float("nan") if score is None or score.process_0_10 is None else score.process_0_10


def _codes(values: Sequence[Hashable]) -> tuple[list[Any], NDArray[np.int64]]:
    """The distinct values in order of first use, and the place of each value among them."""
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return list(places), np.array([places[value] for value in values], dtype=np.int64)


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
