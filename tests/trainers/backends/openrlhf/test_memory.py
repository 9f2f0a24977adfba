"""The plan of memory: activations as the real graph has them, and the shipped configurations on cards of 80 GB."""

import json
import weakref
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch
from tiny_models import write_tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, masking_utils

from coachrl.commands import gpu_estimates
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import OpenRLHFConfig, load_config
from coachrl.resources import resource
from coachrl.trainers.backends.openrlhf.cluster.memory import CARD_GB, MemoryPlan, ModelShape, plan_memory, shape_of
from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement
from coachrl.trainers.backends.openrlhf.training.logprobs import ResponseLogprobs
from coachrl.trainers.backends.torch.models.sources import model_folder, parameter_count
from coachrl.trainers.backends.torch.packed import PackedBatch

THREE = {"solver": True, "coder": True, "verifier": True}
ALIKE = dict.fromkeys(THREE, "Qwen/Qwen3-4B")
QWEN = shape_of("Qwen/Qwen3-4B", None, None)
QWEN_CONFIG = Qwen3Config(
    vocab_size=151_936,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=8,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=True,
)
EIGHT_LAYERS = replace(QWEN, layers=8)  # of 36: each is like the others
LLAMA_CONFIG = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=6,
    num_attention_heads=32,
    num_key_value_heads=8,
)
LLAMA = ModelShape(0, 6, 4096, 14_336, 4096, 1024, 128_256, 8192)


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside take at once."""

    def __init__(self, given):
        super().__init__()
        self.now = self.most = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return made

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key, size):
        self._known.discard(key)
        self.now -= size


def measured_gb(config, tokens, responses, checkpointing):
    """Peak of one forward and backward pass of the real model, computed with tensors that hold nothing. Gradients of
    weights go as they come: DeepSpeed takes them at once."""
    config._attn_implementation, config.use_cache = "sdpa", False
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
        places = torch.zeros(responses, dtype=torch.long)
        row = torch.arange(tokens)[None]
        batch = PackedBatch((), (), places, places, row[:, :0], torch.zeros_like(row), row, (tokens,))
        forward = ResponseLogprobs(model, 1.0)
        with Peak([*model.parameters(), *model.buffers()]) as peak:
            forward(model, batch)[0].sum().backward()
        return peak.most / 1e9


@pytest.mark.parametrize(
    ("config", "shape", "tokens", "responses", "checkpointing"),
    [
        (QWEN_CONFIG, EIGHT_LAYERS, 40_960, 4096, True),
        (QWEN_CONFIG, EIGHT_LAYERS, 28_672, 2048, True),
        (LLAMA_CONFIG, LLAMA, 16_384, 2048, True),
        (LLAMA_CONFIG, LLAMA, 8192, 1024, False),
    ],
)
def test_activations_are_those_of_the_real_graph(monkeypatch, config, shape, tokens, responses, checkpointing):
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda positions: None)  # it looks into tensors
    measured = measured_gb(config, tokens, responses, checkpointing)
    planned = shape.activations_gb(tokens, checkpointing)
    assert 0.9 * measured < planned < 1.4 * measured, (measured, planned)


ROUND = ModelShape(10**9, 10, 1000, 3000, 1000, 250, 32_000, 8192)  # 2 GB of weights, 10,000 bytes of cache a token
PASS_GB = 4096 * 83_750 / 1e9 + 0.064 + 0.5  # inputs of ten layers, one layer again, gradients of the head, its blocks


def test_sizes_of_a_round_model_by_hand():
    assert ROUND.activations_gb(4096, checkpointing=True) == pytest.approx(PASS_GB)
    assert ROUND.activations_gb(4096, checkpointing=False) == pytest.approx(4096 * 522_750 / 1e9 + 0.564)
    assert ROUND.adapter_parameters(rank=2) == 2 * 10 * (2 * 2000 + 2 * 1250 + 3 * 4000)
    assert ROUND.cache_bytes() == 10_000


@pytest.mark.parametrize(
    ("settings", "generating", "training", "main"),
    [
        ({}, 56 + 4, 8 + 3 + PASS_GB + 4 + 1, 16 + 2 * 2 * 1.35),
        ({"sleep": False}, 56 + 4 + 8, 8 + 3 + PASS_GB + 4 + 56, 0),
        ({"colocate": False}, 56, 8 + 3 + PASS_GB + 4, 0),
        ({"zero_stage": 2}, 56 + 6, 8 + PASS_GB + 6 + 1, 16 + 2 * 2 * 1.35),
        ({"adam_offload": True}, 56 + 4, 3 + PASS_GB + 4 + 1, 16 + 2 * 2 * 1.35),
    ],
)
def test_a_plan_of_a_round_model_by_hand(settings, generating, training, main):
    """Two cards of 80 GB, a policy that is trained with a reference, and one that is not. An engine takes 56 GB; a
    trainer and a reference hold a half of 2 GB and 1 GB as processes; states are a half of 16 GB; ZeRO-3 gathers 3."""
    config = OpenRLHFConfig(gpus=2, max_length=4096, micro_batch_tokens=1000, **settings)
    trainable = {"solver": True, "judge": False}
    plan = plan_memory(config, plan_placement(config, trainable, True), dict.fromkeys(trainable, ROUND), 80.0)
    assert plan.generating_gb == pytest.approx(generating)
    assert plan.training_gb == {"solver": pytest.approx(training)} and plan.main_gb == pytest.approx(main)
    room_gb = 56 - 2 - 1.6  # weights, and what an engine needs beside them
    assert plan.cached_tokens == dict.fromkeys(trainable, room_gb * 1e9 / 10_000)
    assert plan.longest == dict.fromkeys(trainable, 4096)


@pytest.mark.parametrize(
    ("settings", "generating", "training"),
    [
        ({}, 56 + 8, 8 + 3 + PASS_GB + 8 + 1),
        ({"sleep": False}, 56 + 8 + 16, 2 * (8 + 3 + PASS_GB) + 8 + 56),
        ({"colocate": False}, 56, 8 + 3 + PASS_GB + 4),
    ],
)
def test_policies_that_train_at_once_on_one_card_take_its_room_together(settings, generating, training):
    """As above, and both are trained: each has its states and its pass there, unless they take turns or have cards of
    their own."""
    config = OpenRLHFConfig(gpus=2, max_length=4096, micro_batch_tokens=1000, **settings)
    both = {"solver": True, "judge": True}
    plan = plan_memory(config, plan_placement(config, both, True), dict.fromkeys(both, ROUND), 80.0)
    assert plan.generating_gb == pytest.approx(generating)
    assert plan.training_gb == dict.fromkeys(both, pytest.approx(training))


def test_the_longest_sample_is_the_models_context_where_none_is_set_and_a_pass_holds_a_micro_batch():
    config = OpenRLHFConfig(gpus=2, micro_batch_tokens=10_000)
    placement = plan_placement(config, {"solver": True}, False)
    plan = plan_memory(config, placement, {"solver": ROUND}, 80.0)
    pass_gb = 10_000 * 83_750 / 1e9 + 0.064 + 0.5
    assert plan.longest == {"solver": 8192}
    assert plan.training_gb == {"solver": pytest.approx(8 + 3 + pass_gb + 2 + 1)}


def test_a_plan_is_told_in_lines_and_what_just_fits_is_not_too_much():
    longest = {"a": 4096, "b": 4096}
    lower = "lower openrlhf.max_length, openrlhf.micro_batch_tokens or openrlhf.engine_memory"
    assert MemoryPlan(80.0, 80.0, {"a": 80.1}, {"a": 4096, "b": 4095}, longest, 21.4).lines() == [
        "generating: 80 of 80 GB",
        f"training a at 4,096 tokens: 80 of 80 GB: TOO MUCH, {lower}",
        "an engine of a keeps 4,096 tokens, 1.0 of full length",
        "an engine of b keeps 4,095 tokens, 1.0 of full length: TOO FEW, raise openrlhf.engine_memory",
        "main memory: 21 GB on all machines together",
    ]


@pytest.mark.parametrize(("name", "tokens"), [("mathchat_8gpu", 28_672), ("dsbench_8gpu", 40_960)])
def test_the_shipped_configurations_fit_cards_of_80_gb_at_full_length_with_room(name, tokens):
    settings = load_config(resource("configs", f"{name}.yaml"), []).openrlhf
    plan = plan_memory(
        settings, plan_placement(settings, THREE, True, models=ALIKE), dict.fromkeys(THREE, QWEN), CARD_GB
    )
    assert set(plan.longest.values()) == {tokens}
    assert max(plan.training_gb.values()) < 0.6 * CARD_GB
    assert plan.generating_gb < 0.9 * CARD_GB
    assert min(plan.cached_tokens.values()) > 5 * tokens
    assert not [line for line in plan.lines() if "TOO" in line]


def planned(**settings):
    config = OpenRLHFConfig(**{"gpus": 8, "max_length": 40_960, **settings})
    return plan_memory(config, plan_placement(config, THREE, True), dict.fromkeys(THREE, QWEN), CARD_GB)


def test_what_does_not_fit_is_said():
    lines = planned(gradient_checkpointing=False).lines()
    [first, *_] = [line for line in lines if line.startswith("training")]
    assert first.startswith("training solver at 40,960 tokens: ") and "TOO MUCH, lower openrlhf.max_length" in first
    # Engines take a share of the card, and the weights beside them are what they are: shorter texts change neither.
    assert planned(zero_stage=2).lines()[0].endswith("TOO MUCH, lower openrlhf.engine_memory")
    assert any("TOO FEW, raise openrlhf.engine_memory" in line for line in planned(gpus=1, engine_memory=0.3).lines())


@pytest.mark.parametrize(
    "more",
    [
        {"sleep": False},
        {"zero_stage": 2},
        {"gradient_checkpointing": False},
        {"gpus": 4},
        {"micro_batch_tokens": 80_000},
    ],
)
def test_training_takes_more_memory(more):
    assert planned(**more).training_gb["solver"] > planned().training_gb["solver"] + 1


def test_an_optimizer_in_main_memory_is_not_on_the_gpu():
    there, here = planned(adam_offload=True, sleep=False), planned(sleep=False)
    assert here.training_gb["solver"] - there.training_gb["solver"] == pytest.approx(3 * 16 * 4.022 / 8, rel=0.01)
    assert there.main_gb - here.main_gb == pytest.approx(3 * 16 * 4.022, rel=0.01)


def test_adapters_take_sixteen_bytes_for_each_of_their_own_weights_alone():
    """Rank 16 in all linear layers of Qwen3-4B; with ZeRO-3 no gradients of the base are on their way."""
    whole, settings = planned(), OpenRLHFConfig(gpus=8, max_length=40_960)
    placement = plan_placement(settings, THREE, True, adapters=True)
    adapters = plan_memory(settings, placement, dict.fromkeys(THREE, QWEN), CARD_GB, lora_rank=16)
    references_gb = 3 * (8.045 / 8 + 1)
    weights = 4.022 - 0.033
    assert whole.generating_gb - adapters.generating_gb == pytest.approx(references_gb, rel=0.01)
    assert whole.main_gb - adapters.main_gb == pytest.approx(3 * 16 * weights, rel=0.01)
    saved = 16 * weights / 8 + references_gb + 1 - 2 * 0.033
    assert whole.training_gb["solver"] - adapters.training_gb["solver"] == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize("more", [{}, {"zero_stage": 2}])
def test_a_reference_that_policies_share_is_counted_once(more):
    apart, settings = planned(**more), OpenRLHFConfig(gpus=8, max_length=40_960, **more)
    placement = plan_placement(settings, THREE, True, models=ALIKE)
    shared = plan_memory(settings, placement, dict.fromkeys(THREE, QWEN), CARD_GB)
    saved = 2 * (8.045 / (1 if more else 8) + 1)
    assert apart.generating_gb - shared.generating_gb == pytest.approx(saved, rel=0.01)
    for policy in THREE:
        assert apart.training_gb[policy] - shared.training_gb[policy] == pytest.approx(saved, rel=0.01)


def test_engines_that_sleep_leave_their_weights_in_main_memory():
    assert planned().main_gb - planned(engines=1).main_gb == pytest.approx(5 * 8.045 * 1.35, rel=0.01)
    assert planned(sleep=False).main_gb == 0


def test_weights_that_are_thrown_away_are_in_no_memory_but_those_of_a_policy_that_is_not_trained():
    kept, thrown_away = planned(), planned(sleep_level=2)
    assert kept.main_gb - thrown_away.main_gb == pytest.approx(8 * 8.045 * 1.35, rel=0.01)
    assert thrown_away.main_gb == pytest.approx(3 * 16 * 4.022, rel=0.01)
    settings = OpenRLHFConfig(gpus=8, max_length=40_960, sleep_level=2)
    trainable = {**THREE, "verifier": False}
    plan = plan_memory(settings, plan_placement(settings, trainable, True), dict.fromkeys(THREE, QWEN), CARD_GB)
    assert plan.main_gb == pytest.approx(2 * 16 * 4.022 + 2 * 8.045 * 1.35, rel=0.01)


def test_a_folders_shape_is_that_of_its_config(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    shape = shape_of(str(folder), folder, parameter_count(folder))
    assert replace(shape, parameters=0) == ModelShape(0, 2, 64, 96, 64, 32, 258, 512)
    assert shape.parameters > 50_000
    assert shape.cache_bytes() == 2 * 2 * 2 * 32  # keys and values of two layers, two bytes each
    assert shape_of("Qwen/Qwen3-4B", folder, None) == shape_of("Qwen/Qwen3-4B", None, 1) == QWEN, "its number is needed"
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert shape_of(str(folder), folder, 1) is None


def test_the_dry_run_says_what_training_takes_on_which_card(monkeypatch):
    monkeypatch.setattr(gpu_estimates, "smallest_card", lambda: None)
    lines = make_dry_run(load_config(None, ["backend=openrlhf", "pipeline.prompt_style=short"])).lines()
    [first] = [number for number, line in enumerate(lines) if line.startswith("memory on a GPU")]
    assert "a card of 80 GB is assumed, which holds 86 of 10^9 bytes" in lines[first]
    assert "training problem_solver at 8,192 tokens: " in lines[first + 2] and lines[first + 2].endswith(" of 86 GB")
    monkeypatch.setattr(gpu_estimates, "smallest_card", lambda: (24.0, "NVIDIA A10"))
    lines = make_dry_run(load_config(None, ["backend=openrlhf", "pipeline.prompt_style=short"])).lines()
    assert lines[first].endswith(" estimated") and lines[first + 2].endswith(" of 24 GB")
    assert not any("memory on a GPU" in line for line in make_dry_run(load_config(None, [])).lines())
    unknown = make_dry_run(load_config(None, ["backend=openrlhf", "model=someone/unheard-of"]))
    words = "someone/unheard-of has to be fetched first (its config.json is enough), or is of a kind not known here"
    assert unknown.gpu.memory == unknown.gpu.time == (f"unknown: {words}",)


@pytest.mark.parametrize("name", ["smollm2-135m", "tiny-random"])
def test_a_shipped_model_is_known_before_it_is_made(name):
    folder = model_folder(name)
    assert shape_of(name, None, None) == shape_of(name, folder, parameter_count(folder))
