"""What the torch backend puts on disk: checkpoints, and optimizers where memory is short."""

from __future__ import annotations

import errno
import json
import os
import resource

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from flat_config import with_settings
from safetensors.torch import load_file, save_file
from tiny_models import write_tiny_model
from torch_backends import EXACT, generate, samples_of, weights

from coachrl.commands.build import load_generators
from coachrl.config import TorchConfig
from coachrl.errors import CheckpointError, PolicyError
from coachrl.trainers.backends.torch import footprint
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.models.disk_errors import as_the_system_has_them
from coachrl.trainers.backends.torch.policy import load_model


def moments(backend):
    return backend._policies["solver"]._optimizer.state_dict()["state"]


def test_an_optimizer_in_a_file_trains_alike(make, tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    inside, outside = make(), make(offload_optimizer=True)
    samples = samples_of(*generate(inside))
    for _ in range(2):
        assert inside.update({"solver": samples}) == outside.update({"solver": samples})
    assert torch.equal(weights(inside), weights(outside))
    assert [p.name for p in (tmp_path / "cache" / "optimizer").iterdir()] == []  # nameless: nothing is left behind


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(("saved_in_file", "resumed_in_file"), [(True, True), (True, False), (False, True)])
def test_an_optimizer_moves_between_memory_and_file(make, tmp_path, monkeypatch, steps, saved_in_file, resumed_in_file):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    first, resumed = make(offload_optimizer=saved_in_file), make(offload_optimizer=resumed_in_file)
    samples = samples_of(*generate(first))
    resumed.update({"solver": samples})  # what it had before must not matter
    for _ in range(steps):
        first.update({"solver": samples})
    first.save(tmp_path / "saved")
    resumed.load(tmp_path / "saved")
    assert first.update({"solver": samples}) == resumed.update({"solver": samples})
    assert torch.equal(weights(first), weights(resumed))
    assert all(
        torch.equal(state["exp_avg_sq"], moments(resumed)[i]["exp_avg_sq"]) for i, state in moments(first).items()
    )


def test_a_full_disk_is_named_before_training(make, tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", raise_disk_full)
    with pytest.raises(PolicyError, match=r"does not take a file of .* GB .*offload_optimizer=false"):
        make(offload_optimizer=True)


def raise_disk_full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_optimizer_goes_into_a_file_where_memory_is_short(monkeypatch):
    settings, quickstart = TorchConfig(device="cpu"), [134_515_008] * 3
    for gib, offloads in ((8, True), (16, False), (24, False)):
        monkeypatch.setattr(footprint, "machine_mb", lambda gib=gib: gib * 1024)
        assert footprint.offloads_optimizer(settings, quickstart) is offloads
        assert not footprint.offloads_optimizer(settings.model_copy(update={"device": "cuda"}), quickstart)
    assert footprint.trained_bytes(settings, quickstart, offload=True) == 134_515_008 * (3 * 4 + 8 + 4)
    assert footprint.trained_bytes(settings, quickstart, offload=False) == 134_515_008 * 3 * (4 + 2 + 8)


def test_a_saved_run_continues_identically(make, tmp_path):
    first = make(ppo_epochs=2, ppo_mini_batch_size=3)
    samples = samples_of(*generate(first))
    first.update({"solver": samples})
    first.sync_weights()
    first.save(tmp_path / "step-1")
    resumed = make(ppo_epochs=2, ppo_mini_batch_size=3)
    resumed.load(tmp_path / "step-1")
    assert generate(resumed) == generate(first)
    assert first.update({"solver": samples}) == resumed.update({"solver": samples})
    assert torch.equal(weights(first), weights(resumed))


def test_a_saved_policy_is_a_model_of_its_own(make, tmp_path):
    backend = make()
    backend.update({"solver": samples_of(*generate(backend))})
    backend.sync_weights()
    backend.save(tmp_path)
    _, expected = generate(backend)
    other = make("solver", model=tmp_path / "solver")
    assert [reply.token_ids for reply in generate(other)[1]] == [reply.token_ids for reply in expected]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "solver").dtype == torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "solver").chat_template


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_checkpoint(make, tmp_path, name, damage):
    backend = make()
    backend.update({"solver": samples_of(*generate(backend))})
    backend.save(tmp_path)
    path = tmp_path / "solver" / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = weights(backend)
    with pytest.raises(CheckpointError, match="solver"):
        backend.load(tmp_path)
    assert torch.equal(weights(backend), before)


def test_a_checkpoint_of_another_model(make, tmp_path):
    other = make(model=write_tiny_model(tmp_path / "wide", hidden_size=32))
    other.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="another shape"):
        make().load(tmp_path / "saved")


