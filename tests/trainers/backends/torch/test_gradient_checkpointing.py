"""Gradient checkpointing: the same update from less memory."""

import itertools

import numpy as np
import pytest
from cases import every

pytest.importorskip("torch")

import torch
from flat_config import with_settings
from made_samples import train_sample
from test_torch_backend import EXACT
from tiny_models import write_tiny_model

from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.policy import TrainablePolicy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    sizes = {"num_hidden_layers": 8, "hidden_size": 32, "intermediate_size": 96}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "deep", **sizes)


def samples(count=6, shared=20, own=9, response=30):
    """All prompts begin alike. Rewards are drawn."""
    rng = np.random.default_rng(0)
    front = rng.integers(200, size=shared)
    return [
        train_sample(
            np.concatenate([front, rng.integers(200, size=own + n)]),
            rng.integers(200, size=response),
            logprobs=-5.3,
            advantages_L=rng.normal(size=response).astype(np.float32),
            action_id=str(n),
            episode_id=str(n),
            task_id=str(n),
        )
        for n in range(count)
    ]


def updated(folder, given, base=None, **settings):
    """Statistics of two updates, and the weights that come of them."""
    policy = TrainablePolicy(folder, with_settings(EXACT, **settings), CPU, base=base)
    stats = [policy.train(given) for _ in range(2)]
    return stats, {name: weight.detach().clone() for name, weight in policy._trained.items()}, policy


@pytest.mark.parametrize("precision", every(2, ["float32", "bfloat16"]))
@pytest.mark.parametrize(
    "settings", [{}, {"lora_rank": 4}, {"micro_batch_tokens": 128}], ids=["all weights", "adapter", "micro-batches"]
)
def test_every_figure_and_every_weight_is_what_it_is_without(deep, settings, precision):
    plain, weights, _ = updated(deep, samples(), precision=precision, **settings)
    again, others, policy = updated(deep, samples(), precision=precision, gradient_checkpointing=True, **settings)
    assert attention.is_used_by(policy.model)
    assert again == plain
    assert all(torch.equal(others[name], weight) for name, weight in weights.items())
    assert not any(layer.training or layer.gradient_checkpointing for layer in policy.model.base_model.layers)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_padded_batches_learn_the_same_too(deep, monkeypatch):
    """Of architectures whose shortcut is not proven: their layers take no cache of the common prefix."""
    monkeypatch.setattr("coachrl.trainers.backends.torch.policy.use_shared_prefix_of", lambda folder, model: False)
    plain, weights, policy = updated(deep, samples())
    assert not attention.is_used_by(policy.model)
    again, others, _ = updated(deep, samples(), gradient_checkpointing=True)
    for before, after in zip(plain, again, strict=True):
        assert after == pytest.approx(before, rel=1e-4)
    # On average: Adam moves a weight whose gradient is next to nothing by its rounding. A step moves one by 1e-3.
    assert all((others[name] - weight).abs().mean() < 1e-6 for name, weight in weights.items())


def peak_bytes(folder, given, **settings):
    """The most memory that an update holds at once beyond what it begins with, by torch's own books."""
    policy = TrainablePolicy(folder, with_settings(EXACT, **settings), CPU)
    policy.train(given)  # the optimizer's state is there from now on
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        policy.train(given)
    booked = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(booked, key=lambda event: event.start_ns())))


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}], ids=["all weights", "adapter"])
def test_an_update_takes_far_less_memory(deep, settings):
    long = samples(count=1, shared=300, own=60, response=100)
    plain, again = (peak_bytes(deep, long, gradient_checkpointing=value, **settings) for value in (False, True))
    print(plain, again)
    assert again < 0.5 * plain


def test_a_model_without_layers_that_can_be_computed_again_is_refused(deep, monkeypatch):
    monkeypatch.setattr("coachrl.trainers.backends.torch.gradient_checkpointing.layers_of", lambda model: [])
    with pytest.raises(PolicyError, match=r"torch\.gradient_checkpointing is not supported by LlamaForCausalLM"):
        updated(deep, samples(), gradient_checkpointing=True)
