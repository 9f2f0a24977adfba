"""Gradient checkpointing (Chen et al. 2016): of each layer only its input is kept for the backward pass, which computes
the rest again. It takes about a third more work, and no number changes.

It is transformers' own, with two differences. A layer is computed again in the context it was first computed in, which
is where a policy's adapter and the layout of its rows are: a GPU's backward pass runs in other threads. And the layers
alone are told that they train, since dropout must stay off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from coachrl.errors import PolicyError


def check_support(model: Any, folder: Path) -> None:
    """Raises PolicyError where the model's layers cannot be computed again."""
    if not layers_of(model):
        raise PolicyError(
            f"model {folder}: torch.gradient_checkpointing is not supported by {type(model).__name__}: set it to false"
        )


def keeps_inputs_only(model: Any) -> bool:
    """Whether the model is used inside of `recomputed`. Its layers then take no cache of keys and values."""
    return any(layer.gradient_checkpointing for layer in layers_of(model))


@contextmanager
def recomputed(model: Any, enabled: bool) -> Iterator[None]:
    """Where enabled, forward passes inside keep each layer's input alone, for their backward passes, which must be
    inside too."""
    if not enabled:
        yield
        return
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=_checkpoint_in_context)
    _tell_training(model, True)
    try:
        yield
    finally:
        _tell_training(model, False)
        model._set_gradient_checkpointing(enable=False)


def _checkpoint_in_context(layer: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(partial(copy_context().run, layer), *inputs, use_reentrant=False)


def _tell_training(model: Any, training: bool) -> None:
    """Of the layers themselves, not of what is in them."""
    for layer in layers_of(model):
        layer.training = training


def layers_of(model: Any) -> list[GradientCheckpointingLayer]:
    """A transformers model's layers, where they are such that can be computed again."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
