"""Small line and area charts as SVG that takes its colours from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

Point = tuple[float, float]

WIDTH, HEIGHT = 380, 210
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 34
COLOURS = 6  # classes .c0 … .c5 of the style sheet; .d0 … .d5 are dashes, for eyes that tell colours badly
_MARKED = 40  # a line of up to so many points shows each of them


@dataclass(frozen=True)
class Series:
    """One line. points: (step, value). colour: number of its class. intervals: step -> (low, high), where known."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    intervals: dict[float, tuple[float, float]] | None = None


@dataclass(frozen=True)
class Chart:
    """One figure. count: what one point is a mean of, with its n. y_range: fixed limits, where the scale has them."""

    title: str
    series: Sequence[Series]
    count: str
    unit: str = ""
    y_range: tuple[float, float] | None = None
    stacked: bool = False

    def svg(self) -> Markup:
        """The picture; its title and description say in words what it shows."""
        frame = _Frame.around(self)
        drawn = _stack(frame, self.series) if self.stacked else [_line(frame, s) for s in self.series]
        label = f"{self.title}{f' ({self.unit})' if self.unit else ''} by training step"
        return Markup(
            '<svg viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>{}{}</svg>'
        ).format(WIDTH, HEIGHT, label, label, self.description(), frame.axes(), Markup("").join(drawn))

    def description(self) -> str:
        return "; ".join(f"{s.name}: {self.ends(s)}" for s in self.series)

    def ends(self, series: Series) -> str:
        """First and last value of a line in words."""
        first, last = series.points[0], series.points[-1]
        if len(series.points) == 1:
            return f"{number(last[1])} at step {last[0]:g}"
        return f"{number(first[1])} → {number(last[1])}"


@dataclass(frozen=True)
class _Frame:
    """The scales of one chart."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @classmethod
    def around(cls, chart: Chart) -> _Frame:
        steps = [x for series in chart.series for x, _ in series.points]
        x_range = (min(steps) - 0.5, max(steps) + 0.5)
        low, high = chart.y_range or _limits(chart)
        y_ticks = MaxNLocator(nbins=4).tick_values(low, high)
        if chart.y_range is None:
            low, high = float(y_ticks[0]), float(y_ticks[-1])
        x_ticks = MaxNLocator(nbins=6, integer=True).tick_values(min(steps), max(steps))
        return cls(_within(x_ticks, x_range), _within(y_ticks, (low, high)), x_range, (low, high))

    def x(self, step: float) -> float:
        low, high = self.x_range
        return round(LEFT + (step - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def axes(self) -> Markup:
        parts = [
            Markup(
                '<path class="grid" d="M{} {}H{}"/><text class="tick" x="{}" y="{}" text-anchor="end">{}</text>'
            ).format(LEFT, self.y(tick), WIDTH - RIGHT, LEFT - 6, self.y(tick) + 4, number(tick))
            for tick in self.y_ticks
        ]
        parts += [
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{:g}</text>').format(
                self.x(tick), HEIGHT - BOTTOM + 14, tick
            )
            for tick in self.x_ticks
        ]
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">step</text>').format(
                (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3
            )
        )
        return Markup("").join(parts)


def number(value: float) -> str:
    """A number short enough for a chart's margin."""
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.3g}k"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.001 or size == 0 else f"{value:.1e}".replace("e-0", "e-")


def _limits(chart: Chart) -> tuple[float, float]:
    """From zero, or from below it where values are negative, to the highest value."""
    if chart.stacked:
        totals: dict[float, float] = {}
        for series in chart.series:
            for x, y in series.points:
                totals[x] = totals.get(x, 0.0) + y
        values = list(totals.values())
    else:
        values = [y for series in chart.series for _, y in series.points]
    low, high = min(0.0, *values), max(0.0, *values)
    return (low, high) if high > low else (low, low + 1.0)


def _within(ticks: Sequence[float], limits: tuple[float, float]) -> list[float]:
    low, high = limits
    slack = 1e-9 * (high - low)
    return [float(tick) for tick in ticks if low - slack <= tick <= high + slack]


def _line(frame: _Frame, series: Series) -> Markup:
    colour = series.colour % COLOURS
    at = [(frame.x(x), frame.y(y)) for x, y in series.points]
    parts = [Markup('<path class="line c{} d{}" d="M{}"/>').format(colour, colour, "L".join(f"{x} {y}" for x, y in at))]
    for step, (low, high) in (series.intervals or {}).items():
        parts.append(
            Markup('<path class="whisker c{}" d="M{} {}V{}"/>').format(
                colour, frame.x(step), frame.y(low), frame.y(high)
            )
        )
    if len(at) <= _MARKED:
        parts += [
            Markup('<circle class="dot c{}" cx="{}" cy="{}" r="{}"><title>{}, step {:g}: {}</title></circle>').format(
                colour, x, y, 4 if series.intervals is not None else 2.2, series.name, step, number(value)
            )
            for (x, y), (step, value) in zip(at, series.points, strict=True)
        ]
    return Markup("").join(parts)


def _stack(frame: _Frame, all_series: Sequence[Series]) -> list[Markup]:
    """Areas on top of each other, each step as wide as one."""
    floor: dict[float, float] = {x: 0.0 for series in all_series for x, _ in series.points}
    areas = []
    for series in all_series:
        top, bottom = [], []
        for step, value in series.points:
            left, right = frame.x(step - 0.5), frame.x(step + 0.5)
            low, high = frame.y(floor[step]), frame.y(floor[step] + value)
            top.append(f"{left} {high}L{right} {high}")
            bottom.append(f"{right} {low}L{left} {low}")
            floor[step] += value
        outline = "L".join([*top, *reversed(bottom)])
        areas.append(Markup('<path class="area c{}" d="M{}Z"/>').format(series.colour % COLOURS, outline))
    return areas
