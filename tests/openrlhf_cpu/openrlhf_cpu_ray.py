"""vLLM's executor on Ray, on GPUs that exist in Ray's books alone."""

from openrlhf_cpu import book_gpus

book_gpus()

from vllm.v1.executor.ray_executor_v2 import RayExecutorV2  # noqa: E402


class BookedGpus(RayExecutorV2):
    """Of this module, so that the engine's core, a new interpreter, has imported it."""
