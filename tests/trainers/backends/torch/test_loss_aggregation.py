"""What the loss of an optimizer step is of the losses of its tokens, by hand and however the step is cut."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_samples import train_sample
from torch_backends import generate, samples_of, weights

from coachrl.config import TrainConfig
from coachrl.trainers.backends.torch.loss import Totals, optimizer_steps
from coachrl.trainers.backends.torch.packed import pack

LONGEST = 8
KINDS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
# Three replies, of which tokens of mask 1 count. The second has no gradient, and counts in each mean.
MASKS = ([1, 1, 1, 1], [1, 0], [0, 1, 1])
ADVANTAGES = (2.0, 0.0, -3.0)
LOGPROBS = ([-1.0, -2.0, -0.5, -0.25], [-1.0, -1.0], [-7.0, -1.5, -2.5])
# -A log pi, summed over a reply's own tokens, and how many those are.
SUMS, COUNTS = (2.0 * 3.75, 0.0, -3.0 * 4.0), (4, 1, 2)
BY_HAND = {
    "token-mean": sum(SUMS) / 7,
    "seq-mean-token-mean": (SUMS[0] / 4 + SUMS[2] / 2) / 3,
    "seq-mean-token-sum": sum(SUMS) / 3,
    "seq-mean-token-sum-norm": sum(SUMS) / 3 / LONGEST,
}


def replies():
    return [
        replace(
            train_sample([1, 2], [3] * len(mask), mask=mask, index=number),
            advantages_L=np.full(len(mask), advantage, dtype=np.float32),
        )
        for number, (mask, advantage) in enumerate(zip(MASKS, ADVANTAGES, strict=True))
    ]


def in_order(count):
    return np.arange(count)


def loss_and_gradient(aggregation, loss, cut=()):
    """Of the one optimizer step over `replies`, whose samples are cut into micro-batches at the places of `cut`."""
    settings = TrainConfig(loss_aggregation=aggregation)
    [(weighing, divisor)] = optimizer_steps(replies(), settings, loss, in_order, LONGEST)
    logprobs = [torch.tensor(values, requires_grad=True) for values in LOGPROBS]
    total, ends = 0.0, [0, *sorted(cut), len(weighing)]
    for begin, end in pairwise(ends):
        batch = pack(weighing[begin:end], "cpu")
        chosen = [logprobs[sample.index][torch.from_numpy(sample.mask_L > 0)] for sample in batch.samples]
        values_N = torch.cat([torch.zeros(0, requires_grad=True), *chosen])
        part = Totals().add(batch, values_N, torch.zeros_like(values_N), loss, (0.2, 0.2), first=True) / divisor
        part.backward()
        total += float(part.detach())
    zeros = [torch.zeros_like(values) if values.grad is None else values.grad for values in logprobs]
    return total, torch.cat(zeros)


@pytest.mark.parametrize("aggregation", KINDS)
def test_the_loss_is_what_its_name_says(aggregation):
    loss, gradient = loss_and_gradient(aggregation, "policy_gradient")
    assert loss == pytest.approx(BY_HAND[aggregation])
    of_first, of_last = (loss_and_gradient("seq-mean-token-sum", "policy_gradient")[1][place] for place in (0, -1))
    by = {"token-mean": (7 / 3, 7 / 3), "seq-mean-token-mean": (4, 2), "seq-mean-token-sum": (1, 1)}
    first, last = by.get(aggregation, (LONGEST, LONGEST))
    assert gradient[[0, -1]].tolist() == pytest.approx([float(of_first) / first, float(of_last) / last])
    assert gradient[4:7].tolist() == [0, 0, 0], "neither a reply without advantage nor a token of mask 0 has a gradient"


@pytest.mark.parametrize(
    ("loss", "usual"), [("ppo", "token-mean"), ("nll", "token-mean"), ("policy_gradient", "seq-mean-token-sum")]
)
def test_without_a_setting_it_is_that_of_the_loss(loss, usual):
    found, gradient = loss_and_gradient(None, loss)
    expected, same = loss_and_gradient(usual, loss)
    assert found == expected and torch.equal(gradient, same)


@given(st.sampled_from(KINDS), st.sampled_from(["ppo", "policy_gradient"]), st.sets(st.integers(0, 2)))
def test_micro_batches_of_any_size_give_one_loss_and_one_gradient(aggregation, loss, cut):
    whole, of_whole = loss_and_gradient(aggregation, loss)
    parts, of_parts = loss_and_gradient(aggregation, loss, cut)
    assert parts == pytest.approx(whole, rel=1e-6)
    assert torch.allclose(of_parts, of_whole, rtol=1e-6)


@pytest.mark.parametrize("aggregation", KINDS)
def test_micro_batches_change_no_update_of_a_model(make, aggregation):
    whole, cut = (make(micro_batch_tokens=size, loss_aggregation=aggregation) for size in (100_000, 1))
    samples = samples_of(*generate(whole, count=9), advantages=[1.5, -1.0, 0.5, 0.0, 2.0, -0.5, 1.0, -2.0, 0.25])
    for number, sample in enumerate(samples):
        sample.mask_L[: number % 3] = 0
    stats, of_cut = whole.update({"solver": samples}), cut.update({"solver": samples[::-1]})
    assert torch.allclose(weights(whole), weights(cut), atol=2e-5)
    assert stats == pytest.approx(of_cut, rel=1e-4, abs=1e-5)


def test_replies_of_one_length_and_one_minibatch_have_one_gradient_up_to_its_length(make):
    norms = {}
    for aggregation in KINDS:
        backend = make(loss_aggregation=aggregation)
        samples = samples_of(*generate(backend, count=2), advantages=[1.0, -2.0])
        for sample in samples:
            sample.mask_L[4:] = 0
        norms[aggregation] = backend.update({"solver": samples})["grad_norm/solver"]
    assert norms["token-mean"] == pytest.approx(norms["seq-mean-token-mean"], rel=1e-4)
    assert norms["seq-mean-token-sum"] == pytest.approx(4 * norms["token-mean"], rel=1e-4)
    assert norms["seq-mean-token-sum-norm"] == pytest.approx(norms["seq-mean-token-sum"] / 4096, rel=1e-4)
