"""Low-rank adapters (LoRA, Hu et al. 2021, Sec. 4.1) over the linear layers of a frozen transformers model.

The layers of a model that `make_adaptable` has changed give W x, as before; while an adapter is in use they give
W x + alpha / rank * B A x. So one model in memory serves any number of policies, each with an adapter of its own, and
without an adapter it is the reference that all of them began from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from coachrl.errors import CheckpointError, PolicyError
from coachrl.seeding import derive_seed
from coachrl.text import first_line
from coachrl.trainers.backends.torch.engine.linears import PackedLinear
from coachrl.trainers.backends.torch.models.sources import ADAPTER_CONFIG, ADAPTER_WEIGHTS

_BASE = ".base_layer."
_PEFT_PREFIX = "base_model.model."


class Adapter:
    """One policy's adapter. A (rank x inputs) of each layer is random and B (outputs x rank) zero, so that nothing
    changes at first. Both are float32, and multiply in the precision of the layer's own product."""

    def __init__(self, model: Any, rank: int, alpha: int, seed: int) -> None:
        """model: one that `make_adaptable` has changed."""
        self.rank, self.alpha = rank, alpha
        self.scale = alpha / rank
        generator = torch.Generator().manual_seed(derive_seed(seed, "adapters"))
        self.layers: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, AdaptableLinear):
                into, out = layer.base_layer.in_features, layer.base_layer.out_features
                A, B = torch.empty(rank, into), torch.zeros(out, rank)
                nn.init.kaiming_uniform_(A, a=math.sqrt(5), generator=generator)
                self.layers[name] = nn.Parameter(A.to(model.device)), nn.Parameter(B.to(model.device))

    def parameters(self) -> dict[str, nn.Parameter]:
        """All matrices by the names that peft and vLLM know them by."""
        named: dict[str, nn.Parameter] = {}
        for layer, (A, B) in self.layers.items():
            named[f"{_PEFT_PREFIX}{layer}.lora_A.weight"] = A
            named[f"{_PEFT_PREFIX}{layer}.lora_B.weight"] = B
        return named

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Forward passes inside, of this thread, are those of the model with this adapter."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    def delta(self, layer: str) -> Tensor:
        """What the adapter adds to the weights of a layer."""
        A, B = self.layers[layer]
        return self.scale * (B @ A)

    @classmethod
    def read(cls, model: Any, folder: Path) -> Adapter:
        """The adapter that `save` wrote, over `model`. Raises CheckpointError."""
        try:
            config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
            adapter = cls(model, config["r"], config["lora_alpha"], seed=0)
            saved = load_file(folder / ADAPTER_WEIGHTS, device=str(model.device))
            with torch.no_grad():
                for name, matrix in adapter.parameters().items():
                    matrix.copy_(saved[name])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"adapter {folder}: it does not belong to its model: {first_line(error)}") from error
        return adapter

    def save(self, folder: Path, base: Path) -> None:
        """Write an adapter folder, see `write_adapter`. base: the model's own folder."""
        matrices = {name: matrix.detach().contiguous() for name, matrix in self.parameters().items()}
        write_adapter(folder, base, matrices, self.rank, self.alpha)


def write_adapter(folder: Path, base: str | Path, matrices: Mapping[str, Tensor], rank: int, alpha: int) -> None:
    """Write an adapter folder, which `PeftModel.from_pretrained` and vLLM load. base: the folder of the model that it
    belongs to. matrices: by the names of `Adapter.parameters`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(matrices), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in matrices}),
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def make_adaptable(model: Any) -> None:
    """Let every linear layer but the output layer take an adapter, and freeze the model. Raises PolicyError where it
    has none."""
    head = model.get_output_embeddings()
    places = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, PackedLinear) and module is not head
    ]
    if not places:
        raise PolicyError(f"torch.lora_rank: {type(model).__name__} has no linear layers that adapters could change")
    model.requires_grad_(False)
    for name, module in places:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, AdaptableLinear(name, module))


class AdaptableLinear(nn.Module):
    """A frozen linear layer, with what the adapter in use adds to it."""

    def __init__(self, name: str, base_layer: Any) -> None:
        super().__init__()
        self.name = name
        self.base_layer: Any = base_layer  # nn.Linear or PackedLinear

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.base_layer.bias
        return bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_layer(x)
        adapter = _in_use.get()
        if adapter is None:
            return y
        A, B = adapter.layers[self.name]
        inner = functional.linear(x.to(y.dtype), A.to(y.dtype))
        return y + adapter.scale * functional.linear(inner, B.to(y.dtype))


_in_use: ContextVar[Adapter | None] = ContextVar("adapter", default=None)


@torch.no_grad()
def merged_weights(model: Any, adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """The model's weights by the names that they had before `make_adaptable`, each with the adapter's part added."""
    for name, weight in model.state_dict().items():
        layer, found, leaf = name.rpartition(_BASE)
        if not found:
            yield name, weight
        elif leaf == "weight":
            yield f"{layer}.weight", weight + adapter.delta(layer)
        else:
            yield f"{layer}.{leaf}", weight
