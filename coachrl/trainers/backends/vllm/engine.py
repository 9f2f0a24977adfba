"""vLLM's engine in this process: the one module that imports vLLM, whose names and switches move between releases."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

# Read by vLLM when it is imported. Its engine belongs in this process, where weights can be handed over in place; its
# notices would tear the progress display, and its makers need not hear of each run.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer's threads are those of the same process

from vllm.config.lora import MaxLoRARanks
from vllm.device_allocator import get_mem_allocator_instance
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from coachrl.config import RunConfig
from coachrl.errors import BackendError, PolicyError
from coachrl.seeding import derive_seed
from coachrl.text import first_line
from coachrl.trainers.backends.vllm import bars
from coachrl.trainers.backends.vllm.replies import Growing, Reply, growing, read_reply, request_parameters
from coachrl.trainers.backends.vllm.turns import Request, Weights

log = logging.getLogger(__name__)

_SHARED_CARD = (
    "Another process took memory of this GPU meanwhile, which vLLM's sleep does not bear: give the run a GPU of its "
    "own, or set vllm.sleep=false"
)
_CPU_CACHE_GB = 1.0
_CPU_BATCHED_TOKENS = 4096


class Engine:
    """One engine, which holds one set of weights at a time, with any number of adapters over them. It is made and used
    in one thread.

    Where the trainer works on the engine's GPU, `sleep` frees the engine's memory until weights are given again.
    """

    def __init__(
        self, folder: Path, config: RunConfig, context_length: int, trains_on: torch.device, adapters: int = 0
    ) -> None:
        """adapters: how many there will be. Raises BackendError with what vLLM says where it does not start."""
        on_gpu = not current_platform.is_cpu()
        self._sleeps = on_gpu and config.vllm.sleep and trains_on.type == "cuda" and not trains_on.index
        # Weights that are given anew when it wakes need no copy; a base that never changes has one in main memory.
        self._sleep_level = 1 if config.torch.share_base else 2
        self._asleep = False
        self._held: Weights | None = None
        self._adapters: dict[str, LoRARequest] = {}
        arguments = {
            "model": str(folder),
            "skip_tokenizer_init": True,  # token ids go in and come out
            "dtype": config.torch.precision,
            "max_model_len": context_length,
            "max_num_seqs": config.vllm.max_num_seqs,
            "seed": derive_seed(config.seed, "engine") % 2**31,
            "logprobs_mode": "processed_logprobs",  # of the distribution that is drawn from
            "max_logprobs": 1,
            "disable_log_stats": True,
            "use_tqdm_on_load": bars.wanted(),
            "enable_sleep_mode": self._sleeps,
            **(_adapter_arguments(config, adapters) if adapters else {}),
            **(_gpu_arguments(config) if on_gpu else _cpu_arguments(config, context_length)),
            **config.vllm.engine_args,
        }
        if not on_gpu:
            torch._dynamo.config.disable = True  # a minute of compiling for functions that take microseconds
        try:
            with bars.hidden(not arguments["use_tqdm_on_load"]):
                self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except Exception as error:  # the boundary to vLLM, which has no class of errors of its own
            raise BackendError(f"vLLM's engine does not start: {first_line(error)}; {_remedy(error)}") from error

    def load(self, weights: Weights) -> None:
        """Generate with these weights from now on. Nothing may be in flight."""
        if weights is self._held:
            return
        if self._asleep:
            torch.cuda.empty_cache()  # what the trainer's allocator keeps for itself
            self._engine.wake_up(["weights"])
        if weights.tensors is not None:
            self._replace(weights.tensors)
        if self._asleep:
            self._engine.wake_up(["kv_cache"])
            self._asleep = False
        # What the cache of prompts holds is told apart by an adapter's name alone, so each version has its own.
        self._adapters = {
            policy: LoRARequest(f"{policy}@{weights.number}", place, str(folder))
            for place, (policy, folder) in enumerate(weights.adapters.items(), start=1)
        }
        for adapter in self._adapters.values():
            # In place only here: a request that says so would load the adapter anew at each of its steps.
            self._engine.add_lora(LoRARequest(adapter.lora_name, adapter.lora_int_id, adapter.path, load_inplace=True))
        self._held = weights

    def _replace(self, tensors: Mapping[str, Tensor]) -> None:
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        if current_platform.is_cpu():
            self._engine.apply_model(_pack_heads)

    def sleep(self) -> None:
        """Leave the GPU's memory to the trainer. Nothing may be in flight."""
        if not self._sleeps or self._asleep:
            return
        try:
            self._engine.sleep(self._sleep_level)
        except AssertionError as error:  # vLLM compares what is free on the card before and after
            if "increased" not in str(error):
                raise
            raise BackendError(f"{first_line(error)} {_SHARED_CARD}") from error
        self._asleep, self._held = True, None

    def add(self, name: str, request: Request) -> None:
        """Begin a reply, with the weights that are held. Raises PolicyError where vLLM refuses the request."""
        # The salt keeps apart what the cache of prompts holds of several sets of weights: it need not be emptied.
        salt = "" if self._held is None else str(self._held.number)
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": salt}
        adapter = self._adapters.get(request.policy)
        try:
            parameters = request_parameters(request.sampling, request.stop_ids, grows=request.told is not None)
            self._engine.add_request(name, prompt, parameters, lora_request=adapter)
        except (ValueError, VLLMValidationError) as error:
            raise PolicyError(f"vLLM refuses a request: {first_line(error)}") from error

    def abort(self, names: Sequence[str]) -> None:
        """Forget replies that have begun."""
        self._engine.abort_request(list(names))

    def step(self) -> list[tuple[str, Reply | Growing]]:
        """One token or more for what is in flight; the replies that ended with it, and those that grow."""
        outputs = self._engine.step()
        return [(output.request_id, read_reply(output) if output.finished else growing(output)) for output in outputs]

    def close(self) -> None:
        """Where it slept, the GPU's memory comes back with the end of the process alone, and so no other engine that
        sleeps may be started in it."""
        if self._sleeps:
            # Memory that sleeps is not mapped. To free it is an error of CUDA.
            with contextlib.suppress(Exception):  # there may be no room to map it
                get_mem_allocator_instance().wake_up()
        try:
            self._engine.engine_core.shutdown()
        except Exception as error:  # noqa: BLE001  of an engine that failed: what it failed of is told already
            log.info("vLLM's engine did not end well: %s", first_line(error))


