"""Groups of actions whose values are compared with each other. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from coachrl.types import TrainSample

SPREAD_FLOOR = 1e-6  # GRPO adds this to the deviation

Members = list[tuple[TrainSample, float]]
"""The samples of one group, each with the value that is compared."""


def of_task(sample: TrainSample) -> Hashable:
    return sample.task_id


def of_role(sample: TrainSample) -> Hashable:
    return sample.task_id, sample.role


def of_turn(sample: TrainSample) -> Hashable:
    return sample.task_id, sample.role, sample.turn


def of_state(sample: TrainSample) -> Hashable:
    """The candidates that tree sampling drew from one state of an episode."""
    return sample.episode_id, sample.role, sample.turn


def grouped(
    samples: Iterable[TrainSample], values: Mapping[str, float], key: Callable[[TrainSample], Hashable]
) -> list[Members]:
    """The members of each group, for the samples that have a value."""
    groups: dict[Hashable, Members] = {}
    for sample in samples:
        if sample.action_id in values:
            groups.setdefault(key(sample), []).append((sample, values[sample.action_id]))
    return list(groups.values())


def relative(groups: Sequence[Members], scaled: bool) -> dict[str, float]:
    """Action id -> value - mean inside its group, over the unbiased deviation + 1e-6 where `scaled`.

    A group of one, or without spread, has nothing to compare with: its actions are not in it.
    """
    advantages: dict[str, float] = {}
    for members in groups:
        if has_no_spread(members):
            continue
        values = np.asarray([value for _, value in members], dtype=np.float64)
        differences = values - values.mean()
        if scaled:
            differences /= values.std(ddof=1) + SPREAD_FLOOR
        for (sample, _), difference in zip(members, differences, strict=True):
            advantages[sample.action_id] = float(difference)
    return advantages


def has_no_spread(members: Members) -> bool:
    return len({value for _, value in members}) == 1


def without_comparison(groups: Iterable[Members]) -> dict[str, str]:
    """Action id -> why its group teaches nothing."""
    reasons: dict[str, str] = {}
    for members in groups:
        if has_no_spread(members):
            reason = "group_of_one" if len(members) == 1 else "no_spread"
            reasons |= {sample.action_id: reason for sample, _ in members}
    return reasons
