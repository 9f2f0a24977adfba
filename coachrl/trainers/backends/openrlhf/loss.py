"""The one loss that OpenRLHF lacks, in the form in which its trainer calls a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coachrl.trainers.backends.torch.loss import weighted_nll_sum


class MeanLikelihood(nn.Module):
    """MAGRPO's loss (Eq. 2): each token's log-likelihood times its advantage, summed over a sample, the mean over the
    samples of an optimizer step. No ratio and no clip, so it stands in the place of OpenRLHF's `PolicyLoss`."""

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor,
        dp_size: int,
        global_batch_size: Tensor,
        **unread: Any,
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Loss, clip fraction (0), mean of log pi_old - log pi over tokens; nothing for a correction that is off.

        Tensors are (B, T - 1). dp_size and global_batch_size, the step's samples without padding, make up for
        DeepSpeed's mean over ranks and micro-batches: see OpenRLHF's `aggregate_loss`.
        """
        samples = global_batch_size.clamp(min=torch.finfo(torch.float32).eps)  # none where all is padding
        loss = weighted_nll_sum(log_probs, advantages * action_mask) * dp_size / samples
        gap = ((old_log_probs - log_probs).detach() * action_mask).sum() / action_mask.sum()
        return loss, torch.zeros_like(gap), gap, None, None
