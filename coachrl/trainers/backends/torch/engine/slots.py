"""The decoder on shared-prefix attention: rows have slots of contiguous memory, which they enter and leave at any step.

Letters as in `attention`; A active rows lie in the first A slots, and each slot has room for R own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.attention import KeyValues, PackedRows, Prefix, grouped_attention

_GROWTH_TOKENS = 16  # a step multiplies every column of a slot, used or not
_JOIN_SHARE = 0.25  # share of the slots that are free before others join: reading a few prompts is slow


class SlotDecoder:
    """Answers rows with one common prefix; see `PlainDecoder` for what the methods have in common."""

    def __init__(self, model: Any, prefix_ids: tuple[int, ...], slots: int) -> None:
        self._model, self._shared, self._slots = model, len(prefix_ids), slots
        prefix = attention.read_prefix(model, torch.tensor([prefix_ids], dtype=torch.long, device=model.device))
        self._cache = SlotCache(prefix, slots, model.device)

    def free_slots(self, active: int) -> int:
        free = self._slots - active
        return free if not active or free >= _JOIN_SHARE * self._slots else 0

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Logits (B, V) after each of these prompts, whose rows come after those that are active."""
        device = self._model.device
        rests = [prompt[self._shared :] for prompt in prompts]
        lengths = [len(rest) for rest in rests]
        rows = PackedRows(lengths, self._cache.prefix, device, keep=True)
        ids_1N = torch.tensor([[token for rest in rests for token in rest]], device=device)
        positions = [place for length in lengths for place in range(self._shared, self._shared + length)]
        with attention.use(rows):
            logits = self._logits(ids_1N, torch.tensor([positions], device=device), torch.tensor(lengths).cumsum(0) - 1)
        self._cache.enter(rows.seen, lengths)
        return logits

    def step(self, tokens_B: Tensor) -> Tensor:
        places_1A = self._cache.begin_step()[None] + self._shared
        with attention.use(self._cache):
            return self._logits(tokens_B[None], places_1A, torch.arange(len(tokens_B)))

    def keep(self, going: list[int]) -> list[int]:
        """Rows from the end move into the slots of those that leave: nothing else is written."""
        return self._cache.keep(going)

    def _logits(self, ids_1N: Tensor, positions_1N: Tensor, chosen: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids_1N, position_ids=positions_1N, use_cache=False, logits_to_keep=chosen.to(ids_1N.device)
        )
        return output.logits[0]


class SlotCache:
    """The layout of a step: one new token for each active row, behind the keys and values that its slot holds."""

    def __init__(self, prefix: Prefix, slots: int, device: torch.device) -> None:
        self.prefix = prefix
        self._slots, self._device = slots, device
        self._layers: dict[int, KeyValues] = {}  # (slots, KV, R, D)
        self._lengths: list[int] = []  # own tokens of each active row
        self._mask = torch.empty(slots, 1, 1, 1, 0, device=device)  # 0 where a row has a token, -inf elsewhere

    def enter(self, seen: dict[int, KeyValues], lengths: Sequence[int]) -> None:
        begin, end = len(self._lengths), len(self._lengths) + len(lengths)
        width = max(lengths)
        self._make_room(width + 1)
        for layer, states in seen.items():
            if layer not in self._layers:
                _, heads, _, size = states.keys.shape
                shape = (self._slots, heads, self._mask.shape[-1], size)
                self._layers[layer] = KeyValues(states.keys.new_zeros(shape), states.values.new_zeros(shape))
            for room, new in zip(self._layers[layer], states, strict=True):
                room[begin:end, :, :width] = new
        self._mask[begin:end] = -torch.inf
        for slot, length in enumerate(lengths, start=begin):
            self._mask[slot, ..., :length] = 0
        self._lengths += lengths

    def begin_step(self) -> Tensor:
        """Opens the next column of every active row; returns these columns (A,)."""
        self._make_room(max(self._lengths) + 1)
        self._columns_A = torch.tensor(self._lengths, device=self._device)
        self._rows_A = torch.arange(len(self._lengths), device=self._device)
        self._mask[self._rows_A, ..., self._columns_A] = 0
        self._lengths = [length + 1 for length in self._lengths]
        return self._columns_A

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        KV, A, D = key.shape
        for room, new in zip(self._layers[layer], (key, value), strict=True):
            room[self._rows_A, :, self._columns_A] = new.transpose(0, 1)
        keys, values = (room[:A] for room in self._layers[layer])
        query = query.transpose(0, 1).reshape(A, KV, -1, 1, D)
        return grouped_attention(query, keys, values, self._mask[:A], self.prefix.get(layer)).view(A, -1, D)

    def keep(self, going: list[int]) -> list[int]:
        stay = [place for place in going if place < len(going)]
        movers = [place for place in going if place >= len(going)]
        holes = sorted(set(range(len(going))) - set(stay))
        if movers:
            for room in (self._mask, *(room for states in self._layers.values() for room in states)):
                room[holes] = room[movers]
        order = list(range(len(going)))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self._lengths = [self._lengths[place] for place in order]
        return order

    def _make_room(self, tokens: int) -> None:
        missing = tokens - self._mask.shape[-1]
        if missing > 0:
            more = -(-missing // _GROWTH_TOKENS) * _GROWTH_TOKENS
            self._mask = functional.pad(self._mask, (0, more), value=-torch.inf)
            self._layers = {
                layer: KeyValues(*(functional.pad(room, (0, 0, 0, more)) for room in states))
                for layer, states in self._layers.items()
            }
