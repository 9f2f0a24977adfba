"""Shared-prefix attention, the check that switches it on, and packed layers."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from tiny_models import write_tiny_model

from coachrl.resources import say_once
from coachrl.trainers.backends.torch.engine import attention, linears, proof, threads
from coachrl.trainers.backends.torch.engine.decode import Request, generate_batch
from coachrl.trainers.backends.torch.engine.proof import use_shared_prefix
from coachrl.trainers.backends.torch.policy import load_generator, load_model
from coachrl.types import SamplingParams

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 90,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
}


def made(architecture, dtype=torch.float32, **config):
    torch.manual_seed(0)
    made_config = getattr(transformers, f"{architecture}Config")(**(SIZES | config))
    return getattr(transformers, f"{architecture}ForCausalLM")(made_config).eval().to(dtype)


def requests(count, prefix=(), low=1, **sampling):
    rng = np.random.default_rng(3)
    return [
        Request(
            (*prefix, *rng.integers(0, 90, rng.integers(low, 30)).tolist()),
            SamplingParams(**{"max_new_tokens": 20, "seed": i} | sampling),
        )
        for i in range(count)
    ]


def replies(model, batch, **options):
    return generate_batch(model, batch, frozenset({7}), 0, **options)


@pytest.fixture(autouse=True)
def every_warning_is_new():
    say_once.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_common_architectures_pass_the_check(architecture, dtype):
    options = {"sliding_window": None} if architecture == "Mistral" else {}
    assert use_shared_prefix(made(architecture, dtype, **options))


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        ("Mistral", {"sliding_window": 4096}, "sliding"),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1}, "sliding"),
        ("Gemma2", {"head_dim": 16}, "softcap|sliding"),
        ("GptOss", {"num_local_experts": 2, "head_dim": 16, "num_experts_per_tok": 1}, "s_aux|sliding"),
        ("Bloom", {"hidden_size": 64, "n_head": 4, "n_layer": 2}, "logits would differ"),
        ("Mamba", {"state_size": 8}, ""),
    ],
)
def test_architectures_that_are_not_proven_fall_back_and_say_so_once(architecture, config, reason, caplog):
    model = made(architecture, **config)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        assert not use_shared_prefix(model)
        assert not use_shared_prefix(model)
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
    (line,) = [record.getMessage() for record in caplog.records if record.name == proof.log.name]
    assert "slower padded batches" in line
    assert re.search(reason, line), line


def test_what_passed_is_not_tried_again_for_the_same_files_and_computes_alike(tiny_model, tmp_path, monkeypatch):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    tries, tried = [], proof.use_shared_prefix
    monkeypatch.setattr(proof, "use_shared_prefix", lambda *given: tries.append(given) or tried(*given))
    batch = requests(9, prefix=range(40, 75))
    first, second = (replies(load_generator(folder, torch.bfloat16, CPU), batch) for _ in range(2))
    assert first == second and len(tries) == 1
    load_generator(folder, torch.float32, CPU)
    assert len(tries) == 2, "in another precision"
    write_tiny_model(folder, seed=1)
    load_generator(folder, torch.float32, CPU)
    assert len(tries) == 3, "other weights"


def test_what_did_not_pass_is_tried_again(tmp_path, monkeypatch):
    folder, tries = write_tiny_model(tmp_path), []
    monkeypatch.setattr(proof, "use_shared_prefix", lambda *given: bool(tries.append(given)))
    for _ in range(2):
        assert load_generator(folder, torch.float32, CPU).config._attn_implementation != attention.NAME
    assert len(tries) == 2


def test_fast_replies_equal_those_of_the_plain_loop():
    plain, fast = made("Llama"), made("Llama")
    assert use_shared_prefix(fast)
    batch = [
        *requests(9, prefix=range(40, 75)),
        *requests(3, prefix=range(40, 75), temperature=0.0),
        *requests(3, prefix=range(40, 75), top_p=0.7, max_new_tokens=45),
    ]
    for one, other in zip(replies(plain, batch), replies(fast, batch), strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("prefix", [(), range(40, 75)], ids=["no prefix", "shared prefix"])
def test_rows_join_and_leave_without_changing_each_other(prefix):
    model = made("Llama")
    assert use_shared_prefix(model)
    batch = [*requests(11, prefix), *requests(4, prefix, max_new_tokens=3), *requests(6, prefix, low=20)]
    together = replies(model, batch)
    for slots in (1, 3, 8):
        for one, other in zip(together, replies(model, batch, batch_size=slots), strict=True):
            assert one.token_ids == other.token_ids
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_the_plain_loop_keeps_to_the_batch_size():
    model = made("Llama")
    batch = requests(7)
    expected = replies(model, batch)
    rows = []
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    assert [r.token_ids for r in replies(model, batch, batch_size=3)] == [r.token_ids for r in expected]
    assert max(rows) == 3


def test_a_seeded_batch_repeats_bit_for_bit(tiny_model):
    batch = requests(12, prefix=range(40, 75))
    first, second = (replies(load_generator(tiny_model, torch.bfloat16, CPU), batch, batch_size=5) for _ in range(2))
    assert first == second


def test_a_model_outside_of_a_layout_is_the_plain_one():
    plain, fast = made("Llama"), made("Llama")
    assert use_shared_prefix(fast)
    ids = torch.arange(24).view(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        expected = plain(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(fast(input_ids=ids, attention_mask=mask).logits, expected)


@pytest.mark.parametrize("block", [4, 256])
def test_long_rows_are_attended_to_in_pieces(monkeypatch, block):
    monkeypatch.setattr(attention, "_QUERIES_AT_ONCE", block)
    monkeypatch.setattr(attention, "_SCORES_AT_ONCE", block * 100)
    plain, fast = made("Llama"), made("Llama")
    assert use_shared_prefix(fast)
    batch = requests(5, prefix=range(40, 75))
    for one, other in zip(replies(plain, batch), replies(fast, batch), strict=True):
        assert one.token_ids == other.token_ids


needs_packing = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 products on this processor"
)


@needs_packing
def test_packed_layers_give_the_plain_layers_products():
    torch.manual_seed(1)
    for inputs, outputs in ((64, 96), (17, 33), (8, 1)):
        plain = torch.nn.Linear(inputs, outputs, dtype=torch.bfloat16)
        [packed] = linears.PackedBlock([plain]).layers()
        for rows in (1, 5, 40):
            x = torch.randn(1, rows, inputs)
            with torch.no_grad():
                torch.testing.assert_close(packed(x), plain(x.bfloat16()), atol=1e-2, rtol=1e-2)


@needs_packing
@pytest.mark.parametrize("biased", [(False, False, False), (True, False, True)])
def test_layers_of_one_input_are_multiplied_once_and_keep_their_own_products(biased, monkeypatch):
    torch.manual_seed(1)
    plain = [
        torch.nn.Linear(24, size, bias, dtype=torch.bfloat16) for size, bias in zip((5, 16, 8), biased, strict=True)
    ]
    block = linears.PackedBlock(plain)
    asked = []
    product = block.product_of_frozen
    monkeypatch.setattr(block, "product_of_frozen", lambda x: asked.append(x) or product(x))
    first, second = torch.randn(2, 1, 6, 24)
    with torch.no_grad():
        for x in (first, second, first):
            for one, packed in zip(plain, block.layers(), strict=True):
                torch.testing.assert_close(packed(x), one(x.bfloat16()), atol=1e-2, rtol=1e-2)
        assert len(asked) == 3
        last = block.layers()[2]
        torch.testing.assert_close(
            last(second), plain[2](second.bfloat16()), atol=1e-2, rtol=1e-2
        )  # asked out of order


@needs_packing
def test_layers_of_one_input_are_found_by_what_they_are_given(tiny_model):
    packed = load_generator(tiny_model, torch.bfloat16, CPU)
    names = {}
    for name, module in packed.named_modules():
        if isinstance(module, linears.PackedLinear):
            names.setdefault(module.block, []).append(name.rpartition(".")[2])
    assert {tuple(block) for block in names.values()} == {
        ("q_proj", "k_proj", "v_proj"),
        ("o_proj",),
        ("gate_proj", "up_proj"),
        ("down_proj",),
        ("lm_head",),
    }


class Odd(torch.nn.Module):
    """Layers that are asked twice, with a copy, or never."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.of_copy, self.twice, self.never = (torch.nn.Linear(4, 4) for _ in range(5))
        self.device = CPU

    def forward(self, input_ids, use_cache):
        x = torch.zeros(1, 4) + input_ids
        return self.second(x) + self.twice(x) + self.first(x) + self.twice(x) + self.of_copy(x.clone())


