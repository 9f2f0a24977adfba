"""Every import from OpenRLHF and vLLM, but for what runs inside engines (`buckets`, `rollout.listener`). Their names
move between patch releases, so they are met here alone."""

from __future__ import annotations

import ray

from coachrl.trainers.backends.openrlhf.training import flash_attention

with flash_attention.supplied():
    from openrlhf.trainer.ray import launcher, ppo_actor
    from openrlhf.trainer.ray.launcher import RayActorGroup
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


# Ray sends a class of OpenRLHF's as it is, and a worker imports OpenRLHF to read it, with whatever it finds. A class of
# this module goes by its name: a worker imports the module first, and so OpenRLHF as it is imported above.


class _Policy(ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """OpenRLHF's actor that trains."""


class _Reference(launcher.ReferenceModelActor.__ray_metadata__.modified_class):
    """OpenRLHF's actor that keeps initial weights."""


PolicyModelActor, ReferenceModelActor = ray.remote(_Policy), ray.remote(_Reference)
