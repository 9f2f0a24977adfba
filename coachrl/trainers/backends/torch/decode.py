"""Draws a batch of replies with a transformers model: one seed, temperature and length limit for each of them.

`transformers.generate` has one random state for a whole batch, so a reply there depends on what else was in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from coachrl.types import Generation, SamplingParams

_MIN_SHARED_TOKENS = 16  # a shorter common prefix is not worth a forward pass of its own
_GROWTH_TOKENS = 64  # room that a full cache grows by
_COMPACT_SHARE = 0.2  # share of finished rows at which the cache is rewritten without them


@dataclass(frozen=True)
class Request:
    """One reply to draw."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@torch.inference_mode()
def generate_batch(
    model: Any, requests: Sequence[Request], eos_ids: frozenset[int], weights_version: int
) -> list[Generation]:
    """One reply for each request, in their order.

    A reply depends on its own prompt, seed and settings alone, up to the rounding of batched arithmetic. It ends with
    the first token of `eos_ids`, which it holds, or at `max_new_tokens`.
    """
    rows = [_Row(i, request) for i, request in enumerate(requests)]
    state, logits_BV = _prefill(model, [request.prompt_ids for request in requests])
    stop_ids = torch.tensor(sorted(eos_ids), device=logits_BV.device)
    active = rows
    while True:
        tokens_B, logprobs_B = _draw_rows(logits_BV, active)
        stopped = torch.isin(tokens_B, stop_ids).tolist()
        for row, token, logprob, stop in zip(active, tokens_B.tolist(), logprobs_B.tolist(), stopped, strict=True):
            row.take(token, logprob, stop)
        going = [place for place, row in enumerate(active) if not row.finished]
        if not going:
            return [row.generation(weights_version) for row in rows]
        if len(active) - len(going) >= _COMPACT_SHARE * len(active):
            active = [active[place] for place in going]
            keep = torch.tensor(going, device=tokens_B.device)
            state.keep(keep)
            tokens_B = tokens_B[keep]
        logits_BV = state.step(model, tokens_B)


def draw(logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, noise_B: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (B,) and their natural log-probabilities (B,) under the distribution that they were drawn from.

    noise_B, uniform in [0, 1), picks by the inverse of the cumulative distribution. At temperature 0 the most likely
    token is taken, with log-probability 0. At temperature 1 and top_p 1 the distribution is softmax(logits).
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV.float() / torch.where(greedy_B, 1.0, temperature_B)[:, None]
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    nucleus = (top_p_B < 1) & ~greedy_B
    if bool(nucleus.any()):
        logprobs_BV[nucleus] = _keep_top_p(logprobs_BV[nucleus], top_p_B[nucleus])
    cdf_BV = logprobs_BV.exp().cumsum(dim=-1)
    total_B = cdf_BV[:, -1]
    # Strictly below the total, so that the token found is always one of non-zero probability.
    target_B = torch.minimum(noise_B.to(cdf_BV) * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    tokens_B = torch.searchsorted(cdf_BV, target_B[:, None], right=True)[:, 0]
    tokens_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), tokens_B)
    drawn_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    return tokens_B, torch.where(greedy_B, 0.0, drawn_B)


