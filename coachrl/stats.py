"""The one place for statistics: a value, its 95 % interval, and what it was measured on.

Actions and episodes of one task are alike, so whole tasks are resampled (a cluster bootstrap). The interval is
Student's t around the standard error of the resamples, since percentiles of few clusters are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special, stats

from coachrl.text import counted

COVERAGE = 0.95
RESAMPLES = 1000
_CHUNK_BYTES = 64 * 2**20
_KEPT_BYTES = 2**20  # of a table of draws
_NOTHING = 1e-12
_FEWEST_EQUAL = 1.5  # clusters: of fewer, Student's t has no interval that says anything

# What a figure can be at all: the least and the most.
Limits = tuple[float, float]
UNLIMITED: Limits = (-np.inf, np.inf)
POSITIVE: Limits = (0.0, np.inf)
SCORE: Limits = (0.0, 10.0)
SCORE_CHANGE: Limits = (-10.0, 10.0)
SHARE: Limits = (0.0, 1.0)
SHARE_CHANGE: Limits = (-1.0, 1.0)
CORRELATION: Limits = (-1.0, 1.0)

# (cluster, which draw of it): the key pairs a measurement before a change with the one after it.
DrawKey = tuple[str, str]
Observations = Mapping[DrawKey, float]


@dataclass(frozen=True)
class Estimate:
    """`value` of `n` actions (or episodes, or groups: `of`) of `tasks` tasks. low, high: None where the data give no
    interval: one task (of a value without limits also one that outweighs all others), or no spread in any resample (p
    may then be that of a constant). p: two-sided, that the value is its null hypothesis. clusters: as how many equal
    tasks they count (see `equal_clusters`)."""

    value: float
    low: float | None
    high: float | None
    n: int
    tasks: int
    of: str = "actions"
    p: float | None = None
    clusters: float | None = None

    def __str__(self) -> str:
        return f"{self.interval()} ({self.size})"

    @property
    def freedom(self) -> float:
        """Degrees of freedom of its error: one less than the tasks, or than the equal ones that they count as."""
        return (self.tasks if self.clusters is None else self.clusters) - 1

    @property
    def bounds(self) -> tuple[float, float]:
        """low and high; the value itself where the data give no interval."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    @property
    def is_off_zero(self) -> bool:
        """Whether the interval, or the value where there is none, lies on one side of 0."""
        low, high = self.bounds
        return low > 0 or high < 0

    def mapped(self, change: Callable[[float], float]) -> Estimate:
        """The same on another scale. p stays what it is."""
        low, high = (None if bound is None else change(bound) for bound in (self.low, self.high))
        return replace(self, value=change(self.value), low=low, high=high)

    @property
    def size(self) -> str:
        """'n = 404 actions, 14 tasks'."""
        n, tasks = (
            counted(count, noun.removesuffix("s")) for count, noun in ((self.n, self.of), (self.tasks, "tasks"))
        )
        return f"n = {n}, {tasks}"

    def interval(self, signed: bool = False) -> str:
        """'1.20 [0.80, 1.60]', with signs where asked; what rounds to zero is no negative number."""
        form = "{:+z.2f}" if signed else "{:z.2f}"
        value = form.format(self.value)
        return value if self.low is None else f"{value} [{form.format(self.low)}, {form.format(self.high)}]"


