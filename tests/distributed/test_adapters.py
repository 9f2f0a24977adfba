"""Adapters on two ranks, under both stages of ZeRO: trained, added to what the engine is sent, and saved alone."""

import hashlib

import numpy as np
import pytest
import torch
from drawing import draw, fresh
from flat_config import with_settings
from peft import PeftModel
from safetensors.torch import load_file
from started_backends import starter
from transformers import AutoModelForCausalLM

from coachrl.errors import CheckpointError
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers
from coachrl.trainers.backends.openrlhf.training.adapters import weights
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.models.adapter_folders import whole_model

LORA = {"lora_rank": 4, "lora_alpha": 8}
SAME, MOVED = 0.01, 0.02  # mean |log-prob| of bfloat16's rounding, and of weights that were not sent


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.thorough), 3], ids=["ZeRO-2", "ZeRO-3"])
def backend(request, ray_cluster, model):
    with starter(model) as make:
        yield make("solver", gpus=2, zero_stage=request.param, micro_batch_tokens=64, keep_reference=True, **LORA)


def frozen_digest(actor):
    """Of the base's weights, as this rank gathers them."""
    import deepspeed

    found = hashlib.blake2b()
    for weight in weights(actor.actor.model.module):
        sharded = hasattr(weight.parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([weight.parameter], enabled=sharded):
            assert not weight.parameter.requires_grad
            found.update(weight.name.encode() + weight.parameter.detach().float().numpy().tobytes())
    return found.hexdigest()


def on_each_rank(backend, function):
    return answers(backend.processes.trainers["solver"].call(function), "asking the trainers", 600)


def step(backend, samples):
    stats = backend.update({"solver": samples})
    backend.sync_weights()
    return stats


def gap(backend, number):
    """Between engine and trainer, in a step that is taken."""
    return step(backend, fresh(backend, "solver", 7, number))["sampler_trainer_logprob_gap/solver"]


def of_response(samples, name):
    return np.concatenate([getattr(sample, name) for sample in samples])


def references(backend, samples):
    return of_response(backend.with_reference({"solver": samples})["solver"], "ref_logprobs_L")


def test_adapters_train_and_reach_the_engine_while_their_base_stays_bit_for_bit(backend):
    """Unequal numbers of samples over the ranks. No second model is in memory for the reference."""
    assert backend.processes.trainers["solver"].references is None and not backend.placement.policies[0].references
    base = on_each_rank(backend, frozen_digest)
    assert base[0] == base[1]
    samples = fresh(backend, "solver", 7)
    initial = references(backend, samples)
    assert max(gap(backend, number) for number in range(3)) < SAME
    backend.update({"solver": fresh(backend, "solver", 7, 3)})
    stale = backend.update({"solver": fresh(backend, "solver", 7, 4)})  # the adapter was not sent in between
    assert stale["sampler_trainer_logprob_gap/solver"] > MOVED
    backend.sync_weights()
    assert gap(backend, 5) < SAME
    assert on_each_rank(backend, frozen_digest) == base
    assert (references(backend, samples) == initial).all()
    [trained] = backend.with_trainer_logprobs({"solver": samples}).values()
    assert np.abs(of_response(trained, "trainer_logprobs_L") - initial).mean() > MOVED


def test_a_checkpoint_is_an_adapter_folder_that_peft_loads_and_resumes_to_equal_figures(backend, model, tmp_path):
    samples = fresh(backend, "solver", 7, 9)
    backend.save(tmp_path)
    saved = tmp_path / "solver"
    assert not (saved / "config.json").exists()
    kept = torch.load(next((saved / "deepspeed" / "state").glob("*model_states.pt")), weights_only=False)["module"]
    assert kept and all(".lora_" in name or "inv_freq" in name for name in kept)  # nothing of the base

    ids = torch.from_numpy(np.concatenate([samples[0].prompt_ids_P, samples[0].response_ids_L]))[None]
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), saved)(ids).logits
        whole = AutoModelForCausalLM.from_pretrained(whole_model(saved))(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(model)(ids).logits
    response = slice(len(samples[0].prompt_ids_P) - 1, -1)
    chosen = torch.from_numpy(samples[0].response_ids_L)[:, None]
    found = [logits[0, response].log_softmax(-1).gather(1, chosen)[:, 0].numpy() for logits in (adapted, whole, plain)]
    away = [np.abs(logprobs - samples[0].old_logprobs_L).mean() for logprobs in found]
    assert away[0] < MOVED < away[2] and away[1] < MOVED, away

    first = step(backend, samples)
    second = step(backend, fresh(backend, "solver", 7, 10))
    weights_then = draw(backend, "solver", 1)[1][0].weights_version
    backend.load(tmp_path)
    assert draw(backend, "solver", 1)[1][0].weights_version == weights_then - 2
    assert step(backend, samples) == first
    assert gap(backend, 10) == pytest.approx(second["sampler_trainer_logprob_gap/solver"], abs=SAME)


def test_an_adapter_of_another_rank_is_refused_before_anything_is_loaded(backend, tmp_path):
    backend.save(tmp_path)
    state = tmp_path / "solver" / "state.json"
    state.write_text(state.read_text().replace('"lora_rank": 4', '"lora_rank": 16'))
    with pytest.raises(CheckpointError, match=r"'lora_rank': 16.*'lora_rank': 4.*set .*torch\.lora_rank"):
        backend.load(tmp_path)


def test_a_step_moves_log_probabilities_as_the_embedded_backends_adapter_does(backend, model, tmp_path):
    """From one adapter, whose optimizer is new: AdamW's first step does not look back."""
    on_each_rank(backend, forget_the_optimizer)
    backend.save(tmp_path)
    config = with_settings(learning_rate=1e-2, device="cpu", **LORA)
    theirs = TorchBackend({"solver": model}, config)
    saved = load_file(tmp_path / "solver" / "adapter_model.safetensors")
    with torch.no_grad():
        for name, matrix in theirs._policies["solver"].adapter.parameters().items():
            matrix.copy_(saved[name])
    samples = fresh(backend, "solver", 7, 20)
    moves, stats = [], []
    for each in (backend, theirs):
        before = of_response(each.with_trainer_logprobs({"solver": samples})["solver"], "trainer_logprobs_L")
        stats.append(each.update({"solver": samples}))
        after = of_response(each.with_trainer_logprobs({"solver": samples})["solver"], "trainer_logprobs_L")
        moves.append(after - before)
    backend.sync_weights()
    theirs.close()
    ours, embedded = stats
    assert ours["grad_norm/solver"] == pytest.approx(embedded["grad_norm/solver"], rel=0.1)
    assert ours["loss/solver"] == pytest.approx(embedded["loss/solver"], abs=0.02)
    assert np.corrcoef(*moves)[0, 1] > 0.95, np.corrcoef(*moves)[0, 1]
    assert np.linalg.norm(moves[0]) == pytest.approx(np.linalg.norm(moves[1]), rel=0.2)


def forget_the_optimizer(actor):
    """AdamW's moments, and how many steps it has taken."""
    for state in actor.actor.model.optimizer.optimizer.state.values():
        for value in state.values():
            value.zero_()
