"""What of a model is missing once an engine has thrown its weights away (vLLM's sleep level 2) and new ones were sent.

vLLM saves the buffers that modules register, and trainers send parameters. What modules keep besides, in memory of the
same pool, comes back as whatever lies there: the scale of a norm without weights, for example, or a drafting model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_CACHE = "kv_cache"  # of attention layers: thrown away at either level, and written before it is read
_DEPTH = 3  # of objects that a module keeps, in which tensors are looked for


def missing(model: Any, loaded: Collection[str], drafts: bool, thrown_away: Callable[[Tensor], bool]) -> list[str]:
    """Names of what neither vLLM saves nor trainers have sent. loaded: names of the parameters that were sent, as the
    model's `load_weights` gives them; a model that gives none lacks all. drafts: whether the engine has a second model.
    thrown_away: whether a tensor lies in memory that was thrown away."""
    unsent = [name for name, _ in model.named_parameters() if name not in loaded]
    return [*unsent, *_unsaved(model, thrown_away), *(["the model that drafts"] if drafts else [])]


def lies_in_weights() -> Callable[[Tensor], bool]:
    """Whether a tensor lies in the memory that vLLM's allocator keeps for weights, in this process."""
    from vllm.device_allocator import get_mem_allocator_instance

    spans = [
        (begin, begin + allocation.handle[1])
        for begin, allocation in get_mem_allocator_instance().pointer_to_data.items()
        if allocation.tag == "weights"
    ]
    return lambda tensor: any(begin <= tensor.data_ptr() < end for begin, end in spans)


def _unsaved(model: Any, thrown_away: Callable[[Tensor], bool]) -> Iterator[str]:
    """Tensors that modules keep without registering them, by their paths."""
    saved = {_memory_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        kept = {name: value for name, value in vars(module).items() if name not in _REGISTERED}
        for name, tensor in _tensors(kept, _DEPTH):
            if tensor.numel() and _memory_of(tensor) not in saved and thrown_away(tensor):
                yield f"{path}{name}"


_REGISTERED = {"_parameters", "_buffers", "_modules", _CACHE}


def _memory_of(tensor: Tensor) -> int:
    """Where its memory begins, also of a view."""
    return tensor.untyped_storage().data_ptr()


def _tensors(kept: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in kept.items():
        if isinstance(value, Tensor):
            yield f".{name}", value
        elif depth and not isinstance(value, torch.nn.Module | type):
            for place, tensor in _tensors(_inside(value), depth - 1):
                yield f".{name}{place}", tensor


def _inside(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return vars(value) if type(value).__module__.startswith("vllm.") and hasattr(value, "__dict__") else {}
