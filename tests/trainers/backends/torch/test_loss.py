from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from coachrl.trainers.backends.torch.loss import ppo_loss_sum, weighted_nll_sum


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.0, 0.0])
    loss, clipped = ppo_loss_sum(logprobs, logprobs.detach(), advantages, clip=(0.2, 0.2))
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
    loss, clipped = ppo_loss_sum(logprobs, torch.zeros(1), torch.tensor([advantage]), clip=(0.2, 0.2))
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss, abs=1e-6)
    assert int(clipped) == is_clipped
    assert (logprobs.grad.abs().item() == 0) == bool(is_clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected_loss", "is_clipped"),
    [
        (1.25, 1.0, -1.25, 0),  # above 1.2, and below 1.28
        (1.5, 2.0, -2.56, 1),
        (0.7, -1.0, 0.8, 1),  # 1 - 0.28 is not where it is held below
        (0.9, -1.0, 0.9, 0),
        (1.5, -1.0, 1.5, 0),
    ],
)
def test_the_clip_above_may_be_wider_than_the_clip_below(ratio, advantage, expected_loss, is_clipped):
    """DAPO, Eq. 10, with the numbers of its paper."""
    logprobs = torch.tensor([ratio]).log().requires_grad_()
    loss, clipped = ppo_loss_sum(logprobs, torch.zeros(1), torch.tensor([advantage]), clip=(0.2, 0.28))
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss, abs=1e-6)
    assert int(clipped) == is_clipped
    assert (logprobs.grad.abs().item() == 0) == bool(is_clipped)


@pytest.mark.parametrize(("advantage", "expected_loss", "is_clipped"), [(2.0, -2.4, 1), (0.0, 0.0, 0)])
def test_a_ratio_that_no_float_holds_is_clipped_like_any_other(advantage, expected_loss, is_clipped):
    logprobs = torch.tensor([-0.1], requires_grad=True)
    loss, clipped = ppo_loss_sum(logprobs, torch.tensor([-100.0]), torch.tensor([advantage]), clip=(0.2, 0.2))
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss)
    assert int(clipped) == is_clipped and logprobs.grad.item() == 0


def test_weighted_nll():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = weighted_nll_sum(logprobs, torch.tensor([0.5, -3.0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 - 6.0)
    assert torch.allclose(logprobs.grad, torch.tensor([-0.5, 3.0]))
