"""The scored actions of one rater in one pipeline, with their tasks numbered and the draws that all figures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coachrl.audit.data.frame import category
from coachrl.stats import (
    RESAMPLES,
    UNLIMITED,
    Estimate,
    Limits,
    Resampler,
    correlation,
    equal_clusters,
    estimate,
    ratio,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Statistic = Callable[[Floats], Floats]
"""A function of sums over rows, a value for each resample."""
OUTCOMES = ("failure", "success")
PERIODS = ("early", "late")


@dataclass(frozen=True)
class Sample:
    """frame: rows with a score. Beside the table's columns it has `result` ("failure", "success", "not measured") and
    `period` ("early", "late": the halves of its run's training steps)."""

    frame: pd.DataFrame
    task_codes_N: Ints
    resampler: Resampler
    _codes: dict[tuple[str, ...], tuple[Ints, int]] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(cls, frame: pd.DataFrame, resamples: int = RESAMPLES, seed: int = 0) -> Sample:
        """The scored rows of `frame`. Raises ValueError where there are none."""
        scored = frame[frame["score"].notna()].copy()
        if scored.empty:
            raise ValueError("a sample needs at least one scored action")
        for column in scored.select_dtypes("category"):
            scored[column] = scored[column].cat.remove_unused_categories()
        scored["result"] = _results(scored["outcome"])
        scored["period"] = _periods(scored)
        codes = np.asarray(scored["task"].cat.codes, np.int64)
        return cls(scored, codes, Resampler(len(scored["task"].cat.categories), resamples, seed))

    @classmethod
    def of_tasks(cls, tasks: Sequence[str] | pd.Series, resamples: int = RESAMPLES, seed: int = 0) -> Sample:
        """A row for each of `tasks`, of one step and without an outcome, for values that are no column of the table."""
        rows = pd.DataFrame({"run": "", "task": list(map(str, tasks)), "score": 0.0, "outcome": np.nan, "step": 0})
        return cls.of(rows.astype({"task": "category"}), resamples, seed)

    def where(self, mask: pd.Series | NDArray[np.bool_]) -> Sample:
        """The rows that `mask` keeps, under the same draws of tasks."""
        keep_N = np.asarray(mask, bool)
        return replace(self, frame=self.frame[keep_N], task_codes_N=self.task_codes_N[keep_N])

    def assign(self, **columns: Any) -> Sample:
        """The same rows with further columns, or with others in their place."""
        return replace(self, frame=self.frame.assign(**columns))

    def by(self, column: str) -> dict[str, Sample]:
        """The rows of each value of a column that occurs, under the same draws of tasks."""
        codes_N, _ = self.codes((column,))
        return {level: self.where(codes_N == code) for code, level in enumerate(self.levels(column))}

    def levels(self, column: str) -> list[str]:
        """The values of a column that occur, in order."""
        return [value for (value,) in self.labels((column,))]

    def codes(self, columns: Sequence[str]) -> tuple[Ints, int]:
        """(number of each row's combination of values, how many combinations occur)."""
        if not columns:
            return np.zeros(len(self.frame), np.int64), 1
        if tuple(columns) not in self._codes:  # a pass over all actions that many figures need
            codes = np.asarray(self.frame.groupby(list(columns), observed=True, sort=True).ngroup(), np.int64)
            self._codes[tuple(columns)] = codes, int(codes.max(initial=-1)) + 1
        return self._codes[tuple(columns)]

    def labels(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The values of each combination that occurs, in the order of `codes`."""
        if not columns:
            return [()]
        keys = self.frame.groupby(list(columns), observed=True, sort=True).size().index
        return [tuple(map(str, key if isinstance(key, tuple) else (key,))) for key in keys]

    @property
    def tasks(self) -> int:
        """How many tasks occur."""
        return len(np.unique(self.task_codes_N))

    def equal_tasks(self, weights_N: Floats | None = None) -> float:
        """As how many tasks of equal weight these rows count; by default each row weighs the same."""
        return equal_clusters(np.bincount(self.task_codes_N, weights_N))

    def total(
        self,
        statistic: Statistic,
        *values_N: Floats,
        cells: tuple[Ints, int] | None = None,
        n: int | None = None,
        **about: Any,
    ) -> Estimate:
        """A function of sums, of ones and of each of `values_N`: over all rows, [resamples, 1 + values], or over the
        rows of each cell, [resamples, cells, 1 + values]. about: as `coachrl.stats.estimate` takes it."""
        sums_RKV = self.sums(*(cells or self.codes(())), *values_N)
        values_R = statistic(sums_RKV[:, 0] if cells is None else sums_RKV)
        about.setdefault("clusters", self.equal_tasks())
        return estimate(float(values_R[0]), values_R[1:], len(self.frame) if n is None else n, self.tasks, **about)

    def sums(self, cells_N: Ints, cells: int, *values_N: Floats) -> Floats:
        """See `Resampler.sums`."""
        return self.resampler.sums(self.task_codes_N, cells_N, values_N, cells)

    def rows_by_task(self, cells_N: Ints, cells: int) -> list[Ints]:
        """Of each cell, how many rows each of its tasks has."""
        pairs, rows = np.unique(cells_N * self.resampler.tasks + self.task_codes_N, return_counts=True)
        tasks_K = np.bincount(pairs // self.resampler.tasks, minlength=cells)
        return np.split(rows, np.cumsum(tasks_K)[:-1])

    def means(
        self,
        columns: Sequence[str],
        values_N: Floats,
        of: str = "actions",
        limits: Limits = UNLIMITED,
    ) -> dict[tuple[str, ...], Estimate]:
        """Mean of the values in each combination of `columns` that occurs, in their order."""
        cells_N, cells = self.codes(columns)
        sums_RKV, rows_K = self.sums(cells_N, cells, values_N), self.rows_by_task(cells_N, cells)
        means_RK = ratio(sums_RKV[..., 1], sums_RKV[..., 0])
        return {
            label: estimate(
                float(means_RK[0, k]),
                means_RK[1:, k],
                int(rows_K[k].sum()),
                len(rows_K[k]),
                of=of,
                limits=limits,
                clusters=equal_clusters(rows_K[k]),
            )
            for k, label in enumerate(self.labels(columns))
        }

    def mean(self, values_N: Floats, of: str = "actions", limits: Limits = UNLIMITED) -> Estimate:
        return self.means((), values_N, of, limits)[()]

    def correlation(self, x_N: Floats, y_N: Floats) -> Estimate | None:
        """Pearson's; of ranks it is Spearman's. None where one side is constant."""
        return correlation(x_N, y_N, self.task_codes_N, self.resampler)

    def matches(self, column: str, value: str) -> Floats:
        """1 where the column has the value, else 0."""
        return np.asarray(self.frame[column] == value, np.float64)

    def values(self, column: str) -> Floats:
        return self.frame[column].to_numpy(np.float64)

    @property
    def scores(self) -> Floats:
        return self.values("score")


def _results(outcomes: pd.Series) -> pd.Categorical:
    """0.0, 1.0 and NaN in words."""
    return category(outcomes.fillna(2).to_numpy(np.int64), (*OUTCOMES, "not measured"))


def _periods(rows: pd.DataFrame) -> pd.Categorical:
    """Runs that are audited together may be of unlike length: the end of a short one is no first half."""
    late = rows.groupby("run", observed=True)["step"].transform(_is_late)
    return category(late.to_numpy(np.int64), PERIODS)


def _is_late(steps: pd.Series) -> NDArray[np.bool_]:
    known = np.unique(steps.to_numpy())
    first_late = known[(len(known) + 1) // 2] if len(known) > 1 else np.inf
    return np.asarray(steps.to_numpy() >= first_late)
