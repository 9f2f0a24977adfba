"""Optimizer steps of one policy, as each of its DeepSpeed processes takes them: samples in, statistics out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coachrl.trainers.backends.openrlhf.logprobs import PackedBatch, pack
from coachrl.trainers.backends.torch.loss import Loss, batch_loss
from coachrl.types import TrainSample


@dataclass(frozen=True)
class RankStep:
    """One optimizer step on one rank. micro_batches: samples that run together; one without any is run where other
    ranks have more. divisor: by which the sum of all ranks' losses is divided, their tokens or samples."""

    micro_batches: tuple[tuple[TrainSample, ...], ...]
    divisor: float


def train_policy(actor: Any, steps: Sequence[RankStep], loss: Loss, clip_range: float) -> dict[str, float]:
    """One optimizer step after another. Statistics over the tokens of all ranks, named as the torch backend's."""
    torch.cuda.empty_cache()
    engine, totals, norm = actor.actor.model, Totals(torch.cuda.current_device()), 0.0
    actor.actor.train()
    for number, step in enumerate(steps):
        begin_step(engine, len(step.micro_batches))
        # DeepSpeed takes the mean over ranks and micro-batches.
        scale = engine.dp_world_size * len(step.micro_batches) / step.divisor
        for samples in step.micro_batches:
            batch = pack(samples, torch.cuda.current_device())
            logprobs_N, entropy_N = actor.response_logprobs(engine, batch)
            loss_sum = totals.add(batch, logprobs_N, entropy_N, step.divisor, loss, clip_range, first=number == 0)
            engine.backward(loss_sum * scale)
            engine.step()
        norm += float(engine.get_global_grad_norm())
    torch.cuda.empty_cache()
    return {**totals.means(len(steps)), "grad_norm": norm / len(steps)}


class Totals:
    """Sums over the tokens of one rank, and means over those of all. The first step's gap between sampler and trainer
    costs nothing: the weights are still those that were sampled with."""

    NAMES = ("loss", "clip_fraction", "approx_kl", "entropy", "tokens", "sampler_trainer_logprob_gap", "first_tokens")

    def __init__(self, device: Any) -> None:
        self._sums = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)

    def add(
        self,
        batch: PackedBatch,
        logprobs_N: Tensor,
        entropy_N: Tensor,
        divisor: float,
        loss: Loss,
        clip_range: float,
        first: bool,
    ) -> Tensor:
        """The loss of one micro-batch, summed over its tokens."""
        loss_sum, sums = batch_loss(batch, logprobs_N, entropy_N, loss, clip_range)
        sums["loss"] = float(loss_sum.detach() / divisor)
        sums["first_tokens"] = sums["tokens"]
        if not first:
            sums["sampler_trainer_logprob_gap"] = sums["first_tokens"] = 0.0
        self._sums += torch.tensor([sums[name] for name in self.NAMES]).to(self._sums)
        return loss_sum

    def means(self, steps: int) -> dict[str, float]:
        """Of all ranks: each of them gets the same."""
        torch.distributed.all_reduce(self._sums)
        sums = dict(zip(self.NAMES, self._sums.tolist(), strict=True))
        tokens, first_tokens = sums.pop("tokens"), sums.pop("first_tokens")
        counts = {"loss": steps, "sampler_trainer_logprob_gap": first_tokens}
        return {name: value / counts.get(name, tokens) for name, value in sums.items()}


def begin_step(engine: Any, micro_batches: int) -> None:
    """The next optimizer step is that of so many micro-batches. DeepSpeed counts them from its start; it begins at zero
    here, since their number changes from one step to the next."""
    engine.set_train_batch_size(micro_batches * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
    engine.micro_steps = 0
    engine.optimizer.gradient_accumulation_steps = micro_batches
    engine.optimizer.step = partial(sound_step, engine.optimizer)
    if hasattr(engine.optimizer, "get_all_grad_tensors"):  # ZeRO-2
        engine.optimizer.get_all_grad_tensors = partial(gradients_to_add_to, engine.optimizer)


def gradients_to_add_to(optimizer: Any, parameters: list[Any], dtype: Any) -> list[Any]:
    """DeepSpeed's gradients of one micro-batch, in the type in which they are to be summed. Its ZeRO-2 knows that type
    and keeps those of the first micro-batch in bfloat16, into which it adds all others."""
    found = type(optimizer).get_all_grad_tensors(optimizer, parameters, dtype)
    return [gradient.to(dtype) for gradient in found]


def sound_step(optimizer: Any) -> None:
    """DeepSpeed's optimizer step, where every rank's part of the gradient is finite, and of the weights afterwards.

    DeepSpeed does not tell: ZeRO-3 steps with NaN and reports a norm that is finite, ZeRO-2 leaves the step out and
    reports the norm of the step before. All ranks agree first, so that all of them step or none. Raises
    FloatingPointError.
    """
    advice = "go on from the last checkpoint, with a lower train.learning_rate"
    if not _finite_everywhere(_own_gradients(optimizer)):
        raise FloatingPointError(f"a gradient is not finite, so no step was taken with it; {advice}")
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
