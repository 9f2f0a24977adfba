"""Adapters of several policies over one frozen model: what each learns and says is what it would with a model alone."""

import asyncio
import io
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from drawing import fresh
from flat_config import with_settings
from pydantic import ValidationError
from rich.console import Console
from tiny_models import write_tiny_model
from torch_backends import EXACT
from transformers import AutoModelForCausalLM

from coachrl.commands.build import load_generators
from coachrl.commands.dry_run import make_dry_run
from coachrl.commands.run import evaluate_run, train_run
from coachrl.config import load_config
from coachrl.config.training import SftConfig
from coachrl.errors import CheckpointError, ConfigError
from coachrl.export.hub import export_hub
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.engine.linears import PackedBlock

ADAPTERS = with_settings(EXACT, lora_rank=4, lora_alpha=8, learning_rate=3e-3)
SHARED = with_settings(ADAPTERS, share_base=True)
POLICIES = ("solver", "verifier", "judge")


packs = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no products of packed bfloat16"
)


@pytest.fixture
def make(tiny_model):
    """Backends of two policies that are trained and one that is not, closed at the end."""
    made = []

    def build(settings=SHARED, model=tiny_model):
        made.append(TorchBackend(dict.fromkeys(POLICIES, model), settings, {"judge": False}, keep_reference=True))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


def step(backend, number, policies=POLICIES):
    """One step of training on fresh replies. Returns what was drawn, with references, and the statistics."""
    drawn = backend.with_reference({policy: fresh(backend, policy, 6, number) for policy in policies})
    stats = backend.update(drawn)
    backend.sync_weights()
    return drawn, stats


