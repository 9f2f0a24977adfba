"""Every import from OpenRLHF and vLLM, but for what runs inside engines (`buckets`, `rollout.listener`). Their names
move between patch releases, so they are met here alone."""

from __future__ import annotations

from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.utils import get_physical_gpu_id
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils import get_strategy
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

__all__ = [
    "PolicyModelActor",
    "RayActorGroup",
    "ReferenceModelActor",
    "RolloutRayActor",
    "get_physical_gpu_id",
    "get_strategy",
    "torch_dist_barrier_and_cuda_sync",
]
