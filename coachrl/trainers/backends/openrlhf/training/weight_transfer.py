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
from coachrl.trainers.backends.openrlhf.training.adapters import Weight, weights


def send_weights(actor: Any, bucket_bytes: int) -> None:
    """All ranks together: ZeRO-3 gathers a bucket's tensors, which are laid one behind another. Engines that share the
    GPUs read them where they lie; others are sent them by the first rank. Adapters are added to what is sent alone."""
    first, settings = torch.distributed.get_rank() == 0, actor.strategy.args
    engines = actor.vllm_engines if first else []
    caches = [engine.reset_prefix_cache.remote() for engine in engines if settings.vllm.enable_prefix_caching]
    torch.cuda.empty_cache()
    buckets = list(make_buckets(weights(actor.actor.model.module), bucket_bytes))
    for number, bucket in enumerate(buckets):
        parameters = [part for weight in bucket for part in weight.parts]
        with deepspeed.zero.GatheredParameters(parameters, enabled=settings.ds.zero_stage == 3):
            told = {
                "name": [weight.name for weight in bucket],
                "dtype": bucket[0].parameter.dtype,
                "shape": [list(weight.parameter.shape) for weight in bucket],
                "empty_cache": number == len(buckets) - 1,
            }
            if actor.trainer.use_cuda_ipc:
                _show(engines, _flat(bucket), told)
            elif first:
                _broadcast(actor.trainer._model_update_group, engines, _flat(bucket), told)
    ray.get(caches)
    torch.cuda.empty_cache()
    torch_dist_barrier_and_cuda_sync()


def make_buckets(weights: Iterator[Weight], bucket_bytes: int) -> Iterator[list[Weight]]:
    """In order, each of one type, and of `bucket_bytes` at most where a tensor is not larger by itself."""
    for _, group in itertools.groupby(weights, key=lambda weight: weight.parameter.dtype):
        bucket: list[Weight] = []
        size = 0
        for weight in group:
            parameter = weight.parameter
            # Of a tensor that ZeRO-3 has sharded the shape is empty, and `ds_numel` its size.
            its_size = getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
            if bucket and size + its_size > bucket_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(weight)
            size += its_size
        yield bucket


def _flat(bucket: Sequence[Weight]) -> Tensor:
    return torch.cat([weight.merged().reshape(-1) for weight in bucket])


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
