"""Who gets more: score by stratum, and differences between strata, raw and at equal role and outcome.

MAPPA's coach scored regression tasks 0.5 to 1.8 points higher than classification (its Table 3): such a gap is no
agent's merit, yet it is trained on. `contrasts(sample, "category", within=("role", "bin"))` is that table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coachrl.audit.data.sample import Floats, Ints, Sample
from coachrl.audit.stats.within import taken_out
from coachrl.stats import CORRELATION, SCORE, SCORE_CHANGE, Estimate, equal_clusters, estimate, holm, interval, ratio
from coachrl.text import plural

DIMENSIONS = ("role", "category", "topic", "turn", "result", "period", "policy", "coach", "prompt")
SMALLEST_STRATUM_TASKS = 2
MOST_LEVELS = 12
_MOST_BINS = 8
_EXTREME_TASKS = 3


@dataclass(frozen=True)
class StratumMean:
    """Mean score of one stratum."""

    dimension: str
    name: str
    mean: Estimate


@dataclass(frozen=True)
class Contrast:
    """How much higher `level` is scored than `versus`, in points of the 0-10 scale.

    within: the values of the columns that the comparison stays inside of. raw: difference of means. adjusted: the
    difference inside cells of equal role and outcome, cells weighted by n_a * n_b / (n_a + n_b) as in a regression with
    a term for each cell; None where no cell holds both. effect: `adjusted` in standard deviations of the score.
    p_holm: of `adjusted`, over the family of contrasts that answer one question.
    """

    dimension: str
    level: str
    versus: str
    within: tuple[str, ...]
    raw: Estimate
    adjusted: Estimate | None
    effect: Estimate | None
    p_holm: float | None = None


@dataclass(frozen=True)
class TaskSpread:
    """Share of the variance of scores, at equal role, that lies between tasks, and the tasks at both ends."""

    share: Estimate
    lowest: Sequence[StratumMean]
    highest: Sequence[StratumMean]


def stratum_means(sample: Sample, dimension: str) -> list[StratumMean]:
    """Mean score of each level that occurs."""
    means = sample.means((dimension,), sample.scores, limits=SCORE)
    return [StratumMean(dimension, name, mean) for (name,), mean in means.items()]


def contrasts(
    sample: Sample, dimension: str, within: Sequence[str] = (), adjust: Sequence[str] = ("role", "result")
) -> list[Contrast]:
    """Each level against the others together, in each combination of `within`; two levels give one contrast, the later
    minus the earlier in order of names. Nothing where only one level, or more than twelve, occur."""
    names = sample.levels(dimension)
    if not 2 <= len(names) <= MOST_LEVELS:
        return []
    level_N, _ = sample.codes((dimension,))
    part_N, parts = sample.codes(within)
    stratum_N, strata = sample.codes([column for column in adjust if column != dimension and column not in within])
    cells_N = (part_N * len(names) + level_N) * strata + stratum_N
    shape = (parts, len(names), strata)
    sums_RPLSV = sample.sums(cells_N, int(np.prod(shape)), sample.scores).reshape(-1, *shape, 2)
    spread = _spread_within(sample.scores, level_N)
    made = []
    for number, where in enumerate(sample.labels(within)):
        inside_N = part_N == number
        counts_LST = _counts(level_N * strata + stratum_N, (len(names), strata), sample, inside_N)
        part = _Part(dimension, names, where, sums_RPLSV[:, number], counts_LST)
        levels = range(len(names)) if len(names) > 2 else (1,)
        counts_L = counts_LST.sum(axis=(1, 2))
        made += [_contrast(part, level, spread) for level in levels if 0 < counts_L[level] < counts_L.sum()]
    return made


def category_contrasts(sample: Sample) -> list[Contrast]:
    """Between task categories: over all roles, then inside each where there are several."""
    roles = len(sample.levels("role"))
    return contrasts(sample, "category") + (contrasts(sample, "category", within=("role",)) if roles > 1 else [])


def with_holm(family: Sequence[Contrast]) -> list[Contrast]:
    """The contrasts of one question, with their adjusted p-values. Where it is asked over all and inside of parts, half
    of the error rate goes to each: many parts do not hide a difference that is everywhere."""
    p_values = [contrast.adjusted.p if contrast.adjusted is not None else None for contrast in family]
    counts = Counter(bool(contrast.within) for contrast, p in zip(family, p_values, strict=True) if p is not None)
    weights = [1 / max(1, counts[bool(contrast.within)]) for contrast in family]
    return [replace(c, p_holm=p) for c, p in zip(family, holm(p_values, weights), strict=True)]


def table3(sample: Sample) -> list[Contrast]:
    """The category gap by role and time (MAPPA, Table 3); time is cut into at most eight parts with equally many
    steps."""
    return contrasts(sample, "category", within=("role", "bin")) if "bin" in sample.frame else []


def with_bins(sample: Sample) -> Sample:
    """The sample with a column `bin`: the first training step of each row's part of the run."""
    steps = np.unique(sample.frame["step"].to_numpy())
    firsts = np.array([part[0] for part in np.array_split(steps, min(_MOST_BINS, len(steps)))])
    return sample.assign(bin=firsts[np.searchsorted(firsts, sample.frame["step"].to_numpy(), side="right") - 1])


