"""The one forward pass of trainers and references: log-probabilities of response tokens, without padding and without
the prompts' logits. Needs torch and transformers, neither Ray nor DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.trainers.backends.torch.logprobs import head_logprobs
from coachrl.trainers.backends.torch.loss import TokenBatch, selected_tokens
from coachrl.types import TrainSample


@dataclass(frozen=True)
class PackedBatch(TokenBatch):
    """Samples one behind another in a row of T tokens. Positions begin at 0 with each sample, by which transformers
    tells where one ends and keeps its tokens to themselves.

    places_N: where in the row the model predicts each of the N selected response tokens.
    """

    ids_1T: Tensor
    positions_1T: Tensor
    places_N: Tensor


def pack(samples: Sequence[TrainSample], device: Any, all_tokens: bool = False) -> PackedBatch:
    """The tokens of mask 1 are selected, or every response token with `all_tokens`. No sample at all gives two tokens
    that select nothing: a rank runs them where others have samples left, since ranks wait for each other."""
    ids = [np.concatenate([sample.prompt_ids_P, sample.response_ids_L]) for sample in samples] or [np.zeros(2)]
    selected = tuple(selected_tokens(sample, all_tokens) for sample in samples)
    begins = np.cumsum([0, *map(len, ids)])
    places, targets = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for begin, sample, chosen in zip(begins, samples, selected, strict=False):
        response = np.flatnonzero(chosen)
        places.append(begin + len(sample.prompt_ids_P) + response - 1)  # the token before predicts
        targets.append(sample.response_ids_L[response])
    return PackedBatch(
        tuple(samples),
        selected,
        _whole(targets, device),
        ids_1T=_whole(ids, device)[None],
        positions_1T=_whole([np.arange(len(row)) for row in ids], device)[None],
        places_N=_whole(places, device),
    )


class ResponseLogprobs:
    """Takes the place of the `forward` of a causal model's output layer, and gives log-probabilities and entropies
    where that gives logits.

    Inside the layer's own call DeepSpeed has gathered its weights, once for all blocks of logits.
    """

    def __init__(self, model: Any, temperature: float) -> None:
        """model: of transformers, in no wrapper. temperature: that replies are drawn at."""
        self._layer = model.get_output_embeddings()
        self._logits = self._layer.forward
        self._temperature = temperature
        self._targets_N: Tensor | None = None
        self._layer.forward = self._forward

    def __call__(self, model: Any, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Natural log-probabilities (N,) of the batch's selected tokens, and the entropies (N,) of the distributions
        that they were drawn from. model: the same, in whatever wrapper. Entropies carry no gradient."""
        # Its ranks gather the output layer together: something must run through it on each of them.
        nothing = len(batch.targets_N) == 0
        self._targets_N = batch.targets_N.new_zeros(1) if nothing else batch.targets_N
        places_N = batch.places_N.new_zeros(1) if nothing else batch.places_N
        try:
            output = model(
                input_ids=batch.ids_1T, position_ids=batch.positions_1T, use_cache=False, logits_to_keep=places_N
            )
        finally:
            self._targets_N = None
        logprobs_N, entropy_N = output.logits
        return (logprobs_N[:0], entropy_N[:0]) if nothing else (logprobs_N, entropy_N)

    def _forward(self, hidden_1ND: Tensor) -> Tensor:
        if self._targets_N is None:  # a call of someone else's
            return self._logits(hidden_1ND)
        found = head_logprobs(self._logits, self._layer.out_features, hidden_1ND[0], self._targets_N, self._temperature)
        return torch.stack(found)


def _whole(parts: Sequence[NDArray[Any]], device: Any) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
