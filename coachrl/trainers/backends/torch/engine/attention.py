"""Attention of many rows behind one stored prefix, for every transformers decoder that looks its attention up by name.

transformers pads rows to one rectangle and copies the keys of a common prefix for each of them. Here all rows lie
behind each other in one packed row of N tokens, the prefix is stored once, and grouped queries share their keys: what
remains are a few batched products. While no layout is in use, a model works as with "sdpa".

Letters: H query heads, KV key heads, G = H / KV, D their width, S tokens of the prefix, B rows of at most W tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "coachrl_shared_prefix"

_HARMLESS_OPTIONS = {"dropout", "is_causal", "position_ids", "cache_position", "use_cache", "output_attentions"}
_QUERIES_AT_ONCE = 256  # of a row: later keys are not multiplied, and the scores of long rows stay small
_SCORES_AT_ONCE = 2**24


class UnprovenAttention(Exception):
    """An architecture asks for something that the layouts here do not compute."""


class KeyValues(NamedTuple):
    """What one layer remembers: (KV, S, D) of a prefix, (B, KV, W, D) of rows."""

    keys: Tensor
    values: Tensor


Prefix = dict[int, KeyValues]  # layer -> its keys and values; empty where nothing is shared


class Layout(Protocol):
    """Where the tokens of a forward pass lie, and what each of them sees."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, H, D) of queries (H, N, D), which are scaled already, and of the new keys and values (KV, N, D)."""
        ...


_layout: ContextVar[Layout | None] = ContextVar("layout", default=None)


def is_used_by(model: Any) -> bool:
    """Whether `model` attends by the layouts of this module, where it is given one."""
    return bool(model.config._attn_implementation == NAME)


@contextmanager
def use(layout: Layout) -> Iterator[None]:
    """Forward passes inside take one packed row of tokens (1, N), laid out like this."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


class PackedRows:
    """Whole rows behind each other. Each token sees the prefix and what comes before it in its own row.

    keep: whether `seen` is filled. Who trains needs it not, and the layers' keys and values would outlive their use."""

    def __init__(self, lengths: Sequence[int], prefix: Prefix, device: torch.device, keep: bool = False) -> None:
        self.prefix = prefix
        self.seen: dict[int, KeyValues] = {}  # layer -> keys and values of all rows, padded at the end
        self._keep = keep
        self._shape = len(lengths), max(lengths)
        self._ragged = len(set(lengths)) > 1
        lengths_B1 = torch.tensor(lengths, device=device)[:, None]
        columns_W = torch.arange(self._shape[1], device=device)
        begins_B1 = lengths_B1.cumsum(0) - lengths_B1
        # Padding repeats a row's last token. It comes after all that is real, where causal queries do not look.
        self._places = (begins_B1 + torch.minimum(columns_W, lengths_B1 - 1)).flatten()
        self._real_N = (columns_W < lengths_B1).flatten().nonzero()[:, 0]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        B, W = self._shape
        KV, _, D = key.shape
        keys, values = (self._padded(states).permute(0, 2, 1, 3).contiguous() for states in (key, value))
        if self._keep:
            # The first time: a layer that is computed again for its gradient gives the same once more.
            self.seen.setdefault(layer, KeyValues(keys, values))
        query = self._padded(query).view(B, W, KV, -1, D).permute(0, 2, 3, 1, 4)
        attention = _fused_attention if _can_fuse(query, keys, values) else _attention_in_pieces
        out = attention(query, keys, values, self.prefix.get(layer))
        packed = out.permute(0, 3, 1, 2, 4).reshape(B * W, -1, D)
        return packed.index_select(0, self._real_N) if self._ragged else packed

    def _padded(self, states: Tensor) -> Tensor:
        """(heads, N, D) -> (B, W, heads, D)."""
        rows = states.transpose(0, 1)
        rows = rows.index_select(0, self._places) if self._ragged else rows
        return rows.reshape(*self._shape, *rows.shape[1:])


def read_prefix(model: Any, ids_1S: Tensor) -> Prefix:
    """Keys and values of what all rows begin with, from one forward pass; with a graph where gradients are on."""
    shared = ids_1S.shape[1]
    if not shared:
        return {}
    rows = PackedRows([shared], {}, ids_1S.device, keep=True)
    with use(rows):
        positions_1S = torch.arange(shared, device=ids_1S.device)[None]
        model.base_model(input_ids=ids_1S, position_ids=positions_1S, use_cache=False)
    return {layer: KeyValues(states.keys[0], states.values[0]) for layer, states in rows.seen.items()}


def grouped_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, prefix: KeyValues | None = None
) -> Tensor:
    """(B, KV, G, T, D) of queries of that shape over each row's own keys (B, KV, R, D) and the prefix.

    mask, float32, is added to the own scores: broadcastable to (B, KV, G, T, R).
    """
    B, KV, G, T, D = query.shape
    R = keys.shape[2]
    own = torch.bmm(query.reshape(B * KV, G * T, D), keys.reshape(B * KV, R, D).transpose(1, 2))
    own = own.view(B, KV, G, T, R) + mask
    if prefix is None:
        weights = own.softmax(-1).to(values.dtype)
        return torch.bmm(weights.view(B * KV, G * T, R), values.reshape(B * KV, R, D)).view(query.shape)
    S = prefix.keys.shape[1]
    front = torch.bmm(query.transpose(0, 1).reshape(KV, B * G * T, D), prefix.keys.transpose(1, 2))
    front = front.view(KV, B, G, T, S).transpose(0, 1)
    weights = torch.cat([front, own], dim=-1).softmax(-1).to(values.dtype)
    front_weights, own_weights = weights.split([S, R], dim=-1)
    out = torch.bmm(own_weights.reshape(B * KV, G * T, R), values.reshape(B * KV, R, D)).view(query.shape)
    front_out = torch.bmm(front_weights.transpose(0, 1).reshape(KV, B * G * T, S), prefix.values)
    return out + front_out.view(KV, B, G, T, D).transpose(0, 1)