def shared_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all prompts have in common, short of the last token of any: each must feed one."""
    longest = min(len(prompt) for prompt in prompts) - 1
    for place, tokens in zip(range(longest), zip(*prompts, strict=False), strict=False):
        if len(set(tokens)) > 1:
            return place
    return longest


def prefix_to_share(prompts: Sequence[Sequence[int]]) -> int:
    """`shared_prefix_length`, or 0 where running it once for all would not pay."""
    shared = shared_prefix_length(prompts)
    return shared if len(prompts) > 1 and shared >= _MIN_SHARED_TOKENS else 0


def _keep_top_p(logprobs_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """The smallest set of most likely tokens whose mass reaches top_p, renormalised; -inf elsewhere."""
    sorted_BV, order_BV = logprobs_BV.sort(dim=-1, descending=True)
    mass_before_BV = sorted_BV.exp().cumsum(dim=-1) - sorted_BV.exp()
    outside_BV = mass_before_BV >= top_p_B[:, None]
    outside_BV[:, 0] = False
    kept_BV = torch.empty_like(logprobs_BV).scatter_(1, order_BV, sorted_BV.masked_fill(outside_BV, -torch.inf))
    return torch.log_softmax(kept_BV, dim=-1)


class _Row:
    """One request while it is being answered."""

    def __init__(self, index: int, request: Request) -> None:
        self.index, self.sampling = index, request.sampling
        # The first n draws of a seed are the same whatever the limit, so a longer limit extends the same reply.
        self.noise = np.random.default_rng(request.sampling.seed).random(request.sampling.max_new_tokens)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.stopped = False

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) >= self.sampling.max_new_tokens

    @property
    def next_noise(self) -> float:
        return 0.0 if self.finished else float(self.noise[len(self.tokens)])

    def take(self, token: int, logprob: float, stop: bool) -> None:
        if not self.finished:
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.stopped = stop

    def generation(self, weights_version: int) -> Generation:
        return Generation(
            tuple(self.tokens), tuple(self.logprobs), "stop" if self.stopped else "length", weights_version
        )


def _draw_rows(logits_BV: Tensor, rows: Sequence[_Row]) -> tuple[Tensor, Tensor]:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits_BV.device)

    return draw(
        logits_BV,
        column([row.sampling.temperature for row in rows]),
        column([row.sampling.top_p for row in rows]),
        column([row.next_noise for row in rows]),
    )


class _RoomyLayer(DynamicLayer):
    """Keys and values with room to grow: a new token is written in place; DynamicLayer copies all earlier ones."""

    keys: Tensor
    values: Tensor

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


@dataclass
class _State:
    """What the model remembers of a batch: B rows of T tokens, some of them padding."""

    cache: Any  # transformers' Cache, all of whose layers are _RoomyLayer
    mask_BT: Tensor
    positions_B: Tensor  # of the token that was fed last

    def feed(self, model: Any, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Logits (B, V) after the last of `ids_BT`."""
        self.mask_BT = torch.cat([self.mask_BT, mask_BT], dim=1)
        positions_BT = (self.positions_B[:, None] + mask_BT.cumsum(dim=1)).clamp(min=0)
        self.positions_B = positions_BT[:, -1]
        # An index, not a count: a slice of the hidden states is not contiguous, and torch then multiplies it by a copy
        # of the output layer for each row (1.8 GB for 32 rows of a vocabulary of 49,152).
        last_1 = torch.tensor([ids_BT.shape[1] - 1], device=ids_BT.device)
        output = model(
            input_ids=ids_BT,
            attention_mask=self.mask_BT,
            position_ids=positions_BT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=last_1,
        )
        return output.logits[:, -1]

    def step(self, model: Any, tokens_B: Tensor) -> Tensor:
        return self.feed(model, tokens_B[:, None], torch.ones_like(tokens_B)[:, None])

    def keep(self, rows: Tensor) -> None:
        for layer in self.cache.layers:
            layer.select_rows(rows)
        self.mask_BT, self.positions_B = self.mask_BT[rows], self.positions_B[rows]


def _prefill(model: Any, prompts: Sequence[tuple[int, ...]]) -> tuple[_State, Tensor]:
    """The state after all prompts, and the logits (B, V) of the first new token.

    What all prompts begin with (a system prompt, examples) is fed once, and its keys and values are copied for every
    row; the rest is padded on the left.
    """
    shared = prefix_to_share(prompts)
    state = _State(
        Cache(layer_class_to_replicate=_RoomyLayer),
        torch.empty(1, 0, dtype=torch.long, device=model.device),
        torch.full((1,), -1, device=model.device),
    )
    if shared:
        prefix = torch.tensor([prompts[0][:shared]], device=model.device)
        state.feed(model, prefix, torch.ones_like(prefix))
    state.keep(torch.zeros(len(prompts), dtype=torch.long, device=model.device))
    width = max(len(prompt) for prompt in prompts) - shared
    ids, mask = [], []
    for prompt in prompts:
        rest = list(prompt[shared:])
        padding = width - len(rest)
        ids.append([rest[0]] * padding + rest)
        mask.append([0] * padding + [1] * len(rest))
    return state, state.feed(model, torch.tensor(ids, device=model.device), torch.tensor(mask, device=model.device))
