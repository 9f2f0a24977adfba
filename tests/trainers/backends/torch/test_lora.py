"""Adapters in place of all weights: they train, they are saved, and what is saved is a plain model."""

import pytest

pytest.importorskip("torch")

import torch
from flat_config import with_settings
from torch_backends import EXACT, generate, samples_of

from coachrl.commands.build import initial_models
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import RunConfig, load_config
from coachrl.errors import CheckpointError, PolicyError
from coachrl.export.hub import export_hub
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.runs.initial_models import keep_models
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.models.lora import Adapter, make_adaptable
from coachrl.trainers.backends.torch.policy import load_model

LORA = with_settings(EXACT, lora_rank=4, lora_alpha=8, learning_rate=3e-3)


@pytest.fixture
def make(tiny_model):
    """Backends of one policy, closed at the end."""
    made = []

    def build(settings=LORA, model=tiny_model):
        made.append(TorchBackend({"solver": model}, settings, keep_reference=True))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


def trained(backend, steps=3):
    samples = samples_of(*generate(backend))
    stats = [backend.update(backend.with_reference({"solver": samples})) for _ in range(steps)]
    backend.sync_weights()
    return samples, stats


def replies(backend):
    return [reply.token_ids for reply in generate(backend)[1]]


def test_adapters_begin_as_the_initial_model(make):
    assert generate(make()) == generate(make(EXACT))


def test_adapters_alone_move_and_what_generates_has_them(make):
    backend = make()
    policy = backend._policies["solver"]
    weights = {**dict(policy.model.named_parameters()), **policy.adapter.parameters()}
    before = {name: p.detach().clone() for name, p in weights.items()}
    _, stats = trained(backend)
    moved = {name for name, p in weights.items() if not torch.equal(p, before[name])}
    assert moved == set(policy.adapter.parameters())
    assert stats[0]["sampler_trainer_logprob_gap/solver"] < 1e-4 and stats[-1]["loss/solver"] < stats[0]["loss/solver"]

    [ids] = torch.randint(0, 200, (1, 1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = backend._generators["solver"](ids).logits
        with policy.in_use() as adapted:
            assert torch.allclose(plain, adapted(ids).logits, atol=1e-4)
        assert not torch.allclose(plain, policy.model(ids).logits, atol=1e-2)


def test_what_is_saved_is_a_plain_model(make, tmp_path):
    backend = make()
    trained(backend)
    backend.save(tmp_path)
    assert replies(make(EXACT, tmp_path / "solver")) == replies(backend) != replies(make())


def test_a_saved_run_goes_on_with_its_adapters(make, tmp_path):
    first = make()
    samples, _ = trained(first)
    first.save(tmp_path)
    resumed = make()
    resumed.load(tmp_path)
    assert generate(resumed) == generate(first)
    assert resumed.update({"solver": samples}) == first.update({"solver": samples})
    ours, theirs = (dict(backend._policies["solver"].weights()) for backend in (first, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_adapters_that_cannot_be_read(make, tmp_path, damage):
    backend = make()
    backend.save(tmp_path)
    path = tmp_path / "solver" / "adapters.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="solver"):
        backend.load(tmp_path)


@pytest.mark.parametrize("backend", ["vllm", "openrlhf"])
def test_other_backends_read_the_same_settings(backend):
    assert load_config(None, [f"backend={backend}", "torch.lora_rank=8"]).torch.lora_rank == 8


def test_a_dry_run_counts_no_optimizer_for_frozen_weights(tiny_model):
    settings = [f"model={tiny_model}", "algorithm.kl_beta=0"]
    size = make_dry_run(load_config(None, settings)).memory_gb / (3 * 14)
    assert make_dry_run(load_config(None, [*settings, "torch.lora_rank=4"])).memory_gb == pytest.approx(size * 3 * 6)
    disk = make_dry_run(load_config(None, settings)).disk_gb
    adapters = [*settings, "torch.lora_rank=4"]
    # Of two layers, 64 wide, with keys and values of 32 and 96 inside: rank 4 for each way in and out.
    adapter = 4 * 2 * ((64 + 64) * 2 + (64 + 32) * 2 + (64 + 96) * 3)
    own = 3 * 12 * adapter / 1e9  # with AdamW, of three policies
    assert make_dry_run(load_config(None, adapters)).disk_gb == pytest.approx(disk / 3 + own)  # and a merged model
    shared = make_dry_run(load_config(None, [*adapters, "torch.share_base=true"]))
    assert shared.disk_gb == pytest.approx(own)
    distributed = [*settings, "backend=openrlhf"]
    assert make_dry_run(load_config(None, distributed)).disk_gb == pytest.approx(disk * 14 / 12)
    of_adapters = make_dry_run(load_config(None, [*distributed, "torch.lora_rank=4"])).disk_gb
    assert of_adapters == pytest.approx(own * 14 / 12)
    exact = [*settings, "torch.precision=float32"]
    assert make_dry_run(load_config(None, exact)).memory_gb == pytest.approx(size * 3 * 16)


def test_a_model_whose_only_linear_layer_is_its_output_takes_no_adapter():
    class HeadAlone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

        def get_output_embeddings(self):
            return self.head

    model = HeadAlone()
    with pytest.raises(PolicyError, match="HeadAlone has no linear layers that adapters could change"):
        make_adaptable(model)
    assert model.head.weight.requires_grad, "it is left as it was"


def test_an_adapter_over_an_adapter_is_exported_whole_and_over_another_one_with_a_warning(
    tiny_model, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    model = load_model(tiny_model, torch.float32, torch.device("cpu"))
    plain = {name: weight.clone() for name, weight in model.state_dict().items()}
    make_adaptable(model)
    layer = "model.layers.0.self_attn.q_proj"

    def saved(place, seed):
        adapter = Adapter(model, 2, 4, seed)
        for _, B in adapter.layers.values():
            torch.nn.init.normal_(B)
        adapter.save(place, tiny_model)
        return adapter.delta(layer).detach()

    first = saved(tmp_path / "first", 0)
    run = Run.create(RunConfig(name="run", out=tmp_path / "runs", model=str(tmp_path / "first")))
    keep_models(run, initial_models(run.config(), ["solver"], fetch=False))
    with run.checkpoint(1, keep=1) as folder:
        second = saved(folder / "solver", 1)
        (folder / "solver" / "README.md").touch()
        checkpoints.seal(folder, 1, {})
    [exported] = export_hub(run, tmp_path / "exported")
    weights = load_model(exported, torch.float32, torch.device("cpu")).state_dict()
    assert torch.allclose(weights[f"{layer}.weight"], plain[f"{layer}.weight"] + first + second, atol=1e-5)
    assert not caplog.text
    saved(tmp_path / "first", 2)
    export_hub(run, tmp_path / "again")
    assert "not the initial models that the run began with: policies.solver.model" in caplog.text
