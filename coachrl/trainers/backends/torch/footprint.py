"""How much memory the embedded backend takes, from the number of weights alone."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.config import TorchConfig
from coachrl.machine import machine_mb

_WEIGHT, _MOMENTS, _GRADIENT = 4, 8, 4  # bytes: float32, AdamW's two of them, float32


def copy_bytes(settings: TorchConfig) -> int:
    """Of each weight of a model that generates."""
    return 2 if settings.precision == "bfloat16" else 4


def trained_bytes(settings: TorchConfig, counts: Sequence[int], offload: bool) -> int:
    """The most that trained policies of so many weights take, without what depends on the batch.

    counts: weights of each policy. While they generate there is a copy of each; while they train there are gradients of
    one policy, and with `offload` the optimizer's state of that one alone. Adapters are too few to count; those that
    share a base take nothing but the frozen copy of it, which is not counted here.
    """
    if not counts or settings.share_base:
        return 0
    generating = (_WEIGHT + copy_bytes(settings)) * sum(counts)
    if settings.lora_rank is not None:
        return generating
    resting = 0 if offload else _MOMENTS * sum(counts)
    training = _WEIGHT * sum(counts) + (resting or _MOMENTS * max(counts)) + _GRADIENT * max(counts)
    return max(generating + resting, training)


def offloads_optimizer(settings: TorchConfig, counts: Sequence[int]) -> bool:
    """Whether the optimizers' state of policies of so many weights lies in files, on the CPU."""
    if settings.offload_optimizer != "auto":
        return settings.offload_optimizer
    if settings.device not in ("auto", "cpu"):
        return False
    return trained_bytes(settings, counts, offload=False) > machine_mb() * 2**20 / 2
