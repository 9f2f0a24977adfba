"""Small charts as SVG that takes its colors from the page's style sheet: lines, areas, intervals in rows, reliability.

A page must look right in light and dark and without a network, so colors are classes of `page.css`: `.c0` to `.c5` are
agents' and of nothing else, `.n0` to `.n5` are grays, `.d0` to `.d5` dashes for eyes that tell colors badly. Every
picture says in words what it shows; names in them are agents', tasks' and files' own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from coachrl.stats import Estimate
from coachrl.text import printable

Point = tuple[float, float]
Range = tuple[float, float]

COLORS = 6
_REFERENCE = "line n1 d5"  # a dashed line that figures are compared with
_MOST_DRAWN = 1e300  # beyond that no scale has marks
_MARKED = 40  # a line of up to so many points shows each of them
_ROW = 24  # pixels of a forest plot's row
_ROW_WIDTH = 280


@dataclass(frozen=True)
class Series:
    """One line. points: (step, value). number: of its color and dashes; the color is an agent's where the line is of an
    agent, else a gray. intervals: step -> (low, high), where known."""

    name: str
    points: Sequence[Point]
    number: int = 0
    intervals: Mapping[float, Range] | None = None
    of_agent: bool = False

    @property
    def color(self) -> str:
        """The class of its color."""
        return f"{'c' if self.of_agent else 'n'}{self.number % COLORS}"

    @property
    def dashes(self) -> str:
        """The class of its dashes."""
        return f"d{self.number % COLORS}"


@dataclass(frozen=True)
class Chart:
    """Lines over training. count: what one point is a mean of, with its n. y_range: fixed limits, where the scale has
    them. stacked: areas on top of each other in place of lines."""

    title: str
    series: Sequence[Series]
    count: str
    unit: str = ""
    y_range: Range | None = None
    stacked: bool = False

    def svg(self) -> Markup:
        """The picture; its title and description say in words what it shows."""
        if any(abs(y) > _MOST_DRAWN for series in self.series for _, y in series.points):
            return replace(self, series=[_drawable(series) for series in self.series]).svg()
        steps = [x for series in self.series for x, _ in series.points]
        low, high = self.y_range or self._limits()
        y_ticks = MaxNLocator(nbins=4).tick_values(low, high)
        if self.y_range is None:
            low, high = float(y_ticks[0]), float(y_ticks[-1])
        plane = _Plane(380, 210, (56, 18, 10, 34), (min(steps) - 0.5, max(steps) + 0.5), (low, high))
        # A locator would stretch a single step to a range of almost nothing, and label that.
        one_step = min(steps) == max(steps)
        x_ticks = [steps[0]] if one_step else MaxNLocator(nbins=6, integer=True).tick_values(min(steps), max(steps))
        axes = [*plane.lines_across(y_ticks), *plane.labels_below(x_ticks, "step")]
        drawn = _areas(plane, self.series) if self.stacked else [mark for s in self.series for mark in _line(plane, s)]
        label = f"{self.title}{f' ({self.unit})' if self.unit else ''} by training step"
        words = "; ".join(f"{series.name}: {self.ends(series)}" for series in self.series)
        return plane.svg(label, words, [*axes, *drawn])

    def ends(self, series: Series) -> str:
        """First and last value of a line in words."""
        first, last = series.points[0], series.points[-1]
        if len(series.points) == 1:
            return f"{number(last[1])} at step {last[0]:g}"
        return f"{number(first[1])} → {number(last[1])}"

    def _limits(self) -> Range:
        """From zero, or from below it where values are negative, to the highest value."""
        heights: dict[tuple[float, str], float] = {}
        for series in self.series:
            for x, y in series.points:
                key = (x, "" if self.stacked else series.name)
                heights[key] = heights.get(key, 0.0) + y if self.stacked else y
        low, high = min(0.0, *heights.values()), max(0.0, *heights.values())
        return (low, high) if high > low else (low, low + 1.0)


def _drawable(series: Series) -> Series:
    """The line with what is too high or too deep for a scale at its ends."""
    return replace(series, points=[(x, max(-_MOST_DRAWN, min(y, _MOST_DRAWN))) for x, y in series.points])


def forest(title: str, rows: Sequence[tuple[str, Estimate]], null: float = 0.0) -> Markup:
    """One row for each estimate: its name, whole at any width, then its dot and interval; a dashed line where there
    would be no difference. The scale stands below."""
    ends = [null, *(end for _, e in rows for end in (e.value, *e.bounds))]
    low, high = min(ends), max(ends)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    ticks = MaxNLocator(nbins=5).tick_values(low, high)
    plane = _Plane(_ROW_WIDTH, _ROW, (12, 12, 0, 0), (float(ticks[0]), float(ticks[-1])), (0.0, 1.0))
    behind = [*(plane.path("grid", [(tick, 0.0), (tick, 1.0)]) for tick in ticks)]
    behind.append(plane.path(_REFERENCE, [(null, 0.0), (null, 1.0)]))
    parts = [
        Markup("<span>{}</span>{}").format(
            printable(name), plane.svg(name, str(estimate), [*behind, *_interval(plane, estimate)])
        )
        for name, estimate in rows
    ]
    below = replace(plane, margins=(12, 12, 0, 20))
    scale = below.svg("scale", ", ".join(map(number, ticks)), below.labels_below(ticks, ""))
    return Markup('<div class="forest" role="group" aria-label="{}">{}<span></span>{}</div>').format(
        printable(title), Markup("").join(parts), scale
    )


def _interval(plane: _Plane, estimate: Estimate) -> list[Markup]:
    """An estimate in the middle of its row."""
    drawn = []
    if estimate.low is not None:
        drawn.append(plane.path("whisker n0", [(bound, 0.5) for bound in estimate.bounds]))
    return [*drawn, plane.dot(estimate.value, 0.5, "n0", 4, str(estimate))]


def reliability(bins: Sequence[tuple[str, float, Estimate]]) -> Markup:
    """Success rate against the mean score of each bin (its name, mean score and success), and the diagonal that
    score / 10 would be if it were a probability."""
    plane = _Plane(300, 300, (40, 10, 10, 40), (0.0, 10.0), (0.0, 1.0))
    parts = [
        *plane.lines_across([0, 0.2, 0.4, 0.6, 0.8, 1]),
        *plane.labels_below([0, 2, 4, 6, 8, 10], "mean score of the last action"),
        plane.path(_REFERENCE, [(0.0, 0.0), (10.0, 1.0)]),
    ]
    for name, score, rate in bins:
        if rate.low is not None:
            parts.append(plane.path("whisker n0", [(score, bound) for bound in rate.bounds]))
        parts.append(plane.dot(score, rate.value, "n0", 4, f"{name}: {rate}"))
    return plane.svg("success by score", "; ".join(f"{name}: {rate}" for name, _, rate in bins), parts)


def number(value: float) -> str:
    """A number short enough for a chart's margin."""
    size = abs(value)
    if size >= 999_500:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    if size >= 10_000:
        return f"{value / 1000:.3g}k"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.001 or size == 0 else f"{value:.1e}".replace("e-0", "e-")


