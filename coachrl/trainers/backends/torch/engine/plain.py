"""The decoder for architectures that the shared-prefix layouts are not proven for: transformers' own attention over
padded rows, each with a copy of the common prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_GROWTH_TOKENS = 64  # room that a full cache grows by
_COMPACT_SHARE = 0.2  # share of finished rows at which the cache is rewritten without them


class PlainDecoder:
    """Answers a batch from its beginning to its end: rows leave by a rewrite of the cache, and none can join."""

    def __init__(self, model: Any, prefix_ids: tuple[int, ...], slots: int) -> None:
        self._model, self._prefix_ids, self._slots = model, prefix_ids, slots

    def free_slots(self, active: int) -> int:
        return 0 if active else self._slots

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Logits (B, V) after each prompt.

        The common prefix is fed once, and its keys and values are copied for every row; the rest is padded on the left.
        """
        device = self._model.device
        self._cache: Any = Cache(layer_class_to_replicate=_RoomyLayer)
        self._mask_BT = torch.empty(1, 0, dtype=torch.long, device=device)
        self._positions_B = torch.full((1,), -1, device=device)  # of the token that was fed last
        if self._prefix_ids:
            prefix = torch.tensor([self._prefix_ids], device=device)
            self._feed(prefix, torch.ones_like(prefix))
        self._select(torch.zeros(len(prompts), dtype=torch.long, device=device))
        rests = [prompt[len(self._prefix_ids) :] for prompt in prompts]
        width = max(map(len, rests))
        ids = [[rest[0]] * (width - len(rest)) + list(rest) for rest in rests]
        mask = [[0] * (width - len(rest)) + [1] * len(rest) for rest in rests]
        return self._feed(torch.tensor(ids, device=device), torch.tensor(mask, device=device))

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits (B, V) after one more token of each row."""
        return self._feed(tokens_B[:, None], torch.ones_like(tokens_B)[:, None])

    def keep(self, going: list[int]) -> list[int]:
        """Lets rows go, where that pays; returns the places of the rows that are left, in their new order."""
        active = len(self._positions_B)
        if active - len(going) < _COMPACT_SHARE * active:
            return list(range(active))
        if going:
            self._select(torch.tensor(going, device=self._positions_B.device))
        return going

    def _feed(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        self._mask_BT = torch.cat([self._mask_BT, mask_BT], dim=1)
        positions_BT = (self._positions_B[:, None] + mask_BT.cumsum(dim=1)).clamp(min=0)
        self._positions_B = positions_BT[:, -1]
        # An index, not a count: a slice of the hidden states is not contiguous, and torch then multiplies it by a copy
        # of the output layer for each row (1.8 GB for 32 rows of a vocabulary of 49,152).
        last_1 = torch.tensor([ids_BT.shape[1] - 1], device=ids_BT.device)
        output = self._model(
            input_ids=ids_BT,
            attention_mask=self._mask_BT,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=last_1,
        )
        return output.logits[:, -1]

    def _select(self, rows: Tensor) -> None:
        for layer in self._cache.layers:
            layer.select_rows(rows)
        self._mask_BT, self._positions_B = self._mask_BT[rows], self._positions_B[rows]


class _RoomyLayer(DynamicLayer):
    """Keys and values with room to grow: a new token is written in place; DynamicLayer copies all earlier ones."""

    keys: Tensor
    values: Tensor
    is_initialized: bool

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        begin = self.get_seq_length()
        end = begin + key_states.shape[-2]
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.is_initialized = True
            self.key_room, self.value_room = _grown(key_states, 0), _grown(value_states, 0)
        elif end > self.key_room.shape[-2]:
            self.key_room = _grown(self.keys, end - begin)
            self.value_room = _grown(self.values, end - begin)
        self.key_room[..., begin:end, :] = key_states
        self.value_room[..., begin:end, :] = value_states
        self.keys, self.values = self.key_room[..., :end, :], self.value_room[..., :end, :]
        return self.keys, self.values

    def select_rows(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may be named more than once."""
        length = self.get_seq_length()
        self.key_room, self.value_room = _grown(self.keys[rows], 0), _grown(self.values[rows], 0)
        self.keys, self.values = self.key_room[..., :length, :], self.value_room[..., :length, :]


def _grown(states: Tensor, needed: int) -> Tensor:
    """A copy of (B, heads, T, width) with room for `needed` tokens and some more."""
    batch, heads, length, width = states.shape
    room = states.new_empty(batch, heads, length + needed + _GROWTH_TOKENS, width)
    room[..., :length, :] = states
    return room