def adapters(backend):
    return {
        f"{policy} {name}": matrix.detach().clone()
        for policy, trained in backend._policies.items()
        for name, matrix in trained.adapter.parameters().items()
    }


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="session")
def rounded_model(tiny_model, tmp_path_factory):
    """The tiny model as large ones are published: in bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "rounded"
    shutil.copytree(tiny_model, folder)
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=packs)])
def test_updates_are_bit_for_bit_those_of_policies_with_a_model_each(make, rounded_model, precision):
    shared, apart = (
        make(with_settings(settings, precision=precision), rounded_model) for settings in (SHARED, ADAPTERS)
    )
    for number in range(3):
        samples = shared.with_reference({policy: fresh(shared, policy, 6, number) for policy in POLICIES})
        for sample in samples["verifier"]:
            np.negative(sample.advantages_L, out=sample.advantages_L)
        for policy, group in apart.with_reference(samples).items():
            for ours, theirs in zip(samples[policy], group, strict=True):
                assert np.array_equal(ours.ref_logprobs_L, theirs.ref_logprobs_L)
        assert shared.update(samples) == apart.update(samples)
        assert same(adapters(shared), adapters(apart))
        for backend in (shared, apart):
            backend.sync_weights()
    moved = adapters(shared)
    assert any(not torch.equal(moved[name], moved[name.replace("solver", "verifier")]) for name in moved)


def test_replies_are_those_of_policies_with_a_model_each(make):
    shared, apart = make(SHARED), make(ADAPTERS)
    for number in range(3):
        ours, theirs = step(shared, number)[0], step(apart, number)[0]
        for policy in POLICIES:
            for one, other in zip(ours[policy], theirs[policy], strict=True):
                assert one.response_ids_L.tolist() == other.response_ids_L.tolist()
                # merged weights multiply once where a base and its adapter multiply apart
                assert np.allclose(one.old_logprobs_L, other.old_logprobs_L, atol=0 if number == 0 else 1e-4)


def test_one_model_in_memory_generates_trains_and_is_the_reference(make):
    backend = make()
    models = [*backend._generators.values(), *backend._frozen.values()]
    models += [policy.model for policy in backend._policies.values()]
    assert len({id(model) for model in models}) == 1
    assert not any(parameter.requires_grad for parameter in models[0].parameters())
    trained = backend._policies["solver"]
    held = sum(matrix.numel() for group in trained._optimizer.param_groups for matrix in group["params"])
    assert held == sum(matrix.numel() for matrix in trained.adapter.parameters().values())
    assert held < sum(parameter.numel() for parameter in models[0].parameters()) / 5


def test_a_policy_moves_itself_alone(make):
    backend, untouched = make(), make()
    step(backend, 0, ["solver"])
    for policy in ("verifier", "judge"):
        ours, theirs = fresh(backend, policy, 6), fresh(untouched, policy, 6)
        assert [s.response_ids_L.tolist() for s in ours] == [s.response_ids_L.tolist() for s in theirs]
        assert all(np.array_equal(a.old_logprobs_L, b.old_logprobs_L) for a, b in zip(ours, theirs, strict=True))
    samples = {"solver": fresh(backend, "solver", 6)}
    [moved], [initial] = backend.with_reference(samples).values(), untouched.with_reference(samples).values()
    for ours, theirs in zip(moved, initial, strict=True):
        assert np.array_equal(ours.ref_logprobs_L, theirs.ref_logprobs_L)
        assert not np.allclose(ours.ref_logprobs_L, ours.old_logprobs_L, atol=1e-3)


@packs
def test_packed_layers_pass_gradients_on_as_plain_ones_do():
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 32).bfloat16()
    plain, x = torch.nn.Sequential(linear), torch.randn(2, 5, 48)
    block = PackedBlock([linear])
    [packed] = block.layers()
    gradients = []
    for layer in (plain, packed):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(leaf)
        y.backward(torch.ones_like(y))
        gradients.append((y, leaf.grad))
    assert torch.equal(gradients[0][0], gradients[1][0]) and torch.equal(gradients[0][1], gradients[1][1])
    assert torch.equal(block.plain_weights(), linear.weight)


def test_a_saved_run_goes_on_bit_for_bit(make, tmp_path):
    first = make()
    step(first, 0)
    first.save(tmp_path)
    resumed = make()
    resumed.load(tmp_path)
    assert same(adapters(resumed), adapters(first))
    (ours, stats), (theirs, others) = step(first, 1), step(resumed, 1)
    assert stats == others and same(adapters(resumed), adapters(first))
    for policy in POLICIES:
        for one, other in zip(ours[policy], theirs[policy], strict=True):
            assert np.array_equal(one.old_logprobs_L, other.old_logprobs_L)


def test_peft_loads_a_checkpoint_as_an_adapter(make, tmp_path, tiny_model):
    peft = pytest.importorskip("peft")
    backend = make()
    step(backend, 0)
    backend.save(tmp_path)
    [ids] = torch.randint(0, 200, (1, 1, 20), generator=torch.Generator().manual_seed(0))
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    before = base(ids).logits
    for policy in ("solver", "verifier"):
        config = json.loads((tmp_path / policy / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(tiny_model)
        model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / policy)
        with torch.no_grad(), backend._policies[policy].in_use() as ours:
            assert torch.allclose(model(ids).logits, ours(ids).logits, atol=1e-5)
            assert not torch.allclose(model(ids).logits, before, atol=1e-2)
    assert not (tmp_path / "judge").exists()


@pytest.mark.parametrize("damage", ["missing", "cut short", "another rank"])
def test_an_adapter_that_cannot_be_read_changes_nothing(make, tmp_path, damage):
    backend = make(with_settings(SHARED, lora_rank=2) if damage == "another rank" else SHARED)
    backend.save(tmp_path)
    path = tmp_path / "solver" / "adapter_model.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(path.read_bytes()[:100])
    other = make()
    before = adapters(other)
    with pytest.raises(CheckpointError, match="solver"):
        other.load(tmp_path)
    assert same(adapters(other), before)


def test_a_base_without_adapters_is_refused():
    with pytest.raises(ConfigError, match=r"share_base shares a frozen model between adapters: set torch\.lora_rank"):
        load_config(None, ["torch.share_base=true"])


def test_a_warm_start_has_nothing_to_share():
    with pytest.raises(ValidationError, match="share_base is for the policies of a run"):
        SftConfig(torch={"share_base": True, "lora_rank": 4})


def test_a_dry_run_counts_one_copy_of_the_model_for_all_policies(tiny_model):
    settings = [f"model={tiny_model}", "torch.lora_rank=4", "torch.share_base=true"]
    size = make_dry_run(load_config(None, [f"model={tiny_model}", "algorithm.kl_beta=0"])).memory_gb / (3 * 14)
    for beta in (0, 0.1):  # the reference is the same copy
        plan = make_dry_run(load_config(None, [*settings, f"algorithm.kl_beta={beta}"]))
        assert plan.memory_gb == pytest.approx(size * 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps, of a team of which one policy is not trained."""
    settings = {
        "out": tmp_path_factory.mktemp("runs"),
        "name": "team",
        "model": write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096),
        "pipeline.name": "debate",
        **{f"pipeline.roles.debater_{i}.policy": f"debater_{i}" for i in (1, 2, 3)},
        "policies.debater_3.trainable": "false",
        "pipeline.max_new_tokens": 8,
        "coach.name": "rules",
        "tasks.heldout_count": 2,
        "train.steps": 2,
        "train.mask_truncated": "false",
        "train.tasks_per_step": 2,
        "torch.lora_rank": 4,
        "torch.share_base": "true",
        "algorithm.kl_beta": 0.01,
    }
    config = load_config(None, [f"{key}={value}" for key, value in settings.items()])
    run = Run.create(config)
    asyncio.run(train_run(config, run, Console(file=io.StringIO()), resume=False))
    return run