@dataclass(frozen=True)
class _Plane:
    """Where values lie in a picture, in pixels. margins: left, right, top, bottom."""

    width: float
    height: float
    margins: tuple[float, float, float, float]
    x_range: Range
    y_range: Range

    def x(self, value: float) -> float:
        left, right, _, _ = self.margins
        low, high = self.x_range
        return round(left + (value - low) / (high - low) * (self.width - left - right), 1)

    def y(self, value: float) -> float:
        _, _, top, bottom = self.margins
        low, high = self.y_range
        return round(self.height - bottom - (value - low) / (high - low) * (self.height - top - bottom), 1)

    def path(self, css: str, points: Iterable[Point]) -> Markup:
        corners = "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)
        return Markup('<path class="{}" d="M{}"/>').format(css, corners)

    def dot(self, x: float, y: float, color: str, radius: float, words: str) -> Markup:
        return Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>').format(
            color, self.x(x), self.y(y), radius, printable(words)
        )

    def lines_across(self, ticks: Iterable[float]) -> list[Markup]:
        """A line from left to right at each tick, with its number in the left margin."""
        parts = []
        for tick in _within(ticks, self.y_range):
            parts.append(self.path("grid", [(self.x_range[0], tick), (self.x_range[1], tick)]))
            parts.append(_text(self.margins[0] - 6, self.y(tick) + 4, number(tick), "end"))
        return parts

    def labels_below(self, ticks: Iterable[float], name: str) -> list[Markup]:
        """Numbers below the plane, and what they count."""
        floor = self.height - self.margins[3]
        middle = (self.x(self.x_range[0]) + self.x(self.x_range[1])) / 2
        numbers = [_text(self.x(tick), floor + 14, number(tick)) for tick in _within(ticks, self.x_range)]
        return [*numbers, _text(middle, self.height - 3, name)] if name else numbers

    def svg(self, label: str, words: str, parts: Iterable[Markup]) -> Markup:
        return Markup(
            '<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>{}</svg>'
        ).format(self.width, self.height, printable(label), printable(label), printable(words), Markup("").join(parts))


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _within(ticks: Iterable[float], limits: Range) -> list[float]:
    low, high = min(limits), max(limits)
    slack = 1e-9 * (high - low)
    return [float(tick) for tick in ticks if low - slack <= tick <= high + slack]


def _line(plane: _Plane, series: Series) -> list[Markup]:
    parts = [plane.path(f"line {series.color} {series.dashes}", series.points)]
    for step, (low, high) in (series.intervals or {}).items():
        parts.append(plane.path(f"whisker {series.color}", [(step, low), (step, high)]))
    if len(series.points) <= _MARKED:
        radius = 4 if series.intervals is not None else 2.2
        parts += [
            plane.dot(step, value, series.color, radius, f"{series.name}, step {step:g}: {number(value)}")
            for step, value in series.points
        ]
    return parts


def _areas(plane: _Plane, all_series: Sequence[Series]) -> list[Markup]:
    """Areas on top of each other, each step as wide as one."""
    floor: dict[float, float] = {}
    areas = []
    for series in all_series:
        top: list[Point] = []
        bottom: list[Point] = []
        for step, value in series.points:
            low = floor.get(step, 0.0)
            floor[step] = low + value
            top += [(step - 0.5, low + value), (step + 0.5, low + value)]
            bottom += [(step - 0.5, low), (step + 0.5, low)]
        areas.append(plane.path(f"area {series.color}", [*top, *reversed(bottom)]))
    return areas
