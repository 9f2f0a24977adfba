"""Shares samples out over data-parallel ranks, and requests over engines. Ranks that run unequal numbers of
micro-batches wait for each other for ever, so short ranks are filled up; no sample is left out. Plain arithmetic: needs
neither Ray nor torch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# How many more requests than the least busy one an episode's own engine may have and still be asked.
_WORTH_A_CACHE = 2


@dataclass(frozen=True)
class Shares:
    """ranks: for each rank the positions of its samples, None for padding; all of one length. steps: optimizer steps
    that the samples are cut into, each of `per_step` samples a rank. padding: how many places hold no sample."""

    ranks: tuple[tuple[int | None, ...], ...]
    steps: int
    per_step: int

    @property
    def padding(self) -> int:
        return sum(place is None for rank in self.ranks for place in rank)


def share_out(tokens: Sequence[int], ranks: int, micro_batch: int, minibatch: int | None = None) -> Shares:
    """Positions of `tokens` (one count for each sample) over `ranks`, so that ranks have like numbers of tokens.

    The longest sample goes first, to the rank with fewest tokens that still has a place (LPT). Every rank gets as many
    places, a multiple of `micro_batch` for each optimizer step; there are ceil(samples / minibatch) steps, or one.
    Raises ValueError where there is no sample.
    """
    if not tokens:
        raise ValueError("no sample to share out")
    steps = math.ceil(len(tokens) / minibatch) if minibatch else 1
    per_step = math.ceil(len(tokens) / (steps * ranks * micro_batch)) * micro_batch
    places = steps * per_step
    chosen: list[list[int | None]] = [[] for _ in range(ranks)]
    lightest = [(0, rank) for rank in range(ranks)]
    for position in sorted(range(len(tokens)), key=lambda i: -tokens[i]):
        load, rank = heapq.heappop(lightest)
        chosen[rank].append(position)
        if len(chosen[rank]) < places:
            heapq.heappush(lightest, (load + tokens[position], rank))
    return Shares(tuple(tuple(part + [None] * (places - len(part))) for part in chosen), steps, per_step)


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
        if home is not None and self.in_flight[home] <= fewest + _WORTH_A_CACHE:
            return home
        idlest = [engine for engine, count in enumerate(self.in_flight) if count == fewest]
        return idlest[self._generator.integers(len(idlest))]
