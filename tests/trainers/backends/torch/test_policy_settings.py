"""What a policy that trains takes from the configuration: each setting where it belongs."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from flat_config import with_settings
from made_samples import train_sample
from torch_backends import generate, samples_of, weights

from coachrl.config import RunConfig
from coachrl.trainers.backends.torch import backend as backend_module
from coachrl.trainers.backends.torch.loss import optimizer_steps
from coachrl.trainers.backends.torch.policy import TrainablePolicy

CPU = torch.device("cpu")


def policy(model, seed=0, **settings):
    return TrainablePolicy(
        model, with_settings(RunConfig(seed=seed), device="cpu", precision="float32", **settings), CPU
    )


def test_the_optimizer_is_that_of_the_settings(tiny_model):
    made = policy(tiny_model, learning_rate=3e-4, weight_decay=0.02)
    [group] = made._optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (3e-4, 0.02, (0.9, 0.95))
    assert {weight.dtype for weight in made.model.parameters()} == {torch.float32}
    made.set_learning_rate(1e-4)
    assert group["lr"] == 1e-4


def test_an_update_is_made_at_its_own_rate_or_else_at_the_highest_and_says_so(make):
    backend = make(learning_rate=1e-3, ppo_epochs=2)
    samples = samples_of(*generate(backend, count=4))
    before, moved = weights(backend), []
    for given, rate in ((None, 1e-3), (1e-5, 1e-5), (None, 1e-3)):
        assert backend.update({"solver": samples}, given)["learning_rate/solver"] == rate
        moved.append(float((weights(backend) - before).abs().max()))
        before = weights(backend)
    assert moved[0] == pytest.approx(2e-3, rel=0.1) and moved[1] < 3e-5 < 5e-4 < moved[2], "AdamW steps about so far"


def test_each_epoch_and_each_step_has_an_order_of_its_own_which_a_resumed_run_has_too(tiny_model):
    made = policy(tiny_model, seed=5, ppo_mini_batch_size=4, ppo_epochs=2)
    ten = [replace(train_sample([1], [2]), index=index, advantages_L=np.ones(1)) for index in range(10)]

    def orders(steps, seed=5):
        made.steps, made._seed = steps, seed
        steps = optimizer_steps(ten, made._train, "ppo", made._shuffled, longest_reply=9)
        return [[sample.index for sample in weighing] for weighing, _ in steps]

    first = orders(0)
    assert [len(batch) for batch in first] == [4, 4, 2] * 2
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == list(range(10))
    assert orders(0) == first and orders(1) != first and orders(0, seed=6) != first
    made._train = made._train.model_copy(update={"ppo_mini_batch_size": None})
    assert [len(batch) for batch in orders(0)] == [10, 10]


def test_gradients_are_cut_at_the_norm_and_ratios_at_the_range_of_the_settings(make, monkeypatch):
    cut, clip = [], torch.nn.utils.clip_grad_norm_

    def clipped(weights, max_norm):
        cut.append(max_norm)
        return clip(weights, max_norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
    backend = make(max_grad_norm=0.25, learning_rate=1e-12)
    samples = samples_of(*generate(backend, count=2), advantages=[1.0] * 2)
    for sample in samples:
        sample.old_logprobs_L[:] -= 0.3  # each token is likelier by e^0.3 = 1.35, and good
    held, trained = [], backend._policies["solver"]
    ranges = [{"clip_range": 0.3}, {"clip_range": 0.4}, {"clip_range_high": 0.3}, {"clip_range_high": 0.5}]
    for given in ranges:
        trained._train = trained._train.model_copy(update=given)
        held.append(trained.train(samples)["clip_fraction"])
    assert held == [1.0, 0.0, 1.0, 0.0] and cut == [0.25] * 4


def test_log_probabilities_are_of_the_temperature_that_replies_are_drawn_at(make):
    backend = make(temperature=0.5)
    samples = samples_of(*generate(backend, count=3))
    [filled] = backend.with_trainer_logprobs({"solver": samples}).values()
    model = backend._policies["solver"].model
    for sample in filled:
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids_P, sample.response_ids_L]))[None]
        with torch.no_grad():
            logprobs = (model(input_ids=ids).logits[0, :-1] / 0.5).log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        at = len(sample.prompt_ids_P) - 1
        np.testing.assert_allclose(sample.trainer_logprobs_L, logprobs[at:], atol=1e-4)
        sample.old_logprobs_L[:] = sample.trainer_logprobs_L
    assert backend.update({"solver": filled})["sampler_trainer_logprob_gap/solver"] < 1e-4


def test_statistics_are_means_over_steps_and_tokens_however_many_steps_there_were(make):
    backend = make(learning_rate=1e-12)
    samples = samples_of(*generate(backend, count=3), advantages=[3.0, -1.0, 0.5])
    trained = backend._policies["solver"]
    once = trained.train(samples)
    trained._train = trained._train.model_copy(update={"ppo_epochs": 3})
    assert trained.train(samples) == pytest.approx(once, rel=1e-3, abs=1e-4)
    assert 0 < once["entropy"] < np.log(258)


def test_a_step_that_was_left_out_counts_in_no_norm(make):
    backend = make(learning_rate=1e-12, ppo_mini_batch_size=1)
    broken, sound = samples_of(*generate(backend, count=2), advantages=[np.inf, 1.0])
    trained = backend._policies["solver"]
    alone, both = trained.train([sound]), trained.train([broken, sound])
    assert both["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-3)
    assert (alone["skipped"], both["skipped"]) == (0, 1)


def test_what_did_not_fit_into_memory_is_a_share_of_the_samples_that_have_a_gradient(make, monkeypatch):
    backend = make(micro_batch_tokens=1)
    samples = samples_of(*generate(backend, count=4), advantages=[1.0, 1.0, 0.0, 1.0])
    forward = TrainablePolicy._forward

    def short_of_memory(policy, batch, *more):
        if batch.samples[0].action_id == "e/0":
            raise torch.OutOfMemoryError("scripted")
        return forward(policy, batch, *more)

    monkeypatch.setattr(TrainablePolicy, "_forward", short_of_memory)
    assert backend._policies["solver"].train(samples)["out_of_memory"] == pytest.approx(1 / 3)


def test_so_many_replies_are_drawn_side_by_side_as_the_settings_say(make, monkeypatch):
    drawn, generate_batch = [], backend_module.generate_batch

    def watched(model, requests, eos_ids, version, batch_size):
        drawn.append((version, batch_size))
        return generate_batch(model, requests, eos_ids, version, batch_size)

    monkeypatch.setattr(backend_module, "generate_batch", watched)
    backend = make(generation_batch=3)
    backend.sync_weights()
    replies = generate(backend, count=4)[1]
    assert set(drawn) == {(1, 3)} and [reply.weights_version for reply in replies] == [1] * 4
