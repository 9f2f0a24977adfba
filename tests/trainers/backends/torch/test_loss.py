from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from coachrl.trainers.backends.openrlhf.loss import MeanLikelihood
from coachrl.trainers.backends.torch.loss import ppo_loss_sum, weighted_nll_sum


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.0, 0.0])
    loss, clipped = ppo_loss_sum(logprobs, logprobs.detach(), advantages, clip_range=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(-1.0)
    assert torch.allclose(logprobs.grad, -advantages)
    assert int(clipped) == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected_loss", "is_clipped"),
    [
        (1.5, 1.0, -1.2, 1),  # good and already much likelier: held at 1 + epsilon
        (0.5, 1.0, -0.5, 0),  # good and less likely: free to move
        (0.5, -1.0, 0.8, 1),  # bad and already much less likely: held at 1 - epsilon
        (1.5, -1.0, 1.5, 0),  # bad and likelier: free to move
        (1.1, 1.0, -1.1, 0),
    ],
)
def test_clip_holds_back_only_what_went_far_enough(ratio, advantage, expected_loss, is_clipped):
    logprobs = torch.tensor([ratio]).log().requires_grad_()
    loss, clipped = ppo_loss_sum(logprobs, torch.zeros(1), torch.tensor([advantage]), clip_range=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss, abs=1e-6)
    assert int(clipped) == is_clipped
    assert (logprobs.grad.abs().item() == 0) == bool(is_clipped)


def test_weighted_nll():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = weighted_nll_sum(logprobs, torch.tensor([0.5, -3.0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 - 6.0)
    assert torch.allclose(logprobs.grad, torch.tensor([-0.5, 3.0]))


def test_the_mean_likelihood_of_shares_is_that_of_all_samples():
    """Three samples and a padding over two ranks with two micro-batches each. DeepSpeed takes the mean over both."""
    lengths, ranks, accumulation = [4, 2, 3], 2, 2
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, length, generator=generator) for length in [*lengths, 1]]
    masks = [torch.ones(1, length) for length in lengths] + [torch.full((1, 1), -1e-6)]
    weights = [
        torch.tensor([[advantage]]).expand_as(row) for advantage, row in zip([1.0, -2.0, 0.5, 0.0], rows, strict=True)
    ]
    whole = weighted_nll_sum(torch.cat(rows[:3], 1), torch.cat(weights[:3], 1)) / len(lengths)

    loss = MeanLikelihood()
    counted = sum(float(mask.sum() > 0) for mask in masks)  # as OpenRLHF does
    info = {"dp_size": ranks, "batch_num_tokens": 9.0, "global_batch_size": torch.tensor(counted / accumulation)}
    parts = [
        loss(row, row + 1.0, weight, action_mask=mask, rollout_log_probs=None, **info)
        for row, weight, mask in zip(rows, weights, masks, strict=True)
    ]
    assert float(sum(part[0] for part in parts) / (ranks * accumulation)) == pytest.approx(float(whole))
    assert [(float(part[1]), float(part[2])) for part in parts] == [(0.0, pytest.approx(1.0, rel=1e-5))] * 4
