"""Does the coach pay for form? Partial rank correlation of score with a reply's length and style, at equal role,
outcome and exit state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coachrl.audit.estimates import CORRELATION, UNLIMITED, Estimate, estimate, holm
from coachrl.audit.sample import Sample

# Column -> (what it is, the step that a slope is stated for, in words, and in the column's unit).
FEATURES = {
    "tokens": ("response tokens", "100 tokens more", 100.0),
    "code_share": ("share of the reply that is code", "10 points more of code", 0.1),
    "markdown": ("Markdown marks", "10 marks more per 1000 characters", 10.0),
    "hedging": ("hedging words", "1 hedging word more per 100 words", 1.0),
}
GIVEN = ("role", "result", "state")


@dataclass(frozen=True)
class FormEffect:
    """feature: a column. role: the role that it was measured in, empty for all. rho: partial Spearman correlation.

    slope: points of score for `per` more of the feature, at equal role, outcome and exit state (how the code ended, and
    whether the reply was cut).
    """

    feature: str
    role: str
    rho: Estimate
    slope: Estimate
    per: str
    p_holm: float | None = None


def form_effects(sample: Sample) -> list[FormEffect]:
    """All features over all roles, then by role where there are several. A feature that does not vary inside the cells
    has no effect to measure and is left out."""
    roles = sample.levels("role")
    samples = {"": sample}
    if len(roles) > 1:
        samples |= {role: sample.where(sample.frame["role"] == role) for role in roles}
    found = [
        effect
        for role, part in samples.items()
        for feature in FEATURES
        if (effect := _effect(part, feature, role)) is not None
    ]
    p_values = holm([effect.rho.p for effect in found])
    return [replace(effect, p_holm=p) for effect, p in zip(found, p_values, strict=True)]


def _effect(sample: Sample, feature: str, role: str) -> FormEffect | None:
    cells_N, cells = sample.codes(GIVEN)
    score_N = sample.scores
    value_N = sample.frame[feature].to_numpy(np.float64)
    ranks = [_inside_cells(stats.rankdata(column), cells_N, cells) for column in (score_N, value_N)]
    plain = [_inside_cells(column, cells_N, cells) for column in (score_N, value_N)]
    if any(np.allclose(column, 0) for column in (*ranks, *plain)):
        return None
    n = int((np.bincount(cells_N, minlength=cells)[cells_N] > 1).sum())
    tasks = len(np.unique(sample.task_codes_N))
    one = np.zeros(len(score_N), np.int64)
    products = [(x * y, x * x, y * y) for x, y in ((ranks[1], ranks[0]), (plain[1], plain[0]))]
    sums = sample.sums(one, 1, *products[0], *products[1])
    _, per, step = FEATURES[feature]

    def figure(first: int, slope: bool) -> Estimate:
        def statistic(sums_RV: NDArray[np.float64]) -> NDArray[np.float64]:
            xy, xx, yy = sums_RV[:, first], sums_RV[:, first + 1], sums_RV[:, first + 2]
            with np.errstate(divide="ignore", invalid="ignore"):
                return step * xy / xx if slope else xy / np.sqrt(xx * yy)

        point = float(statistic(sums.point_KV)[0])
        limits = UNLIMITED if slope else CORRELATION
        return estimate(point, statistic(sums.boot_RKV[:, 0]), n, tasks, limits=limits)

    return FormEffect(feature, role, figure(1, slope=False), figure(4, slope=True), per)


def _inside_cells(values_N: NDArray[np.float64], cells_N: NDArray[np.int64], cells: int) -> NDArray[np.float64]:
    """Deviations from the mean of each cell."""
    means = np.bincount(cells_N, values_N, cells) / np.maximum(np.bincount(cells_N, minlength=cells), 1)
    return values_N - means[cells_N]