def test_a_checkpoint_without_a_policy(make, tmp_path):
    make("solver").save(tmp_path)
    with pytest.raises(CheckpointError, match="verifier"):
        make("solver", "verifier").load(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_loaded(make, tmp_path, value):
    make("solver").save(tmp_path)
    weights = load_file(tmp_path / "solver" / "model.safetensors")
    weights["model.embed_tokens.weight"].view(-1)[-1] = value
    save_file(weights, tmp_path / "solver" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="solver: its weights are not finite: "):
        make("solver").load(tmp_path)


def of_another_size(saved):
    saved[0]["exp_avg"] = torch.zeros(3)


def not_finite(saved):
    saved[0]["exp_avg_sq"].view(-1)[0] = float("nan")


def not_tensors(saved):
    saved[0]["exp_avg"] = "x"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (of_another_size, "another shape"),
        (not_finite, "not all of its numbers are finite"),
        (not_tensors, "another shape"),
        (lambda saved: saved[0].pop("step"), "another shape"),
        (lambda saved: saved.pop(0), "another shape"),
    ],
)
def test_an_optimizer_that_does_not_belong_to_its_model_is_refused(make, tmp_path, spoil, says):
    backend = make("solver")
    backend.update({"solver": samples_of(*generate(backend))})
    backend.save(tmp_path)
    saved = torch.load(tmp_path / "solver" / "optimizer.pt")
    spoil(saved)
    torch.save(saved, tmp_path / "solver" / "optimizer.pt")
    with pytest.raises(CheckpointError, match=says):
        make("solver").load(tmp_path)


@pytest.mark.parametrize("settings", [{}, {"precision": "bfloat16"}, {"precision": "bfloat16", "lora_rank": 4}])
def test_what_only_plays_draws_what_the_trained_weights_draw(make, tmp_path, settings):
    settings = {"learning_rate": 0.05, **settings}
    trained = make("solver", "other", **settings)
    trained.update({"solver": samples_of(*generate(trained))})
    trained.sync_weights()
    trained.save(tmp_path)
    config = with_settings(EXACT, **settings)
    played = load_generators(config, ["solver", "other"], tmp_path)
    assert not played._policies  # no float32 weights, no optimizer
    assert generate(played) == generate(trained)
    assert {reply.weights_version for reply in generate(played)[1]} == {1}
    played.close()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_only_plays_holds_what_its_files_hold_and_nothing_of_others(tmp_path, precision):
    """Files that somebody has put beside a model's are not loaded."""
    folder = write_tiny_model(tmp_path / "model")
    model = load_model(folder, getattr(torch, precision), torch.device("cpu"))
    model.model.norm.weight.data += torch.linspace(0, 1e-3, 64).to(model.dtype)  # less than bfloat16 tells apart
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("ema", "a", "model-00001-of-00002"):
        save_file({key: value.float() * 3 for key, value in tensors.items()}, folder / f"{name}.safetensors")
    config = with_settings(EXACT, precision="bfloat16").model_copy(update={"model": str(folder)})
    played, trained = load_generators(config, ["solver"], None), TorchBackend({"solver": folder}, config)
    assert generate(played) == generate(trained)
    for backend in (played, trained):
        backend.close()


def test_what_only_plays_ends_its_replies_where_the_trained_policy_did(make, tmp_path):
    folder = write_tiny_model(tmp_path / "model")
    (folder / "generation_config.json").unlink()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": [1, 5]}))
    trained = make(model=folder)
    trained.save(tmp_path / "saved")
    config = with_settings(EXACT).model_copy(update={"model": str(folder)})
    played = load_generators(config, ["solver"], tmp_path / "saved")
    assert played.tokenizer("solver").eos_ids == trained.tokenizer("solver").eos_ids
    played.close()


def test_a_policy_that_was_not_saved_does_not_play_with_its_initial_weights(make, tmp_path, tiny_model):
    make("solver").save(tmp_path)
    config = with_settings(EXACT).model_copy(update={"model": str(tiny_model)})
    with pytest.raises(CheckpointError, match="nothing was saved there for policy proposer"):
        load_generators(config, ["solver", "proposer"], tmp_path)


def test_policies_that_only_play_share_their_initial_weights(tiny_model):
    config = with_settings(EXACT).model_copy(update={"model": str(tiny_model)})
    played = load_generators(config, ["solver", "other"], None)
    assert played._generators["solver"] is played._generators["other"]
    assert {reply.weights_version for reply in generate(played)[1]} == {0}
    played.close()


@pytest.mark.parametrize("steps", ["1e999", "-5", '"2"', "null", "2.5"])
def test_counters_that_are_none_are_refused(make, tmp_path, steps):
    make("solver").save(tmp_path)
    (tmp_path / "solver" / "state.json").write_text(f'{{"steps": {steps}, "weights_version": 1}}')
    with pytest.raises(CheckpointError, match=r"state\.json says .* where a number of steps is needed"):
        make("solver").load(tmp_path)


@pytest.mark.parametrize("change", [{"hidden_size": "x"}, {"num_attention_heads": 0}])
def test_a_model_whose_settings_make_no_sense_is_one_clear_line(make, tmp_path, change):
    make("solver").save(tmp_path)
    path = tmp_path / "solver" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match="solver: it cannot be loaded: "):
        make("solver").load(tmp_path)


@pytest.mark.parametrize("room_bytes", [20_000, 600_000], ids=["weights", "optimizer"])
def test_a_full_disk_is_one_clear_line(make, tmp_path, room_bytes):
    """RLIMIT_FSIZE stands for the disk: a write past it fails half-way, as on a disk that is full."""
    backend = make("solver")
    backend.update({"solver": samples_of(*generate(backend))})  # the optimizer has moments now
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
    try:
        with pytest.raises(OSError, match=r"checkpoint .*solver cannot be written: .*File too large"):
            backend.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_is_wrong_beside_the_disk_is_not_taken_for_it(tmp_path):
    with pytest.raises(ValueError, match="tied weights"), as_the_system_has_them():
        try:
            (tmp_path / "none").read_bytes()
        except OSError:
            raise ValueError("tied weights")  # noqa: B904
