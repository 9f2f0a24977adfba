"""flash-attn where it is not installed: it takes hours to compile, and attention other than its own needs none of it.

OpenRLHF imports five of its names all the same, none of them a kernel. `supplied` gives it those in plain PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from coachrl.errors import PackageMissing

_PADDING, _COLLECTIVES = "flash_attn.bert_padding", "flash_attn.utils.distributed"


def has_flash_attn() -> bool:
    """Whether flash-attn is here, without importing it. FlashAttention 4 by itself is not it: it lies in a folder of
    the same name, which has none of these modules."""
    package = find_spec("flash_attn")
    return package is not None and PathFinder.find_spec(_PADDING, package.submodule_search_locations) is not None


def chosen_attention(attention: str) -> str:
    """The trainers' attention by its name in transformers, of one that is configured: it may be `auto`."""
    if attention != "auto":
        return attention
    return "flash_attention_2" if has_flash_attn() else "sdpa"


def needs_flash_attn(attention: str) -> bool:
    """attention: by its name in transformers, or `auto`, which does without."""
    return attention == "flash_attention_2"


def require_flash_attn(attention: str) -> None:
    """Raises PackageMissing where this attention needs flash-attn and that is not installed."""
    if needs_flash_attn(attention) and not has_flash_attn():
        raise PackageMissing(
            f"the distributed backend needs flash_attn for openrlhf.attention={attention}: install flash-attn, which "
            f"docs/distributed.md says how to, or set openrlhf.attention=sdpa"
        )


@contextmanager
def supplied() -> Iterator[None]:
    """Let OpenRLHF be imported in this block, with flash-attn where that is installed and without where it is not.

    The two modules are there for so long and no longer, and never a package around them: transformers and vLLM ask
    whether there is a flash_attn, and would go on to import its kernels.
    """
    modules = {} if has_flash_attn() else _in_plain_pytorch()
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _in_plain_pytorch() -> dict[str, ModuleType]:
    """By name the modules that OpenRLHF imports, with what it imports from them."""
    from einops import rearrange
    from transformers.modeling_flash_attention_utils import _pad_input, _unpad_input

    padding = {
        "index_first_axis": _index_first_axis,
        "pad_input": _pad_input,
        "rearrange": rearrange,
        "unpad_input": _unpad_input,
    }
    return {_PADDING: _module(_PADDING, padding), _COLLECTIVES: _module(_COLLECTIVES, {"all_gather": _all_gather})}


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _index_first_axis(tensor: Any, indices: Any) -> Any:
    return tensor[indices]


def _all_gather(tensor: Any, group: Any = None) -> Any:
    """The tensors of all ranks, one behind another; gradients come back to the rank that a part is from."""
    import torch
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(tensor, group=group), dim=0)
