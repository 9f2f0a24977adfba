"""The one forward pass of trainers and references: log-probabilities of response tokens, without padding and without
the prompts' logits. Needs torch and transformers, neither Ray nor DeepSpeed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coachrl.trainers.backends.torch.logprobs import head_logprobs
from coachrl.trainers.backends.torch.packed import PackedBatch


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
