"""What an audit's page draws and tabulates, from findings to charts and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from coachrl.audit.findings import Findings
from coachrl.audit.stats.calibration import ReliabilityBin
from coachrl.audit.stats.drift import Curve
from coachrl.audit.stats.strata import Contrast
from coachrl.report.charts import Chart, Series, reliability
from coachrl.stats import Estimate

# Curve of `Drift.curves` -> (title, unit).
_TITLES = {
    "score": ("Coach score", "points"),
    "outcome": ("Outcome", "share"),
    "code": ("Replies with code", "share"),
    "response tokens": ("Response length", "tokens"),
}
_MOST_REACH = 10  # times the largest mean: where intervals of lengths are cut


def charts_of(found: Findings, colors: Mapping[str, int]) -> list[Chart]:
    """Figures over training; colors: of agents, as the report has them."""
    made = []
    gaps = gap_chart(found.gaps, colors)
    if gaps is not None and len({gap.within[1] for gap in found.gaps}) > 1:
        made.append(gaps)
    if found.drift is not None:
        for name, curves in found.drift.curves.items():
            title, unit = _TITLES[name]
            made.append(curve_chart(title, curves, unit, colors=colors))
    return made


def _cut(estimate: Estimate, reach: float) -> tuple[float, float]:
    low, high = estimate.bounds
    return low, min(high, reach)


def curve_chart(
    title: str, curves: Sequence[Curve], unit: str, zero: bool = False, colors: Mapping[str, int] | None = None
) -> Chart:
    """Quantities over training, with their intervals. zero: whether the scale shows where there is no change."""
    agents = colors or {}
    estimates = [estimate for curve in curves for _, estimate in curve.points]
    # Of two tasks a step the interval of a length may end at a million, beside which no curve can be seen.
    longest = max(e.value for e in estimates)
    reach = _MOST_REACH * longest if unit == "tokens" and longest > 0 else math.inf
    series = [
        Series(
            curve.name,
            [(float(step), estimate.value) for step, estimate in curve.points],
            agents.get(curve.name, index),
            {float(step): _cut(e, reach) for step, e in curve.points if e.low is not None},
            of_agent=curve.name in agents,
        )
        for index, curve in enumerate(curves)
    ]
    fewest, most = min(e.n for e in estimates), max(e.n for e in estimates)
    n = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    count = f"95 % intervals over tasks; a point: n = {n} {estimates[0].of}"
    if any(_cut(e, reach) != e.bounds for e in estimates):
        count += f"; intervals are cut at {_MOST_REACH} times the largest value"
    ends = [end for e in estimates for end in (e.value, *_cut(e, reach))]
    pad = 0.05 * (max(ends) - min(ends)) or 0.5
    low, high = min(ends) - pad, max(ends) + pad
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return Chart(title, series, count, unit, y_range=(low, high))


def gap_chart(gaps: Sequence[Contrast], colors: Mapping[str, int]) -> Chart | None:
    """MAPPA's Table 3 as lines: the raw category gap of each role over training. None for more than two categories."""
    pairs = {(gap.level, gap.versus) for gap in gaps}
    if len(pairs) != 1:
        return None
    level, versus = pairs.pop()
    roles = dict.fromkeys(gap.within[0] for gap in gaps)
    curves = [Curve(role, [(int(g.within[1]), g.raw) for g in gaps if g.within[0] == role]) for role in roles]
    return curve_chart(f"{level} minus {versus}, by role", curves, "points", zero=True, colors=colors)


def reliability_chart(bins: Sequence[ReliabilityBin]) -> Markup:
    return reliability([(f"score {part.low:g} to {part.high:g}", part.mean_score, part.success) for part in bins])


def category_rows(found: Findings) -> list[tuple[str, Estimate]]:
    """What the forest plot of category gaps shows: at equal outcome, overall and by role."""
    family = found.contrasts.get("category", ())
    several = len({contrast.level for contrast in family}) > 1
    return [
        (f"{c.within[0] if c.within else 'all roles'}{f': {c.level}' if several else ''}", c.adjusted)
        for c in family
        if c.adjusted is not None
    ]


def table3(found: Findings) -> tuple[list[str], dict[str, dict[str, Estimate]]]:
    """(first steps of the parts of training, role and level -> first step -> raw gap)."""
    several = len({gap.level for gap in found.gaps}) > 1
    bins = sorted({gap.within[1] for gap in found.gaps}, key=int)
    rows: dict[str, dict[str, Estimate]] = {}
    for gap in found.gaps:
        name = f"{gap.within[0]}{f': {gap.level}' if several else ''}"
        rows.setdefault(name, {})[gap.within[1]] = gap.raw
    return bins, rows
