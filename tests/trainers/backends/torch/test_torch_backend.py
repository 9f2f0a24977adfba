from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from flat_config import with_settings
from made_samples import train_sample
from torch_backends import EXACT, generate, logprobs_now, samples_of, weights

from coachrl.errors import ContextOverflow, PolicyError
from coachrl.trainers.backends.torch.backend import TorchBackend, pick_device
from coachrl.trainers.backends.torch.engine.linears import PackedLinear
from coachrl.trainers.backends.torch.policy import TrainablePolicy, load_model, reference_kl
from coachrl.types import SamplingParams


@pytest.mark.parametrize("loss", ["ppo", "policy_gradient"])
def test_update_follows_the_sign_of_the_advantage(make, loss):
    backend = make(loss=loss)
    samples = samples_of(*generate(backend))
    before = logprobs_now(backend, samples)
    stats = backend.update({"solver": samples})
    moved = logprobs_now(backend, samples) - before
    assert (np.sign(moved) == [sample.advantages_L[0] for sample in samples]).all()
    assert stats["tokens/solver"] == sum(len(sample.response_ids_L) for sample in samples)
    assert stats["sampler_trainer_logprob_gap/solver"] < 1e-4  # sampler and trainer hold the same weights
    assert abs(stats["approx_kl/solver"]) < 1e-4
    assert stats["clip_fraction/solver"] == 0
    assert stats["skipped/solver"] == 0
    assert stats["grad_norm/solver"] > 0
    assert 0 < stats["entropy/solver"] < np.log(258)


def test_the_loss_is_the_stated_mean(make):
    backend = make()
    prompts, replies = generate(backend)
    samples = samples_of(prompts, replies, [3.0, -1.0, 0.5, 0.0, 2.0, -2.0])
    tokens = sum(sample.mask_L.sum() for sample in samples)
    expected = -sum(float(s.advantages_L.sum()) for s in samples) / tokens  # every ratio is 1
    assert backend.update({"solver": samples})["loss/solver"] == pytest.approx(expected, abs=1e-4)
    expected = -sum(float((s.advantages_L * s.old_logprobs_L).sum()) for s in samples) / len(samples)
    assert make(loss="policy_gradient").update({"solver": samples})["loss/solver"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("epochs", [1, 2])
def test_what_an_update_says_of_its_ratios_is_of_the_tokens_that_are_trained(make, epochs):
    backend = make(ppo_epochs=epochs, learning_rate=1e-12 if epochs == 1 else 1e-2)
    shifts = np.array([0.5, -0.5, 0.0, 0.125, -0.125, 0.0])  # of the sampler's log-probabilities from the trainer's
    drawn = samples_of(*generate(backend), advantages=[1.0] * 6)
    samples = [
        replace(s, old_logprobs_L=s.old_logprobs_L + np.float32(by)) for s, by in zip(drawn, shifts, strict=True)
    ]
    samples[1].mask_L[1:] = 0
    counts = np.array([sample.mask_L.sum() for sample in samples])
    stats = {name.removesuffix("/solver"): value for name, value in backend.update({"solver": samples}).items()}
    assert stats["tokens"] == counts.sum()
    gap = np.abs(shifts) @ counts / counts.sum()
    assert stats["sampler_trainer_logprob_gap"] == pytest.approx(gap, abs=1e-4)  # of the first step alone
    if epochs == 1:
        assert stats["approx_kl"] == pytest.approx(shifts @ counts / counts.sum(), abs=1e-4)
        assert stats["clip_fraction"] == pytest.approx(1 / counts.sum())  # likelier by e^0.5, and good
    else:
        assert stats["approx_kl"] != pytest.approx(shifts @ counts / counts.sum(), abs=1e-3)


def test_micro_batches_and_padding_change_nothing(make):
    whole, cut = make(micro_batch_tokens=100_000), make(micro_batch_tokens=1)
    samples = samples_of(*generate(whole, count=9))
    stats, cut_stats = whole.update({"solver": samples}), cut.update({"solver": samples[::-1]})
    assert torch.allclose(weights(whole), weights(cut), atol=2e-5)
    assert stats == pytest.approx(cut_stats, abs=1e-4)


def test_masked_tokens_have_no_gradient(make):
    backend, other = make(), make()
    samples = samples_of(*generate(backend))
    for sample in samples:
        sample.mask_L[3:] = 0
    changed = [replace(s, advantages_L=np.where(s.mask_L > 0, s.advantages_L, 77).astype(np.float32)) for s in samples]
    backend.update({"solver": samples})
    other.update({"solver": changed})
    assert torch.equal(weights(backend), weights(other))


def test_samples_without_weight_take_no_step(make):
    backend = make()
    before = weights(backend)
    samples = samples_of(*generate(backend), advantages=[0.0] * 6)
    masked = [replace(s, mask_L=np.zeros_like(s.mask_L), advantages_L=s.advantages_L + 1) for s in samples]
    assert backend.update({"solver": samples}) == backend.update({"solver": masked}) == {}
    assert torch.equal(weights(backend), before)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make):
    backend = make()
    before = weights(backend)
    samples = samples_of(*generate(backend))
    samples[0].advantages_L[:] = np.inf
    stats = backend.update({"solver": samples})
    assert stats["skipped/solver"] == 1
    assert torch.equal(weights(backend), before)
    assert backend.update({"solver": samples[1:]})["skipped/solver"] == 0
    assert not torch.equal(weights(backend), before)


