"""Supervised warm start on demonstrations, for models that cannot start a pipeline from nothing.

Demonstrations are chat-form JSONL, one {"messages": [{"role": ..., "content": ...}, ...]} a line, of which all replies
of the assistant are learned, or {"prompt": [...], "completion": [...]}, of which the completion alone is: what stands
in a prompt (examples, earlier turns) may be nothing to learn from. They are turned into the very token ids that a
pipeline would show and sample.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from coachrl.config import RunConfig, SftConfig, TrainConfig
from coachrl.errors import ConfigError, PolicyError, TaskError
from coachrl.parsing import json_lines
from coachrl.pipelines.generation import Message
from coachrl.runs.locks import locked
from coachrl.storage.atomic import folder_aside
from coachrl.storage.files import read_text
from coachrl.text import brief, counted
from coachrl.trainers.backends.torch.backend import pick_device
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import TrainablePolicy
from coachrl.trainers.backends.torch.saved_state import is_finite
from coachrl.trainers.learning_rate import share_of_highest
from coachrl.trainers.samples import sample_alone
from coachrl.types import TrainSample

_ROLES = ("system", "user", "assistant")
_READ = ("role", "content")  # of a message
_NOTHING: tuple[Any, ...] = (None, "", [], {})
Learned = Literal["replies", "last reply"]


def run_sft(
    data_path: Path, model: str | Path, out_folder: Path, settings: SftConfig, log: Callable[[str], None]
) -> dict[str, float]:
    """Train `model` on the conversations of `data_path` and write a Hugging Face folder at `out_folder`.

    `log` gets a line every few steps. Returns losses in nats a token (`train_loss` of the last lines, `validation_loss`
    and `validation_loss_before`) and counts. `out_folder` appears whole or not at all. Raises TaskError for data that
    cannot be learned from (naming file and line), ConfigError for `out_folder`, PolicyError for the model, where
    nothing of a step fits into memory, and for weights or losses that come out as no numbers.
    """
    _check_free(out_folder)
    tokenizer = ChatTokenizer(model)
    samples = load_conversations(data_path, tokenizer, settings.max_length)
    training, validation = _split(samples, settings)
    policy = _policy(tokenizer.folder, settings)
    with contextlib.ExitStack() as ending:
        with _writing(out_folder):  # before training: a read-only disk, or another process's folder, then costs nothing
            out_folder.parent.mkdir(parents=True, exist_ok=True)
            lock = out_folder.absolute().with_name(f".{out_folder.name}.lock")
            ending.enter_context(locked(lock, "training", of=out_folder))
            _check_free(out_folder)  # another process may have ended meanwhile
            aside = ending.enter_context(folder_aside(out_folder))
        stats = _train(policy, training, validation, settings, log)
        _check_learned(policy, stats)
        with _writing(out_folder):
            policy.save_model(aside)
            ending.close()  # gives it its name, which another process may have taken meanwhile
    return stats


def _check_free(out_folder: Path) -> None:
    if os.path.lexists(out_folder):
        raise ConfigError(f"{out_folder} exists already: name a folder that does not, or remove it first")


@contextlib.contextmanager
def _writing(out_folder: Path) -> Iterator[None]:
    """Raises ConfigError where the block cannot write."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{out_folder}: cannot be written ({error.strerror})") from error


def load_conversations(path: Path, tokenizer: ChatTokenizer, max_length: int) -> list[TrainSample]:
    """One sample for each line, its mask 1 on the tokens that are learned. Raises TaskError naming file and line."""
    samples = []
    for place, record in json_lines(read_text(path, str(path), TaskError), str(path), TaskError):
        where = f"{path}, {place}"
        messages, learned = _conversation(record, where)
        sample = encode_conversation(messages, tokenizer, where, learned)
        limit = min(max_length, tokenizer.context_length)
        if sample.length > limit:
            raise TaskError(
                f"{where}: {sample.length} tokens, and the limit is {limit}; shorten it or raise max_length"
            )
        samples.append(sample)
    if not samples:
        raise TaskError(f"{path}: no conversation in it; one JSON object a line is expected")
    return samples