def task_spread(sample: Sample) -> TaskSpread | None:
    """sample: as it was read, so that all of its tasks occur. None where there is one task, or one action for each."""
    role_N, _ = sample.codes(("role",))
    centred_N = taken_out(sample.scores, role_N)
    T, N = sample.resampler.tasks, len(centred_N)
    counts_T = np.asarray(np.bincount(sample.task_codes_N, minlength=T), np.float64)
    sums_T = np.asarray(np.bincount(sample.task_codes_N, centred_N, T), np.float64)
    if T < 2 or N <= T or np.allclose(centred_N, 0):
        return None
    squares_T = np.asarray(np.bincount(sample.task_codes_N, centred_N**2, T), np.float64)
    columns = (counts_T, counts_T**2, sums_T, squares_T, sums_T**2 / np.maximum(counts_T, 1))
    share_R = _intraclass(sample.resampler.sums(np.arange(T), np.zeros(T, np.int64), columns, 1)[:, 0])
    equal = equal_clusters(counts_T)
    share = estimate(float(share_R[0]), share_R[1:], N, T, limits=CORRELATION, clusters=equal)
    at_least_0 = share.mapped(lambda value: max(0.0, value))  # an estimate may be below, which no variance can
    ends = _extremes(sample, sums_T, counts_T)
    return TaskSpread(at_least_0, ends[:_EXTREME_TASKS], ends[-_EXTREME_TASKS:])


def small_strata(sample: Sample, dimension: str) -> list[str]:
    """A sentence for each level with too few tasks for an interval."""
    return [
        f"{dimension} '{level.name}' has one task only (n = {level.mean.n} actions): its mean has no interval, and no "
        "difference from it can be tested"
        for level in stratum_means(sample, dimension)
        if level.mean.tasks < SMALLEST_STRATUM_TASKS
    ]


@dataclass(frozen=True)
class _Part:
    """The rows inside of which levels are compared: sums by level and stratum, of the data and then of each resample,
    and how many rows each task has there."""

    dimension: str
    names: Sequence[str]
    where: tuple[str, ...]
    sums_RLSV: Floats
    counts_LST: Floats


def _contrast(part: _Part, level: int, spread: float) -> Contrast:
    others = [other for other in range(len(part.names)) if other != level]
    versus = part.names[others[0]] if len(others) == 1 else f"other {plural(part.dimension)}"
    a_RSV, b_RSV = part.sums_RLSV[:, level], part.sums_RLSV[:, others].sum(axis=1)
    sides_2ST = np.stack([part.counts_LST[level], part.counts_LST[others].sum(axis=0)])
    counts_2S = sides_2ST.sum(axis=2)
    shared_S = (counts_2S > 0).all(axis=0)
    # In `at_equal_cells` a row of one side weighs as much as the other side's share of its cell.
    shares_2S = counts_2S[::-1] / np.maximum(counts_2S.sum(axis=0), 1)

    def estimated(values_R: Floats, weights_2S: Floats, cells_S: NDArray[np.bool_]) -> Estimate:
        compared_2ST = sides_2ST[:, cells_S]
        tasks = int(compared_2ST.any(axis=(0, 1)).sum())
        carrying = min(equal_clusters(weights_2S[side, cells_S] @ compared_2ST[side]) for side in (0, 1))
        return estimate(
            float(values_R[0]), values_R[1:], int(compared_2ST.sum()), tasks, limits=SCORE_CHANGE, clusters=carrying
        )

    raw = estimated(_raw(a_RSV, b_RSV), np.ones_like(counts_2S), np.ones_like(shared_S))
    adjusted = estimated(at_equal_cells(a_RSV, b_RSV), shares_2S, shared_S) if shared_S.any() else None
    effect = adjusted.mapped(lambda points: points / spread) if adjusted is not None and spread > 0 else None
    return Contrast(part.dimension, part.names[level], versus, part.where, raw, adjusted, effect)


