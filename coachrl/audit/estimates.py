"""What every figure of an audit is: a value, its 95 % interval, and what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

COVERAGE = 0.95
RESAMPLES = 1000
_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Estimate:
    """`value` of `n` actions (or episodes, or groups: `of`) of `tasks` tasks. low, high: None where the data give no
    interval: one task, or no spread in any resample. p: two-sided, that the value is `null`."""

    value: float
    low: float | None
    high: float | None
    n: int
    tasks: int
    of: str = "actions"
    p: float | None = None

    def __str__(self) -> str:
        return f"{self.interval()} (n = {self.n:,} {self.of}, {self.tasks:,} tasks)"

    def interval(self, signed: bool = False) -> str:
        """'1.20 [0.80, 1.60]', with signs where asked."""
        form = "{:+.2f}" if signed else "{:.2f}"
        value = form.format(self.value)
        return value if self.low is None else f"{value} [{form.format(self.low)}, {form.format(self.high)}]"


@dataclass(frozen=True)
class Sums:
    """Sums by cell: of the data (K cells x V values), and of each of R resamples."""

    point_KV: NDArray[np.float64]
    boot_RKV: NDArray[np.float64]


class Resampler:
    """A cluster bootstrap: tasks are drawn with replacement, each with all of its actions.

    A resample is how often each task was drawn, so any statistic that is a function of sums over cells of the data is
    resampled by one product of that R x T table with the tasks' own sums: no pass over the actions for each resample.
    All statistics share the same draws. The table takes R * T bytes.
    """

    def __init__(self, tasks: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.tasks, self.resamples = tasks, resamples
        rng = np.random.default_rng(seed)
        self._drawn_RT = np.empty((resamples, tasks), dtype=np.uint8)
        for row in self._drawn_RT:
            row[:] = np.bincount(rng.integers(0, tasks, size=tasks), minlength=tasks)

    def sums(
        self,
        task_codes_N: NDArray[np.integer],
        cells_N: NDArray[np.integer],
        values: tuple[NDArray[np.float64], ...],
        cells: int,
    ) -> Sums:
        """Sums of `values` (and first of ones: the counts) in each of `cells` cells, for the data and each resample."""
        columns = len(values) + 1
        width = cells * columns
        entries = np.concatenate([np.ones(len(cells_N)), *values])
        where = np.concatenate([cells_N.astype(np.int64) * columns + column for column in range(columns)])
        rows = np.tile(task_codes_N, columns)
        by_task_WT = sparse.coo_matrix((entries, (where, rows)), shape=(width, self.tasks)).tocsr()
        point = np.asarray(by_task_WT.sum(axis=1)).reshape(cells, columns)
        boot = np.empty((self.resamples, width))
        chunk = max(1, _CHUNK_BYTES // (8 * max(self.tasks, 1)))
        for first in range(0, self.resamples, chunk):
            drawn_TC = self._drawn_RT[first : first + chunk].T.astype(np.float64)
            boot[first : first + chunk] = (by_task_WT @ drawn_TC).T
        return Sums(point, boot.reshape(self.resamples, cells, columns))


def estimate(
    value: float,
    boot_R: NDArray[np.float64],
    n: int,
    tasks: int,
    *,
    of: str = "actions",
    null: float = 0.0,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate:
    """A value with the interval that its resamples give.

    The standard error is that of the resamples, made larger by sqrt(G / (G - 1)) for the G tasks that carry the value,
    and the interval is Student's t with G - 1 degrees of freedom: percentiles of so few clusters are too narrow.
    """
    finite_R = boot_R[np.isfinite(boot_R)]
    spread = float(finite_R.std(ddof=1)) if tasks > 1 and len(finite_R) > len(boot_R) / 2 else 0.0
    if not np.isfinite(value) or spread <= 1e-12:
        return Estimate(float(value), None, None, n, tasks, of)
    error = spread * np.sqrt(tasks / (tasks - 1))
    margin = error * stats.t.ppf((1 + COVERAGE) / 2, tasks - 1)
    p = float(2 * stats.t.sf(abs(value - null) / error, tasks - 1))
    low, high = max(limits[0], value - margin), min(limits[1], value + margin)
    return Estimate(float(value), float(low), float(high), n, tasks, of, p)


def ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """numerator / denominator, NaN where nothing is divided by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), np.nan)


def holm(p_values: list[float | None]) -> list[float | None]:
    """Holm's step-down adjustment of one family of tests; None stays None and does not count."""
    order = sorted(
        (index for index, p in enumerate(p_values) if p is not None), key=lambda index: p_values[index] or 0.0
    )
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (p_values[index] or 0.0)))
        adjusted[index] = highest
    return adjusted
