"""Trained weights on their way to the engines: what a trainer does with them, in place of OpenRLHF's own method, which
asks every engine once for each tensor, some four hundred times for a model of 4B."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import deepspeed
import ray
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from coachrl.trainers.backends.openrlhf.bindings import get_physical_gpu_id, torch_dist_barrier_and_cuda_sync

Bucket = list[tuple[str, Any]]  # names and parameters


def send_weights(actor: Any, bucket_bytes: int) -> None:
    """All ranks together: ZeRO-3 gathers a bucket's tensors, which are laid one behind another. Engines that share the
    GPUs read them where they lie; others are sent them by the first rank."""
    first, settings = torch.distributed.get_rank() == 0, actor.strategy.args
    engines = actor.vllm_engines if first else []
    caches = [engine.reset_prefix_cache.remote() for engine in engines if settings.vllm.enable_prefix_caching]
    torch.cuda.empty_cache()
    buckets = list(make_buckets(actor.actor.model.module.named_parameters(), bucket_bytes))
    for number, bucket in enumerate(buckets):
        parameters = [parameter for _, parameter in bucket]
        with deepspeed.zero.GatheredParameters(parameters, enabled=settings.ds.zero_stage == 3):
            told = {
                "name": [name for name, _ in bucket],
                "dtype": parameters[0].dtype,
                "shape": [list(parameter.shape) for parameter in parameters],
                "empty_cache": number == len(buckets) - 1,
            }
            if actor.trainer.use_cuda_ipc:
                _show(engines, _flat(parameters), told)
            elif first:
                _broadcast(actor.trainer._model_update_group, engines, _flat(parameters), told)
    ray.get(caches)
    torch.cuda.empty_cache()
    torch_dist_barrier_and_cuda_sync()


def make_buckets(named: Iterator[tuple[str, Any]], bucket_bytes: int) -> Iterator[Bucket]:
    """In order, each of one type, and of `bucket_bytes` at most where a tensor is not larger by itself."""
    for _, group in itertools.groupby(named, key=lambda pair: pair[1].dtype):
        bucket: Bucket = []
        size = 0
        for name, parameter in group:
            # Of a tensor that ZeRO-3 has sharded the shape is empty, and `ds_numel` its size.
            its_size = getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
            if bucket and size + its_size > bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append((name, parameter))
            size += its_size
        yield bucket


def _flat(parameters: Sequence[Any]) -> Tensor:
    return torch.cat([parameter.data.reshape(-1) for parameter in parameters])


def _broadcast(group: Any, engines: Sequence[Any], flat: Tensor, told: dict[str, Any]) -> None:
    receiving = [engine.update_weight.remote(**told) for engine in engines]
    group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
    ray.get(receiving)


def _show(engines: Sequence[Any], flat: Tensor, told: dict[str, Any]) -> None:
    """Each rank holds the bucket in the memory of its own GPU, for the engines there, until all have read it."""
    handles: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(handles, {get_physical_gpu_id(): reduce_tensor(flat)})
    by_gpu = {gpu: handle for found in handles for gpu, handle in found.items()}
    ray.get([engine.update_weight_cuda_ipc.remote(ipc_handles=by_gpu, **told) for engine in engines])
    torch_dist_barrier_and_cuda_sync()
