"""Means of episodes with 95 % bootstrap intervals. Episodes of one task are alike, so tasks are resampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Key = tuple[str, str]  # task id, number of the draw: what pairs an episode before training with one after it
Observations = Mapping[Key, float]

RESAMPLES = 10_000
COVERAGE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `episodes` episodes of `tasks` tasks. interval: None where the data give none (one task, or no spread
    in something that is not a share)."""

    mean: float
    interval: tuple[float, float] | None
    tasks: int
    episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]" if self.interval else "")


def estimate_share(observations: Observations, seed: int = 0) -> Estimate:
    """Mean of zeros and ones. Where every episode came out alike the bootstrap has no width, and the exact
    (Clopper-Pearson) interval of as many tasks stands in for it. Raises ValueError on no observations."""
    found = estimate_mean(observations, seed)
    if found.interval is not None or found.mean not in (0.0, 1.0):
        return found
    edge = ((1 - COVERAGE) / 2) ** (1 / found.tasks)
    interval = (0.0, 1 - edge) if found.mean == 0.0 else (edge, 1.0)
    return Estimate(found.mean, interval, found.tasks, found.episodes)


def estimate_mean(observations: Observations, seed: int = 0) -> Estimate:
    """Mean with the percentile interval of a bootstrap over tasks. Raises ValueError on no observations."""
    sums_T, counts_T = _by_task(observations)
    total = float(sums_T.sum() / counts_T.sum())
    means_T = sums_T / counts_T
    interval = None
    if len(sums_T) > 1 and not np.allclose(means_T, means_T[0], rtol=1e-9, atol=0):
        rng = np.random.default_rng(seed)
        # How often each task is drawn, RESAMPLES x T.
        drawn_RT = rng.multinomial(len(sums_T), np.full(len(sums_T), 1 / len(sums_T)), size=RESAMPLES)
        means_R = drawn_RT @ sums_T / (drawn_RT @ counts_T)
        tail = 100 * (1 - COVERAGE) / 2
        low, high = np.percentile(means_R, [tail, 100 - tail])
        interval = (float(low), float(high))
    return Estimate(total, interval, len(sums_T), len(observations))


def paired_difference(before: Observations, after: Observations, seed: int = 0) -> Estimate | None:
    """Mean of after - before over the draws that both hold; None where they share none."""
    common = {key: after[key] - before[key] for key in before if key in after}
    return estimate_mean(common, seed) if common else None


def signed(estimate: Estimate) -> str:
    """A difference, with its sign and its interval; what rounds to zero is +0.00."""
    interval = f" [{estimate.interval[0]:+z.2f}, {estimate.interval[1]:+z.2f}]" if estimate.interval else ""
    return f"{estimate.mean:+z.2f}{interval}"


def _by_task(observations: Observations) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of each task's values, in order of task ids so that the interval depends on the data alone."""
    if not observations:
        raise ValueError("an estimate needs at least one observation")
    tasks: dict[str, list[float]] = {}
    for (task_id, _), value in observations.items():
        tasks.setdefault(task_id, []).append(float(value))
    ordered = [tasks[task_id] for task_id in sorted(tasks)]
    return np.array([sum(v) for v in ordered]), np.array([float(len(v)) for v in ordered])