def test_a_whole_run_keeps_adapters_alone(run):
    policies = checkpoints.policies(run.last_checkpoint())
    assert [place.name for place in policies] == ["debater_1", "debater_2"]
    assert all((place / "README.md").is_file() for place in policies)
    for place in policies:
        assert not (place / "model.safetensors").exists()
        assert run.metrics()[-1][f"train/ref_kl/{place.name}"] != 0


def test_what_is_exported_is_whole_models_that_say_what_the_adapters_say(run, tmp_path):
    config, checkpoint = run.config(), run.last_checkpoint()
    folders = export_hub(run, tmp_path / "models")
    names = [folder.name for folder in folders]
    whole = TorchBackend({folder.name: folder for folder in folders}, EXACT, dict.fromkeys(names, False))
    served = load_generators(with_settings(config, precision="float32"), names, checkpoint)
    initial = load_generators(with_settings(config, precision="float32"), names, None)
    for policy in names:
        assert (tmp_path / "models" / policy / "README.md").is_file()
        ours, theirs, before = (fresh(backend, policy, 4) for backend in (whole, served, initial))
        for one, other in zip(ours, theirs, strict=True):
            assert one.response_ids_L.tolist() == other.response_ids_L.tolist()
            assert np.allclose(one.old_logprobs_L, other.old_logprobs_L, atol=1e-4)
        said, unsaid = (np.concatenate([s.old_logprobs_L for s in samples]) for samples in (theirs, before))
        assert said.tolist() != unsaid.tolist()
    for backend in (whole, served, initial):
        backend.close()


def test_a_whole_run_resumes_and_is_evaluated(run):
    assert [line["step"] for line in run.metrics()] == [0, 1, 2]
    console = Console(file=io.StringIO())
    metrics = asyncio.run(evaluate_run(run.config(), run, None, console))
    assert metrics["eval/success"] == run.metrics()[-1]["eval/success"]
    longer = with_settings(run.config(), steps=3)
    (run.folder / "settings.json").unlink()  # which would hold it to two
    asyncio.run(train_run(longer, run, console, resume=True))
    assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3]
