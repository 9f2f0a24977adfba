"""Whether shared-prefix attention gives a model's own logits: tried on the model itself, not known by its name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.plain import PlainDecoder
from coachrl.trainers.backends.torch.engine.rooms import RoomsDecoder

log = logging.getLogger(__name__)

_PREFIX_TOKENS, _OWN_TOKENS, _STEPS = 18, (3, 1, 6), 2
_ROUNDING = 8.0  # times the error of padded batches; what a wrong layout gives is over a hundred times that
_ROUNDING_STEPS = 4.0  # of the model's precision, for small models whose padded batches have no error at all


def use_shared_prefix(model: Any, prepare: Callable[[Any], None] | None = None) -> bool:
    """Switch `model` to shared-prefix attention where that gives its own logits, after `prepare` has changed it; else
    leave its attention as it is, and say so once. `prepare` must then be undone by whoever gave it.

    Some architectures attend in windows, cap scores, add sinks or biases, or change keys after they are handed over.
    Their logits, of rows that share a prefix, join late and leave early, are compared with those of one plain pass over
    each row; the error allowed is a small multiple of the error that today's padded batches have.
    """
    before, model_eps = model.config._attn_implementation, torch.finfo(model.dtype).eps
    try:
        expected = _plain_logits(model)
        padded = _decoded_logits(PlainDecoder, model)
        if prepare is not None:
            prepare(model)
        model.set_attn_implementation(attention.NAME)
        found = _decoded_logits(RoomsDecoder, model)
        reason = _difference(expected, padded, found, model_eps)
    except (attention.UnprovenAttention, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    except (RuntimeError, IndexError, KeyError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if reason:
        model.set_attn_implementation(before)
        _warn_once(f"{type(model).__name__} runs by the slower padded batches, without a shared prefix: {reason}")
    return not reason


@functools.cache
def _warn_once(line: str) -> None:
    log.warning(line)


def _difference(expected: Tensor, padded: Tensor, found: Tensor, eps: float) -> str:
    """Why the logits found are not the model's, or nothing."""
    rounding = float((padded - expected).abs().mean())
    allowed = max(_ROUNDING * rounding, _ROUNDING_STEPS * eps * float(expected.std()))
    error = float((found - expected).abs().mean())
    return "" if error <= allowed else f"its logits would differ by {error:.2g} on average, not by {allowed:.2g}"


def _rows(model: Any) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Prompts with a common prefix, and (steps, rows) of what is fed after them."""
    rng = np.random.default_rng(0)
    high = model.config.get_text_config().vocab_size
    prefix = rng.integers(high, size=_PREFIX_TOKENS).tolist()
    prompts = [(*prefix, *rng.integers(high, size=length).tolist()) for length in _OWN_TOKENS]
    return prompts, rng.integers(high, size=(_STEPS, len(prompts)))


@torch.no_grad()
def _decoded_logits(decoder_of: Any, model: Any) -> Tensor:
    """(rows of all steps, V). The first row leaves after the first step."""
    prompts, fed = _rows(model)
    decoder = decoder_of(model, prompts[0][:_PREFIX_TOKENS], len(prompts))
    logits = [decoder.join(prompts)]
    order = list(range(len(prompts)))
    for step, tokens in enumerate(fed):
        logits.append(decoder.step(torch.tensor(tokens[order], device=model.device)))
        logits[-1] = logits[-1][np.argsort(order).tolist()]
        if step == 0:
            order = [order[place] for place in decoder.keep(list(range(1, len(order))))]
    return torch.cat(logits).float()


@torch.no_grad()
def _plain_logits(model: Any) -> Tensor:
    """The same from one forward pass over each row, without a cache."""
    prompts, fed = _rows(model)
    whole = [
        model(input_ids=torch.tensor([[*prompt, *fed[:, row]]], device=model.device), use_cache=False).logits[0]
        for row, prompt in enumerate(prompts)
    ]
    steps = []
    for step in range(_STEPS + 1):
        first = 1 if step > 1 else 0
        steps += [whole[row][len(prompts[row]) - 1 + step] for row in range(first, len(prompts))]
    return torch.stack(steps).float()