def _counts(cells_N: Ints, shape: tuple[int, int], sample: Sample, inside_N: NDArray[np.bool_]) -> Floats:
    """How many of the rows inside each task has in each cell of a table of that shape."""
    T = sample.resampler.tasks
    pairs_N = (cells_N * T + sample.task_codes_N)[inside_N]
    return np.bincount(pairs_N, minlength=int(np.prod(shape)) * T).reshape(*shape, T).astype(np.float64)


def _raw(a_RSV: Floats, b_RSV: Floats) -> Floats:
    a_RV, b_RV = a_RSV.sum(axis=1), b_RSV.sum(axis=1)
    return ratio(a_RV[:, 1], a_RV[:, 0]) - ratio(b_RV[:, 1], b_RV[:, 0])


def at_equal_cells(a_RSV: Floats, b_RSV: Floats) -> Floats:
    """Mean of a minus mean of b inside of cells, from counts and sums of both: cells weigh as in a regression with a
    term for each."""
    n_a, n_b = a_RSV[..., 0], b_RSV[..., 0]
    weights_RS = np.nan_to_num(ratio(n_a * n_b, n_a + n_b))
    gaps_RS = np.nan_to_num(ratio(a_RSV[..., 1], n_a) - ratio(b_RSV[..., 1], n_b))
    return ratio((weights_RS * gaps_RS).sum(axis=1), weights_RS.sum(axis=1))


def _spread_within(scores_N: Floats, level_N: Ints) -> float:
    """Standard deviation of scores around the mean of their level."""
    freedom = max(1, len(scores_N) - len(np.unique(level_N)))
    return float(np.sqrt((taken_out(scores_N, level_N) ** 2).sum() / freedom))


def _intraclass(sums_RV: Floats) -> Floats:
    """ICC(1) from sums over tasks of 1, n, n^2, x, x^2 and (sum of x)^2 / n (Donner 1986)."""
    k, n, n2, x, x2, between = sums_RV.T
    mean_square_b = ratio(between - x**2 / np.maximum(n, 1), k - 1)
    mean_square_w = ratio(x2 - between, n - k)
    size = ratio(n - ratio(n2, n), k - 1)
    return ratio(mean_square_b - mean_square_w, mean_square_b + (size - 1) * mean_square_w)


def _extremes(sample: Sample, sums_T: Floats, counts_T: Floats) -> list[StratumMean]:
    """The tasks with the lowest and the highest mean at equal role, lowest first; intervals are over their episodes."""
    order = np.argsort(ratio(sums_T, counts_T), kind="stable")
    chosen = list(dict.fromkeys([*order[:_EXTREME_TASKS], *order[-_EXTREME_TASKS:]]))
    names = sample.frame["task"].cat.categories
    return [StratumMean("task", str(names[code]), _task_mean(sample, int(code))) for code in chosen]


def _task_mean(sample: Sample, code: int) -> Estimate:
    rows = sample.frame[sample.task_codes_N == code]
    by_episode = rows.groupby(["run", "episode"], observed=True)["score"].mean()
    mean, n = float(by_episode.mean()), len(by_episode)
    if n < 2 or by_episode.std() == 0:
        return Estimate(mean, None, None, n, 1, "episodes")
    low, high = interval(mean, float(by_episode.sem()), n - 1, SCORE)
    return Estimate(mean, low, high, n, 1, "episodes")
