"""What a run would do, before it does it: `coachrl train --dry-run`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.coach.clients.cost_estimate import CHARACTERS_A_TOKEN, CostEstimate, TeamWorkload, estimate_run
from coachrl.commands.build import Prepared, make_placement, play_of
from coachrl.commands.gpu_estimates import GpuEstimates, estimate_gpus, known_parameters, known_shape
from coachrl.commands.progress import duration
from coachrl.config import PolicyConfig, RunConfig, TorchConfig, without_effect
from coachrl.config.training import is_due
from coachrl.doctor.machine import KEY_VARIABLES
from coachrl.errors import CoachrlError, ConfigError
from coachrl.machine import machine_bytes
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.defaults import BUNDLED_MODEL
from coachrl.resources import free_bytes
from coachrl.runs.folder import Run
from coachrl.tasks import load_tasks
from coachrl.tasks.split import Sets
from coachrl.text import counted, dollars, rounded
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement
from coachrl.trainers.backends.openrlhf.training.flash_attention import chosen_attention, needs_flash_attn
from coachrl.trainers.backends.torch.footprint import copy_bytes, offloads_optimizer, trained_bytes
from coachrl.trainers.metrics import coach_usd
from coachrl.trainers.schedule import most_episodes

_UNBOUNDED = "one part for each role is counted: the pipeline does not say how often they act (`rounds`)"


@dataclass(frozen=True)
class DryRun:
    """Ranges are (least, most): an agent may end its part after its first turn or use all of its turns, and a step may
    play further tasks (`algorithm.refill_up_to`). bounded: False where the pipeline does not say how often its roles
    act, so that the most is no bound. coach_use: what its language models read, write and cost, None where there are
    none; coach_usd_usual: dollars at what steps of an earlier run did cost, None where no run tells. placement: what
    sits on which GPUs with the backends of engines, and gpu what that takes; empty without. memory_gb is the embedded
    trainer's. notes: what a user had better know first; unchecked: as `unchecked_backend`.
    """

    pipeline: str
    source: str
    notes: tuple[str, ...]
    policies: dict[str, str]
    tasks: tuple[int, int]
    steps: int
    episodes: tuple[int, int]
    coach: str
    coach_calls: tuple[int, int]
    coach_use: CostEstimate | None
    coach_usd_usual: float | None
    generated_tokens_most: int
    bounded: bool
    heldout_episodes: int
    memory_gb: float | None
    disk_gb: float | None
    seconds: float | None
    folder: Path
    placement: tuple[str, ...]
    gpu: GpuEstimates
    keys_found: tuple[str, ...]
    unchecked: str

    def lines(self) -> list[str]:
        """The plan for people."""
        shown = ", ".join(f"{name} ({model})" for name, model in self.policies.items())
        or_more = "" if self.bounded or not self.coach_calls[1] else " or more"
        return [
            f"pipeline          {self.pipeline}",
            f"policies          {shown}",
            f"tasks             {self.source}: {self.tasks[0]} training, {self.tasks[1]} held out",
            f"training          {counted(self.steps, 'step')}, {_range(self.episodes, 'episode')}",
            f"held-out          {counted(self.heldout_episodes, 'episode')} in all evaluations",
            f"coach             {self.coach}: {_range(self.coach_calls, 'call')}{or_more}",
            *([] if self.coach_use is None else _use_lines(self.coach_use, self.coach_usd_usual)),
            *([] if self.bounded else [f"{'':18}{_UNBOUNDED}"]),
            f"generated tokens  {self._bound(rounded(self.generated_tokens_most))}",
            f"time              {self.time()}",
            *(f"{'placement' if i == 0 else '':18}{line}" for i, line in enumerate(self.placement)),
            *(f"{'memory on a GPU' if i == 0 else '':18}{line}" for i, line in enumerate(self.gpu.memory)),
            *(f"{'time of a step' if i == 0 else '':18}{line}" for i, line in enumerate(self.gpu.time)),
            *([] if self.placement else [f"memory            {_memory(self.memory_gb)}"]),
            f"disk              {_disk(self.disk_gb)}",
            f"run folder        {self.folder}",
            f"keys found        {', '.join(self.keys_found) or 'none'}",
            *([f"not checked here  {self.unchecked}"] if self.unchecked else []),
            *self.notes,
        ]

    def time(self) -> str:
        """How long it takes, where a run like it shows that."""
        if self.seconds is not None:
            return f"about {duration(self.seconds)}, by the steps of the last run of this team and model"
        if self.gpu.step_s is not None and self.steps:
            most = duration(self.steps * self.gpu.step_s)
            return f"about {most} where every step takes as long as below; the first step says what is left"
        return "not known before the first step, which says what is left"

    def _bound(self, most: str) -> str:
        return f"at most {most}" if self.bounded else f"{most} or more"

    def brief_lines(self) -> list[str]:
        """What a run is about to do, in a line or two."""
        least, most = self.coach_calls
        # The least is said where there is no most: agents may end their parts early.
        bound = f"at most {counted(most, 'coach call')}" if self.bounded else f"{counted(least, 'coach call')} or more"
        calls = f", {bound}" if most else ""
        return [
            f"{counted(self.steps, 'step')}, {_range(self.episodes, 'episode')} to train on and "
            f"{self.heldout_episodes:,} to measure{calls}; time: {self.time()}",
            *self.notes,
        ]


def make_dry_run(
    config: RunConfig, done: int = 0, tasks: Sets | None = None, folder: Path | None = None, unchecked: str = ""
) -> DryRun:
    """Counts for the steps of `config` after step `done`, without loading a model. tasks: those of `config`, where they
    have been loaded already. folder: the run's, where there is one already. unchecked: as `unchecked_backend`.

    Raises what the run itself would raise for names and tasks."""
    pipeline, policies = play_of(config)
    train_tasks, heldout_tasks = tasks or load_tasks(config)
    models = {name: policy.model or config.model for name, policy in policies.items()}
    settings = config.train
    steps = max(0, settings.steps - done)
    episodes = (steps * settings.tasks_per_step * settings.group_size, steps * most_episodes(config))
    heldout_episodes = _evaluations(config, done, folder) * len(heldout_tasks) * config.eval.samples_per_task
    tokens = pipeline.rounds * sum(role.max_turns * role.max_new_tokens for role in pipeline.roles)
    trainable = {name: policy.trainable for name, policy in policies.items()}
    placement = make_placement(config, trainable) if config.backend == "openrlhf" else None
    task_tokens = max(len(task.prompt) for task in train_tasks) // CHARACTERS_A_TOKEN
    parameters = {model: known_parameters(model) for model in models.values()}
    memory_gb = _memory_gb(config, policies, parameters)
    models_gb = _disk_gb(config, policies, parameters)
    asked = make_algorithm(config.algorithm).needs_coach(config.reward)
    is_asked = asked and steps > 0
    coach_calls, coach_use = _coach_use(config, pipeline, episodes, done, task_tokens) if is_asked else ((0, 0), None)
    notes = (
        warm_start_line(config, pipeline, policies),
        _memory_line(config, memory_gb, parameters),
        *without_effect(config),
    )
    return DryRun(
        pipeline=pipeline.name,
        source=config.tasks.source,
        notes=tuple(filter(None, notes)),
        policies=models,
        tasks=(len(train_tasks), len(heldout_tasks)),
        steps=steps,
        episodes=episodes,
        coach=config.coach.label if asked else "none (rewards from the outcome or the environment)",
        coach_calls=coach_calls,
        coach_use=coach_use,
        coach_usd_usual=_usual_usd(config, steps) if is_asked else None,
        bounded=pipeline.rounds_are_known,
        generated_tokens_most=(episodes[1] * config.sampling.replies_per_turn + heldout_episodes) * tokens,
        heldout_episodes=heldout_episodes,
        memory_gb=memory_gb,
        disk_gb=None if models_gb is None else models_gb + _adapters_gb(config, policies),
        seconds=_seconds(config, steps),
        folder=folder or Run.new_folder(config),
        placement=_placement(config, len(policies), placement, memory_gb),
        gpu=estimate_gpus(config, pipeline, placement, trainable, parameters, task_tokens),
        keys_found=tuple(name for name in KEY_VARIABLES if os.environ.get(name)),
        unchecked=unchecked,
    )


def _evaluations(config: RunConfig, done: int, folder: Path | None) -> int:
    """Those after step `done`, and its own where that was given up."""
    steps, every = config.train.steps, config.eval.every
    between = sum(is_due(step, every) for step in range(done + 1, steps))
    made_up = folder is not None and config.evaluates_after(done) and Run(folder).lacks_evaluation(done)
    return (done == 0) + between + (steps > done) + made_up


def _coach_use(
    config: RunConfig, pipeline: Pipeline, episodes: tuple[int, int], done: int, task_tokens: int
) -> tuple[tuple[int, int], CostEstimate | None]:
    """The coach's calls in so many episodes, (least, most), and what its language models take. task_tokens: of the
    longest task."""
    algorithm, drawn, members = make_algorithm(config.algorithm), config.sampling.replies_per_turn, config.coach.members
    retrospective = algorithm.needs_retrospective_pass
    scored = [role for role in pipeline.roles if algorithm.scores_role(role.name)]
    turns = pipeline.rounds * sum(role.max_turns for role in scored)
    again = _scored_again(config, done)
    rollouts = episodes[0] * drawn, episodes[1] * drawn + math.ceil(again / max(1, turns))
    workload = TeamWorkload(scored, pipeline.rounds, task_tokens, rollouts)
    each = drawn * (len(members) + retrospective)
    calls = each * episodes[0] * len(scored), each * episodes[1] * turns + again * len(members)
    return calls, estimate_run(config.coach, pipeline.name, workload, retrospective)


def opening_lines(config: RunConfig, ready: Prepared, plan: DryRun) -> list[str]:
    """What a run says first: whose tasks it took, who scores, what it is about to do, and what the model lacks."""
    models = dict.fromkeys(policy.model or config.model for policy in ready.policies.values())
    scores = f"coach {config.coach.label}" if ready.coach is not None else "no coach"
    return [
        f"{ready.pipeline.name} on {config.tasks.source}: {len(ready.train_tasks)} training and "
        f"{len(ready.heldout_tasks)} held-out tasks; {', '.join(models)}; {scores}; "
        f"algorithm {config.algorithm.name}",
        *_attention_line(config),
        *plan.brief_lines(),
    ]


def _attention_line(config: RunConfig) -> list[str]:
    """What `auto` comes to, where the backend has it."""
    if config.backend != "openrlhf" or config.openrlhf.attention != "auto":
        return []
    chosen = chosen_attention("auto")
    found = "" if needs_flash_attn(chosen) else "not "
    return [f"openrlhf.attention=auto: {chosen}, since flash-attn is {found}installed"]


def warm_start_line(config: RunConfig, pipeline: Pipeline, policies: Mapping[str, PolicyConfig]) -> str:
    """What to run first where the bundled model starts from nothing in a pipeline that is too hard for it, else ""."""
    script = pipeline.warm_start
    if script is None or all((policy.model or config.model) != BUNDLED_MODEL for policy in policies.values()):
        return ""
    return f"{BUNDLED_MODEL} learns little here from nothing: {script} trains it on demonstrations first"


def _scored_again(config: RunConfig, done: int) -> int:
    """Actions of the reference set that are scored after step `done`, at most: none at the first audit."""
    every = config.audit.every
    audits = config.train.steps // every - max(1, done // every) if every else 0
    return max(0, audits) * config.audit.reference_set


def _range(least_most: tuple[int, int], what: str) -> str:
    least, most = least_most
    return counted(most, what) if least == most else f"{least:,} to {counted(most, what)}"


def _use_lines(use: CostEstimate, usual_usd: float | None) -> list[str]:
    into, out = (f"{rounded(least)} to {rounded(most)}" for least, most in (use.tokens_in, use.tokens_out))
    spend = "price not known; coach.usd_per_million_tokens=[input, output] states it"
    if use.usd is not None:
        spend = f"{dollars(use.usd[0])} to {dollars(use.usd[1])}, the most if every window and every reply is full"
    lines = [f"coach tokens      about {into} in, {out} out", f"coach spend       {spend}"]
    if usual_usd is not None:
        lines.append(f"{'':18}about {dollars(usual_usd)} at what steps of the newest run in the same folder did cost")
    return lines


def _memory_gb(config: RunConfig, policies: dict[str, PolicyConfig], parameters: dict[str, int | None]) -> float | None:
    """Gigabytes that weights, optimizers and gradients take; None where a model's size is not known here. References
    and policies that are not trained share one copy of each model, and so do adapters with `torch.share_base`."""
    sizes = [(policy.trainable, parameters[policy.model or config.model]) for policy in policies.values()]
    if any(size is None for _, size in sizes):
        return None
    trained = [size or 0 for trainable, size in sizes if trainable]
    taken = trained_bytes(config.torch, trained, offloads_optimizer(config.torch, trained))
    frozen = make_algorithm(config.algorithm).needs_reference or len(trained) < len(sizes)
    if frozen or config.torch.share_base:
        taken += copy_bytes(config.torch) * sum(size or 0 for size in parameters.values())
    return taken / 1e9


def _memory_line(config: RunConfig, memory_gb: float | None, parameters: Mapping[str, int | None]) -> str:
    """Where the embedded trainer takes more memory than there is: the system would end the run without a word."""
    machine_gb = machine_bytes() / 1e9
    if config.backend != "torch" or memory_gb is None or memory_gb <= machine_gb or not _computes_here(config.torch):
        return ""
    said = f"weights and optimizers take {_size(memory_gb)}, and this machine has {_size(machine_gb)} of memory"
    shared_gb = copy_bytes(config.torch) * sum(size or 0 for size in parameters.values()) / 1e9
    if config.torch.share_base or shared_gb > machine_gb:
        return f"{said}: take a smaller model, or a GPU"
    rank = "" if config.torch.lora_rank is not None else "torch.lora_rank=16 "
    return f"{said}: with {rank}torch.share_base=true they take {_size(shared_gb)} (adapters over one frozen model)"


def _computes_here(settings: TorchConfig) -> bool:
    """Whether the embedded trainer computes on the processor: where torch is not loaded, nobody asks for a GPU."""
    torch = sys.modules.get("torch")
    return settings.device == "cpu" or (settings.device == "auto" and not (torch and torch.cuda.is_available()))


def _placement(
    config: RunConfig, policies: int, distributed: Placement | None, memory_gb: float | None
) -> tuple[str, ...]:
    """What sits where, of the backends that start engines."""
    if distributed is not None:
        return tuple(distributed.lines())
    if config.backend == "torch":
        return ()
    turns = " that the policies use in turn" if policies > 1 else ""
    if config.torch.share_base:
        turns = " that serves all policies side by side, as adapters over one base"
    left = ", which it leaves while they train" if config.vllm.sleep else ""
    return (
        f"one process: a vLLM engine{turns}, and the trainers",
        f"trainers          {_memory(memory_gb)}",
        f"engine            {config.vllm.memory:.0%} of the GPU's memory{left}",
    )


def _memory(memory_gb: float | None) -> str:
    if memory_gb is None:
        return "unknown: a model has to be fetched first"
    return f"{_size(memory_gb)} for weights and optimizers; a batch in flight comes on top"


def _size(gigabytes: float) -> str:
    """In the unit in which a reader sees more than a zero."""
    return f"{gigabytes:.1f} GB" if gigabytes >= 0.1 else f"{math.ceil(gigabytes * 1000)} MB"


def _seconds(config: RunConfig, steps: int) -> float | None:
    """How long `steps` take, by those of the newest run in the same folder, where it had this team, model and size."""
    alike = ("model", "pipeline", "policies", "backend")
    return _by_last_run(config, steps, lambda metrics: metrics.get("time/step_s"), alike)


def _usual_usd(config: RunConfig, steps: int) -> float | None:
    """Dollars of `steps` of the coach, by those of the newest run in the same folder, where team, tasks, algorithm and
    coach were these, and the price of every step is known."""
    alike = ("model", "pipeline", "policies", "backend", "tasks", "coach", "algorithm", "reward", "sampling", "audit")
    return _by_last_run(config, steps, coach_usd, alike)


def _by_last_run(
    config: RunConfig, steps: int, figure: Callable[[Mapping[str, Any]], float | None], alike: Sequence[str]
) -> float | None:
    """What `steps` add up to by the mean of a figure of the steps of the newest run in the same folder, for the
    episodes that they play; None where that run differs in one of the sections `alike`, or a step of it lacks the
    figure."""
    try:
        last = Run.open(config.out / "latest")
        then = last.config()
        told = [record for record in last.metrics() if "time/step_s" in record]
    except CoachrlError:  # there is none yet, or one that cannot be read
        return None
    took = [value for record in told if (value := figure(record)) is not None]
    if not took or len(took) < len(told) or any(getattr(then, key) != getattr(config, key) for key in alike):
        return None
    sizes = [c.train.tasks_per_step * c.train.group_size for c in (config, then)]
    return steps * sum(took) / len(took) * sizes[0] / sizes[1]


def _disk_gb(config: RunConfig, policies: dict[str, PolicyConfig], parameters: dict[str, int | None]) -> float | None:
    """Gigabytes of the checkpoints: 4 bytes a weight, 8 of AdamW; one more than are kept lies there while it is made.
    The distributed backend writes 2 more for the model itself, whose 4 lie with AdamW. Of adapters this is the model
    that they are added to, where one is written for each policy; their own weights are `_adapters_gb`."""
    distributed, adapters = config.backend == "openrlhf", config.torch.lora_rank is not None
    if config.train.keep_checkpoints == 0 or config.torch.share_base or (distributed and adapters):
        return 0.0
    each = 4 if adapters else 14 if distributed else 12
    sizes = [parameters[policy.model or config.model] for policy in policies.values() if policy.trainable]
    if any(size is None for size in sizes):
        return None
    return each * sum(size or 0 for size in sizes) * _checkpoints_at_once(config) / 1e9


def _adapters_gb(config: RunConfig, policies: dict[str, PolicyConfig]) -> float:
    """Gigabytes of the adapters in the checkpoints, with AdamW. Those of a model whose layers are not known here are
    left out: they are few beside what else is written."""
    rank = config.torch.lora_rank
    if rank is None or config.train.keep_checkpoints == 0:
        return 0.0
    shapes = [known_shape(policy.model or config.model) for policy in policies.values() if policy.trainable]
    weights = sum(shape.adapter_parameters(rank) for shape in shapes if shape is not None)
    return (14 if config.backend == "openrlhf" else 12) * weights * _checkpoints_at_once(config) / 1e9


def _checkpoints_at_once(config: RunConfig) -> int:
    """How many lie there at most: those that are kept, and the one that is being made."""
    train, every = config.train, config.train.checkpoint_every or config.train.steps
    made = {*range(every, train.steps, every), train.steps}
    if train.keep_best:  # each evaluation may be the best so far
        made |= {*range(config.eval.every, train.steps, config.eval.every)}
    return min(len(made), train.keep_checkpoints + train.keep_best + 1)


def _disk(disk_gb: float | None) -> str:
    if disk_gb is None:
        return "unknown: a model has to be fetched first"
    return f"{_size(disk_gb)} for checkpoints, at most; episodes and scores come on top"


def check_disk(plan: DryRun) -> None:
    """Raises ConfigError where the checkpoints would not fit. Without a size nothing is known, and nothing refused."""
    free_gb = free_bytes(plan.folder) / 1e9
    if plan.disk_gb is not None and plan.disk_gb > free_gb:
        raise ConfigError(
            f"checkpoints take {_size(plan.disk_gb)} and the disk has {_size(free_gb)} left: set out=FOLDER on another "
            "disk, or a smaller train.keep_checkpoints"
        )
