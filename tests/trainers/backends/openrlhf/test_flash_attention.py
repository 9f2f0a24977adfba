"""What stands in for flash-attn where it is not installed, and when it must be."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch

from coachrl.errors import PackageMissing
from coachrl.trainers.backends.openrlhf.training.flash_attention import (
    chosen_attention,
    has_flash_attn,
    require_flash_attn,
    supplied,
)

PADDING, COLLECTIVES = "flash_attn.bert_padding", "flash_attn.utils.distributed"


@pytest.fixture
def absent(monkeypatch):
    """flash-attn is not installed; einops need not be."""
    monkeypatch.setattr("coachrl.trainers.backends.openrlhf.training.flash_attention.find_spec", lambda name: None)
    if find_spec("einops") is None:
        monkeypatch.setitem(sys.modules, "einops", ModuleType("einops"))
        sys.modules["einops"].rearrange = None


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of packages."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


def install(place, *modules):
    for module in modules:
        file = place.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine = True\n")


def test_two_modules_are_there_for_the_block_alone_and_no_package_for_others_to_find(absent):
    with pytest.raises(ZeroDivisionError), supplied():
        assert {PADDING, COLLECTIVES} == {name for name in sys.modules if name.startswith("flash_attn")}
        from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input  # noqa: F401
        from flash_attn.utils.distributed import all_gather  # noqa: F401

        assert find_spec("flash_attn") is None
        with pytest.raises(ModuleNotFoundError):
            import_module("flash_attn.ops")
        raise ZeroDivisionError
    assert not any(name.startswith("flash_attn") for name in sys.modules)


def test_padding_goes_and_comes_back(absent):
    with supplied():
        from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
    values = torch.arange(1, 9).reshape(2, 4, 1)
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 0]])
    whole, places, begins, longest, _ = unpad_input(values, mask)
    assert whole.tolist() == [[1], [2], [3], [6], [7]]
    assert (begins.tolist(), longest) == ([0, 3, 5], 3)
    assert index_first_axis(values.reshape(8, 1), places).equal(whole)
    assert pad_input(whole, places, 2, 4).equal(values * mask.unsqueeze(-1))


def test_flash_attn_that_is_installed_wins(place):
    install(place, "flash_attn.__init__", PADDING, "flash_attn.utils.__init__", COLLECTIVES)
    assert has_flash_attn() and "flash_attn" not in sys.modules
    with supplied():
        assert import_module(PADDING).mine and import_module(COLLECTIVES).mine
    assert PADDING in sys.modules
    require_flash_attn("flash_attention_2")
    assert [chosen_attention(each) for each in ("auto", "sdpa")] == ["flash_attention_2", "sdpa"]


def test_without_it_attention_that_nobody_chose_is_pytorchs_own(absent):
    require_flash_attn("auto")
    assert [chosen_attention(each) for each in ("auto", "eager")] == ["sdpa", "eager"]


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed here")
def test_flash_attention_4_by_itself_is_not_flash_attn(place):
    install(place, "flash_attn.cute.__init__")
    assert find_spec("flash_attn") is not None and not has_flash_attn()


def test_its_own_attention_needs_it_and_says_both_ways_out(absent):
    with pytest.raises(
        PackageMissing, match=r"needs flash_attn .*: install flash-attn.* or set openrlhf.attention=sdpa"
    ):
        require_flash_attn("flash_attention_2")
    for other in ("sdpa", "eager", "flex_attention"):
        require_flash_attn(other)
