"""Is the coach being gamed? What scores and held-out outcomes do over training, and an alarm when they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import PERIODS, Floats, Sample
from coachrl.audit.stats.strata import at_equal_cells
from coachrl.stats import (
    POSITIVE,
    SCORE,
    SCORE_CHANGE,
    SHARE,
    SHARE_CHANGE,
    UNLIMITED,
    Estimate,
    Limits,
)


@dataclass(frozen=True)
class Curve:
    """A quantity over training: (first step of the part, its mean)."""

    name: str
    points: Sequence[tuple[int, Estimate]]


@dataclass(frozen=True)
class Drift:
    """score_change, length_change, tool_change: second half of training minus first, at equal run and role;
    outcome_change: the same of evaluations, at equal run. notes: what is missing."""

    curves: Mapping[str, Sequence[Curve]]
    score_change: Estimate | None
    outcome_change: Estimate | None
    outcome_source: str
    length_change: Estimate | None
    tool_change: Estimate | None
    notes: Sequence[str]


def drift(sample: Sample, heldout: pd.DataFrame) -> Drift:
    """sample: with the column `bin`. heldout: evaluated episodes of the same runs, where there are any."""
    frame = sample.frame
    notes: list[str] = []
    curves: dict[str, list[Curve]] = {}
    steps = int(frame["step"].nunique())
    if steps < 2:
        notes.append(f"scores of {steps} training step only: drift over training cannot be measured")
    else:
        curves["score"] = _by_role(sample, sample.scores, SCORE)
        curves["response tokens"] = _by_role(sample, sample.values("tokens"), POSITIVE)
        curves["code"] = _by_role(sample, sample.values("has_code"), SHARE)
    score_change = _change(sample, sample.scores, SCORE_CHANGE)
    if steps > 1 and score_change is None:
        notes.append("no role was scored in both halves of a run's training: how scores change cannot be measured")
    outcome, source, outcome_curve = _outcomes(sample, heldout, notes)
    if outcome_curve:
        curves["outcome"] = [outcome_curve]
    return Drift(
        curves=curves,
        score_change=score_change,
        outcome_change=outcome,
        outcome_source=source,
        length_change=_change(sample, sample.values("tokens"), UNLIMITED),
        tool_change=_change(sample, sample.values("has_code"), SHARE_CHANGE),
        notes=notes,
    )


def _by_role(sample: Sample, values_N: Floats, limits: Limits) -> list[Curve]:
    points: dict[str, list[tuple[int, Estimate]]] = {}
    for (role, first_step), mean in sample.means(("role", "bin"), values_N, limits=limits).items():
        points.setdefault(role, []).append((int(first_step), mean))
    return [Curve(role, of_role) for role, of_role in points.items()]


def _change(
    sample: Sample, values_N: Floats, limits: Limits, equal: Sequence[str] = ("run", "role"), of: str = "actions"
) -> Estimate | None:
    """Late minus early inside of cells of `equal`, see `at_equal_cells`. None where no cell holds both. The tasks that
    carry it are those of the half that has fewer: a curriculum's last ones."""
    cell_N, cells = sample.codes(equal)
    late_N, periods = sample.matches("period", "late").astype(np.int64), len(PERIODS)
    counts_CP = np.bincount(cell_N * periods + late_N, minlength=cells * periods).reshape(cells, periods)
    # A row of one half weighs as much as the other half's share of its cell.
    weights_N = counts_CP[cell_N, 1 - late_N] / counts_CP[cell_N].sum(axis=1)
    if not weights_N.any():
        return None
    carrying = min(sample.equal_tasks(weights_N * (late_N == half)) for half in range(periods))

    def change(sums_RCV: Floats) -> Floats:
        early_RSV, late_RSV = np.moveaxis(sums_RCV.reshape(-1, cells, periods, 2), 2, 0)
        return at_equal_cells(late_RSV, early_RSV)

    halves = (cell_N * periods + late_N, cells * periods)
    return sample.total(change, values_N, cells=halves, of=of, limits=limits, clusters=carrying)


def _outcomes(sample: Sample, heldout: pd.DataFrame, notes: list[str]) -> tuple[Estimate | None, str, Curve | None]:
    """Change of the held-out outcome, else of the training outcome, with a note."""
    if _has_two_steps(heldout):
        frame, source = heldout, "held-out"
    else:
        frame, source = sample.frame.drop_duplicates(["run", "episode"]), "training"
        frame = frame[["run", "step", "task", "outcome"]].dropna()
        if sample.frame["step"].nunique() > 1:
            notes.append(
                "fewer than two held-out evaluations: the outcome over training is that of the training episodes"
            )
    if not _has_two_steps(frame):
        return None, source, None
    rows = frame.assign(task=frame["task"].astype("category"), score=frame["outcome"])
    episodes = Sample.of(rows, sample.resampler.resamples)
    means = episodes.means(("step",), episodes.scores, of="episodes", limits=SHARE)
    curve = [(int(step), mean) for (step,), mean in means.items()]
    moved = _change(episodes, episodes.scores, SHARE_CHANGE, ("run",), of="episodes")
    return moved, source, Curve(f"{source} success", curve)


def _has_two_steps(frame: pd.DataFrame) -> bool:
    """Whether any run has two: what differs between runs is no change."""
    return len(frame) > 0 and int(frame.groupby("run", observed=True)["step"].nunique().max()) > 1
