"""The sections of the backends that generate and train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from coachrl.config.section import Resumable, Section

# Arguments of vLLM's engine that a backend must know too, or that only one value is right of.
_DECIDED = {
    "model": "policies.NAME.model names it",
    "logprobs_mode": "an update needs log-probabilities of the distribution that replies are drawn from",
}


def _refuse_decided(given: Mapping[str, Any], decided: Mapping[str, str]) -> None:
    """Raises ValueError where `engine_args` hold what something else decides."""
    for name, by in {**_DECIDED, **decided}.items():
        if name in given:
            raise ValueError(f"{name} is not for engine_args: {by}")


class TorchConfig(Section):
    """The embedded backend: one process, on the CPU or on one GPU. Its trainer is that of backend=vllm too."""

    device: str = Field("auto", description="The torch device: cpu, cuda, …; auto takes a GPU where there is one.")
    generation_batch: int = Field(
        64, ge=1, description="At most this many replies are drawn side by side; others join as these end."
    )
    micro_batch_tokens: int = Field(
        1024,
        ge=64,
        description="One forward and backward pass takes at most this many tokens, padding included. Memory grows "
        "with it; figures differ by rounding alone. Larger passes are faster: on a CPU 2048 take a seventh less time "
        "than 768.",
    )
    gradient_checkpointing: Resumable[bool] = Field(
        False,
        description="In training, activations are computed again in the backward pass in place of being kept: a third "
        "more work, and far less memory for long samples. No result changes.",
    )
    precision: Literal["bfloat16", "float32"] = Field(
        "bfloat16",
        description="The precision of generation and of forward passes (autocast). Weights, gradients and the "
        "optimizer's state are float32 in any case.",
    )
    compile: Resumable[bool] = Field(
        False,
        description="Compile the decoder layers for the update, which takes about a tenth less time and less memory "
        "then, on a GPU a tenth to a sixth less time and about a third less memory. Compiling takes half a minute for "
        "the first time and some seconds in later runs; on a CPU it needs a C++ compiler, on a GPU Triton. Results "
        "differ by rounding. Not with lora_rank.",
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        description="Adapters of this rank are trained in every linear layer but the output layer (LoRA), by every "
        "backend. By default all weights are trained.",
    )
    lora_alpha: int = Field(32, ge=1, description="With lora_rank, adapters are scaled by lora_alpha / lora_rank.")
    share_base: bool = Field(
        False,
        description="With lora_rank, all policies that begin from one model are adapters over one frozen copy of it, "
        "which generates, trains and is the KL penalty's reference. Checkpoints are adapter folders of peft's form. "
        "By default each policy has a copy of its own, which generates faster and takes more memory.",
    )
    offload_optimizer: Resumable[Literal["auto"] | bool] = Field(
        "auto",
        description="On the CPU, keep the optimizer's state in a file, of which memory holds that of the policy being "
        "trained; nothing else changes. auto does so where weights and optimizers of all policies would take more than "
        "half of the machine's memory.",
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="The number of threads that torch uses on the CPU. By default torch decides, within the quota of a "
        "container.",
    )

    @model_validator(mode="after")
    def _adapters_fit_together(self) -> TorchConfig:
        if self.share_base and self.lora_rank is None:
            raise ValueError(
                "share_base shares a frozen model between adapters: set torch.lora_rank too, for example to 16"
            )
        if self.compile and self.lora_rank is not None:
            raise ValueError("compile takes layers whose own weights are trained: leave out torch.lora_rank or compile")
        return self


class VllmConfig(Section):
    """The backend of one process: a vLLM engine that all policies use in turn, beside the embedded backend's trainer,
    whose settings are those of `torch`."""

    memory: float = Field(
        0.5, gt=0, lt=1, description="The share of the GPU's memory that the engine takes while it generates."
    )
    sleep: bool = Field(
        True, description="The engine leaves the GPU's memory while policies train, where they train on its GPU."
    )
    max_length: int | None = Field(
        None, ge=2, description="Prompt and reply have at most this many tokens. By default it is the model's context."
    )
    max_num_seqs: int = Field(
        256, ge=1, description="At most this many replies are drawn side by side; others join as these end."
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's engine, which are passed on as they are."
    )
    start_timeout_s: Resumable[float] = Field(
        1800.0, gt=0, description="Within so many seconds the engine must have started."
    )
    answer_timeout_s: Resumable[float] = Field(
        1800.0,
        gt=0,
        description="Within so many seconds the engine must be done with each thing that it does: a pass over the "
        "requests in flight, taking new weights, leaving the GPU's memory. A run that waits longer ends with a "
        "checkpoint, and says for what.",
    )

    @field_validator("engine_args")
    @classmethod
    def _stays_in_one_process(cls, given: dict[str, Any]) -> dict[str, Any]:
        _refuse_decided(given, {"max_model_len": "set vllm.max_length"})
        for name in given:
            if name.endswith("parallel_size") and given[name] != 1:
                raise ValueError(f"{name}: the engine runs in one process, on one GPU; backend=openrlhf uses several")
        return given


class OpenRLHFConfig(Section):
    """The distributed backend: Ray, vLLM engines and DeepSpeed trainers, a set of each for every policy."""

    ray_address: Resumable[str | None] = Field(
        None,
        description="host:port of a running Ray cluster, or auto. By default $RAY_ADDRESS is used, else Ray is "
        "started on this machine.",
    )
    colocate: bool = Field(
        True, description="All processes of all policies share the same GPUs; else each process has its own."
    )
    gpus: Resumable[int] = Field(
        1, ge=1, description="The number of trainer GPUs: of all policies together with colocate, else of each policy."
    )
    engines: Resumable[int | None] = Field(
        None,
        ge=1,
        description="The number of vLLM engines of each policy. By default engines fill gpus: with colocate those of "
        "all policies together, one on each GPU as far as they go; else those of each policy.",
    )
    tensor_parallel: int = Field(1, ge=1, description="The number of GPUs that one vLLM engine spreads over.")
    engine_memory: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="The share of a GPU's memory that engines take, split evenly between those on it.",
    )
    sleep: bool = Field(
        True,
        description="With colocate, engines leave GPU memory while the run trains, and optimizers while it generates.",
    )
    sleep_level: Resumable[Literal[1, 2]] = Field(
        1,
        description="What engines of trained policies do with their weights while they sleep: 1 keeps them in main "
        "memory, 2 throws them away, and trainers send them before the engine generates again. No card has met 2 yet.",
    )
    max_length: int | None = Field(
        None, ge=2, description="Prompt and reply have at most this many tokens. By default it is the model's context."
    )
    zero_stage: Literal[2, 3] = Field(
        3, description="The stage of DeepSpeed ZeRO: 2 shards optimizer and gradients, 3 shards the weights too."
    )
    adam_offload: bool = Field(
        False, description="The optimizer's state is kept in main memory, and the optimizer steps there."
    )
    gradient_checkpointing: bool = Field(
        True, description="Activations are computed again in the backward pass in place of being kept."
    )
    attention: str = Field(
        "auto",
        description="The trainers' attention, by its name in transformers, e.g. sdpa. auto takes flash_attention_2 "
        "where flash-attn is installed, and else sdpa.",
    )
    micro_batch_tokens: int = Field(
        8192,
        ge=64,
        description="One forward and backward pass on one GPU takes at most this many tokens, of one sample or of "
        "several one behind another. A longer sample has a pass to itself. Memory grows with it; figures "
        "differ by rounding alone.",
    )
    one_step_off: bool = Field(
        False,
        description="The next step's episodes are played while this step trains, with weights that are one update old.",
    )
    prefix_caching: bool = Field(True, description="Engines reuse the cache of prompts that begin alike.")
    max_num_seqs: int = Field(
        256, ge=1, description="The number of requests that one engine works on at once; further ones wait in it."
    )
    max_num_batched_tokens: int = Field(
        8192,
        ge=1,
        description="The number of tokens that one engine runs in one pass: long prompts are read in parts of it.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's engines, which are passed on as they are."
    )
    start_timeout_s: Resumable[float] = Field(
        1800.0,
        gt=0,
        description="Within so many seconds all GPUs must be granted, all models loaded, and new weights sent.",
    )
    answer_timeout_s: Resumable[float] = Field(
        3600.0,
        gt=0,
        description="Within so many seconds an engine must answer a request, and a policy's processes whatever else "
        "they are asked: an update, log-probabilities, a checkpoint. A run that waits longer ends, and says for whom.",
    )

    @property
    def sleeps(self) -> bool:
        """Whether engines and optimizers take turns in GPU memory."""
        return self.colocate and self.sleep

    @field_validator("engine_args")
    @classmethod
    def _is_sent_weights(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Trainers wait for ever for an engine that spreads over more GPUs than they know of, or over fewer."""
        spreads = [name for name in given if name.endswith("parallel_size") and given[name] != 1]
        decided = {
            **dict.fromkeys(spreads, "engines spread over GPUs by openrlhf.tensor_parallel alone"),
            "tensor_parallel_size": "set openrlhf.tensor_parallel",
            "max_model_len": "set openrlhf.max_length",
            "enable_prefix_caching": "set openrlhf.prefix_caching",
        }
        _refuse_decided(given, decided)
        return given

    @field_validator("ray_address")
    @classmethod
    def _names_a_port(cls, given: str | None) -> str | None:
        """Ray would try one that does not for minutes, and one of its dashboard or of Ray Client (http://, ray://) is
        none of the cluster itself. An empty one is none."""
        host, _, port = (given or "").rpartition(":")
        is_place = host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536
        if given in (None, "", "auto", "local") or is_place:
            return given or None
        raise ValueError("it is the host and the port of a Ray cluster, as 10.0.0.1:6379, or auto, or local")

    @model_validator(mode="before")
    @classmethod
    def _adapters_are_set_elsewhere(cls, given: Any) -> Any:
        if isinstance(given, dict) and any(str(key).startswith("lora") for key in given):
            raise ValueError("adapters are set by torch.lora_rank and torch.lora_alpha, for every backend")
        return given

    @model_validator(mode="after")
    def _throws_away_what_is_sent_again(self) -> OpenRLHFConfig:
        if self.sleep_level == 1:
            return self
        if not self.sleeps:
            raise ValueError("sleep_level=2 is for engines that sleep: set openrlhf.colocate=true and sleep=true")
        for name in ("speculative_config", "quantization"):
            if self.engine_args.get(name):
                raise ValueError(
                    f"sleep_level=2 throws away what engine_args.{name} makes, which no trainer sends again: "
                    f"set openrlhf.sleep_level=1"
                )
        return self

    @model_validator(mode="after")
    def _generates_beside_training(self) -> OpenRLHFConfig:
        if self.one_step_off and self.colocate:
            raise ValueError(
                "one_step_off generates while it trains, so engines need GPUs of their own: set openrlhf.colocate=false"
            )
        return self
