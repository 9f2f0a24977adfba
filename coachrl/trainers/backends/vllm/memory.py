"""How much of one GPU a run with `backend: vllm` takes, worked out before it starts. Plain arithmetic, of estimates:
one H200 held 83.4 GB while it generated with three models of 135M, where this says 81.7 (benchmarks/README.md).

In bytes for each weight, of what lies beside the engine; frozen copies (of references, and of policies that are not
trained) take 2 more where they are needed:

| | |
|---|---|
| all weights are trained | 4, AdamW 8, 2 handed over; of the policy that trains, gradients 4 and autocast's copy 2 |
| adapters, a model for each policy | 4, 2 handed over |
| adapters over one base | 2 for all policies together |

Of each weight of an adapter it is 16: weights, gradients and AdamW in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coachrl.config import RunConfig
from coachrl.trainers.backends.openrlhf.cluster.memory import (
    ENGINE_GB,
    PINNED,
    PROCESS_GB,
    ModelShape,
    judged,
    kept_line,
)

_REMEDY = "vllm.max_length, torch.micro_batch_tokens or vllm.memory"
_CHECKPOINTING = "torch.gradient_checkpointing=true"


@dataclass(frozen=True)
class OneGpuPlan:
    """Gigabytes (10^9) by what happens. beside_gb: what the trainer holds whatever happens. cached_tokens: what the
    engine keeps; longest: tokens of the longest sample. main_gb: of main memory.
    remedy: what makes training smaller."""

    card_gb: float
    beside_gb: float
    generating_gb: float
    training_gb: float
    cached_tokens: int
    longest: int
    main_gb: float
    remedy: str

    def lines(self) -> list[str]:
        """For people."""
        card = f"of {self.card_gb:.0f} GB"
        training = f"training one policy at {self.longest:,} tokens: {self.training_gb:.0f} {card}"
        return [
            f"weights, optimizers and adapters of the trainer: {self.beside_gb:.1f} {card}",
            judged(f"generating: {self.generating_gb:.0f} {card}", self.generating_gb, self.card_gb, "vllm.memory"),
            judged(training, self.training_gb, self.card_gb, self.remedy),
            kept_line("the engine", self.cached_tokens, self.longest, "vllm.memory"),
            *([f"main memory: {self.main_gb:.0f} GB"] if self.main_gb else []),
        ]


def plan_one_gpu(
    config: RunConfig, shapes: Mapping[str, ModelShape], trained: int, reference: bool, card_gb: float
) -> OneGpuPlan:
    """shapes: of every policy's model, which are of one shape. trained: how many policies are. reference: whether a
    frozen copy of the initial weights is kept. card_gb: memory of the GPU."""
    shape = next(iter(shapes.values()))
    longest = min(shape.context, config.vllm.max_length or shape.context)
    adapter_gb = 16 * shape.adapter_parameters(config.torch.lora_rank or 0) / 1e9
    if config.torch.share_base:
        beside, moving = shape.weights_gb + trained * adapter_gb, 0.0
    else:
        each, moving = (6, 0) if config.torch.lora_rank is not None else (14, 6)
        frozen = 2 * (reference + bool(len(shapes) - trained))
        beside = (trained * each + frozen) * shape.parameters / 1e9 + trained * adapter_gb
        moving = (moving if trained else 0) * shape.parameters / 1e9
    tokens = max(longest, config.torch.micro_batch_tokens)
    engine_gb = config.vllm.memory * card_gb
    slots_gb = (trained + 1) * adapter_gb / 8 if config.torch.share_base else 0.0  # in bfloat16
    room_gb = engine_gb - shape.weights_gb - slots_gb - ENGINE_GB
    activations_gb = shape.activations_gb(tokens, config.torch.gradient_checkpointing)
    asleep_gb = PROCESS_GB if config.vllm.sleep else engine_gb
    return OneGpuPlan(
        card_gb=card_gb,
        beside_gb=beside,
        generating_gb=beside + engine_gb + PROCESS_GB,
        training_gb=beside + moving + activations_gb + asleep_gb + PROCESS_GB,
        cached_tokens=max(0, int(room_gb * 1e9 / shape.cache_bytes())),
        longest=longest,
        remedy=_REMEDY if config.torch.gradient_checkpointing else f"{_REMEDY}, or set {_CHECKPOINTING}",
        main_gb=shape.weights_gb * PINNED if config.torch.share_base and config.vllm.sleep else 0.0,
    )
