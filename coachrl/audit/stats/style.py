"""Does the coach pay for style? Partial rank correlation of score with a reply's length and style, at equal role,
outcome and exit state, and inside of one task where tasks were played several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coachrl.audit.data.sample import Floats, Ints, Sample, Statistic
from coachrl.audit.stats.within import correlation_of_sums, first_over_second, taken_out
from coachrl.stats import CORRELATION, SCORE_CHANGE, Estimate, Limits, holm

# Column -> (what it is, how an amount of it is said, with a place for the plural's s, and that amount of one unit).
FEATURES = {
    "tokens": ("response tokens", "token{} more", 1.0),
    "code_share": ("share of the reply that is code", "point{} more of code", 100.0),
    "markdown": ("Markdown marks", "mark{} more per 1000 characters", 1.0),
    "hedging": ("hedging words", "hedging word{} more per 100 words", 1.0),
}
GIVEN = ("run", "role", "result", "state")
_COMPARED = 0.5  # share of actions that have another one of equal task, from which on tasks are held equal too
_NOTHING = 1e-9
PERCENTILES = (10, 90)  # between which a slope is stated


@dataclass(frozen=True)
class StyleEffect:
    """feature: a column. role: the role that it was measured in, empty for all. rho: partial Spearman correlation.

    slope: points of score that a straight line gives for `span` more of the feature (in the column's unit; `per` says
    it in words), at equal role, outcome and exit state (how the code ended, and whether the reply was cut). Both are
    inside of tasks where these were played several times, and without what goes with the training step. The span is
    what was observed: from the 10th to the 90th percentile of the feature inside the cell (equal role, outcome and exit
    state) of the median action, of those whose cell holds several values. slope is None where there is no such
    figure; `no_slope` says why.
    """

    feature: str
    role: str
    rho: Estimate
    slope: Estimate | None
    per: str
    span: float
    no_slope: str = ""
    p_holm: float | None = None


def style_effects(sample: Sample) -> list[StyleEffect]:
    """All features over all roles, then by role where there are several. A feature that does not vary inside the cells
    has no effect to measure and is left out."""
    by_role = sample.by("role")
    samples = {"": sample} | (by_role if len(by_role) > 1 else {})
    found = [
        effect
        for role, part in samples.items()
        for feature in FEATURES
        if (effect := style_effect(part, feature, role)) is not None
    ]
    p_values = holm([effect.rho.p for effect in found])
    return [replace(effect, p_holm=p) for effect, p in zip(found, p_values, strict=True)]


def style_effect(sample: Sample, feature: str, role: str) -> StyleEffect | None:
    """None where the feature, or the score, does not vary inside the cells. role: what `sample` is of."""
    # Replies that were cut are all of one length: they say nothing of it, and would make any preference look small.
    sample = sample.where(_is_varied(sample.values(feature), sample.codes(GIVEN)[0]))
    if sample.frame.empty:
        return None
    cells_N, cells = _cells(sample)
    score_N = sample.scores
    value_N = sample.values(feature)
    # Over training replies may become longer and better; what goes on with the steps is no preference either.
    step_N1 = sample.frame[["step"]].to_numpy(np.float64)
    ranks = [taken_out(stats.rankdata(column), cells_N, step_N1) for column in (value_N, score_N)]
    plain = [taken_out(column, cells_N, step_N1) for column in (value_N, score_N)]
    if any(np.allclose(column, 0) for column in (*ranks, *plain)):
        return None
    compared_N = np.bincount(cells_N, minlength=cells)[cells_N] > 1
    span = _usual_range(value_N[compared_N], sample.codes(GIVEN)[0][compared_N])

    def figure(statistic: Statistic, columns: Sequence[Floats], limits: Limits) -> Estimate:
        """statistic: of the sums of x * y, x * x and y * y."""
        x_N, y_N = columns
        products = (x_N * y_N, x_N * x_N, y_N * y_N)
        carrying = sample.equal_tasks(x_N * x_N)  # a task weighs as much as the feature differs inside of it
        n, of_products = int(compared_N.sum()), lambda sums_RV: statistic(sums_RV[:, 1:])
        return sample.total(of_products, *products, n=n, limits=limits, clusters=carrying)

    slope = figure(lambda sums_RV: span * first_over_second(sums_RV), plain, SCORE_CHANGE)
    no_slope = _why_no_slope(slope, span)
    rho = figure(correlation_of_sums, ranks, CORRELATION)
    effect = StyleEffect(feature, role, rho, slope, _amount(feature, span), span)
    return replace(effect, slope=None, no_slope=no_slope) if no_slope else effect


def _cells(sample: Sample) -> tuple[Ints, int]:
    """What is held equal: `GIVEN`, and the task where tasks were played several times. Replies to a hard task are
    longer and worse, which needs no coach that likes short ones."""
    cells_N, cells = sample.codes((*GIVEN, "task"))
    is_compared_N = np.bincount(cells_N)[cells_N] > 1
    return (cells_N, cells) if is_compared_N.mean() >= _COMPARED else sample.codes(GIVEN)


def _is_varied(values_N: Floats, cells_N: Ints) -> NDArray[np.bool_]:
    """Which values are of a cell that holds several."""
    cells, numbers_N = np.unique(cells_N, return_inverse=True)
    varied = [np.ptp(values_N[numbers_N == number]) > _NOTHING for number in range(len(cells))]
    return np.array(varied, dtype=bool)[numbers_N]


def _usual_range(values_N: Floats, cells_N: Ints) -> float:
    """How far the percentiles of a value's cell are apart: the median over the values of cells that hold several,
    0 where none does. Replies that were cut are a cell of one length, and often most of all."""
    inside = [values_N[cells_N == cell] for cell in np.unique(cells_N)]
    varied = [within for within in inside if np.ptp(within) > _NOTHING]
    widths = [np.full(len(within), np.ptp(np.percentile(within, PERCENTILES))) for within in varied]
    return float(np.median(np.concatenate(widths))) if widths else 0.0


def _why_no_slope(slope: Estimate, span: float) -> str:
    if span <= _NOTHING:
        return "too few replies differ in it"
    if not SCORE_CHANGE[0] <= slope.value <= SCORE_CHANGE[1]:
        return "a straight line would leave the scale of 0 to 10"
    if slope.low is None and slope.p is None:
        return "it has no interval"
    return ""


def _amount(feature: str, span: float) -> str:
    """'83 tokens more', '1 hedging word more per 100 words'."""
    _, words, units = FEATURES[feature]
    amount = f"{units * span:,.0f}" if units * span >= 10 else f"{units * span:.2g}"
    return f"{amount} {words.format('' if amount == '1' else 's')}"
