"""Samples as the tensors that a forward pass takes: one row, in which they lie one behind another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.types import TrainSample


@dataclass(frozen=True)
class PackedBatch:
    """Samples one behind another in a row of T tokens, without what all their prompts begin with.

    selected: which of each sample's L response tokens are looked at, N in all, over the samples in order and then over
    their tokens; targets_N: those tokens; places_N: where in the row the model predicts each of them.
    prefix_1S: S tokens that all prompts begin with; S may be 0. ids_1T: the rest of the samples, of `lengths` tokens;
    positions_1T: the place of each token in its sample.
    """

    samples: tuple[TrainSample, ...]
    selected: tuple[NDArray[np.bool_], ...]
    targets_N: Tensor
    places_N: Tensor
    prefix_1S: Tensor
    ids_1T: Tensor
    positions_1T: Tensor
    lengths: tuple[int, ...]

    def gather(self, arrays: Sequence[NDArray[np.float32]]) -> Tensor:
        """Values (N,) of the selected tokens, from one array (L,) for each sample."""
        values = [array[chosen] for array, chosen in zip(arrays, self.selected, strict=True)]
        return torch.from_numpy(np.concatenate([np.zeros(0), *values]).astype(np.float32)).to(self.targets_N.device)

    def split(self, values_N: Tensor) -> list[NDArray[np.float32]]:
        """Values of the selected tokens by sample, as arrays in main memory."""
        parts = values_N.float().cpu().split([int(chosen.sum()) for chosen in self.selected])
        return [part.numpy() for part in parts]


def pack(samples: Sequence[TrainSample], device: Any, all_tokens: bool = False, shared: int = 0) -> PackedBatch:
    """The tokens of mask 1 are selected, or every response token with `all_tokens`. shared: how many tokens all prompts
    begin with. No sample at all gives two tokens that select nothing, for ranks that wait for each other."""

    def whole(parts: Sequence[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *parts], dtype=np.int64)).to(device)

    rows, selected, targets, places = [], [], [], []
    begin = 0
    for sample in samples:
        rows.append(np.concatenate([sample.prompt_ids_P[shared:], sample.response_ids_L]))
        selected.append(np.ones(len(sample.response_ids_L), np.bool_) if all_tokens else sample.mask_L > 0)
        response = np.flatnonzero(selected[-1])
        targets.append(sample.response_ids_L[response])
        places.append(begin + len(sample.prompt_ids_P) - shared + response - 1)  # the token before predicts
        begin += len(rows[-1])
    rows = rows or [np.zeros(2, dtype=np.int64)]
    return PackedBatch(
        tuple(samples),
        tuple(selected),
        targets_N=whole(targets),
        places_N=whole(places),
        prefix_1S=whole([sample.prompt_ids_P[:shared] for sample in samples[:1]])[None],
        ids_1T=whole(rows)[None],
        positions_1T=whole([np.arange(shared, shared + len(row)) for row in rows])[None],
        lengths=tuple(map(len, rows)),
    )
