"""Scores by criterion, where a coach prompt lists weighted criteria: each by itself, and how far they go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from coachrl.audit.data.frame import CRITERION
from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.strata import Contrast, contrasts
from coachrl.audit.stats.style import StyleEffect, style_effect
from coachrl.audit.stats.within import by_task, correlation_of_sums, over_tasks, taken_out
from coachrl.stats import CORRELATION, SCORE, Estimate

ALIKE = 0.9  # a rank correlation from which on two criteria are one


@dataclass(frozen=True)
class CriterionFinding:
    """One criterion, over all roles. category: its gaps between task categories; outcome: successes minus failures, at
    equal role; length: its partial rank correlation with response tokens, as that of the total."""

    name: str
    mean: Estimate
    category: Sequence[Contrast]
    outcome: Sequence[Contrast]
    length: StyleEffect | None


@dataclass(frozen=True)
class CriteriaPair:
    """rho: Spearman's correlation at equal role, tested against `ALIKE`. None where one of the two does not vary."""

    first: str
    second: str
    rho: Estimate | None


@dataclass(frozen=True)
class Criteria:
    each: Sequence[CriterionFinding]
    pairs: Sequence[CriteriaPair]


def examine_criteria(sample: Sample) -> Criteria | None:
    """None where no score has criteria."""
    names = [
        str(column).removeprefix(CRITERION)
        for column in sample.frame
        if str(column).startswith(CRITERION) and sample.frame[column].notna().any()
    ]
    if not names:
        return None
    pairs = [CriteriaPair(first, second, _together(sample, first, second)) for first, second in combinations(names, 2)]
    return Criteria([_finding(sample, name) for name in names], pairs)


def _finding(sample: Sample, name: str) -> CriterionFinding:
    known = sample.where(sample.frame[CRITERION + name].notna())
    own = known.assign(score=known.frame[CRITERION + name])
    measured = own.where(own.frame["outcome"].notna())
    return CriterionFinding(
        name=name,
        mean=own.mean(own.scores, limits=SCORE),
        category=contrasts(own, "category"),
        outcome=contrasts(measured, "result") if len(measured.frame) else [],
        length=style_effect(own, "tokens", role=""),
    )


def _together(sample: Sample, first: str, second: str) -> Estimate | None:
    columns = [CRITERION + first, CRITERION + second]
    both = sample.where(sample.frame[columns].notna().all(axis=1))
    if both.frame.empty:
        return None
    role_N, _ = both.codes(("role",))
    x_N, y_N = (taken_out(stats.rankdata(both.frame[column]), role_N) for column in columns)
    if np.allclose(x_N, 0) or np.allclose(y_N, 0):
        return None
    sums_TV = by_task(both, x_N * y_N, x_N * x_N, y_N * y_N)
    return over_tasks(sums_TV, correlation_of_sums, len(x_N), limits=CORRELATION, null=ALIKE)
