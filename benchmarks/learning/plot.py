"""Held-out success over training steps: one colour a condition, a thin line each seed, a thick one their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Curve = Sequence[tuple[int, float]]  # (step, held-out success) of one seed

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its pale yellow; dashes and markers repeat
# the difference in black and white.
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#56B4E9", (0, (5, 1)), "v"),
    ("#E69F00", (0, (1, 1)), "P"),
)
LABEL_GAP = 0.06  # of the axis: what keeps two labels from touching


def plot_curves(
    results: Mapping[str, Sequence[Curve]], path: Path, title: str, measure: str = "held-out success"
) -> None:
    """Write the picture to `path`; its suffix is the format.

    results: condition -> one curve a seed. The mean is over seeds, at the steps that all seeds of a condition share.
    Raises ValueError where a condition has no curve, its seeds share no step, or there are more conditions than styles.
    """
    if len(results) > len(STYLES):
        raise ValueError(f"{len(results)} conditions, but only {len(STYLES)} styles that can be told apart")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    ends = {}
    for (condition, curves), (colour, dashes, marker) in zip(results.items(), STYLES, strict=False):
        steps, mean = mean_curve(condition, curves)
        for curve in curves:
            axes.plot(*zip(*sorted(curve), strict=True), color=colour, linewidth=0.9, alpha=0.45)
        axes.plot(steps, mean, color=colour, linestyle=dashes, marker=marker, linewidth=2.6, markersize=6)
        ends[f"{condition} ({len(curves)} seed{'' if len(curves) == 1 else 's'})"] = (mean[-1], colour)
    for label, height in spread_labels({label: end for label, (end, _) in ends.items()}).items():
        axes.annotate(
            label,
            (1.01, height),
            xycoords=("axes fraction", "data"),
            color=ends[label][1],
            fontsize=12,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("training step", fontsize=12)
    axes.set_ylabel(measure, fontsize=12)
    axes.set_title(title, loc="left", fontsize=13)
    axes.tick_params(labelsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def mean_curve(condition: str, curves: Sequence[Curve]) -> tuple[list[int], list[float]]:
    """Mean over seeds at the steps that all seeds have. Raises ValueError where there is none."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(values) for values in by_step))) if by_step else []
    if not steps:
        raise ValueError(f"condition '{condition}' has no step that all of its {len(curves)} seeds were evaluated at")
    return steps, [float(np.mean([values[step] for values in by_step])) for step in steps]


def spread_labels(heights: Mapping[str, float]) -> dict[str, float]:
    """Heights of labels on a 0..1 axis, in the same order, pushed up where they would touch."""
    placed: dict[str, float] = {}
    floor = 0.0
    for label in sorted(heights, key=lambda name: heights[name]):
        placed[label] = max(heights[label], floor)
        floor = placed[label] + LABEL_GAP
    overflow = max(0.0, max(placed.values(), default=0.0) - 1.0)
    return {label: height - overflow for label, height in placed.items()}
