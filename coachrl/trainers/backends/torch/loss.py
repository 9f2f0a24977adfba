"""Policy losses, on tensors alone. They know no model, no optimizer and no algorithm of credit."""

from __future__ import annotations

import torch
from torch import Tensor


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
