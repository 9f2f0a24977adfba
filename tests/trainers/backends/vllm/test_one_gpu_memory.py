"""The plan of one GPU's memory: three agents of 4B train on a card of 80 GB as adapters over one base, and only so."""

import pytest

pytest.importorskip("torch")

import json
from dataclasses import replace

import torch
from tiny_models import write_tiny_model

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import RunConfig, find_config, load_config
from coachrl.errors import ConfigError
from coachrl.trainers.backends.openrlhf.cluster.memory import CARD_GB, PROCESS_GB, ModelShape, shape_of
from coachrl.trainers.backends.torch.models.lora import Adapter, make_adaptable
from coachrl.trainers.backends.torch.models.sources import parameter_count
from coachrl.trainers.backends.torch.policy import load_model
from coachrl.trainers.backends.vllm.memory import OneGpuPlan, plan_one_gpu

QWEN = shape_of("Qwen/Qwen3-4B", None, None)
THREE = dict.fromkeys(("solver", "executor", "verifier"), QWEN)
TEAM = load_config(find_config("one_gpu_team"), [])


def plan(config=TEAM, trained=3, reference=True):
    return plan_one_gpu(config, THREE, trained, reference, CARD_GB)


def changed(*overrides):
    return load_config(find_config("one_gpu_team"), list(overrides))


def test_three_agents_of_4b_fit_one_card_of_80_gb_with_room():
    found = plan()
    assert found.training_gb < 0.9 * CARD_GB and found.generating_gb < 0.9 * CARD_GB
    assert found.longest == 8192 and found.cached_tokens > 20 * found.longest
    assert not [line for line in found.lines() if "TOO" in line], found.lines()


def test_one_base_is_held_once_whatever_the_number_of_adapters_and_serves_as_reference():
    adapter_gb = 16 * 33_030_144 / 1e9  # rank 16 in all linear layers of Qwen3-4B
    for trained in (1, 2, 3):
        assert plan(trained=trained).beside_gb == pytest.approx(8.04 + trained * adapter_gb, abs=0.01)
    assert plan(reference=False) == plan(reference=True)


def test_the_same_team_does_not_fit_with_weights_of_its_own():
    whole = plan(changed("torch.share_base=false", "torch.lora_rank=null"))
    assert whole.beside_gb == pytest.approx((3 * 14 + 2) * 4.0225, rel=0.01)
    adapters = plan(changed("torch.share_base=false"))
    assert adapters.beside_gb == pytest.approx(3 * (6 * 4.0225 + 0.5285) + 2 * 4.0225, rel=0.01)
    for found in (whole, adapters):
        assert [line for line in found.lines() if "TOO MUCH, lower vllm.memory" in line]
        assert [line for line in found.lines() if "TOO MUCH, lower vllm.max_length" in line]


def test_what_is_too_much_or_too_few_is_said():
    longer = plan(changed("vllm.max_length=16384"))
    assert longer.training_gb > CARD_GB and "TOO MUCH" in longer.lines()[2]
    small = plan(changed("vllm.memory=0.12"))
    assert small.lines()[3].endswith("TOO FEW, raise vllm.memory")
    awake, asleep = plan(changed("vllm.sleep=false")), plan()
    assert awake.training_gb - asleep.training_gb == pytest.approx(0.7 * CARD_GB - PROCESS_GB)
    assert awake.main_gb == 0 < asleep.main_gb


ROUND = ModelShape(10**9, 10, 1000, 3000, 1000, 250, 32_000, 8192)  # 2 GB of weights, 10,000 bytes of cache a token


@pytest.mark.parametrize(
    ("overrides", "slots_gb"),
    [
        ([], 4 * 2 * 16 * 10 * 18_500 / 1e9),  # rank 16 of three policies and an empty place, in bfloat16
        (["torch.share_base=false"], 0.0),
    ],
)
def test_what_an_engine_keeps_is_what_weights_and_adapters_leave_of_its_share(overrides, slots_gb):
    found = plan_one_gpu(changed("vllm.memory=0.7", *overrides), dict.fromkeys(THREE, ROUND), 3, True, 80.0)
    assert found.cached_tokens == int((56 - 2 - slots_gb - 1.6) * 1e9 / 10_000)
    assert found.longest == 8192
    shorter = plan_one_gpu(changed("vllm.max_length=null"), {"solver": replace(ROUND, context=1000)}, 1, True, 80.0)
    assert shorter.longest == 1000


