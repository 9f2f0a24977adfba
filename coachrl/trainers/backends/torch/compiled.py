"""Decoder layers as compiled code, for training: what lies between two products of matrices (norms, rotations, casts,
sums, and their gradients) becomes one pass over memory in place of one for each operation.

The layers of a model have one code, so that one compilation serves them all, those of other policies of the same
architecture too. Attention stays outside: it reads a layout that no compiler sees, and is products itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from coachrl.errors import PolicyError
from coachrl.resources import cache_folder, say_once
from coachrl.text import first_line
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.attention import PackedRows
from coachrl.trainers.backends.torch.engine.proof import mean_error
from coachrl.trainers.backends.torch.gradient_checkpointing import layers_of

log = logging.getLogger(__name__)

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_ROWS = (5, 2)  # tokens of the rows that are tried
_ROUNDED = 2.0  # times the error that the plain layers have by their precision
_LEAST_ERROR = 1e-5  # of the states' spread, for float32


def compile_layers(model: Any, folder: Path, precision: Callable[[], AbstractContextManager[Any]]) -> None:
    """Compile the layers of a model on shared-prefix attention, and try them: forward against the plain ones, and
    backward. precision: the context in which the model is trained.

    Raises PolicyError where the model has no such layers, there is no working compiler, or the results differ.
    """
    layers = layers_of(model)
    if not layers or not attention.is_used_by(model):
        raise PolicyError(f"model {folder}: torch.compile is not supported by {type(model).__name__}: set it to false")
    with torch.no_grad():
        exact = _states(model)
        with precision():
            allowed = max(_ROUNDED * mean_error(exact, _states(model)), _LEAST_ERROR * float(exact.std()))
    say_once(log.info, "compiling the layers of %s: half a minute for the first time", folder.name)
    try:
        differs = mean_error(exact, _states_of_compiled(model, layers, precision))
    except Exception as error:  # of Dynamo, Inductor, the C++ compiler or the system
        raise PolicyError(
            f"model {folder}: torch.compile failed, set it to false or mend it: {first_line(error)}"
        ) from error
    if not differs <= allowed:
        raise PolicyError(
            f"model {folder}: torch.compile would change its hidden states by {differs:.2g} on average, where "
            f"{allowed:.2g} is rounding: set it to false"
        )


def _states_of_compiled(model: Any, layers: list[Any], precision: Callable[[], AbstractContextManager[Any]]) -> Tensor:
    # torch's own choice is a folder in /tmp, which anyone could have made before: code is loaded from it.
    if os.environ.get(_CACHE, default_cache_dir()) == default_cache_dir():
        os.environ[_CACHE] = str(cache_folder() / "compiled")
    attention.keep_out_of_graphs()
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        with precision():
            states = _states(model)
        states.sum().backward()
    finally:
        model.zero_grad(set_to_none=True)
    return states


def _states(model: Any) -> Tensor:
    """Hidden states (N, D) of two rows of tokens."""
    device, count = model.device, sum(_ROWS)
    ids_1N = torch.arange(count, device=device)[None]
    places_1N = torch.tensor([[place for length in _ROWS for place in range(length)]], device=device)
    with attention.use(PackedRows(_ROWS, {}, device)):
        states: Tensor = model.base_model(input_ids=ids_1N, position_ids=places_1N, use_cache=False).last_hidden_state
    return states[0].float()
