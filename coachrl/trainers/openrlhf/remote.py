"""What coachrl does inside OpenRLHF's actors, between the calls of their own methods.

Each function is sent to an actor, those but the last to every process of a policy's trainer group, and gets the actor
itself. OpenRLHF's code stays as it is: these use the engine, strategy and trainer that the actor holds.
"""

from __future__ import annotations

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
    torch.manual_seed(seed)


def use_mean_likelihood(actor: Any) -> None:
    """Train with the loss of `MeanLikelihood`."""
    from coachrl.trainers.openrlhf.loss import MeanLikelihood

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
