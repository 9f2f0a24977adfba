"""Adapters of a policy that trains by LoRA, as peft holds them inside OpenRLHF's trainer: added to what engines are
sent, left out for the reference, and written by themselves. Needs torch and peft; DeepSpeed gathers what it sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

_NAME = "default"  # of the adapter, in peft's books
_BASE, _MATRIX = ".base_layer.", ".lora_"


@dataclass(frozen=True)
class Weight:
    """One weight of a model, by the name that it has without adapters. layer: peft's, where an adapter changes it."""

    name: str
    parameter: Any
    layer: Any = None

    @property
    def parts(self) -> list[Any]:
        """The parameters that `merged` is made of, which must be gathered for it."""
        if self.layer is None:
            return [self.parameter]
        return [self.parameter, self.layer.lora_A[_NAME].weight, self.layer.lora_B[_NAME].weight]

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The weight with its adapter's part, in its own precision; what the trainer holds stays as it is. Summed in
        float32, and rounded once: an adapter is small beside its weight."""
        if self.layer is None:
            return self.parameter.detach()
        weight, A, B = (part.detach().float() for part in self.parts)
        delta = B @ A
        changed = torch.add(weight, delta.T if self.layer.fan_in_fan_out else delta, alpha=self.layer.scaling[_NAME])
        return changed.to(self.parameter.dtype)


def has_adapter(model: Any) -> bool:
    """model: as DeepSpeed's engine holds it."""
    return isinstance(model, PeftModel)


def weights(model: Any) -> Iterator[Weight]:
    """What engines know of a model, with or without an adapter. Of weights that are tied, the first alone."""
    inner = model.get_base_model() if has_adapter(model) else model
    for name, parameter in inner.named_parameters():
        layer, adapted, leaf = name.rpartition(_BASE)
        if not adapted:
            if _MATRIX not in name:
                yield Weight(name, parameter)
        elif leaf == "weight":
            yield Weight(f"{layer}.weight", parameter, inner.get_submodule(layer))
        else:
            yield Weight(f"{layer}.{leaf}", parameter)


def matrices(model: Any) -> dict[str, Any]:
    """The adapter's parameters, by the names that they have in an adapter folder."""
    return {
        name.replace(f".{_NAME}.", "."): parameter for name, parameter in model.named_parameters() if _MATRIX in name
    }
