"""Statistics of the distributed backend's optimizer steps, by hand, with torch's own communication of one process."""

from dataclasses import replace
from math import exp, log

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import numpy as np
import torch
from made_samples import train_sample

from coachrl.trainers.backends.base import weighs
from coachrl.trainers.backends.openrlhf.training.steps import add_other_ranks
from coachrl.trainers.backends.torch.loss import Totals
from coachrl.trainers.backends.torch.packed import pack


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sample(advantage, mask=(1, 1, 0)):
    made = train_sample([1, 2], [3, 4, 5], logprobs=[-1.0, -2.0, -9.0], mask=mask)
    return replace(made, advantages_L=np.array([advantage] * 3, dtype=np.float32))


def added(totals, advantage, gaps, loss="ppo", first=True, divisor=4.0):
    """Of the two tokens that are trained, the trainer's log-probabilities are below the sampler's by `gaps`."""
    logprobs = torch.tensor([-1.0 - gaps[0], -2.0 - gaps[1]])
    entropies = torch.tensor([0.5, 1.5])
    batch = pack([sample(advantage)], "cpu")
    added = float(totals.add(batch, logprobs, entropies, loss, (0.2, 0.2), first))
    totals.sums["loss"] += added / divisor
    return added


def test_means_are_over_all_tokens_and_the_gap_over_those_of_the_first_step(one_process):
    totals = Totals()
    # Likelier by half, and good: held at 1.2; the other ratio is 1.
    assert added(totals, 2.0, (-log(1.5), 0.0)) == pytest.approx(-2 * (1.2 + 1.0))
    # In the second step: less likely, and free to move.
    assert added(totals, 1.0, (0.5, 0.1), first=False) == pytest.approx(-(exp(-0.5) + exp(-0.1)))
    add_other_ranks(totals, "cpu")
    assert totals.means(steps=2) == pytest.approx(
        {
            "loss": (-4.4 - exp(-0.5) - exp(-0.1)) / 4 / 2,
            "clip_fraction": 1 / 4,
            "approx_kl": (-log(1.5) + 0.6) / 4,
            "entropy": 1.0,
            "sampler_trainer_logprob_gap": log(1.5) / 2,
        },
        abs=1e-6,
    )


def test_without_a_ratio_the_loss_is_the_log_likelihood_times_the_advantage(one_process):
    totals = Totals()
    assert added(totals, 3.0, (0.0, 0.5), loss="policy_gradient", divisor=1.0) == pytest.approx(3 * (1.0 + 2.5))
    means = totals.means(steps=1)
    assert (means["loss"], means["clip_fraction"]) == (pytest.approx(10.5), 0.0)


@pytest.mark.parametrize(
    ("advantage", "mask", "has_gradient"),
    [(1.0, (1, 0, 0), True), (-1.0, (0, 0, 1), True), (0.0, (1, 1, 1), False), (1.0, (0, 0, 0), False)],
)
def test_a_sample_weighs_where_a_trained_token_has_an_advantage(advantage, mask, has_gradient):
    assert weighs(sample(advantage, mask)) is has_gradient
