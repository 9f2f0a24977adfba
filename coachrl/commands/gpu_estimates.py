"""What a run takes of GPUs, before it starts: memory and time, of the backends with engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.commands.build import make_placement, play_of
from coachrl.commands.progress import duration
from coachrl.config import RunConfig
from coachrl.doctor.gpu import smallest_card
from coachrl.errors import PackageMissing
from coachrl.pipelines.base import Pipeline
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.backends.openrlhf.cluster.memory import CARD_GB, ModelShape, plan_memory, shape_of
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement
from coachrl.trainers.backends.roofline import (
    ASSUMED,
    OF_BANDWIDTH,
    OF_OPERATIONS,
    Card,
    PolicyWork,
    StepTime,
    card_named,
    step_time,
)
from coachrl.trainers.backends.torch.models.adapter_folders import whole_model
from coachrl.trainers.backends.torch.models.sources import is_hub_name, parameter_count
from coachrl.trainers.backends.vllm.memory import plan_one_gpu
from coachrl.trainers.schedule import most_episodes

_ARITHMETIC_COUNTS_S = 10.0  # a shorter step is not bounded by what the roofline counts


@dataclass(frozen=True)
class GpuEstimates:
    """Lines for people. step_s: seconds of a step in which every turn is taken and every reply is full; None where
    they are not known."""

    memory: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    step_s: float | None = None


def estimate_gpus(
    config: RunConfig,
    pipeline: Pipeline,
    placement: Placement | None,
    trainable: Mapping[str, bool],
    parameters: Mapping[str, int | None],
    task_tokens: int,
) -> GpuEstimates:
    """placement: of the distributed backend. trainable: by policy. parameters: number of weights by model, where it is
    known. task_tokens: of the longest task. One line that says why where nothing is known."""
    if config.backend == "torch":
        return GpuEstimates()
    shapes = _shapes({policy: config.initial_model(policy) for policy in trainable}, parameters)
    if isinstance(shapes, str):
        why = f"unknown: {shapes} has to be fetched first (its config.json is enough), or is of a kind not known here"
        return GpuEstimates((why,), (why,))
    seen = smallest_card()
    card_gb = seen[0] if seen else CARD_GB
    if placement is not None:
        plan = plan_memory(config.openrlhf, placement, shapes, card_gb, config.torch.lora_rank)
        lines, kept = plan.lines(), plan.cached_tokens
    else:
        reference = make_algorithm(config.algorithm).needs_reference
        one = plan_one_gpu(config, shapes, sum(trainable.values()), reference, card_gb)
        lines, kept = one.lines(), dict.fromkeys(shapes, one.cached_tokens)
    # Cards are sold by GiB, and everything here is in units of 10^9 bytes.
    assumed = f"estimated, where a card of 80 GB is assumed, which holds {CARD_GB:.0f} of 10^9 bytes: none is seen here"
    memory = ("estimated" if seen else assumed, *lines)
    card = card_named(seen[1]) if seen else ASSUMED
    if card is None:
        return GpuEstimates(memory, ("unknown: the figures of this card are not known here",))
    engines = _engines(config, placement, shapes)
    works = [
        _work(config, pipeline, policy, shape, trainable[policy], engines[policy], kept[policy], task_tokens)
        for policy, shape in shapes.items()
    ]
    shared = engines[next(iter(shapes))].shared_gpus
    step = step_time(works, shared, card, config.openrlhf.one_step_off)
    return GpuEstimates(memory, _time_lines(step, card), step.all_s if step.all_s >= _ARITHMETIC_COUNTS_S else None)


def planned_main_memory(config: RunConfig) -> tuple[float, int] | None:
    """Gigabytes of main memory that a run of the distributed backend takes on all machines together, and its GPUs. None
    where a model is not known here. Raises ConfigError."""
    _, policies = play_of(config)
    placement = make_placement(config, {name: policy.trainable for name, policy in policies.items()})
    models = {policy: config.initial_model(policy) for policy in policies}
    shapes = _shapes(models, {model: known_parameters(model) for model in models.values()})
    if isinstance(shapes, str):
        return None
    plan = plan_memory(config.openrlhf, placement, shapes, CARD_GB, config.torch.lora_rank)
    return plan.main_gb, placement.gpus


def known_parameters(model: str) -> int | None:
    """The number of a model's weights; None where it would have to be fetched first, or is of an unknown kind."""
    if (folder := _folder_of(model)) is not None:
        return parameter_count(folder)
    shape = shape_of(model, None, None)
    return shape.parameters if shape is not None else None


