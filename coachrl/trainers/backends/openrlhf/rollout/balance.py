"""Shares samples out over data-parallel ranks, and requests over engines. Ranks that run unequal numbers of
micro-batches wait for each other for ever, so short ranks are filled up; no sample is left out. Plain arithmetic: needs
neither Ray nor torch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def _worth_a_cache(fewest: int) -> int:
    """How many more requests than the least busy engine an episode's own may have and still be asked. Counts scatter by
    their square root: less than that much would send episodes away that found their engine as busy as any."""
    return max(2, 2 * math.isqrt(fewest))


MicroBatch = tuple[int, ...]  # positions of samples; none where a rank is filled up


@dataclass(frozen=True)
class Shares:
    """ranks: for each rank its micro-batches, as many on all of them. padding: how many of them hold no sample."""

    ranks: tuple[tuple[MicroBatch, ...], ...]

    @property
    def padding(self) -> int:
        return sum(not batch for rank in self.ranks for batch in rank)

    def of(self, samples: Sequence[T]) -> list[tuple[tuple[T, ...], ...]]:
        """What stands at the positions, for each rank by micro-batch."""
        return [tuple(tuple(samples[place] for place in batch) for batch in rank) for rank in self.ranks]


def share_out(tokens: Sequence[int], ranks: int, budget: int) -> Shares:
    """Positions of `tokens` (one count for each sample) over `ranks`, so that ranks have like numbers of tokens, in
    micro-batches of at most `budget` tokens. A sample that is longer has one to itself.

    The longest sample goes first, to the rank with fewest tokens (LPT), and there into the first micro-batch that has
    room for it. Raises ValueError where there is no sample.
    """
    if not tokens:
        raise ValueError("no sample to share out")
    chosen: list[list[list[int]]] = [[] for _ in range(ranks)]
    lightest = [(0, rank) for rank in range(ranks)]
    for position in sorted(range(len(tokens)), key=lambda i: -tokens[i]):
        load, rank = heapq.heappop(lightest)
        _place(position, chosen[rank], tokens, budget)
        heapq.heappush(lightest, (load + tokens[position], rank))
    most = max(map(len, chosen))
    for batches in chosen:
        batches += [[]] * (most - len(batches))
    return Shares(tuple(tuple(map(tuple, batches)) for batches in chosen))


def _place(position: int, batches: list[list[int]], tokens: Sequence[int], budget: int) -> None:
    for batch in batches:
        if sum(tokens[held] for held in batch) + tokens[position] <= budget:
            batch.append(position)
            return
    batches.append([position])


class EngineChoice:
    """Which of a policy's engines a request goes to. `in_flight` counts the requests of this process at each engine."""

    def __init__(self, engines: int, generator: np.random.Generator) -> None:
        self.in_flight = [0] * engines
        self._generator = generator

    def choose(self, home: int | None = None) -> int:
        """The engine that has the episode's earlier prompts in its cache (`home`), unless it is much busier than
        others; else one of those with fewest requests. Which of them is drawn: several processes ask the same engines,
        each counts its own requests alone, and the lowest number would be the first choice of them all."""
        fewest = min(self.in_flight)
        if home is not None and self.in_flight[home] <= fewest + _worth_a_cache(fewest):
            return home
        idlest = [engine for engine, count in enumerate(self.in_flight) if count == fewest]
        return idlest[self._generator.integers(len(idlest))]
