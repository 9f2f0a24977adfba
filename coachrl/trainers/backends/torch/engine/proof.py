"""Whether shared-prefix attention gives a model's own logits: tried on the model itself, not known by its name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coachrl.resources import say_once
from coachrl.text import first_line
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.plain import PlainDecoder
from coachrl.trainers.backends.torch.engine.slots import SlotDecoder
from coachrl.trainers.backends.torch.models.sources import files_state

log = logging.getLogger(__name__)

_PREFIX_TOKENS, _OWN_TOKENS, _STEPS = 18, (3, 1, 6), 2
_REORDERED = 8.0  # times the error of padded batches in float32; a wrong layout gives over a thousand times that
_ROUNDED = 2.0  # times the error that the model itself has by its precision
_ROUNDING_STEPS = 4.0  # of the precision, for small models that have next to no error at all


_PROVEN: set[tuple[object, ...]] = set()


def use_shared_prefix_of(folder: Path, model: Any, prepare: Callable[[Any], None] | None = None) -> bool:
    """`use_shared_prefix` for a model as it was loaded from `folder`. What passed is not tried again for the same
    files: most policies of a team begin from one folder, and trying takes seconds for each."""
    tried = (files_state(folder), model.dtype, _precision(model), model.device, prepare)
    if tried in _PROVEN:
        model.set_attn_implementation(attention.NAME)
        if prepare is not None:
            prepare(model)
        return True
    if shared := use_shared_prefix(model, prepare):
        _PROVEN.add(tried)
    return shared


def use_shared_prefix(model: Any, prepare: Callable[[Any], None] | None = None) -> bool:
    """Switch `model` to shared-prefix attention where that gives its own logits, after `prepare` has changed it; else
    leave its attention as it is, and say so once. `prepare` must then be undone by whoever gave it.

    Some architectures attend in windows, cap scores, add sinks or biases, or change keys after they are handed over.
    Two things are asked, of rows that share a prefix, join late and leave early:

    - Is the layout right? In float32 its logits must be those of one plain pass over each row, but for the order of
      sums, which padded batches change as well.
    - Is nothing lost in the model's own precision, or autocast's inside of it, with what `prepare` makes of it? Its
      logits must be about as close to those of float32 as the model's plain passes are. Both round, at different
      places: how far they are from each other says nothing.
    """
    before, precision = model.config._attn_implementation, _precision(model)
    try:
        own = None if precision == torch.float32 else _plain_logits(model)
        with _in_float32(model):
            exact, padded = _plain_logits(model), _decoded_logits(PlainDecoder, model)
            model.set_attn_implementation(attention.NAME)
            found = _decoded_logits(SlotDecoder, model)
        reason = _difference(exact, found, _REORDERED * mean_error(exact, padded), torch.float32)
        if not reason and prepare is not None:
            prepare(model)
        if not reason and own is not None:
            allowed = _ROUNDED * mean_error(exact, own)
            reason = _difference(exact, _decoded_logits(SlotDecoder, model), allowed, precision)
    except (attention.UnprovenAttention, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        reason = first_line(error)
    except (RuntimeError, IndexError, KeyError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
    if reason:
        model.set_attn_implementation(before)
        said = "%s runs by the slower padded batches, without a shared prefix: %s"
        say_once(log.warning, said, type(model).__name__, reason)
    return not reason


def _precision(model: Any) -> torch.dtype:
    """In which the model multiplies here."""
    device: str = model.device.type
    narrower = torch.is_autocast_enabled(device) and model.dtype == torch.float32
    return torch.get_autocast_dtype(device) if narrower else model.dtype


def mean_error(exact: Tensor, found: Tensor) -> float:
    """Mean absolute difference."""
    return float((found.detach() - exact).abs().mean())


def _difference(exact: Tensor, found: Tensor, allowed: float, dtype: torch.dtype) -> str:
    """Why the logits found are not the model's, or nothing."""
    allowed = max(allowed, _ROUNDING_STEPS * torch.finfo(dtype).eps * float(exact.std()))
    error = mean_error(exact, found)
    return "" if error <= allowed else f"its logits would differ by {error:.2g} on average, not by {allowed:.2g}"


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """Inside, the model computes in float32: each of its modules while it is at work, so that no second copy of all
    weights has to fit into memory."""
    weights = {module: _own_weights(module) for module in model.modules()}
    weights = {module: own for module, own in weights.items() if any(weight.dtype != torch.float32 for weight in own)}
    kept: dict[nn.Module, list[Tensor]] = {}

    def widen(module: nn.Module, *_: Any) -> None:
        kept[module] = [weight.data for weight in weights[module]]
        for weight in weights[module]:
            weight.data = weight.data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for weight, data in zip(weights[module], kept.pop(module), strict=True):
            weight.data = data

    hooks = [module.register_forward_pre_hook(widen) for module in weights]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in weights]
    try:
        with torch.autocast(model.device.type, enabled=False):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _own_weights(module: nn.Module) -> list[Tensor]:
    named = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return [weight for weight in named if weight.is_floating_point()]


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
