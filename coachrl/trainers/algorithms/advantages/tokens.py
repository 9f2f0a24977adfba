"""The tokens of many samples as one array: what would be a loop over a million samples is a few calls of numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coachrl.types import TrainSample

Floats = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)


class Tokens:
    """Where the response tokens of N samples lie in an array of all T of them, one sample after the other. mask_T: 1
    where a token is trained on, 0 elsewhere."""

    def __init__(self, samples: Sequence[TrainSample]) -> None:
        self.lengths_N = np.array([len(s.response_ids_L) for s in samples], dtype=np.int64)
        self.ends_N = np.cumsum(self.lengths_N)
        self.starts_N = self.ends_N - self.lengths_N
        self.total = int(self.lengths_N.sum())
        self.mask_T = self.join(sample.mask_L for sample in samples)

    def join(self, arrays: Iterable[NDArray[np.generic]]) -> Floats:
        """One array of all tokens from one array for each sample."""
        parts = list(arrays)
        return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)

    def split(self, values_T: NDArray[Number]) -> list[NDArray[Number]]:
        """Each sample's part of `values_T`, as a view."""
        bounds = zip(self.starts_N.tolist(), self.ends_N.tolist(), strict=True)
        return [values_T[start:end] for start, end in bounds]

    def spread(self, values_N: Floats) -> Floats:
        """The value of a sample at each of its tokens."""
        return np.repeat(values_N, self.lengths_N)

    def add_at_last(self, values_T: Floats, values_N: Floats) -> None:
        """Add each sample's value to its last token. A sample without tokens has none to add to."""
        has_tokens = self.lengths_N > 0
        values_T[self.ends_N[has_tokens] - 1] += values_N[has_tokens]

    def to_go(self, values_T: Floats) -> Floats:
        """At each token the sum of `values_T` from it to the end of its sample."""
        return sums_to_go(values_T, self.lengths_N)


def sums_to_go(values: Floats, lengths: NDArray[np.int64]) -> Floats:
    """In each of the parts that `values` consists of, of `lengths` values each: the sum from
    each value to the end of its part."""
    sums = np.zeros_like(values)
    starts = np.cumsum(lengths) - lengths
    # Parts of one length are the rows of a table, summed from the right; lengths are few where parts are many.
    for length in np.unique(lengths):
        places = starts[lengths == length][:, None] + np.arange(length)
        sums[places] = np.cumsum(values[places][:, ::-1], axis=1)[:, ::-1]
    return sums
