"""Weights on their way to an engine, many tensors in one message: what vLLM's workers do with it.

OpenRLHF's actor hands the arguments of `update_weight` and `update_weight_cuda_ipc` on to each worker as they are. Here
`name` holds the names of all tensors of a bucket and `shape` their shapes; they lie one behind another in what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from torch import Tensor

from coachrl.trainers.backends.openrlhf.engines import deep_sleep

RECEIVER, WHOLE_RECEIVER = f"{__name__}.Receiver", f"{__name__}.WholeReceiver"
_DEVICE = 6  # among the arguments that torch rebuilds a shared tensor from

Shapes = Sequence[Sequence[int]]
Weights = Iterator[tuple[str, Tensor]]


class Receiver(WorkerWrap):
    """A worker extension of vLLM's: its methods become those of each worker."""

    def update_weight(self, name: Sequence[str], dtype: torch.dtype, shape: Shapes, empty_cache: bool = False) -> None:
        """Receive a bucket from the trainers' first rank, which sends it to all workers at once."""
        _check(self, dtype)
        flat = torch.empty(size_of(shape), dtype=dtype, device="cuda")
        self._model_update_group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
        self.take_weights(parts(name, shape, flat), last=empty_cache)

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
        self.take_weights(parts(name, shape, rebuild(*arguments)), last=empty_cache)
        torch.cuda.synchronize()

    def take_weights(self, weights: Weights, last: bool) -> set[str] | None:
        """Names of the engine's parameters that are loaded, where the model tells. last: of the buckets."""
        loaded: set[str] | None = self.model_runner.model.load_weights(weights=weights)
        return loaded


class WholeReceiver(Receiver):
    """Of engines that throw their weights away when they sleep: all that they need must be sent."""

    def take_weights(self, weights: Weights, last: bool) -> set[str] | None:
        """Raises RuntimeError with the last bucket where something is missing."""
        loaded = super().take_weights(weights, last)
        self.loaded_names: set[str] = getattr(self, "loaded_names", set()) | (loaded or set())
        if last:
            require_whole(self, self.loaded_names, deep_sleep.lies_in_weights())
            self.loaded_names = set()
        return loaded


def require_whole(worker: Any, loaded: set[str], thrown_away: Callable[[Tensor], bool]) -> None:
    """Raises RuntimeError where an engine that threw its weights away lacks something of its model."""
    model, drafts = worker.model_runner.model, worker.get_draft_model() is not None
    if missing := deep_sleep.missing(model, loaded, drafts, thrown_away):
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} others" if len(missing) > 3 else "")
        raise RuntimeError(
            f"an engine that threw its weights away does not get back {names}: set openrlhf.sleep_level=1"
        )


def _check(worker: Any, dtype: torch.dtype) -> None:
    expected = worker.model_config.dtype
    if dtype != expected:
        raise TypeError(f"the trainer sends weights in {dtype}, and the engine holds them in {expected}")


def size_of(shapes: Shapes) -> int:
    """Numbers in a bucket."""
    return sum(map(math.prod, shapes))


def parts(names: Sequence[str], shapes: Shapes, flat: Tensor) -> Weights:
    """The tensors of a bucket by their names."""
    sizes = [math.prod(shape) for shape in shapes]
    for name, shape, part in zip(names, shapes, flat.split(sizes), strict=True):
        yield name, part.view(tuple(shape))
