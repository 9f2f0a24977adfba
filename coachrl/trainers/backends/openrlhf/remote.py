"""What coachrl does inside OpenRLHF's actors, between the calls of their own methods.

Each function is sent to an actor, those but the last to every process of a policy's trainer group, and gets the actor
itself. OpenRLHF's code stays as it is: these use the engine, strategy and trainer that the actor holds.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

TAG = "state"  # DeepSpeed keeps a checkpoint in a folder of this name, beside a file that names it


def prepare_update(actor: Any, steps_per_update: int, samples_per_step: int, seed: int) -> None:
    """Cut the samples that were handed over into optimizer steps of `samples_per_step` over all ranks.

    DeepSpeed counts micro-batches from its start; it begins at zero here, since the number of one step changes. The
    seed orders the samples: a resumed run orders them alike.
    """
    import torch

    engine = actor.actor.model
    held = len(actor.trainer.replay_buffer) * engine.dp_world_size
    if held != steps_per_update * samples_per_step:
        raise RuntimeError(f"{held} samples were handed over, not {steps_per_update} x {samples_per_step}")
    engine.set_train_batch_size(samples_per_step)
    engine.micro_steps = 0
    accumulation = engine.gradient_accumulation_steps()
    engine.optimizer.gradient_accumulation_steps = accumulation
    actor.strategy.accumulated_gradient = accumulation
    engine.optimizer.step = partial(sound_step, engine.optimizer)
    if hasattr(engine.optimizer, "get_all_grad_tensors"):  # ZeRO-2
        engine.optimizer.get_all_grad_tensors = partial(gradients_to_add_to, engine.optimizer)
    torch.manual_seed(seed)


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
    import torch

    found = [torch.isfinite(torch.stack(tensor.aminmax())).all() for tensor in tensors if tensor.numel()]
    broken = torch.tensor(float(not all(found)), device=torch.cuda.current_device())
    torch.distributed.all_reduce(broken)
    return not broken.item()


def use_mean_likelihood(actor: Any) -> None:
    """Train with the loss of `MeanLikelihood`."""
    from coachrl.trainers.backends.openrlhf.loss import MeanLikelihood

    actor.trainer.actor_loss_fn = MeanLikelihood()


def save_policy(actor: Any, folder: str) -> None:
    """Hugging Face weights and tokenizer in `folder`, DeepSpeed's state in `folder`/deepspeed."""
    actor.strategy.save_model(actor.actor, actor.tokenizer, folder)
    actor.strategy.save_ckpt(actor.actor.model, str(Path(folder) / "deepspeed"), TAG, max_num=1, max_mem=float("inf"))


def load_policy(actor: Any, folder: str) -> bool:
    """Restore DeepSpeed's state; whether it was there."""
    path, _ = actor.strategy.load_ckpt(actor.actor.model, str(Path(folder) / "deepspeed"), TAG)
    return path is not None


def attach_engines(actor: Any, engines: list[Any]) -> None:
    """Send weights to these engines from now on. The first rank forms the group that they are sent through."""
    import torch

    actor.vllm_engines = actor.trainer.vllm_engines = engines
    if torch.distributed.get_rank() == 0 and not actor.trainer.use_cuda_ipc:
        actor.trainer._init_vllm_sync_group(actor.strategy.args.vllm.sync_backend)


def has_failed(actor: Any) -> bool:
    """Whether the process that vLLM started in an engine has died; the actor itself lives on then."""
    return bool(actor.llm.errored)
