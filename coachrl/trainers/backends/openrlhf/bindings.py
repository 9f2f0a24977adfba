"""Every import from OpenRLHF and vLLM. Their names move between patch releases, so they are met here alone."""

from __future__ import annotations

from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.utils import get_bundle_indices
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils import get_strategy
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

__all__ = [
    "WORKER_EXTENSION",
    "EngineDeadError",
    "PolicyModelActor",
    "RayActorGroup",
    "ReferenceModelActor",
    "RolloutRayActor",
    "SamplingParams",
    "get_bundle_indices",
    "get_strategy",
]

WORKER_EXTENSION = "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap"  # receives weights inside vLLM's workers