def test_epochs_and_minibatches_take_more_steps(make):
    backend = make(ppo_epochs=2, ppo_mini_batch_size=2)
    backend.update({"solver": samples_of(*generate(backend))})
    assert backend._policies["solver"].steps == 6


def test_policies_have_separate_weights(make):
    backend = make("solver", "verifier")
    before = weights(backend, "verifier")
    backend.update({"solver": samples_of(*generate(backend))})
    assert torch.equal(weights(backend, "verifier"), before)
    assert not torch.equal(weights(backend, "solver"), before)


def test_a_policy_that_is_not_trainable_stays_as_it_is(make, tmp_path):
    backend = make("solver", "judge", trainable={"judge": False})
    prompts, replies = generate(backend, policy="judge")
    assert backend.update({"judge": samples_of(prompts, replies, policy="judge")}) == {}
    backend.save(tmp_path / "saved")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["solver"]
    backend.load(tmp_path / "saved")
    assert generate(backend, policy="judge")[1][0].token_ids == replies[0].token_ids


def test_nothing_generates_between_update_and_sync(make):
    backend = make(learning_rate=1e-2)
    prompts, before = generate(backend)
    backend.update({"solver": samples_of(prompts, before)})
    with pytest.raises(RuntimeError, match="sync_weights comes before"):
        generate(backend)
    backend.sync_weights()
    _, synced = generate(backend)
    assert [reply.logprobs for reply in synced] != [reply.logprobs for reply in before]
    assert {reply.weights_version for reply in synced} == {before[0].weights_version + 1}


def test_copies_that_generate_are_given_up_while_policies_train(make, monkeypatch):
    backend = make("first", "second", precision="bfloat16")
    packed = [m for g in backend._generators.values() for m in g.modules() if isinstance(m, PackedLinear)]
    if not packed:
        pytest.skip("this processor has no products of packed bfloat16 weights")
    held = []
    monkeypatch.setattr(
        TrainablePolicy, "train", lambda self, group: held.append([m.block._packed.numel() for m in packed]) or {}
    )
    backend.update({"first": [], "second": []})
    assert [set(sizes) for sizes in held] == [{0}, {0}]
    backend.sync_weights()
    assert all(module.block._packed.numel() for module in packed)


def test_the_reference_is_the_initial_model(make):
    backend = make(learning_rate=1e-2)
    samples = samples_of(*generate(backend))
    backend.update({"solver": samples})
    backend.sync_weights()
    (filled,) = (backend.with_reference({"solver": samples})[policy] for policy in ("solver",))
    for sample in filled:
        np.testing.assert_allclose(sample.ref_logprobs_L, sample.old_logprobs_L, atol=1e-4)
    assert backend.update({"solver": filled})["ref_kl/solver"] == pytest.approx(0, abs=1e-4)


def test_how_far_a_policy_is_from_its_reference_is_told_by_the_tokens_that_are_trained():
    sample = train_sample([1, 2], [3, 4, 5], logprobs=[-1.0, -1.0, -1.0], mask=[1, 1, 0])
    one = replace(sample, ref_logprobs_L=np.array([-1.5, -2.5, -9.0], dtype=np.float32))
    left_out = replace(one, mask_L=np.zeros(3, dtype=np.float32))
    assert reference_kl([one, left_out]) == {"ref_kl": pytest.approx(1.0)}


def test_the_trainers_log_probs_are_those_of_the_weights_that_are_trained(make):
    backend = make(learning_rate=1e-2)
    samples = samples_of(*generate(backend))
    for sample in backend.with_trainer_logprobs({"solver": samples})["solver"]:
        np.testing.assert_allclose(sample.trainer_logprobs_L, sample.old_logprobs_L, atol=1e-4)
    backend.update({"solver": samples})  # the sampler has the old weights still
    moved = backend.with_trainer_logprobs({"solver": samples})["solver"]
    assert max(np.abs(s.trainer_logprobs_L - s.old_logprobs_L).max() for s in moved) > 1e-2
    assert [s.action_id for s in moved] == [s.action_id for s in samples]


