"""AdamW's state in a file, for a machine whose memory does not hold that of all policies.

Each policy's state is mapped from a nameless file. While the policy is trained its pages are in memory; afterwards the
process lets go of them, and the system keeps as many as it has room for. No value changes by it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coachrl.errors import PolicyError

_MOMENTS = ("exp_avg", "exp_avg_sq")
_BYTES = 4


class MomentsInFile:
    """Both moments of every weight that `optimizer` moves, float32, in the shape of the weight."""

    def __init__(self, optimizer: torch.optim.AdamW, folder: Path) -> None:
        """Raises PolicyError where the disk of `folder` has no room for them."""
        self._weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._optimizer = optimizer
        sizes = [weight.numel() for weight in self._weights for _ in _MOMENTS]
        self._map = _mapped(folder, _BYTES * sum(sizes))
        places = iter(torch.frombuffer(self._map, dtype=torch.float32).split(sizes))
        for weight in self._weights:
            state: dict[str, Tensor] = {name: next(places).view_as(weight) for name in _MOMENTS}
            optimizer.state[weight] = {"step": torch.zeros(()), **state}

    def fill(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over what a checkpoint holds: for the number of each weight its state; nothing before the first step."""
        for number, weight in enumerate(self._weights):
            state = self._optimizer.state[weight]
            for name in ("step", *_MOMENTS):
                state[name].copy_(saved[number][name] if saved else torch.zeros(()))

    def let_go(self) -> None:
        """Take the state's pages out of this process's memory. They come back when they are next used."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _mapped(folder: Path, size: int) -> mmap.mmap:
    """Zeros from a file that is gone when the process is. Its room is taken now: a full disk would end the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise PolicyError(
            f"torch.offload_optimizer: {folder} does not take a file of {size / 1e9:.1f} GB ({error.strerror}); make "
            "room there, name another folder in COACHRL_CACHE, or set torch.offload_optimizer=false"
        ) from error
