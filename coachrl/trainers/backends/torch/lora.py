"""Low-rank adapters (LoRA, Hu et al. 2021, Sec. 4.1) through peft, set into a transformers model."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from coachrl.errors import PolicyError
from coachrl.seeding import derive_seed

_BASE = ".base_layer."


def add_adapters(model: Any, rank: int, alpha: int, seed: int) -> None:
    """Every linear layer but the output layer gives W x + alpha / rank * B A x from now on. A (rank x inputs) is random
    and B (outputs x rank) zero, so that nothing changes at first; A and B alone have gradients.

    Raises PolicyError where peft is missing, or the model has no layer that it knows."""
    peft = import_peft()
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", lora_dropout=0.0)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "adapters"))
        try:
            peft.inject_adapter_in_model(config, model)
        except ValueError as error:
            raise PolicyError(f"torch.lora_rank: {str(error).splitlines()[0]}") from error


def import_peft() -> ModuleType:
    """Raises PolicyError where it is missing."""
    try:
        import peft
    except ImportError as error:
        raise PolicyError(
            f"torch.lora_rank needs {error.name}: pip install 'coachrl[lora]' -c constraints.txt"
        ) from error
    module: ModuleType = peft
    return module


@torch.no_grad()
def plain_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The model's weights by the names that they have without adapters, each with its adapter's part added."""
    layers = dict(model.named_modules())
    for name, weight in model.state_dict().items():
        if ".lora_" in name:
            continue
        layer, found, leaf = name.rpartition(_BASE)
        if not found:
            yield name, weight
        elif leaf == "weight":
            yield f"{layer}.weight", weight + layers[layer].get_delta_weight("default")
        else:
            yield f"{layer}.{leaf}", weight
