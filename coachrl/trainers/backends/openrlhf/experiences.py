"""Training samples as the tensors that OpenRLHF's trainers and references take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.trainers.backends.openrlhf.bindings import Experience
from coachrl.types import TrainSample

# OpenRLHF divides by a micro-batch's mask, which must not be zero even where a micro-batch is padding alone. With an
# advantage of zero, padding has no gradient; beside thousands of tokens its weight is nothing. It is below zero, since
# OpenRLHF counts the samples whose mask is above.
_PADDING_MASK = -1e-6


def experience(sample: TrainSample | None) -> Experience:
    """One sample of T = P + L tokens as a batch of one; None gives padding: two tokens without gradient.

    Masks, log-probabilities and advantages have T - 1 places: place t belongs to token t + 1.
    """
    if sample is None:
        return Experience(
            sequences=torch.zeros(1, 2, dtype=torch.long),
            attention_mask=torch.ones(1, 2, dtype=torch.long),
            action_mask=torch.full((1, 1), _PADDING_MASK),
            action_log_probs=torch.zeros(1, 1),
            advantages=torch.zeros(1, 1),
        )
    if sample.advantages_L is None:
        raise ValueError(f"sample {sample.action_id} has no advantages: Algorithm.advantages comes before update")
    ids = torch.from_numpy(np.concatenate([sample.prompt_ids_P, sample.response_ids_L]))[None]
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=_in_place(sample, sample.mask_L),
        action_log_probs=_in_place(sample, sample.old_logprobs_L),
        advantages=_in_place(sample, sample.advantages_L),
    )


def forward_batch(samples: Sequence[TrainSample | None]) -> dict[str, Tensor]:
    """Arguments of OpenRLHF's `forward` for one micro-batch (B, T), padded on the right; its mask selects every
    response token."""
    rows = [
        np.zeros(2, dtype=np.int64) if s is None else np.concatenate([s.prompt_ids_P, s.response_ids_L])
        for s in samples
    ]
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention, mask = torch.zeros_like(ids), torch.zeros(len(rows), width - 1)
    for row, (tokens, sample) in enumerate(zip(rows, samples, strict=True)):
        ids[row, : len(tokens)] = torch.from_numpy(tokens)
        attention[row, : len(tokens)] = 1
        if sample is not None:
            mask[row, len(sample.prompt_ids_P) - 1 : len(tokens) - 1] = 1
    return {"sequences": ids, "action_mask": mask, "attention_mask": attention}


def response_logprobs(sample: TrainSample, row: Tensor) -> NDArray[np.float32]:
    """The L values of a sample's response out of its row of `forward`'s answer (T - 1 or more places)."""
    first = len(sample.prompt_ids_P) - 1
    return row[first : first + len(sample.response_ids_L)].float().numpy()


def _in_place(sample: TrainSample, values_L: NDArray[np.float32]) -> Tensor:
    prompt = np.zeros(len(sample.prompt_ids_P) - 1, dtype=np.float32)
    return torch.from_numpy(np.concatenate([prompt, values_L.astype(np.float32)]))[None]
