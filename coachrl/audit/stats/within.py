"""Comparisons at equal circumstances: what is left of a score when cells (a task, a role) and further circumstances
(the outcome, how the code ended) are taken out, with an error that treats whole tasks as the units.

A figure here is a function of sums over tasks. Its error is the jackknife's: the figure without each task in turn
(Efron & Stein 1981), which few and unequal tasks do not make too small. Where there are fewer than `_LARGE` tasks the p
value is the larger one of Student's t and of a randomization test that turns tasks' contributions round at random: a
handful of tasks can accuse nobody. Tasks of unequal weight count as as many equal ones (Kish 1965), here and as degrees
of freedom of Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from scipy import stats

from coachrl.audit.data.sample import Floats, Ints, Sample, Statistic
from coachrl.seeding import generator
from coachrl.stats import (
    SCORE_CHANGE,
    UNLIMITED,
    Estimate,
    Limits,
    at_limit,
    equal_clusters,
    interval,
    p_without_spread,
    ratio,
)

_LARGE = 40  # tasks from which Student's t alone is trusted
_ENUMERATED = 12  # tasks whose every combination of signs is tried
_TURNS = 20_000
_BLOCK = 256
_NOTHING = 1e-9


def taken_out(values_N: Floats, cells_N: Ints, controls_NK: Floats | None = None) -> Floats:
    """The values without the means of their cells, and without what controls explain inside of cells (Frisch & Waugh
    1933)."""
    inside_N = _inside(values_N, cells_N)
    if controls_NK is None or controls_NK.shape[1] == 0:
        return inside_N
    controls_NK = np.column_stack([_inside(column, cells_N) for column in controls_NK.T])
    weights_K = np.linalg.pinv(controls_NK.T @ controls_NK, rcond=_NOTHING, hermitian=True) @ (controls_NK.T @ inside_N)
    return np.asarray(inside_N - controls_NK @ weights_K)


def indicators(sample: Sample, columns: Sequence[str], most: int = 40) -> Floats:
    """A column of ones and zeros for each combination of `columns` but the first, the most frequent ones at most."""
    codes_N, cells = sample.codes(columns)
    frequent = np.argsort(-np.bincount(codes_N, minlength=cells), kind="stable")[1 : most + 1]
    return np.column_stack([(codes_N == code).astype(np.float64) for code in frequent] or [np.empty((len(codes_N), 0))])


def slope(
    sample: Sample,
    x_N: Floats,
    y_N: Floats,
    cells: Sequence[str],
    controls: Sequence[Sequence[str]] = (),
    limits: Limits = SCORE_CHANGE,
) -> Estimate | None:
    """By how much y is higher for one more of x, at equal cells and controls (each a combination of columns). None
    where x does not vary there."""
    sums_TV = slope_sums(sample, x_N, [(y_N, controls)], cells)
    return None if sums_TV is None else over_tasks(sums_TV, first_over_second, len(y_N), limits=limits)


def slope_sums(
    sample: Sample, x_N: Floats, questions: Sequence[tuple[Floats, Sequence[Sequence[str]]]], cells: Sequence[str]
) -> Floats | None:
    """By task, for each (y, controls): the sums of x * y and x * x of what is left. None where nothing of x is left."""
    cells_N, _ = sample.codes(cells)
    columns = []
    for y_N, controls in questions:
        controls_NK = np.column_stack([indicators(sample, group) for group in controls]) if controls else None
        left_N = taken_out(x_N, cells_N, controls_NK)
        if float(left_N @ left_N) <= _NOTHING * max(1.0, float(x_N @ x_N)):
            return None
        columns += [left_N * taken_out(y_N, cells_N, controls_NK), left_N * left_N]
    return by_task(sample, *columns)


def by_task(sample: Sample, *columns: Floats) -> Floats:
    """Sums of columns over each task that occurs: [tasks, columns]."""
    tasks, codes_N = np.unique(sample.task_codes_N, return_inverse=True)
    return np.column_stack([np.bincount(codes_N, column, len(tasks)) for column in columns])


def first_over_second(sums_RV: Floats) -> Floats:
    return ratio(sums_RV[:, 0], sums_RV[:, 1])


def correlation_of_sums(sums_RV: Floats) -> Floats:
    """From the sums of x * y, x * x and y * y, where the means of both are taken out."""
    xy, xx, yy = sums_RV.T
    return ratio(xy, np.sqrt(xx * yy))


def over_tasks(
    sums_TV: Floats, statistic: Statistic, n: int, limits: Limits = UNLIMITED, null: float = 0.0, weight: int = 1
) -> Estimate:
    """A statistic of the tasks' sums, with its interval and p. No interval where fewer than two tasks carry it. weight:
    the column of sums that says how much each task weighs in it; its degrees of freedom are those of as many tasks of
    equal weight (see `equal_clusters`)."""
    value, tasks = float(statistic(sums_TV.sum(axis=0, keepdims=True))[0]), len(sums_TV)
    found = Estimate(value, None, None, n, tasks)
    without_T = statistic(sums_TV.sum(axis=0) - sums_TV)
    informed = int((np.abs(sums_TV).max(axis=1, initial=0.0) > _NOTHING).sum())
    extreme = [limit for limit in limits if abs(value - limit) <= _NOTHING]
    weights_T = sums_TV[:, weight]
    carrying = equal_clusters(weights_T)
    equal = min(carrying, informed)
    if extreme and equal > 1:  # no task departs from it: there is no spread that could be an error
        found = at_limit(extreme[0], n, tasks, found.of, null, limits, equal)
        return replace(found, p=p_without_spread(extreme[0] - null, informed))
    error = float(np.sqrt((tasks - 1) / tasks * ((without_T - without_T.mean()) ** 2).sum()))
    if not np.isfinite(error) or not limits[0] < value < limits[1]:
        return found
    if error <= _NOTHING:
        return replace(found, p=p_without_spread(value - null, informed))
    if carrying <= 1:
        return found
    low, high = interval(value, error, carrying - 1, limits)
    p = float(2 * stats.t.sf(abs(value - null) / error, carrying - 1))
    if carrying < _LARGE:
        contributions_T = np.where(np.isfinite(without_T), value - without_T, value)
        p = max(p, _turned_round(contributions_T, weights_T, value - null))
    return replace(found, low=low, high=high, p=p, clusters=carrying)


def one_sided(estimate: Estimate, above: bool = True, null: float = 0.0) -> float:
    """p of the hypothesis that the value is not above (or not below) `null`, which its p was made against."""
    if estimate.p is None:
        return 1.0
    return estimate.p / 2 if (estimate.value > null) == above else 1 - estimate.p / 2


def leaning(estimate: Estimate, above: float) -> float | None:
    """p of a test of both sides that spends the share `above` of its error rate on values above 0, where that is the
    side to be feared, and what is left on those below."""
    if estimate.p is None:
        return None
    return min(1.0, one_sided(estimate) / above, one_sided(estimate, above=False) / (1 - above))


def _turned_round(contributions_T: Floats, weights_T: Floats, distance: float) -> float:
    """How often contributions of random sign add up to as much. They are taken around the null hypothesis: each holds
    its own noise and, by its weight, its share of the distance from it."""
    shares_T = weights_T / weights_T.sum()
    given_T = contributions_T + shares_T * (distance - contributions_T.sum())
    given_T = given_T[np.abs(given_T) > _NOTHING]
    if len(given_T) <= _ENUMERATED:
        turned_S = np.array(list(product((-1.0, 1.0), repeat=len(given_T)))) @ given_T
    else:
        turned_S = _at_random(given_T)
    return float((np.abs(turned_S) >= abs(given_T.sum()) - _NOTHING).mean())


def _at_random(given_T: Floats) -> Floats:
    """Sums under `_TURNS` choices of signs, the first of them all plus; a block of tasks at a time, for their size."""
    rng, turned_S = generator(0, "signs", len(given_T)), np.zeros(_TURNS)
    for first in range(0, len(given_T), _BLOCK):
        block = given_T[first : first + _BLOCK]
        signs = rng.choice((-1.0, 1.0), size=(_TURNS, len(block)))
        signs[0] = 1.0
        turned_S += signs @ block
    return turned_S


def _inside(values_N: Floats, cells_N: Ints) -> Floats:
    counts = np.bincount(cells_N)
    return np.asarray(values_N - (np.bincount(cells_N, values_N) / np.maximum(counts, 1))[cells_N])