def encode_conversation(
    messages: Sequence[Message], tokenizer: ChatTokenizer, name: str, learned: Learned = "replies"
) -> TrainSample:
    """A conversation as the ids that a policy would have seen and sampled. Its last message is the assistant's."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    ids = prompt = tokenizer.encode_chat(messages[:first])
    mask: list[float] = []
    for place in range(first, len(messages), 2):
        reply = tokenizer.encode_reply(messages[place]["content"])
        is_last = place + 1 == len(messages)
        mask += [float(is_last or learned == "replies")] * len(reply)
        if is_last:
            ids = (*ids, *reply)
            break
        ids = tokenizer.continue_chat(ids, reply, [messages[place + 1]])
        mask += [0.0] * (len(ids) - len(prompt) - len(mask))
    sample = sample_alone(name, prompt, ids[len(prompt) :], mask)
    return replace(sample, advantages_L=np.ones(len(mask), dtype=np.float32))


def learning_rate_at(step: int, total_steps: int, settings: SftConfig) -> float:
    """Of step 0 .. total_steps - 1: up over the warm-up, then down, both linearly; never zero."""
    warmup_steps = math.ceil(settings.warmup_share * total_steps)
    return settings.learning_rate * share_of_highest("linear", step, total_steps, warmup_steps)


def _conversation(record: Any, where: str) -> tuple[list[Message], Learned]:
    """Its messages, and which of them are learned from."""
    if isinstance(record, dict) and "messages" not in record and "completion" in record:
        prompt, completion = record.get("prompt"), record["completion"]
        if not isinstance(prompt, list) or not isinstance(completion, list) or len(completion) != 1:
            raise TaskError(
                f'{where}: {{"prompt": [...], "completion": [...]}} with one message to complete is expected'
            )
        return _messages([*prompt, *completion], where), "last reply"
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        raise TaskError(f'{where}: {{"messages": [...]}} with at least one message is expected')
    return _messages(messages, where), "replies"


def _messages(messages: list[Any], where: str) -> list[Message]:
    """Raises TaskError for what is no conversation, or means more than its texts: `_READ` alone is learned from, and a
    call of a function that was left out would be learned as an empty reply."""
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise TaskError(f"{where}: every message needs a role and a content, both text")
        if message.get("role") not in _ROLES:
            raise TaskError(f"{where}: role {brief(message.get('role'))}; it must be one of {', '.join(_ROLES)}")
        if further := [key for key, value in message.items() if key not in _READ and value not in _NOTHING]:
            raise TaskError(f"{where}: a message has {', '.join(further)}; only {' and '.join(_READ)} are learned from")
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    turns = roles[first:]
    if first == 0 or not turns or any((role == "assistant") != (i % 2 == 0) for i, role in enumerate(turns)):
        raise TaskError(f"{where}: the roles must begin with a prompt, take turns and hold a reply, not {roles}")
    if turns[-1] != "assistant":
        raise TaskError(f"{where}: the last message must be the assistant's, not the {turns[-1]}'s")
    return messages


def _split(samples: list[TrainSample], settings: SftConfig) -> tuple[list[TrainSample], list[TrainSample]]:
    """Training and validation conversations."""
    order = np.random.default_rng(settings.seed).permutation(len(samples))
    held_out = max(1, round(settings.validation_share * len(samples))) if settings.validation_share > 0 else 0
    if held_out >= len(samples):
        held = f"{counted(len(samples), 'conversation')}, {held_out} of them held out"
        raise TaskError(f"{held}: nothing is left to train on; give {held_out + 1} or more")
    return [samples[i] for i in order[held_out:]], [samples[i] for i in order[:held_out]]


def _policy(folder: Path, settings: SftConfig) -> TrainablePolicy:
    if settings.torch.threads is not None:
        torch.set_num_threads(settings.torch.threads)
    config = RunConfig(
        seed=settings.seed, train=TrainConfig(learning_rate=settings.learning_rate), torch=settings.torch
    )
    return TrainablePolicy(folder, config, pick_device(settings.torch.device), loss="nll")


def _train(
    policy: TrainablePolicy,
    training: list[TrainSample],
    validation: list[TrainSample],
    settings: SftConfig,
    log: Callable[[str], None],
) -> dict[str, float]:
    batches = _batches(len(training), settings)
    before = policy.mean_nll(validation)
    losses: list[float] = []
    skipped = 0.0
    for step, batch in enumerate(batches):
        policy.set_learning_rate(learning_rate_at(step, len(batches), settings))
        trained = policy.train([training[i] for i in batch])
        if "loss" not in trained:
            raise PolicyError(
                f"step {step + 1}: none of its {len(batch)} conversations fits into memory: shorten them, take a "
                "smaller model or, from Python, fewer torch.micro_batch_tokens"
            )
        losses.append(trained["loss"])
        skipped += trained["skipped"]
        if (step + 1) % settings.log_every == 0 or step + 1 == len(batches):
            recent = float(np.mean(losses[-settings.log_every :]))
            log(f"step {step + 1}/{len(batches)}  loss {recent:.4f}")
    after = policy.mean_nll(validation)
    if validation:
        log(f"validation loss {before:.4f} before, {after:.4f} after ({counted(len(validation), 'conversation')})")
    return {
        "train_loss": float(np.mean(losses[-settings.log_every :])),
        "validation_loss_before": before,
        "validation_loss": after,
        "steps": float(len(batches)),
        "skipped": skipped,
        "conversations": float(len(training)),
        "held_out": float(len(validation)),
    }


def _check_learned(policy: TrainablePolicy, stats: dict[str, float]) -> None:
    """Raises PolicyError where no step was taken, or what came out computes no numbers."""
    if stats["skipped"] == stats["steps"]:
        raise PolicyError("no step was taken: the gradient of each was not finite")
    losses = [stats["validation_loss"]] if stats["held_out"] else []
    if not all(map(math.isfinite, losses)) or not all(is_finite(weights) for _, weights in policy.weights()):
        raise PolicyError("its weights or losses are no finite numbers any more: take a smaller learning rate")


def _batches(count: int, settings: SftConfig) -> list[np.ndarray]:
    """Indices of every optimizer step, in order: each epoch is its own shuffle."""
    rng = np.random.default_rng([settings.seed, 1])
    size = settings.batch_size
    orders = [rng.permutation(count) for _ in range(settings.epochs)]
    return [order[begin : begin + size] for order in orders for begin in range(0, count, size)]
