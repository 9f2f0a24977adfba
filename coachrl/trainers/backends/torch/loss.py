"""Policy losses and their statistics. They know no model, no optimizer and no algorithm of credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.trainers.backends.base import advantages_of
from coachrl.types import TrainSample

Loss = Literal["ppo", "policy_gradient", "nll"]
"""ppo: clipped, token mean. policy_gradient: weighted log-likelihood, mean over samples. nll: the same, token mean, for
supervised training."""


@dataclass(frozen=True)
class TokenBatch:
    """Samples that run together. selected: which of each sample's L response tokens are looked at, N in all, over the
    samples in order and then over their tokens; targets_N: those tokens."""

    samples: tuple[TrainSample, ...]
    selected: tuple[NDArray[np.bool_], ...]
    targets_N: Tensor

    def gather(self, arrays: Sequence[NDArray[np.float32]]) -> Tensor:
        """Values (N,) of the selected tokens, from one array (L,) for each sample."""
        values = [array[chosen] for array, chosen in zip(arrays, self.selected, strict=True)]
        return torch.from_numpy(np.concatenate([np.zeros(0), *values]).astype(np.float32)).to(self.targets_N.device)

    def split(self, values_N: Tensor) -> list[NDArray[np.float32]]:
        """Values of the selected tokens by sample, as arrays in main memory."""
        parts = values_N.float().cpu().split([int(chosen.sum()) for chosen in self.selected])
        return [part.numpy() for part in parts]


def selected_tokens(sample: TrainSample, all_tokens: bool) -> NDArray[np.bool_]:
    """Which response tokens (L,) of a sample are looked at: those of mask 1, or every one with `all_tokens`."""
    return np.ones(len(sample.response_ids_L), dtype=np.bool_) if all_tokens else sample.mask_L > 0


def batch_loss(
    batch: TokenBatch, logprobs_N: Tensor, entropy_N: Tensor, loss: Loss, clip_range: float
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch, summed over its tokens, and the sums of its statistics: of `clip_fraction`, `approx_kl` and
    `entropy` over its `tokens`, and of `sampler_trainer_logprob_gap`, which tells of the sampler while the weights are
    those that were sampled with."""
    old_N = batch.gather([sample.old_logprobs_L for sample in batch.samples])
    advantages_N = batch.gather([advantages_of(sample) for sample in batch.samples])
    clipped = torch.zeros(())
    if loss == "ppo":
        loss_sum, clipped = ppo_loss_sum(logprobs_N, old_N, advantages_N, clip_range)
    else:
        loss_sum = weighted_nll_sum(logprobs_N, advantages_N)
    with torch.no_grad():
        gap_N = old_N - logprobs_N
        return loss_sum, {
            "clip_fraction": float(clipped),
            "approx_kl": float(gap_N.sum()),
            "entropy": float(entropy_N.sum()),
            "sampler_trainer_logprob_gap": float(gap_N.abs().sum()),
            "tokens": float(len(gap_N)),
        }


def ppo_loss_sum(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip_range: float
) -> tuple[Tensor, Tensor]:
    """Sum over N tokens of the clipped surrogate, and how many tokens the clip holds back.

    With rho = pi / pi_old: -min(rho A, clip(rho, 1 - eps, 1 + eps) A). Divided by the number of all tokens of an
    optimizer step it is the token mean, however the step was cut into micro-batches.
    """
    ratio_N = (logprobs_N - old_logprobs_N).exp()
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1 - clip_range, 1 + clip_range) * advantages_N
    return -torch.minimum(plain_N, clipped_N).sum(), (clipped_N < plain_N).sum()


def weighted_nll_sum(logprobs_N: Tensor, weights_N: Tensor) -> Tensor:
    """-sum_t w_t log pi(t).

    With w the advantages, over the number of samples: MAGRPO's loss (Eq. 2: no ratio, no clip). With w = 1, over the
    number of tokens: supervised learning.
    """
    return -(weights_N * logprobs_N).sum()
