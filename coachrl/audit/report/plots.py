"""Small SVG plots that take their colours from the page's style sheet: intervals in rows, and a reliability curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from coachrl.audit.stats.calibration import ReliabilityBin
from coachrl.audit.stats.drift import Curve
from coachrl.audit.stats.strata import Contrast
from coachrl.report.curves import Chart, Series, number
from coachrl.stats import Estimate

_WIDTH, _LABEL, _RIGHT, _ROW = 380, 130, 12, 24
_SIDE, _MARGIN = 300, 40
Row = tuple[str, Estimate]


def forest(title: str, rows: Sequence[Row], null: float | None = 0.0) -> Markup:
    """One row for each estimate: its dot and its interval; a dashed line where there would be no difference."""
    ends = [bound for _, e in rows for bound in (e.value, e.low, e.high) if bound is not None]
    low, high = min([*ends, *([] if null is None else [null])]), max([*ends, *([] if null is None else [null])])
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    ticks = MaxNLocator(nbins=5).tick_values(low, high)
    low, high = float(ticks[0]), float(ticks[-1])
    height = _ROW * len(rows) + 26

    def x(value: float) -> float:
        return round(_LABEL + (value - low) / (high - low) * (_WIDTH - _LABEL - _RIGHT), 1)

    parts = [
        Markup(
            '<path class="grid" d="M{0} 2V{1}"/><text class="tick" x="{0}" y="{2}" text-anchor="middle">{3}</text>'
        ).format(x(tick), height - 20, height - 6, number(float(tick)))
        for tick in ticks
    ]
    if null is not None:
        parts.append(Markup('<path class="line c5 d5" d="M{} 2V{}"/>').format(x(null), height - 20))
    parts += [_forest_row(name, estimate, _ROW * index + 14, x) for index, (name, estimate) in enumerate(rows)]
    words = "; ".join(f"{name}: {estimate}" for name, estimate in rows)
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(_WIDTH, height, title, title, words, Markup("").join(parts))


def reliability(bins: Sequence[ReliabilityBin]) -> Markup:
    """Success rate against the mean score of each bin, and the diagonal that score / 10 would be if it were one."""
    inner = _SIDE - _MARGIN - 10

    def x(score: float) -> float:
        return round(_MARGIN + score / 10 * inner, 1)

    def y(share: float) -> float:
        return round(10 + (1 - share) * inner, 1)

    parts = [Markup('<path class="line c5 d5" d="M{} {}L{} {}"/>').format(x(0), y(0), x(10), y(1))]
    for tick in (0, 2, 4, 6, 8, 10):
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(x(0), y(tick / 10), x(10)))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
                x(0) - 5, y(tick / 10) + 4, tick / 10
            )
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(x(tick), y(0) + 15, tick)
        )
    for part in bins:
        rate = part.success
        if rate.low is not None and rate.high is not None:
            parts.append(
                Markup('<path class="whisker c0" d="M{} {}V{}"/>').format(x(part.mean_score), y(rate.low), y(rate.high))
            )
        parts.append(
            Markup(
                '<circle class="dot c0" cx="{}" cy="{}" r="4"><title>score {:g} to {:g}: {}</title></circle>'
            ).format(x(part.mean_score), y(rate.value), part.low, part.high, rate)
        )
    parts.append(
        Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">mean score of the last action</text>').format(
            x(5), _SIDE - 4
        )
    )
    return Markup(
        '<svg viewBox="0 0 {0} {0}" role="img" aria-label="success by score"><title>success by score</title>{1}</svg>'
    ).format(_SIDE, Markup("").join(parts))


def curve_chart(title: str, curves: Sequence[Curve], unit: str = "", zero: bool = False) -> Chart:
    """Quantities over training, with their intervals."""
    series = [
        Series(
            curve.name,
            [(float(step), estimate.value) for step, estimate in curve.points],
            index,
            {float(s): (e.low, e.high) for s, e in curve.points if e.low is not None and e.high is not None},
        )
        for index, curve in enumerate(curves)
    ]
    sizes = [estimate for curve in curves for _, estimate in curve.points]
    fewest, most = min(e.n for e in sizes), max(e.n for e in sizes)
    n = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    count = f"95 % intervals over tasks; a point: n = {n} {sizes[0].of}"
    ends = [b for e in sizes for b in (e.value, e.low, e.high) if b is not None]
    pad = 0.05 * (max(ends) - min(ends)) or 0.5
    low, high = min(ends) - pad, max(ends) + pad
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return replace(Chart(title, series, count, unit), y_range=(low, high))


def gap_chart(gaps: Sequence[Contrast]) -> Chart | None:
    """MAPPA's Table 3 as lines: the raw category gap of each role over training. None for more than two categories."""
    pairs = {(gap.level, gap.versus) for gap in gaps}
    if len(pairs) != 1:
        return None
    level, versus = pairs.pop()
    roles = dict.fromkeys(gap.within[0] for gap in gaps)
    curves = [Curve(role, [(int(g.within[1]), g.raw) for g in gaps if g.within[0] == role]) for role in roles]
    return curve_chart(f"{level} minus {versus}, by role", curves, "points", zero=True)


def _forest_row(name: str, estimate: Estimate, y: int, x: Callable[[float], float]) -> Markup:
    short = name if len(name) <= 20 else name[:19] + "…"
    label = Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(_LABEL - 8, y + 4, short)
    whisker = Markup("")
    if estimate.low is not None and estimate.high is not None:
        whisker = Markup('<path class="whisker c0" d="M{} {}H{}"/>').format(x(estimate.low), y, x(estimate.high))
    dot = Markup('<circle class="dot c0" cx="{}" cy="{}" r="4"><title>{}: {}</title></circle>').format(
        x(estimate.value), y, name, estimate
    )
    return label + whisker + dot