def test_layers_are_joined_only_where_each_is_asked_once_with_the_same_tensor():
    found = linears._of_same_input(Odd())
    assert sorted(found) == [["never"], ["of_copy"], ["second", "first"], ["twice"]]


@needs_packing
def test_a_block_takes_new_weights_of_some_of_its_layers(tiny_model):
    packed = load_generator(tiny_model, torch.bfloat16, CPU)
    layer = packed.model.layers[0].self_attn.k_proj
    before = [rows.clone() for rows in layer.block.plain_weights().split(layer.block.sizes)]
    new = torch.randn(before[1].shape).bfloat16()
    linears.copy_weights(packed, [("model.layers.0.self_attn.k_proj.weight", new)])
    after = layer.block.plain_weights().split(layer.block.sizes)
    assert torch.equal(after[1], new) and torch.equal(after[0], before[0]) and torch.equal(after[2], before[2])


@needs_packing
def test_packed_models_take_new_weights(tiny_model):
    first, target = load_generator(tiny_model, torch.bfloat16, CPU), load_model(tiny_model, torch.float32, CPU)
    assert any(isinstance(module, linears.PackedLinear) for module in first.modules())
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    linears.copy_weights(first, target.state_dict().items())
    ids = torch.arange(30)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = target(input_ids=ids, use_cache=False).logits
    with torch.no_grad():
        found = first(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)  # they round alike: see `linears.pack`