class Resampler:
    """A cluster bootstrap: tasks are drawn with replacement, each with all of its actions.

    A resample is how often each task was drawn, so any statistic that is a function of sums over cells of the data is
    resampled by one product of that R x T table with the tasks' own sums: no pass over the actions for each resample.
    All statistics share the same draws. The table takes R * T bytes.
    """

    def __init__(self, tasks: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.tasks, self.resamples = tasks, resamples
        small = tasks * resamples <= _KEPT_BYTES
        self._drawn_TR = (_kept_draws if small else _draws)(tasks, resamples, seed)

    def sums(
        self,
        task_codes_N: NDArray[np.integer],
        cells_N: NDArray[np.integer],
        values: tuple[NDArray[np.float64], ...],
        cells: int,
    ) -> NDArray[np.float64]:
        """Sums of `values` (and first of ones: the counts) in each of `cells` cells: the data's own, then those of each
        resample; [1 + resamples, cells, 1 + values]."""
        columns = len(values) + 1
        width = cells * columns
        entries = np.concatenate([np.ones(len(cells_N)), *values])
        where = np.concatenate([cells_N.astype(np.int64) * columns + column for column in range(columns)])
        rows = np.tile(task_codes_N, columns)
        by_task_WT = sparse.coo_matrix((entries, (where, rows)), shape=(width, self.tasks)).tocsr()
        sums_RW = np.empty((1 + self.resamples, width))
        sums_RW[0] = np.asarray(by_task_WT.sum(axis=1)).ravel()
        chunk = max(1, _CHUNK_BYTES // (8 * max(self.tasks, 1)))
        for first in range(0, self.resamples, chunk):
            drawn_TC = self._drawn_TR[:, first : first + chunk].astype(np.float64, order="C")
            sums_RW[1 + first : 1 + first + chunk] = (by_task_WT @ drawn_TC).T
        return sums_RW.reshape(-1, cells, columns)


def _draws(tasks: int, resamples: int, seed: int) -> NDArray[np.uint8]:
    """How often each of T tasks was drawn in each of R resamples."""
    rng = np.random.default_rng(seed)
    drawn_RT = np.empty((resamples, tasks), dtype=np.uint8)
    for row in drawn_RT:
        row[:] = np.bincount(rng.integers(0, tasks, size=tasks), minlength=tasks)
    return np.ascontiguousarray(drawn_RT.T)  # as the products above read it


_kept_draws = lru_cache(maxsize=16)(_draws)  # a report has dozens of intervals over the same tasks


def mean_of(values: Iterable[float]) -> float:
    """Of finite numbers, also where their sum is beyond what a float holds, as errors of a model that diverges may
    be."""
    values_N = np.array([float(value) for value in values])
    with np.errstate(over="ignore"):
        found = values_N.mean()
    return float(found if np.isfinite(found) else (values_N / len(values_N)).sum())


def estimate_mean(observations: Observations, limits: Limits = UNLIMITED) -> Estimate:
    """Mean of some observations, its interval over their clusters. Raises ValueError where there is no observation."""
    if not observations:
        raise ValueError("an estimate needs at least one observation")
    ordered = sorted(observations.items())  # so that the interval depends on the data alone
    clusters, codes_N = np.unique([cluster for (cluster, _), _ in ordered], return_inverse=True)
    values_N = np.array([value for _, value in ordered], dtype=np.float64)
    everywhere_N = np.zeros(len(values_N), np.int64)
    sums = Resampler(len(clusters)).sums(codes_N, everywhere_N, (values_N,), 1)
    means_R = ratio(sums[1:, 0, 1], sums[1:, 0, 0])
    mean, equal = float(values_N.mean()), equal_clusters(np.bincount(codes_N))
    if equal > 1 and np.isfinite(limits).all() and mean in limits:  # of a difference, too
        return at_limit(mean, len(values_N), len(clusters), "episodes", 0.0, limits, equal)
    return estimate(mean, means_R, len(values_N), len(clusters), of="episodes", limits=limits, clusters=equal)


def paired_difference(before: Observations, after: Observations, limits: Limits = UNLIMITED) -> Estimate | None:
    """Mean of after - before over the draws that both hold; None where they share none. limits: of either side."""
    common = {key: after[key] - before[key] for key in before if key in after}
    widest = limits[1] - limits[0]
    return estimate_mean(common, (-widest, widest)) if common else None


def correlation(
    x_N: NDArray[np.float64], y_N: NDArray[np.float64], task_codes_N: NDArray[np.integer], resampler: Resampler
) -> Estimate | None:
    """Pearson's, its interval over tasks; of ranks it is Spearman's. None where one side is constant."""
    if np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return None
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()  # sums of squares of numbers far from 0 lose their digits
    point = float(x_N @ y_N / np.sqrt((x_N @ x_N) * (y_N @ y_N)))
    everywhere_N = np.zeros(len(x_N), np.int64)
    sums = resampler.sums(task_codes_N, everywhere_N, (x_N, y_N, x_N * x_N, y_N * y_N, x_N * y_N), 1)
    n, x, y, xx, yy, xy = sums[1:, 0].T
    covariance, spread = n * xy - x * y, (n * xx - x * x) * (n * yy - y * y)
    boot_R = ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))
    equal = equal_clusters(np.bincount(task_codes_N))
    return estimate(point, boot_R, len(x_N), resampler.tasks, limits=CORRELATION, clusters=equal)


