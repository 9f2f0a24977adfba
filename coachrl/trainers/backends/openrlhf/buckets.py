"""Weights on their way to an engine, many tensors in one message: what vLLM's workers do with it.

OpenRLHF's actor hands the arguments of `update_weight` and `update_weight_cuda_ipc` on to each worker as they are. Here
`name` holds the names of all tensors of a bucket and `shape` their shapes; they lie one behind another in what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from torch import Tensor

RECEIVER = f"{__name__}.Receiver"
_DEVICE = 6  # among the arguments that torch rebuilds a shared tensor from

Shapes = Sequence[Sequence[int]]


class Receiver(WorkerWrap):
    """A worker extension of vLLM's: its methods become those of each worker."""

    def update_weight(self, name: Sequence[str], dtype: torch.dtype, shape: Shapes, empty_cache: bool = False) -> None:
        """Receive a bucket from the trainers' first rank, which sends it to all workers at once."""
        _check(self, dtype)
        flat = torch.empty(size_of(shape), dtype=dtype, device="cuda")
        self._model_update_group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        self.model_runner.model.load_weights(weights=parts(name, shape, flat))

    def update_weight_cuda_ipc(
        self,
        name: Sequence[str],
        dtype: torch.dtype,
        shape: Shapes,
        ipc_handles: Mapping[Any, Any],
        empty_cache: bool = False,
    ) -> None:
        """Read a bucket where it lies in the memory of this GPU, in a trainer's process."""
        from openrlhf.trainer.ray.utils import get_physical_gpu_id  # with Ray, which not every worker needs

        _check(self, dtype)
        rebuild, arguments = ipc_handles[get_physical_gpu_id()]
        arguments = list(arguments)
        arguments[_DEVICE] = self.device.index  # the two processes may number their GPUs differently
        self.model_runner.model.load_weights(weights=parts(name, shape, rebuild(*arguments)))
        torch.cuda.synchronize()


def _check(worker: Any, dtype: torch.dtype) -> None:
    expected = worker.model_config.dtype
    if dtype != expected:
        raise TypeError(f"the trainer sends weights in {dtype}, and the engine holds them in {expected}")


def size_of(shapes: Shapes) -> int:
    """Numbers in a bucket."""
    return sum(map(math.prod, shapes))


def parts(names: Sequence[str], shapes: Shapes, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket by their names."""
    sizes = [math.prod(shape) for shape in shapes]
    for name, shape, part in zip(names, shapes, flat.split(sizes), strict=True):
        yield name, part.view(tuple(shape))
