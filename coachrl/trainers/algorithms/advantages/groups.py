"""Groups of actions whose values are compared with each other: arrays over all groups at once, no loop over them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coachrl.trainers.algorithms.advantages.tokens import Floats
from coachrl.types import TrainSample

SPREAD_FLOOR = 1e-6  # GRPO adds this to the deviation

Flags = NDArray[np.bool_]
GroupKey = Callable[[TrainSample], Hashable]


def of_task(sample: TrainSample) -> Hashable:
    return sample.task_id


def of_role(sample: TrainSample) -> Hashable:
    return sample.task_id, sample.role


def of_turn(sample: TrainSample) -> Hashable:
    return sample.task_id, sample.role, sample.turn


def of_state(sample: TrainSample) -> Hashable:
    """The candidates that tree sampling drew from one state of an episode."""
    return sample.episode_id, sample.role, sample.turn


class Places:
    """Which of N actions share a key, such as their role and turn; there are K keys."""

    def __init__(self, keys_N: Iterable[Hashable]) -> None:
        numbers: dict[Hashable, int] = {}
        self.numbers_N = np.array([numbers.setdefault(key, len(numbers)) for key in keys_N], dtype=np.int64)
        self.keys_K = list(numbers)

    def sums(self, values_N: Floats | Flags) -> Floats:
        """For each key the sum of the values that share it, or how many are true."""
        return np.bincount(self.numbers_N, values_N, minlength=len(self.keys_K)).astype(np.float64, copy=False)

    def means(self, values_N: Floats, known_N: Flags, otherwise_N: Floats | float = 0.0) -> Floats:
        """At each action the mean of the known values that share its key; `otherwise_N` where none of them is known."""
        counts_K, sums_K = self.sums(known_N), self.sums(np.where(known_N, values_N, 0.0))
        means_N = (sums_K / np.maximum(counts_K, 1))[self.numbers_N]
        return np.where(counts_K[self.numbers_N] > 0, means_N, otherwise_N)

    def center(self, values_N: Floats, known_N: Flags, *, leave_one_out: bool) -> tuple[Floats, dict[Any, float]]:
        """Each known value less the mean of those that share its key, without its own where `leave_one_out`; 0 where it
        is alone or not known. And the mean of each key of which one is known."""
        pivots_K, differences_N = self.from_one(values_N, known_N)
        counts_K = self.sums(known_N)
        shifts_K = self.sums(differences_N) / np.maximum(counts_K, 1)
        centered_N = np.where(known_N, differences_N - shifts_K[self.numbers_N], 0.0)
        if leave_one_out:
            centered_N *= (counts_K / np.maximum(counts_K - 1, 1))[self.numbers_N]
        means = zip(self.keys_K, (pivots_K + shifts_K).tolist(), counts_K.tolist(), strict=True)
        return centered_N, {key: mean for key, mean, count in means if count}

    def from_one(self, values_N: Floats, known_N: Flags) -> tuple[Floats, Floats]:
        """One known value of each key, and at each action how far its own is from that: 0 exactly where all of a key
        are equal, which a mean that was rounded would not give."""
        pivots_K, known = np.zeros(len(self.keys_K)), np.flatnonzero(known_N)
        pivots_K[self.numbers_N[known]] = values_N[known]
        return pivots_K, np.where(known_N, values_N - pivots_K[self.numbers_N], 0.0)


class Groups:
    """The samples that have a value, in groups of those that share a key.

    A group of one, or whose values are all equal, has nothing to compare. count: of groups in all; of them `of_one`,
    and `without_spread` (of two or more).
    """

    def __init__(self, samples: Iterable[TrainSample], values: Mapping[str, float], key: GroupKey) -> None:
        """values: action id -> what is compared."""
        self._compared = [sample for sample in samples if sample.action_id in values]
        self._values_N = np.array([values[sample.action_id] for sample in self._compared], dtype=np.float64)
        self._places = Places(map(key, self._compared))
        self._all_N = np.ones(len(self._compared), dtype=bool)
        self._sizes_K = self._places.sums(self._all_N)
        spread_K = self._places.sums(self._places.from_one(self._values_N, self._all_N)[1] != 0) > 0
        self._spread_N = spread_K[self._places.numbers_N]
        self.count = len(self._sizes_K)
        self.of_one = int(np.sum(self._sizes_K == 1))
        self.without_spread = int(np.sum(~spread_K)) - self.of_one

    def relative(self, *, scaled: bool) -> dict[str, float]:
        """Action id -> value - mean inside its group, over the unbiased deviation + 1e-6 where `scaled`. Actions of
        groups that have nothing to compare are not in it."""
        differences_N, _ = self._places.center(self._values_N, self._all_N, leave_one_out=False)
        if scaled:
            variances_K = self._places.sums(differences_N**2) / np.maximum(self._sizes_K - 1, 1)
            differences_N /= (np.sqrt(variances_K) + SPREAD_FLOOR)[self._places.numbers_N]
        return self._of_spread(differences_N)

    def against_others(self) -> dict[str, float]:
        """Action id -> value - mean of the others of its group (leave one out, arXiv 2402.14740). Actions of groups
        that have nothing to compare are not in it."""
        return self._of_spread(self._places.center(self._values_N, self._all_N, leave_one_out=True)[0])

    def tasks_with_spread(self) -> set[str]:
        """The tasks of which a group has something to compare, by id."""
        return {self._compared[place].task_id for place in np.flatnonzero(self._spread_N).tolist()}

    def without_comparison(self) -> dict[str, str]:
        """Action id -> why its group teaches nothing."""
        sizes_N = self._sizes_K[self._places.numbers_N]
        return {
            self._compared[place].action_id: "group_of_one" if sizes_N[place] == 1 else "no_spread"
            for place in np.flatnonzero(~self._spread_N).tolist()
        }

    def _of_spread(self, values_N: Floats) -> dict[str, float]:
        with_spread = zip(self._compared, values_N.tolist(), self._spread_N.tolist(), strict=True)
        return {sample.action_id: value for sample, value, spread in with_spread if spread}
