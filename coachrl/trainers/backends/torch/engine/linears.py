"""Linear layers in the blocked layout that the processor multiplies fastest, for models that only generate.

Weights are packed once after each update, where a plain linear layer sorts them anew for every product.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    for names in _of_same_input(model):
        block = PackedBlock([model.get_submodule(name) for name in names])
        for name, layer in zip(names, block.layers(), strict=True):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    model.float()


def _of_same_input(model: Any) -> list[list[str]]:
    """The names of all linear layers; those that are given the very same tensor are together, in the order in which a
    forward pass asks them."""
    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    asked: list[tuple[Tensor, str]] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: asked.append((given[0], name)))
        for name, module in linear.items()
    ]
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    blocks: dict[int, list[str]] = {}
    times = Counter(name for _, name in asked)
    for given, name in asked:
        if times[name] == 1:
            blocks.setdefault(id(given), []).append(name)
    return [*blocks.values(), *([name] for name in linear if times[name] != 1)]


@torch.no_grad()
def copy_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Give a model, packed or not, new weights by their names in a plain one. Of those that need no other form it
    shares the memory."""
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    plain = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    waiting: dict[PackedBlock, dict[int, Tensor]] = {}  # until a block's weights are together: it is packed as a whole
    for name, weight in weights:
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight" and layer in packed:
            block = packed[layer].block
            waiting.setdefault(block, {})[packed[layer].place] = weight
            if len(waiting[block]) == len(block.sizes):
                block.set_weights(waiting.pop(block))
        elif plain[name].dtype == weight.dtype:
            plain[name].data = weight.detach()
        else:
            plain[name].copy_(weight)
    for block, some in waiting.items():
        block.set_weights(some)


def drop_weights(model: Any) -> None:
    """Give the memory of packed layers back. They need `copy_weights` before the model is used again."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.block.drop_weights()


class PackedBlock:
    """Linear layers that take the same input, such as those of queries, keys and values: one product serves them all.

    The first that is asked computes it, and the others find their parts there as long as they bring the same tensor.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self.in_features = linears[0].in_features
        self.sizes = [linear.out_features for linear in linears]
        self._biases = [linear.bias for linear in linears]
        self._biased = any(bias is not None for bias in self._biases)
        self._held: tuple[Tensor, Sequence[Tensor]] | None = None  # an input, and each layer's product with it
        self.set_weights({place: linear.weight for place, linear in enumerate(linears)})

    def layers(self) -> list[PackedLinear]:
        return [PackedLinear(self, place, bias) for place, bias in enumerate(self._biases)]

    def set_weights(self, weights: Mapping[int, Tensor]) -> None:
        """weights: place of a layer -> its (outputs, inputs). Layers that are left out keep theirs."""
        kept = {} if len(weights) == len(self.sizes) else dict(enumerate(self.plain_weights().split(self.sizes)))
        rows = [(kept | dict(weights))[place].detach().to(torch.bfloat16) for place in range(len(self.sizes))]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(rows), _ROWS)
        self._held = None

    def plain_weights(self) -> Tensor:
        """A copy of all weights, one layer's rows after the other's."""
        plain: Tensor = self._packed.to_dense()
        return plain

    def drop_weights(self) -> None:
        self._packed = torch.empty(0)

    def part(self, x: Tensor, place: int) -> Tensor:
        """What the layer at this place gives."""
        if len(self.sizes) == 1:
            return self._product(x)
        held = self._held
        if held is None or held[0] is not x:
            held = x, self._product(x).split_with_sizes(self.sizes, dim=-1)
        self._held = None if place == len(self.sizes) - 1 else held
        return held[1][place]

    def _product(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            product: Tensor = _FrozenProduct.apply(x, self)
            return product
        return self.product_of_frozen(x)

    def product_of_frozen(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(torch.bfloat16), self._packed, self._bias(), "none", [], "")

    def _bias(self) -> Tensor | None:
        if not self._biased:
            return None
        with_places = zip(self._biases, self.sizes, strict=True)
        return torch.cat([torch.zeros(size) if bias is None else bias for bias, size in with_places])


class PackedLinear(nn.Module):
    """One layer of a block."""

    def __init__(self, block: PackedBlock, place: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.block, self.place, self.bias = block, place, bias
        self.in_features, self.out_features = block.in_features, block.sizes[place]

    def forward(self, x: Tensor) -> Tensor:
        return self.block.part(x, self.place)


class _FrozenProduct(torch.autograd.Function):
    """The product of a block, whose weights have no gradient. They are unpacked anew for each backward pass, which
    takes as long as the product of a few rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: PackedBlock) -> Tensor:
        ctx.block, ctx.dtype = block, x.dtype
        return block.product_of_frozen(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        sizes = ctx.block.sizes
        parts = zip(gradients[0].split(sizes, dim=-1), ctx.block.plain_weights().split(sizes), strict=True)
        # Layer by layer from the last, so that it rounds and adds as for layers of their own.
        products = [(gradient @ rows).to(ctx.dtype) for gradient, rows in reversed(list(parts))]
        return functools.reduce(torch.add, products), None
