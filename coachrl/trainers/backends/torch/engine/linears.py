"""Linear layers in the blocked layout that the processor multiplies fastest, for models that only generate.

Weights are packed once after each update, where a plain linear layer sorts them anew for every product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 32  # the layout is chosen for products of so many rows; any other number works with it


def can_pack(model: Any) -> bool:
    """Whether this processor has products of packed bfloat16 weights, and the model is made of them."""
    return (
        model.device.type == "cpu"
        and model.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@torch.no_grad()
def pack(model: Any) -> None:
    """Put packed layers in the place of all linear ones; everything else becomes float32.

    With float32 between them, the layers round as the trainer's autocast does, so that log-probabilities of the sampler
    come closer to the trainer's.
    """
    places = [(name, module) for name, module in model.named_modules() if type(module) is nn.Linear]
    for name, module in places:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, PackedLinear(module))
    model.float()


@torch.no_grad()
def copy_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Give a model, packed or not, new weights by their names in a plain one. Of those that need no other form it
    shares the memory."""
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    plain = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, weight in weights:
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and layer in packed:
            packed[layer].set_weight(weight)
        elif plain[name].dtype == weight.dtype:
            plain[name].data = weight.detach()
        else:
            plain[name].copy_(weight)


def drop_weights(model: Any) -> None:
    """Give the memory of packed layers back. They need `copy_weights` before the model is used again."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.drop_weight()


class PackedLinear(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.set_weight(linear.weight)

    def set_weight(self, weight: Tensor) -> None:
        rows = weight.detach().to(torch.bfloat16).contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(rows, _ROWS)

    def drop_weight(self) -> None:
        self._packed = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            product: Tensor = _FrozenProduct.apply(x, self)
            return product
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(torch.bfloat16), self._packed, self.bias, "none", [], "")

    def plain_weight(self) -> Tensor:
        """A copy of the weights in the layout of a plain layer."""
        plain: Tensor = self._packed.to_dense()
        return plain


class _FrozenProduct(torch.autograd.Function):
    """The product of a packed layer, whose weights have no gradient. They are unpacked anew for each backward pass,
    which takes as long as the product of a few rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PackedLinear) -> Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return (gradients[0] @ ctx.layer.plain_weight()).to(ctx.dtype), None