def _gpu_arguments(config: RunConfig) -> dict[str, Any]:
    # Without asynchronous scheduling no step is under way while weights change.
    return {"gpu_memory_utilization": config.vllm.memory, "async_scheduling": False}


def _adapter_arguments(config: RunConfig, adapters: int) -> dict[str, Any]:
    rank = config.torch.lora_rank or 0
    return {
        "enable_lora": True,
        "max_lora_rank": min((known for known in get_args(MaxLoRARanks) if known >= rank), default=rank),
        # One place more than adapters: on a CPU a request without an adapter reads the last, which must stay empty.
        "max_loras": adapters + 1,
        "max_cpu_loras": adapters + 1,
    }


def _cpu_arguments(config: RunConfig, context_length: int) -> dict[str, Any]:
    return {
        "kv_cache_memory_bytes": int(_CPU_CACHE_GB * 1e9),
        "enforce_eager": True,  # compiling takes minutes and gains little
        # A seeded request whose prompt is read in parts turns its generator back, which a CPU's generator refuses.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context_length, _CPU_BATCHED_TOKENS),
    }


def _pack_heads(model: torch.nn.Module) -> None:
    """On a CPU an output layer that is tied to the embeddings multiplies by a packed copy, which no reload renews."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def _remedy(error: Exception) -> str:
    if "one instance per process" in str(error):
        return "one engine was in this process before: start another process, or set vllm.sleep=false"
    if "memory" in str(error).lower() or "cache" in str(error).lower():
        size = "vllm.engine_args.kv_cache_memory_bytes" if current_platform.is_cpu() else "vllm.memory"
        return f"change {size}, or lower vllm.max_length or vllm.max_num_seqs"
    return "`coachrl doctor --backend vllm` says what is missing; vllm.engine_args are passed to vLLM as they are"