def test_what_just_fits_is_neither_too_much_nor_too_few():
    fits = OneGpuPlan(80.0, 1.0, 80.0, 80.0, 4096, 4096, 0.0, "nothing")
    assert fits.lines() == [
        "weights, optimizers and adapters of the trainer: 1.0 of 80 GB",
        "generating: 80 of 80 GB",
        "training one policy at 4,096 tokens: 80 of 80 GB",
        "the engine keeps 4,096 tokens, 1.0 of full length",
    ]
    assert replace(fits, cached_tokens=4095).lines()[3].endswith("TOO FEW, raise vllm.memory")
    assert replace(fits, main_gb=3.0).lines()[4] == "main memory: 3 GB"


def test_activations_are_those_of_a_micro_batch_and_of_one_sample_at_least():
    for tokens, largest in ((100, 8192), (8192, 8192), (12_000, 12_000)):
        more = plan(changed(f"torch.micro_batch_tokens={tokens}")).training_gb - plan().training_gb
        assert more == pytest.approx(QWEN.activations_gb(largest, False) - QWEN.activations_gb(8192, False))


def test_a_frozen_copy_is_held_where_a_policy_is_not_trained_or_a_reference_is_asked_for():
    own = changed("torch.share_base=false", "torch.lora_rank=null")
    found = {
        (n, kept): plan(own, n, kept).beside_gb / (QWEN.parameters / 1e9) for n in (0, 2, 3) for kept in (False, True)
    }
    assert found == pytest.approx(
        {(0, False): 2, (0, True): 4, (2, False): 30, (2, True): 32, (3, False): 42, (3, True): 44}
    )
    moved = plan(own).training_gb - plan(own, 0).training_gb - (plan(own).beside_gb - plan(own, 0).beside_gb)
    assert moved == pytest.approx(6 * QWEN.parameters / 1e9)


def test_activations_that_are_computed_again_leave_room_for_the_whole_context():
    whole = ("vllm.max_length=40960", "torch.micro_batch_tokens=40960")
    kept, again = plan(changed(*whole)), plan(changed(*whole, "torch.gradient_checkpointing=true"))
    assert "TOO MUCH" in kept.lines()[2] and "torch.gradient_checkpointing=true" in kept.lines()[2]
    assert again.training_gb < CARD_GB and not [line for line in again.lines() if "TOO" in line], again.lines()


def test_weights_of_an_adapter_are_counted_as_they_are_made(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny", intermediate_size=160)
    shape = shape_of(str(folder), folder, parameter_count(folder))
    model = load_model(folder, torch.float32, torch.device("cpu"))
    make_adaptable(model)
    made = Adapter(model, 4, 8, seed=0).parameters().values()
    assert shape.adapter_parameters(4) == sum(matrix.numel() for matrix in made)
    assert QWEN.adapter_parameters(16) == 33_030_144


def test_the_dry_run_shows_the_plan(tmp_path):
    tasks = [f"tasks.{name}={tmp_path / name}.json" for name in ("train", "heldout")]
    for number, name in enumerate(("train", "heldout")):
        problem = {"problem": f"{number} + 1?", "answer": str(number + 1)}
        (tmp_path / f"{name}.json").write_text(json.dumps([problem]))
    shown = make_dry_run(load_config(find_config("one_gpu_team"), tasks))
    assert shown.placement[0].startswith("one process: a vLLM engine that serves all policies side by side")
    [line] = [line for line in shown.gpu.memory if line.startswith("training one policy at 8,192 tokens: ")]
    assert "TOO" not in line and line in "\n".join(shown.lines())


def test_sharing_is_refused_where_it_cannot_be_had():
    for overrides, words in (
        (["backend=openrlhf", "torch.lora_rank=8", "torch.share_base=true"], r"backend=torch and backend=vllm"),
        (["policies.share_base=true"], r"adapters over one base are torch\.share_base=true"),
    ):
        with pytest.raises(ConfigError, match=words) as refused:
            load_config(None, overrides)
        assert len(str(refused.value).splitlines()) == 1
    assert not RunConfig().torch.share_base
