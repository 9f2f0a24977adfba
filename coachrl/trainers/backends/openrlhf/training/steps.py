"""Optimizer steps of one policy, as each of its DeepSpeed processes takes them: samples in, statistics out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coachrl.trainers.backends.base import advantages_of
from coachrl.trainers.backends.torch.loss import ClipRanges, Loss, Totals
from coachrl.trainers.backends.torch.packed import PackedBatch, pack
from coachrl.types import TrainSample


@dataclass(frozen=True)
class RankStep:
    """One optimizer step on one rank. micro_batches: samples that run together; one without any is run where other
    ranks have more. divisor: by which the sum of all ranks' losses is divided, their tokens or samples."""

    micro_batches: tuple[tuple[TrainSample, ...], ...]
    divisor: float


def train_policy(
    actor: Any, steps: Sequence[RankStep], loss: Loss, clip: ClipRanges, learning_rate: float
) -> dict[str, float]:
    """One optimizer step after another. Statistics over the tokens of all ranks, named as the torch backend's."""
    torch.cuda.empty_cache()
    device, engine, totals, norm = torch.cuda.current_device(), actor.actor.model, Totals(), 0.0
    suspects: list[str] = []
    actor.actor.train()
    for number, step in enumerate(steps):
        begin_step(engine, len(step.micro_batches), suspects)
        set_learning_rate(engine, learning_rate)
        # DeepSpeed takes the mean over ranks and micro-batches.
        scale = engine.dp_world_size * len(step.micro_batches) / step.divisor
        for samples in step.micro_batches:
            batch = pack(samples, device)
            logprobs_N, entropy_N = actor.response_logprobs(engine, batch)
            loss_sum = totals.add(batch, logprobs_N, entropy_N, loss, clip, first=number == 0)
            totals.sums["loss"] += float(loss_sum.detach() / step.divisor)
            if not torch.isfinite(loss_sum):
                suspects += not_numbers(batch, logprobs_N.detach())
            engine.backward(loss_sum * scale)
            engine.step()
        norm += float(engine.get_global_grad_norm())
    torch.cuda.empty_cache()
    add_other_ranks(totals, device)
    return {**totals.means(len(steps)), "grad_norm": norm / len(steps)}


def set_learning_rate(engine: Any, learning_rate: float) -> None:
    """Of the next optimizer step alone: behind it DeepSpeed's schedule, which is constant, sets that of the arguments
    again."""
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate


def add_other_ranks(totals: Totals, device: Any) -> None:
    """All ranks together: each then has the sums of all."""
    sums = torch.tensor(list(totals.sums.values()), dtype=torch.float64, device=device)
    torch.distributed.all_reduce(sums)
    totals.sums = dict(zip(totals.sums, sums.tolist(), strict=True))


def not_numbers(batch: PackedBatch, logprobs_N: Tensor) -> list[str]:
    """What is not finite among that which the losses of a batch are made of, in words."""
    found = []
    for sample, chosen, logprobs in zip(batch.samples, batch.selected, batch.split(logprobs_N), strict=True):
        parts = {
            "advantage": advantages_of(sample)[chosen],
            "log-probability by the engine": sample.old_logprobs_L[chosen],
            "log-probability by the trainer": logprobs,
        }
        broken = [f"{value} is its {name}" for name, values in parts.items() for value in _first_broken(values)]
        found += [f"action {sample.action_id}: {text}" for text in broken]
    return found


def _first_broken(values: NDArray[np.float32]) -> list[float]:
    return [float(value) for value in values if not np.isfinite(value)][:1]


def _of_all_ranks(suspects: Sequence[str]) -> str:
    """The suspects of every rank, for an error that all of them raise; empty where there are none."""
    of_ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(of_ranks, list(suspects))
    named = [text for of_rank in of_ranks for text in of_rank]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f" ({'; '.join(named[:3])}{more})" if named else ""


def begin_step(engine: Any, micro_batches: int, suspects: Sequence[str] = ()) -> None:
    """The next optimizer step is that of so many micro-batches. DeepSpeed counts them from its start; it begins at zero
    here, since their number changes from one step to the next. suspects: what `not_numbers` will have said of them by
    then."""
    engine.set_train_batch_size(micro_batches * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
    engine.micro_steps = 0
    forget_gradient(engine.optimizer)
    engine.optimizer.gradient_accumulation_steps = micro_batches
    engine.optimizer.step = partial(sound_step, engine.optimizer, suspects)
    if hasattr(engine.optimizer, "get_all_grad_tensors"):  # ZeRO-2
        engine.optimizer.get_all_grad_tensors = partial(gradients_to_add_to, engine.optimizer)


def forget_gradient(optimizer: Any) -> None:
    """What a step that was not taken left behind: DeepSpeed would add to it, and so fail ever after."""
    optimizer.zero_grad(set_to_none=True)
    optimizer.averaged_gradients = {}
    if hasattr(optimizer, "all_grad_tensors"):  # ZeRO-2, which counts its micro-batches from -1
        optimizer.all_grad_tensors, optimizer.micro_step_id = {}, -1


def gradients_to_add_to(optimizer: Any, parameters: list[Any], dtype: Any) -> list[Any]:
    """DeepSpeed's gradients of one micro-batch, in the type in which they are to be summed. Its ZeRO-2 knows that type
    and keeps those of the first micro-batch in bfloat16, into which it adds all others."""
    found = type(optimizer).get_all_grad_tensors(optimizer, parameters, dtype)
    return [gradient.to(dtype) for gradient in found]


def sound_step(optimizer: Any, suspects: Sequence[str] = ()) -> None:
    """DeepSpeed's optimizer step, where every rank's part of the gradient is finite, and of the weights afterwards.

    DeepSpeed does not tell: ZeRO-3 steps with NaN and reports a norm that is finite, ZeRO-2 leaves the step out and
    reports the norm of the step before. All ranks agree first, so that all of them step or none. Raises
    FloatingPointError, with the suspects of all ranks.
    """
    advice = "go on from the last checkpoint, with a lower train.learning_rate"
    if not _finite_everywhere(_own_gradients(optimizer)):
        why = _of_all_ranks(suspects)
        raise FloatingPointError(f"a gradient is not finite, so no step was taken with it{why}; {advice}")
    type(optimizer).step(optimizer)
    if not _finite_everywhere(_own_weights(optimizer)):
        raise FloatingPointError(f"weights are not finite after a step; {advice}")


def _own_weights(optimizer: Any) -> list[Any]:
    """This rank's float32 partition: ZeRO-3 and ZeRO-2 name it differently."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return list(optimizer.fp32_partitioned_groups_flat)
    return list(optimizer.single_partition_of_fp32_groups)


def _own_gradients(optimizer: Any) -> list[Any]:
    """What this rank is about to step with: lies beside the float32 partition where the optimizer is in main memory."""
    beside = [weights.grad for weights in _own_weights(optimizer) if weights.grad is not None]
    return beside + [grad for group in optimizer.averaged_gradients.values() for grad in group or ()]


def _finite_everywhere(tensors: list[Any]) -> bool:
    """Whether all ranks found their tensors finite. The extremes tell, and need no memory: NaN is both of them."""
    found = [torch.isfinite(torch.stack(tensor.aminmax())).all() for tensor in tensors if tensor.numel()]
    broken = torch.tensor(float(not all(found)), device=torch.cuda.current_device())
    torch.distributed.all_reduce(broken)
    return not broken.item()
