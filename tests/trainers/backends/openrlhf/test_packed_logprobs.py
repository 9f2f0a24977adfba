"""The trainers' forward pass: the log-probabilities of a plain one, in less memory."""

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import numpy as np
import torch
from made_samples import train_sample
from tiny_models import write_tiny_model
from transformers import AutoModelForCausalLM

from coachrl.seeding import generator
from coachrl.trainers.backends.openrlhf.training.logprobs import ResponseLogprobs
from coachrl.trainers.backends.torch import logprobs as blocks
from coachrl.trainers.backends.torch.packed import pack


def made_up(prompt, length, seed, mask=1.0):
    draw = generator(seed, "sample")
    ids = draw.integers(250, size=prompt), draw.integers(250, size=length)
    return train_sample(*ids, draw.random(length), mask, action_id=f"a{seed}")


SAMPLES = [made_up(5, 7, 1), made_up(30, 3, 2, mask=[1, 0, 1]), made_up(1, 20, 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def plain(model, sample, temperature):
    """Log-probabilities (L,) and entropies (L,) of a sample by itself, out of all logits."""
    ids = torch.from_numpy(np.concatenate([sample.prompt_ids_P, sample.response_ids_L]))[None]
    logprobs_TV = (model(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
    at = logprobs_TV[len(sample.prompt_ids_P) - 1 : -1]
    responses = torch.from_numpy(sample.response_ids_L)[:, None]
    return at.gather(1, responses)[:, 0], -(at.exp() * at).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_in_one_row_have_the_logprobs_of_samples_by_themselves(model, temperature):
    with torch.no_grad():
        expected = [plain(model, sample, temperature) for sample in SAMPLES]
        batch = pack(SAMPLES, "cpu", all_tokens=True)
        logprobs_N, entropy_N = ResponseLogprobs(model, temperature)(model, batch)
    for found, entropy, (logprobs, entropies) in zip(
        batch.split(logprobs_N), batch.split(entropy_N), expected, strict=True
    ):
        np.testing.assert_allclose(found, logprobs, atol=1e-4)
        np.testing.assert_allclose(entropy, entropies, atol=1e-4)


def test_only_tokens_of_the_mask_are_selected_and_values_of_samples_lie_beside_them(model):
    batch = pack(SAMPLES, "cpu")
    with torch.no_grad():
        expected = [plain(model, sample, 1.0)[0][sample.mask_L > 0] for sample in SAMPLES]
        logprobs_N, _ = ResponseLogprobs(model, 1.0)(model, batch)
    torch.testing.assert_close(logprobs_N, torch.cat(expected), atol=1e-4, rtol=0)
    old = np.concatenate([sample.old_logprobs_L[sample.mask_L > 0] for sample in SAMPLES])
    assert batch.gather([sample.old_logprobs_L for sample in SAMPLES]).tolist() == old.tolist()


def test_gradients_are_those_of_a_plain_forward_pass(model, folder, monkeypatch):
    monkeypatch.setattr(blocks, "_HEAD_ELEMENTS", 7 * 260)  # several blocks
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sum(plain(other, sample, 0.7)[0].sum() for sample in SAMPLES).backward()
    ResponseLogprobs(model, 0.7)(model, pack(SAMPLES, "cpu", all_tokens=True))[0].sum().backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-3)


def test_a_row_without_samples_runs_the_whole_model_and_gives_a_gradient_of_zero(model):
    batch = pack([], "cpu")
    logprobs_N, entropy_N = ResponseLogprobs(model, 1.0)(model, batch)
    assert len(logprobs_N) == len(entropy_N) == len(batch.gather([])) == 0
    logprobs_N.sum().backward()
    assert all(not weight.grad.any() for weight in model.parameters())


def test_others_still_get_logits_from_the_model(model):
    ids = torch.arange(6)[None]
    before = model(input_ids=ids, use_cache=False).logits
    ResponseLogprobs(model, 1.0)
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
