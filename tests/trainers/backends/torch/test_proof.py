"""The check that switches shared-prefix attention on: right layouts pass it, whatever the weights; wrong ones fail."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from coachrl.trainers.backends.torch.engine import attention, linears, slots
from coachrl.trainers.backends.torch.engine.proof import use_shared_prefix
from coachrl.trainers.backends.torch.models.lora import make_adaptable

SIZES = {"vocab_size": 90, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
needs_packs = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 products on this processor"
)


def made(architecture="Llama", dtype=torch.bfloat16, layers=2, key_value_heads=2, weights=0.15, seed=0, **more):
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": layers, "num_key_value_heads": key_value_heads, "initializer_range": weights, **more}
    config = getattr(transformers, f"{architecture}Config")(**SIZES, **shape)
    return getattr(transformers, f"{architecture}ForCausalLM")(config).eval().to(dtype)


# Weights of 0.3 round in bfloat16 as those of a model do that was trained: by more than attention's order of sums does.
models = st.fixed_dictionaries(
    {
        "architecture": st.sampled_from(["Llama", "Qwen2", "Qwen3"]),
        "dtype": st.sampled_from([torch.bfloat16, torch.float32]),
        "layers": st.sampled_from([1, 2, 6]),
        "key_value_heads": st.sampled_from([1, 2, 4]),
        "weights": st.sampled_from([0.05, 0.15, 0.3]),
        "seed": st.integers(0, 2**32 - 1),
    }
)


@settings(deadline=None, max_examples=12)
@given(models)
def test_a_right_layout_passes_whatever_the_weights(shape):
    assert use_shared_prefix(made(**shape))


@needs_packs
@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 6]), st.sampled_from([0.15, 0.3]))
def test_packed_layers_pass_whatever_the_weights(seed, layers, weights):
    assert use_shared_prefix(made(seed=seed, layers=layers, weights=weights), linears.pack)


def with_biased_keys(bias=300.0):
    """As Qwen2.5's are: large, and next to the same in all keys, where positions hardly turn them."""
    model = made("Qwen2")
    with torch.no_grad():
        model.model.rotary_emb.inv_freq[7] = 0
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.view(2, 16, -1)[:, [7, 15]] = 0
            layer.self_attn.k_proj.bias.view(2, 16)[:, [7, 15]] = bias
    return model


@pytest.mark.parametrize("prepare", [None, pytest.param(linears.pack, marks=needs_packs), make_adaptable])
def test_a_bias_that_all_keys_share_takes_no_bits_of_what_tells_them_apart(prepare):
    assert use_shared_prefix(with_biased_keys(), prepare)


def test_a_bias_that_is_normalized_away_stays_away():
    model = made("Qwen3", attention_bias=True, head_dim=16)
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.k_proj.bias, 300.0)
    assert use_shared_prefix(model)


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_is_lost_in_the_trainers_autocast_counts(monkeypatch, is_seen):
    monkeypatch.setattr(attention, "_without_bias", lambda key, module: key)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_seen):
        assert use_shared_prefix(with_biased_keys().float()) != is_seen


def test_trying_leaves_every_weight_as_it_was():
    model, same = made(), made()
    assert use_shared_prefix(model)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), same.parameters(), strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def rows_see_each_other(monkeypatch):
    whole = attention.PackedRows.__init__
    monkeypatch.setattr(
        attention.PackedRows, "__init__", lambda self, lengths, *rest: whole(self, [sum(lengths)], *rest)
    )


def the_prefix_is_forgotten(monkeypatch):
    monkeypatch.setattr(slots, "grouped_attention", lambda *given: attention.grouped_attention(*given[:4]))


def a_column_is_written_twice(monkeypatch):
    def stuck(self):
        self._columns_A = torch.tensor(self._lengths) - 1
        self._rows_A = torch.arange(len(self._lengths))
        return self._columns_A + 1

    monkeypatch.setattr(slots.SlotCache, "begin_step", stuck)


def empty_columns_are_seen(monkeypatch):
    begin_step = slots.SlotCache.begin_step

    def unmasked(self):
        columns = begin_step(self)
        self._mask.zero_()
        return columns

    monkeypatch.setattr(slots.SlotCache, "begin_step", unmasked)


def positions_are_one_too_far(monkeypatch):
    begin_step = slots.SlotCache.begin_step
    monkeypatch.setattr(slots.SlotCache, "begin_step", lambda self: begin_step(self) + 1)


def rows_are_exchanged_when_one_leaves(monkeypatch):
    keep = slots.SlotCache.keep
    monkeypatch.setattr(slots.SlotCache, "keep", lambda self, going: sorted(keep(self, going)))


@pytest.mark.parametrize(
    "fault",
    [
        rows_see_each_other,
        the_prefix_is_forgotten,
        a_column_is_written_twice,
        empty_columns_are_seen,
        positions_are_one_too_far,
        rows_are_exchanged_when_one_leaves,
    ],
    ids=lambda fault: fault.__name__,
)
@settings(deadline=None, max_examples=3)
@given(models)
def test_the_check_sees_a_wrong_layout(fault, shape):
    with pytest.MonkeyPatch.context() as monkeypatch:
        fault(monkeypatch)
        assert not use_shared_prefix(made(**shape))


@needs_packs
def test_the_check_sees_weights_that_were_packed_wrongly():
    def wrongly(model):
        linears.pack(model)
        [first, *_] = [module for module in model.modules() if isinstance(module, linears.PackedLinear)]
        first.block.set_weights({0: made(seed=1).model.layers[0].self_attn.q_proj.weight})

    assert not use_shared_prefix(made(), wrongly)