@needs_packing
def test_an_architecture_that_cannot_be_packed_comes_back_whole(tmp_path, monkeypatch):
    difference = lambda exact, found, allowed, dtype: "pretended" if dtype == torch.bfloat16 else ""  # noqa: E731
    monkeypatch.setattr(proof, "_difference", difference)
    model = load_generator(write_tiny_model(tmp_path), torch.bfloat16, CPU)
    assert not any(isinstance(module, linears.PackedLinear) for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert replies(model, requests(3))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Clocks:
    """Wall time that goes on by a second for each forward pass, of which the threads get `share` processors, which
    others take away `preempted` times."""

    def __init__(self, monkeypatch):
        self.share, self.preempted = 2.0, 200
        self.wall = self.busy = 0.0
        self.switches = 0
        monkeypatch.setattr(threads, "_times_preempted", lambda: self.switches)
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(threads.time, "process_time", lambda: self.busy)

    def count_threads(self, governor, passes=3):
        seen = []
        with governor.batch():
            for _ in range(passes):
                with governor.forward_pass():
                    seen.append(torch.get_num_threads())
                    self.wall += 1.0
                    self.busy += min(self.share, torch.get_num_threads())
                    self.switches += self.preempted
        return seen


def test_one_thread_goes_on_alone_where_others_keep_the_processors_busy(two_threads, monkeypatch):
    clocks, governor = Clocks(monkeypatch), threads.ThreadGovernor()
    assert clocks.count_threads(governor) == [2, 2, 2]
    clocks.share = 0.1
    assert clocks.count_threads(governor) == [2, 1, 1]
    assert torch.get_num_threads() == 2  # the update keeps its threads
    assert clocks.count_threads(governor) == [1, 1, 1]
    assert clocks.count_threads(governor) == [2, 1, 1]  # tried again, and then less often
    assert [clocks.count_threads(governor)[0] for _ in range(3)] == [1, 1, 2]
    clocks.share = 2.0
    assert [clocks.count_threads(governor)[0] for _ in range(6)] == [1, 1, 1, 1, 2, 2]


def test_one_busy_neighbour_on_two_processors_is_enough(two_threads, monkeypatch):
    clocks, governor = Clocks(monkeypatch), threads.ThreadGovernor()
    clocks.share = 1.5  # two threads got that much, and spun half of it
    assert clocks.count_threads(governor) == [2, 1, 1]


def test_threads_that_sleep_where_they_wait_are_not_disturbed(two_threads, monkeypatch):
    clocks, governor = Clocks(monkeypatch), threads.ThreadGovernor()
    clocks.share, clocks.preempted = 1.2, 50
    assert clocks.count_threads(governor) == [2, 2, 2]


def test_the_number_of_threads_is_restored_after_an_error(two_threads, monkeypatch):
    clocks, governor = Clocks(monkeypatch), threads.ThreadGovernor()
    clocks.share = 0.1
    with pytest.raises(RuntimeError, match="broke"), governor.batch():
        with governor.forward_pass():
            clocks.wall += 1.0
            clocks.switches += clocks.preempted
        assert torch.get_num_threads() == 1
        raise RuntimeError("broke")
    assert torch.get_num_threads() == 2


def test_replies_do_not_depend_on_the_number_of_threads(tmp_path, two_threads):
    folder = write_tiny_model(tmp_path, hidden_size=256, intermediate_size=1024)  # large enough for threads to share
    model = load_generator(folder, torch.bfloat16, CPU)
    batch = requests(40, prefix=range(40, 75))
    with_two = replies(model, batch)
    torch.set_num_threads(1)
    assert replies(model, batch) == with_two
