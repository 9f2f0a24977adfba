"""Which tasks a step plays: a function of settings and step alone, so that a resumed run skips and repeats nothing."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.config import RunConfig
from coachrl.runs.records import step_name
from coachrl.seeding import derive_seed, generator
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.rollout.rollout import EpisodeSpec
from coachrl.types import Task


def step_specs(tasks: Sequence[Task], config: RunConfig, step: int) -> list[EpisodeSpec]:
    """The episodes of one step. Epochs are seeded permutations of the tasks."""
    specs = []
    for number in range(config.train.tasks_per_step):
        position = (step - 1) * config.train.tasks_per_step + number
        task = _task_at(tasks, position, config.seed)
        specs += _group(config, step, number, task, ("train", step, position))
    return specs


def further_specs(tasks: Sequence[Task], config: RunConfig, step: int) -> list[list[EpisodeSpec]]:
    """The episodes of each task that the step may play beyond its own (`Algorithm.refill_up_to`), in their order: none
    that is among its own, and none twice."""
    own = {spec.task.id for spec in step_specs(tasks, config, step)}
    order = generator(config.seed, "refill", step).permutation(len(tasks))
    others = [tasks[place] for place in order if tasks[place].id not in own]
    most = (make_algorithm(config.algorithm).refill_up_to - 1) * config.train.tasks_per_step
    return [
        _group(config, step, config.train.tasks_per_step + number, task, ("refill", step, number))
        for number, task in enumerate(others[:most])
    ]


def all_specs(tasks: Sequence[Task], config: RunConfig, step: int) -> list[EpisodeSpec]:
    """Every episode that the step may have played."""
    further = [spec for specs in further_specs(tasks, config, step) for spec in specs]
    return step_specs(tasks, config, step) + further


def most_episodes(config: RunConfig) -> int:
    """The most episodes that a step plays."""
    tasks = config.train.tasks_per_step * make_algorithm(config.algorithm).refill_up_to
    return tasks * config.train.group_size


def first_specs(tasks: Sequence[Task], config: RunConfig, count: int) -> list[EpisodeSpec]:
    """The first `count` episodes that training would run, one for each task."""
    specs = []
    for position in range(count):
        task = _task_at(tasks, position, config.seed)
        specs.append(
            EpisodeSpec(f"look.{position:03d}.{task.id}", task, derive_seed(config.seed, "train", 1, position, 0))
        )
    return specs


def _group(config: RunConfig, step: int, number: int, task: Task, seed: tuple[str, int, int]) -> list[EpisodeSpec]:
    """The episodes of a step's task. number: its place in the step, which keeps ids apart where a small task set comes
    round twice."""
    return [
        EpisodeSpec(f"{step_name(step)}.{number:03d}.{task.id}.{sample}", task, derive_seed(config.seed, *seed, sample))
        for sample in range(config.train.group_size)
    ]


def _task_at(tasks: Sequence[Task], position: int, seed: int) -> Task:
    epoch, offset = divmod(position, len(tasks))
    return tasks[generator(seed, "order", epoch).permutation(len(tasks))[offset]]