def _can_fuse(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether a GPU has one kernel for all of attention: in 16 bits, and for these widths."""
    return query.is_cuda and can_use_flash_attention(
        SDPAParams(query.flatten(1, 2), keys, values, None, 0.0, False, True)
    )


def _fused_attention(query: Tensor, keys: Tensor, values: Tensor, prefix: KeyValues | None) -> Tensor:
    """`_attention_in_pieces` as one kernel, whose scores never exist in memory (Dao 2024, FlashAttention-2). It reads
    one row of keys: with a prefix each row gets a copy, made once more in the backward pass instead of being kept."""
    if prefix is not None and torch.is_grad_enabled():
        out: Tensor = checkpoint(_flash, query, keys, values, prefix, use_reentrant=False)
        return out
    return _flash(query, keys, values, prefix)


def _flash(query: Tensor, keys: Tensor, values: Tensor, prefix: KeyValues | None) -> Tensor:
    if prefix is not None:
        keys, values = (
            torch.cat([shared.expand(len(own), -1, -1, -1), own], dim=2)
            for shared, own in zip(prefix, (keys, values), strict=True)
        )
    causal = causal_lower_right(query.shape[3], keys.shape[2])
    out = scaled_dot_product_attention(query.flatten(1, 2), keys, values, causal, scale=1.0, enable_gqa=True)
    return out.view(query.shape)


def _attention_in_pieces(query: Tensor, keys: Tensor, values: Tensor, prefix: KeyValues | None) -> Tensor:
    """`grouped_attention` of whole rows, in pieces of bounded size."""
    _B, KV, G, W, _ = query.shape
    S = prefix.keys.shape[1] if prefix else 0
    rows = max(1, _SCORES_AT_ONCE // (KV * G * min(W, _QUERIES_AT_ONCE) * (S + W)))
    columns = torch.arange(W, device=query.device)
    parts = []
    for begin in range(0, W, _QUERIES_AT_ONCE):
        end = min(begin + _QUERIES_AT_ONCE, W)
        later = columns[:end] > columns[begin:end, None]
        mask = torch.zeros(later.shape, device=query.device).masked_fill_(later, -torch.inf)
        pieces = [
            _without_scores(some[:, :, :, begin:end], some_keys[:, :, :end], some_values[:, :, :end], mask, prefix)
            for some, some_keys, some_values in zip(
                query.split(rows), keys.split(rows), values.split(rows), strict=True
            )
        ]
        parts.append(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
    return torch.cat(parts, dim=3) if len(parts) > 1 else parts[0]


def _without_scores(*tensors: Any) -> Tensor:
    """`grouped_attention`, whose scores are computed once more in the backward pass instead of being kept."""
    if torch.is_grad_enabled():
        out: Tensor = checkpoint(grouped_attention, *tensors, use_reentrant=False)
        return out
    return grouped_attention(*tensors)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    layout = _layout.get()
    if layout is not None:
        key = _without_bias(key, module)
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotated queries and keys may be float32
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    unknown = [name for name, given in options.items() if given is not None and name not in _HARMLESS_OPTIONS]
    if unknown or options.get("dropout"):
        raise UnprovenAttention(f"attention with {', '.join(unknown) or 'dropout'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return layout.attend(module.layer_idx, query[0] * scaling, key[0], value[0])[None], None


def _without_bias(key: Tensor, module: Any) -> Tensor:
    """Keys (1, KV, N, D) less one vector, by which each score of a query changes alike and its softmax not at all.
    Scores are rounded to 16 bits: Qwen2.5's keys reach 350 by their bias, in places that positions hardly turn, and
    would lose what tells them apart (Zhang et al. 2025, SageAttention, section 4.2). Keys that are normalized after
    it have it no more."""
    is_in_them = not any(hasattr(module, norm) for norm in ("k_norm", "k_layernorm"))
    bias = getattr(getattr(module, "k_proj", None), "bias", None) if is_in_them else None
    return key if bias is None else key - bias.detach().view(1, key.shape[1], 1, -1)


def _mask(*args: Any, local_size: int | None = None, use_vmap: bool = False, **options: Any) -> Tensor | None:
    """Without a registered mask function, forward passes outside of a layout would get no mask at all."""
    if _layout.get() is None:
        return sdpa_mask(*args, local_size=local_size, use_vmap=use_vmap, **options)
    if local_size is not None or use_vmap:
        raise UnprovenAttention("attention in a sliding window" if local_size else "attention with a mask of its own")
    return None


def keep_out_of_graphs() -> None:
    """Compiled layers call attention as it is: the layout in use, which they cannot look into, is another each time."""
    AttentionInterface.register(NAME, torch.compiler.disable(_attend))


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
