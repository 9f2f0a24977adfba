"""What coachrl does inside OpenRLHF's actors, between the calls of their own methods; optimizer steps are in `steps`.

Each function is sent to an actor and gets the actor itself: the first two to every trainer and every reference, the
last to an engine, the others to trainers alone. OpenRLHF's code stays as it is: these use the engine, strategy and
trainer that the actor holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from numpy.typing import NDArray

from coachrl.trainers.backends.openrlhf.training import adapters
from coachrl.trainers.backends.openrlhf.training.logprobs import ResponseLogprobs
from coachrl.trainers.backends.openrlhf.training.resharding import load_resharded
from coachrl.trainers.backends.torch.models.lora import write_adapter
from coachrl.trainers.backends.torch.packed import pack
from coachrl.trainers.samples import sample_alone
from coachrl.types import TrainSample

_ROUNDING = 0.1  # of log-probabilities in bfloat16, on average; what goes wrong moves them by ten times as much
TAG = "state"  # DeepSpeed keeps a checkpoint in a folder of this name, beside a file that names it


def use_response_logprobs(actor: Any, temperature: float) -> None:
    """Let a trainer or reference compute log-probabilities by `ResponseLogprobs`. Raises RuntimeError where the model
    does not give what OpenRLHF's own forward pass gives: where it changes logits behind its output layer, or does not
    keep samples apart that lie one behind another."""
    module = _actor_module(actor)
    samples = _made_up_samples(_model(actor).get_output_embeddings().out_features)
    expected = [_openrlhf_logprobs(module, sample) for sample in samples]
    actor.response_logprobs = ResponseLogprobs(_model(actor), temperature)
    gap = float(np.abs(np.concatenate(logprobs(actor, (samples,))) - np.concatenate(expected)).mean())
    torch.cuda.empty_cache()
    if not gap < _ROUNDING:
        raise RuntimeError(
            f"this model's log-probabilities differ by {gap:.2g} on average from those of samples by themselves: it "
            f"changes logits behind its output layer, or mixes samples of one row, and cannot be trained here"
        )


def logprobs(
    actor: Any, micro_batches: Sequence[tuple[TrainSample, ...]], of_base: bool = False
) -> list[NDArray[np.float32]]:
    """log pi of every response token, (L,) for each sample in the order of the micro-batches. of_base: of the model
    without its adapter, from which that began."""
    module, found = _actor_module(actor), []
    was_training = module.training
    module.eval()
    with torch.no_grad(), _model(actor).disable_adapter() if of_base else nullcontext():
        for samples in micro_batches:
            batch = pack(samples, torch.cuda.current_device(), all_tokens=True)
            values_N, _ = actor.response_logprobs(module.model, batch)
            found += batch.split(values_N)
    module.train(was_training)
    # What a process keeps in its own cache is missing when the engines beside it wake.
    torch.cuda.empty_cache()
    return found


def save_policy(actor: Any, folder: str) -> None:
    """Hugging Face weights and tokenizer in `folder`, or an adapter alone; DeepSpeed's state of what is trained in
    `folder`/deepspeed."""
    if adapters.has_adapter(_model(actor)):
        _save_adapter(actor, Path(folder))
    else:
        actor.strategy.save_model(actor.actor, actor.tokenizer, folder)
    actor.actor.model.save_checkpoint(str(Path(folder) / "deepspeed"), tag=TAG, exclude_frozen_parameters=True)


def load_policy(actor: Any, folder: str, scratch: str | None = None) -> bool:
    """Restore DeepSpeed's state; whether it was there. scratch: where it is converted, if another number of trainers
    wrote it."""
    engine, saved = actor.actor.model, Path(folder) / "deepspeed"
    whole = not adapters.has_adapter(_model(actor))  # else frozen weights are not in there
    if scratch is not None:
        return load_resharded(engine, saved, TAG, Path(scratch), whole)
    path, _ = engine.load_checkpoint(str(saved), TAG, load_module_strict=whole)
    return path is not None


def _save_adapter(actor: Any, folder: Path) -> None:
    """All ranks together: ZeRO-3 gathers it, and the first rank writes."""
    settings, model = actor.strategy.args.ds, _model(actor)
    matrices = adapters.matrices(model)
    with deepspeed.zero.GatheredParameters(list(matrices.values()), enabled=settings.zero_stage == 3):
        if torch.distributed.get_rank() == 0:
            # Copies: what was gathered lies in one piece of memory, which a file of several tensors may not share.
            copies = {name: matrix.detach().cpu().clone() for name, matrix in matrices.items()}
            write_adapter(folder, model.config.name_or_path, copies, settings.lora.rank, settings.lora.alpha)


def attach_engines(actor: Any, engines: list[Any]) -> None:
    """Send weights to these engines from now on. The first rank forms the group that they are sent through."""
    actor.vllm_engines = actor.trainer.vllm_engines = engines
    if torch.distributed.get_rank() == 0 and not actor.trainer.use_cuda_ipc:
        actor.trainer._init_vllm_sync_group(actor.strategy.args.vllm.sync_backend)


def has_failed(actor: Any) -> bool:
    """Whether the process that vLLM started in an engine has died, or draws garbage; the actor itself lives on then."""
    return bool(actor.llm.errored or actor.draws_garbage)


def _actor_module(actor: Any) -> Any:
    """OpenRLHF's `Actor`, of a trainer or of a reference."""
    return actor.actor if hasattr(actor, "actor") else actor.model


def _model(actor: Any) -> Any:
    """The model of transformers inside DeepSpeed's engine."""
    return _actor_module(actor).model.module


def _made_up_samples(vocabulary: int) -> tuple[TrainSample, ...]:
    """Two of different lengths."""
    draw = np.random.default_rng(0)
    return tuple(
        sample_alone(
            str(length),
            prompt_ids=draw.integers(vocabulary, size=4),
            response_ids=draw.integers(vocabulary, size=length),
            mask=np.ones(length),
        )
        for length in (12, 20)
    )


def _openrlhf_logprobs(module: Any, sample: TrainSample) -> NDArray[np.float32]:
    batch = pack([sample], torch.cuda.current_device(), all_tokens=True)
    whole = torch.ones_like(batch.ids_1T)
    with torch.no_grad():
        found = module(batch.ids_1T, whole[:, 1:], whole)
    return batch.split(found[0, batch.places_N])[0]
