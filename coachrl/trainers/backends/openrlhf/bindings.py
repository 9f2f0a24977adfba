"""Every import from OpenRLHF and vLLM, but for what runs inside vLLM's workers (`buckets`). Their names move between
patch releases, so they are met here alone."""

from __future__ import annotations

from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.utils import get_physical_gpu_id
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils import get_strategy
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

__all__ = [
    "EngineDeadError",
    "PolicyModelActor",
    "RayActorGroup",
    "ReferenceModelActor",
    "RequestOutputKind",
    "RolloutRayActor",
    "SamplingParams",
    "get_physical_gpu_id",
    "get_strategy",
    "torch_dist_barrier_and_cuda_sync",
]