def exact_interval(successes: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share of `n` independent trials."""
    found = stats.binomtest(successes, n).proportion_ci(COVERAGE, method="exact")
    return float(found.low), float(found.high)


def estimate(
    value: float,
    boot_R: NDArray[np.float64],
    n: int,
    tasks: int,
    *,
    of: str = "actions",
    null: float = 0.0,
    limits: Limits = UNLIMITED,
    clusters: float | None = None,
) -> Estimate:
    """A value with the interval that its resamples give.

    The standard error is that of the resamples, made larger by sqrt(G / (G - 1)) for the G tasks that carry the value,
    and the interval is Student's t with G - 1 degrees of freedom: percentiles of so few clusters are too narrow. Of a
    value with limits it is taken on the scale of their logit, so that it stays inside of them (of a correlation that is
    Fisher's z). A mean at its very limit has no spread to resample: see `at_limit`. clusters: G, where it is fewer
    than the tasks: tasks that weigh unequally count as `equal_clusters` says (of a difference, the smaller side's).
    """
    G = tasks if clusters is None else clusters
    finite_R = boot_R[np.isfinite(boot_R)]
    is_resampled = G > 1 and len(finite_R) > len(boot_R) / 2
    spread = float(finite_R.std(ddof=1)) if is_resampled else 0.0
    if G > 1 and limits[0] == 0 and np.isfinite(limits[1]) and value in limits:
        return at_limit(float(value), n, tasks, of, null, limits, G)
    if not limits[0] < value < limits[1] or spread <= _NOTHING:
        is_steady = spread <= _NOTHING and len(finite_R) == len(boot_R)
        return Estimate(
            float(value), None, None, n, tasks, of, p_without_spread(value - null, G) if is_steady else None, G
        )
    error = float(spread * np.sqrt(G / (G - 1)))
    is_bounded = G >= _FEWEST_EQUAL or bool(np.isfinite(limits).all())
    low, high = interval(value, error, G - 1, limits) if is_bounded else (None, None)
    p = None
    if limits[0] < null < limits[1]:
        distance = abs(_free(value, limits) - _free(null, limits)) / (error * _slope(value, limits))
        p = float(2 * stats.t.sf(distance, G - 1))
    return Estimate(float(value), low, high, n, tasks, of, p, G)


def interval(value: float, error: float, freedom: float, limits: Limits = UNLIMITED) -> tuple[float, float]:
    """Student's t interval around a value strictly inside its limits, taken on the scale of `_free`."""
    margin = error * _slope(value, limits) * float(stats.t.ppf((1 + COVERAGE) / 2, freedom))
    low, high = (_bounded(_free(value, limits) + side * margin, limits) for side in (-1, 1))
    return low, high


def equal_clusters(weights_T: NDArray[np.number]) -> float:
    """How many clusters of equal weight carry a figure as well as these do: (sum w)^2 / sum w^2 (Kish 1965)."""
    squares = float(np.square(weights_T, dtype=np.float64).sum())
    return round(float(weights_T.sum()) ** 2 / squares, 6) if squares > 0 else 0.0


def p_without_spread(distance: float, clusters: float) -> float | None:
    """p of a value that is the same in every task: how often contributions of random sign would agree. Nobody needs an
    interval to see a constant; where it is the null hypothesis itself there is nothing to test."""
    return None if abs(distance) <= _NOTHING or clusters <= 1 else float(2.0 ** (1 - clusters))


def at_limit(value: float, n: int, tasks: int, of: str, null: float, limits: Limits, clusters: float) -> Estimate:
    """A mean of values that all lie at one limit. None of `clusters` tasks departed from it; so at most a share of
    1 - 0.025 ** (1 / clusters) of all tasks does (Clopper and Pearson), and the mean by no more than that of the range.
    """
    width = limits[1] - limits[0]
    farthest = width * (1 - ((1 - COVERAGE) / 2) ** (1 / clusters))
    p = min(1.0, 2 * float(1 - abs(value - null) / width) ** clusters) if limits[0] < null < limits[1] else None
    low, high = (value - farthest, value) if value == limits[1] else (value, value + farthest)
    return Estimate(value, low, high, n, tasks, of, p, clusters)


def _free(value: float, limits: Limits) -> float:
    """The value on a scale without limits: logit between two, logarithm above one."""
    if limits == UNLIMITED:
        return value
    above = value - limits[0]
    return float(np.log(above) if np.isinf(limits[1]) else np.log(above / (limits[1] - value)))


def _slope(value: float, limits: Limits) -> float:
    """The derivative of `_free`."""
    if limits == UNLIMITED:
        return 1.0
    below = 0.0 if np.isinf(limits[1]) else 1 / (limits[1] - value)
    return 1 / (value - limits[0]) + below


def _bounded(free: float, limits: Limits) -> float:
    """The inverse of `_free`."""
    if limits == UNLIMITED:
        return float(free)
    if np.isinf(limits[1]):
        return float(limits[0] + np.exp(free))
    return float(limits[0] + (limits[1] - limits[0]) * special.expit(free))


def ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """numerator / denominator, NaN where nothing is divided by."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), np.nan)


def holm(p_values: Sequence[float | None], weights: Sequence[float] | None = None) -> list[float | None]:
    """Holm's step-down adjustment of one family of tests (1979); None stays None and does not count.

    weights: how the error rate is shared out; by default every test has the same.
    """
    shares = [1.0] * len(p_values) if weights is None else list(weights)
    tested = [
        (p / share, index) for index, (p, share) in enumerate(zip(p_values, shares, strict=True)) if p is not None
    ]
    left = sum(shares[index] for _, index in tested)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for weighted, index in sorted(tested):
        highest = max(highest, min(1.0, left * weighted))
        adjusted[index] = highest
        left -= shares[index]
    return adjusted