def known_shape(model: str) -> ModelShape | None:
    """The layers of a model; None where it would have to be fetched first, or is of an unknown kind."""
    return shape_of(model, _folder_of(model), known_parameters(model))


def _folder_of(model: str) -> Path | None:
    """None where it would have to be fetched first, or be made by packages that are not here."""
    try:
        return None if is_hub_name(model) else whole_model(model)
    except (PackageMissing, ModuleNotFoundError):
        return None


def _shapes(models: Mapping[str, str], parameters: Mapping[str, int | None]) -> dict[str, ModelShape] | str:
    """By policy; the model of which nothing is known, where there is one."""
    shapes = {}
    for policy, model in models.items():
        shape = shape_of(model, _folder_of(model), parameters[model])
        if shape is None:
            return model
        shapes[policy] = shape
    return shapes


@dataclass(frozen=True)
class _Engines:
    """Of one policy: how many, the GPUs of each, how many replies one draws at once, the longest sequence that it takes
    where that is set. trainer_gpus: of its trainer. shared_gpus: as for `step_time`."""

    count: int
    width: int
    at_once: int
    limit: int | None
    trainer_gpus: int
    shared_gpus: int | None


def _engines(config: RunConfig, placement: Placement | None, policies: Iterable[str]) -> dict[str, _Engines]:
    if placement is None:
        one = _Engines(1, 1, config.vllm.max_num_seqs, config.vllm.max_length, 1, 1)
        return dict.fromkeys(policies, one)
    given, shared = config.openrlhf, placement.gpus if placement.colocated else None
    return {
        placed.policy: _Engines(
            placed.engines, placed.tensor_parallel, given.max_num_seqs, given.max_length, placed.trainers, shared
        )
        for placed in placement.policies
    }


def _work(
    config: RunConfig,
    pipeline: Pipeline,
    policy: str,
    shape: ModelShape,
    trained: bool,
    engines: _Engines,
    kept_tokens: int,
    task_tokens: int,
) -> PolicyWork:
    """What a step asks of the policy where every part takes all of its turns and every reply is full. A prompt holds
    the task and half of the episode's replies; nothing of it is taken from a cache."""
    algorithm = make_algorithm(config.algorithm)
    drawn = config.sampling.replies_per_turn
    episodes = most_episodes(config)
    own = [role for role in pipeline.roles if role.policy == policy and not role.external]
    replies = pipeline.rounds * sum(role.max_turns for role in own)
    reply_tokens = pipeline.rounds * sum(role.max_turns * role.max_new_tokens for role in own)
    written = pipeline.rounds * sum(role.max_turns * role.max_new_tokens for role in pipeline.roles)
    longest = min(engines.limit or shape.context, shape.context)
    prompt = min(task_tokens + written // 2, max(1, longest - reply_tokens // replies))
    length = prompt + reply_tokens // replies
    at_once = min(engines.at_once, episodes * drawn // engines.count, kept_tokens // length)
    trainer = config.openrlhf if config.backend == "openrlhf" else config.torch
    passes = (3 if config.torch.lora_rank is None else 2) + trainer.gradient_checkpointing
    return PolicyWork(
        shape=shape,
        replies=episodes * drawn * replies,
        prompt_tokens=episodes * drawn * replies * prompt,
        reply_tokens=episodes * drawn * reply_tokens,
        at_once=max(1, at_once),
        engine_gpus=engines.count * engines.width,
        forwards=(algorithm.needs_reference + algorithm.needs_trainer_logprobs) * trained,
        trained=passes * config.train.ppo_epochs * trained,
        trainer_gpus=engines.trainer_gpus,
    )


def _time_lines(time: StepTime, card: Card) -> tuple[str, ...]:
    if time.all_s < _ARITHMETIC_COUNTS_S:
        return (
            f"about {max(0.1, time.all_s):.1f} s of arithmetic, on {card.name}; starting kernels, waking engines and",
            "handing weights over take longer than that, and are not counted",
        )
    whole, generating, forwards, training = (
        duration(math.ceil(seconds)) for seconds in (time.all_s, time.generating_s, time.forwards_s, time.training_s)
    )
    between = f"{forwards} log-probabilities, " if time.forwards_s else ""
    at_once = ", at the same time" if time.one_step_off else ""
    return (
        f"about {whole} at most: {generating} generating, {between}{training} training{at_once}",
        f"by roofline, on {card.name} of {card.teraflops:,.0f} TFLOP/s and {card.gb_per_s:,.0f} GB/s, of which "
        f"{OF_OPERATIONS:.0%} and {OF_BANDWIDTH:.0%} are counted on;",
        "every turn taken and every reply full; nothing for the coach, programs and evaluation",
    )