@pytest.mark.parametrize("adapters", [{}, {"lora_rank": 2}, {"lora_rank": 2, "share_base": True}])
def test_the_trainers_log_probs_are_those_that_its_update_begins_with(make, adapters):
    """In bfloat16 as well: else importance weights, and the ratios that are clipped, are of another distribution."""
    backend = make(precision="bfloat16", **adapters)
    filled = backend.with_trainer_logprobs({"solver": samples_of(*generate(backend))})
    for sample in filled["solver"]:
        sample.old_logprobs_L[:] = sample.trainer_logprobs_L
    assert backend.update(filled)["sampler_trainer_logprob_gap/solver"] < 1e-5


def test_no_reference_is_kept_without_need(make):
    backend = make(keep_reference=False)
    samples = samples_of(*generate(backend))
    assert backend.with_reference({"solver": samples})["solver"][0].ref_logprobs_L is None
    assert "ref_kl/solver" not in backend.update({"solver": samples})
    assert backend._frozen == {}


def test_bfloat16_stays_near_float32(make):
    rough = make(precision="bfloat16")
    samples = samples_of(*generate(rough))
    stats = rough.update({"solver": rough.with_reference({"solver": samples})["solver"]})
    assert 0 < stats["sampler_trainer_logprob_gap/solver"] < 0.2
    assert abs(stats["ref_kl/solver"]) < 0.05
    assert {p.dtype for p in rough._policies["solver"].model.parameters()} == {torch.float32}
    weights = rough._generators["solver"].parameters()
    packed = [m for m in rough._generators["solver"].modules() if isinstance(m, PackedLinear)]
    assert packed or {p.dtype for p in weights} == {torch.bfloat16}


def test_a_model_whose_weights_are_missing(tiny_model, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyError, match=r"weights are missing: model\.norm\.weight"):
        TorchBackend({"solver": folder}, EXACT)


def test_names_of_weights_that_nobody_reads_are_one_plain_line(tiny_model, tmp_path, caplog, capfd):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors") | {"a\x1b]52;c;b\x07": torch.zeros(1)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for _ in range(2):
        load_model(folder, torch.float32, torch.device("cpu"))
    [said] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert said == f"model {folder}: left out 1 weight that its kind does not have: a\\x1b]52;c;b\\x07"
    assert "\x1b" not in "".join(capfd.readouterr()) + caplog.text


async def test_a_prompt_that_leaves_no_room(make):
    backend = make()
    with pytest.raises(ContextOverflow, match="500 tokens and a reply of up to 13 do not fit the context of 512"):
        await backend.generate("solver", [1] * 500, SamplingParams(13))
    reply = await backend.generate("solver", [1] * 500, SamplingParams(12))
    assert 1 <= len(reply.token_ids) <= 12


def test_unknown_policies_and_devices(make):
    with pytest.raises(PolicyError, match="no policy 'critic'; there are solver"):
        make().update({"critic": []})
    for name in ("abacus", "meta"):  # the second holds no numbers
        with pytest.raises(PolicyError, match=f"device '{name}' cannot be used here"):
            pick_device(name)


async def test_episodes_run_in_lock_step_and_repeat(make):
    async def play(backend):
        async def episode(seed):
            async with backend.episode():
                tokenizer = backend.tokenizer("solver")
                prompt = tokenizer.encode_chat([{"role": "user", "content": "go " * (seed + 1)}])
                first = await backend.generate("solver", prompt, SamplingParams(6 + seed, seed=seed))
                await asyncio.sleep(0.01 * (seed % 3))
                longer = tokenizer.continue_chat(prompt, first.token_ids, [{"role": "user", "content": "more"}])
                return await backend.generate("solver", longer, SamplingParams(8, seed=seed))

        return await asyncio.gather(*(episode(seed) for seed in range(5)))

    assert await play(make()) == await play(make())


def test_state_is_readable(make, tmp_path):
    backend = make()
    backend.sync_weights()
    backend.save(tmp_path)
    assert json.loads((tmp_path / "solver" / "state.json").read_text()) == {"steps": 0, "weights_version": 1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_step_on_a_gpu(tiny_model):
    backend = TorchBackend({"solver": tiny_model}, with_settings(EXACT, device="auto"))
    samples = samples_of(*generate(backend))
    before = weights(backend)
    backend.update(backend.with_reference({"solver": samples}))
    assert not torch.equal(weights(backend), before)
    backend.close()
