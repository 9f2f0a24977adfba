"""Policy losses and their statistics, and the samples of each optimizer step. No model, no optimizer and no algorithm
of credit is known here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.config import TrainConfig
from coachrl.config.training import LossAggregation
from coachrl.trainers.backends.base import advantages_of, weighs
from coachrl.trainers.backends.torch.packed import PackedBatch
from coachrl.trainers.samples import changed
from coachrl.types import TrainSample

Loss = Literal["ppo", "policy_gradient", "nll"]
"""ppo: clipped. policy_gradient: weighted log-likelihood. nll: the same, for supervised training."""
_AGGREGATION: dict[Loss, LossAggregation] = {
    "ppo": "token-mean",
    "policy_gradient": "seq-mean-token-sum",
    "nll": "token-mean",
}
"""Of losses whose settings name none."""
ClipRanges = tuple[float, float]
"""How far below and above 1 a ratio may lie."""
_FAR_ABOVE = 80.0  # e to this power is a number of 32 bits, and above any clip, of which the greatest is 1e30


def optimizer_steps(
    samples: Sequence[TrainSample],
    settings: TrainConfig,
    loss: Loss,
    shuffled: Callable[[int], NDArray[np.int64]],
    longest_reply: int,
) -> Iterator[tuple[list[TrainSample], float]]:
    """For each optimizer step of an update the samples that have a gradient, and what the sum of losses is divided by:
    see `_divisor`. Those without weight are not run, but count in the mean; a step in which none has weight is left
    out. shuffled: an order of so many samples, asked for as each epoch begins. longest_reply: the most tokens of one.
    """
    aggregation = settings.loss_aggregation or _AGGREGATION[loss]
    size = settings.ppo_mini_batch_size or len(samples)
    for _ in range(settings.ppo_epochs):
        order = shuffled(len(samples))
        for begin in range(0, len(order), max(size, 1)):
            minibatch = [samples[place] for place in order[begin : begin + size]]
            weighing = [sample for sample in minibatch if weighs(sample)]
            if not weighing:
                continue
            if aggregation == "seq-mean-token-mean":
                weighing = [_per_token(sample) for sample in weighing]
            yield weighing, _divisor(minibatch, aggregation, longest_reply)


def _per_token(sample: TrainSample) -> TrainSample:
    """The sample with the sum of its tokens' losses turned into their mean: every loss grows with the advantage in
    proportion, so that dividing the one divides the other, however a step is cut into micro-batches and ranks."""
    return changed(sample, advantages_L=advantages_of(sample) / sample.mask_L.sum())


def _divisor(minibatch: Sequence[TrainSample], aggregation: LossAggregation, longest_reply: int) -> float:
    """What the sum of a minibatch's losses is divided by: its tokens, or its samples."""
    if aggregation == "token-mean":
        return float(sum(sample.mask_L.sum() for sample in minibatch))
    return float(len(minibatch) * (longest_reply if aggregation == "seq-mean-token-sum-norm" else 1))


class Totals:
    """Sums over the trained tokens of an update, and means of them. The gap between sampler and trainer is that of the
    first optimizer step, which costs nothing: the weights are still those that were sampled with."""

    NAMES = ("loss", "clip_fraction", "approx_kl", "entropy", "tokens", "sampler_trainer_logprob_gap", "first_tokens")

    def __init__(self) -> None:
        self.sums = dict.fromkeys(self.NAMES, 0.0)

    def add(
        self, batch: PackedBatch, logprobs_N: Tensor, entropy_N: Tensor, loss: Loss, clip: ClipRanges, first: bool
    ) -> Tensor:
        """The loss of one batch, summed over its tokens. Its part of the sum of losses is added by who divides it."""
        old_N = batch.gather([sample.old_logprobs_L for sample in batch.samples])
        advantages_N = batch.gather([advantages_of(sample) for sample in batch.samples])
        if loss == "ppo":
            loss_sum, clipped = ppo_loss_sum(logprobs_N, old_N, advantages_N, clip)
            self.sums["clip_fraction"] += float(clipped)
        else:
            loss_sum = weighted_nll_sum(logprobs_N, advantages_N)
        with torch.no_grad():
            gap_N = old_N - logprobs_N
            self.sums["approx_kl"] += float(gap_N.sum())
            self.sums["entropy"] += float(entropy_N.sum())
            self.sums["tokens"] += len(gap_N)
            if first:
                self.sums["sampler_trainer_logprob_gap"] += float(gap_N.abs().sum())
                self.sums["first_tokens"] += len(gap_N)
        return loss_sum

    def means(self, steps: int) -> dict[str, float]:
        """Over the tokens, and of the loss over `steps`; without what there are no tokens of."""
        sums = dict(self.sums)
        tokens, first_tokens = sums.pop("tokens"), sums.pop("first_tokens")
        counts = {"loss": steps, "sampler_trainer_logprob_gap": first_tokens}
        return {name: value / counts.get(name, tokens) for name, value in sums.items() if counts.get(name, tokens)}


def ppo_loss_sum(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip: ClipRanges
) -> tuple[Tensor, Tensor]:
    """Sum over N tokens of the clipped surrogate, and how many tokens the clip holds back.

    With rho = pi / pi_old: -min(rho A, clip(rho, 1 - low, 1 + high) A). Divided by the number of all tokens of an
    optimizer step it is the token mean, however the step was cut into micro-batches. low and high are one number in
    PPO, and two in DAPO (arXiv 2503.14476, Eq. 10).
    """
    log_ratio_N = logprobs_N - old_logprobs_N
    # So far above the clip nothing hangs on a ratio, unless it is infinite: times the clip's gradient of 0 that is NaN.
    log_ratio_N = torch.where(advantages_N < 0, log_ratio_N, log_ratio_N.clamp(max=_FAR_ABOVE))
    ratio_N = log_ratio_N.exp()
    plain_N = ratio_N * advantages_N
    low, high = clip
    clipped_N = ratio_N.clamp(1 - low, 1 + high) * advantages_N
    return -torch.minimum(plain_N, clipped_N).sum(), (clipped_N < plain_N).sum()


def weighted_nll_sum(logprobs_N: Tensor, weights_N: Tensor) -> Tensor:
    """-sum_t w_t log pi(t).

    With w the advantages, over the number of samples: MAGRPO's loss (Eq. 2: no ratio, no clip). With w = 1, over the
    number of tokens: supervised learning.
    """
    return -(weights_N * logprobs_N).sum()
