"""Held-out outcome metrics: the pipeline as it is now, no coach, no updates."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.errors import TaskError
from coachrl.seeding import derive_seed
from coachrl.tasks.tabular import TabularTruth, table2
from coachrl.trainers.behavior import behavior_metrics, outcome_metrics
from coachrl.trainers.rollout import Job, Stage, rollout
from coachrl.types import Episode, Task


async def evaluate(tasks: Sequence[Task], stage: Stage, samples_per_task: int, seed: int, label: str) -> list[Episode]:
    """`samples_per_task` episodes of every task. The draws depend on `seed` and task alone, not on the step, so that
    evaluations before and after training are paired. Raises TaskError on an empty task set."""
    if not tasks:
        raise TaskError("nothing to evaluate on: the held-out task set is empty")
    jobs = [
        Job(f"{label}.{task.id}.{sample}", task, derive_seed(seed, "eval", task.id, sample))
        for task in tasks
        for sample in range(samples_per_task)
    ]
    return await rollout(jobs, stage)


def evaluation_metrics(tasks: Sequence[Task], episodes: Sequence[Episode]) -> dict[str, float]:
    """`eval/…`: success by kind, outcome metrics, behaviour; for tabular tasks the raw and fair metrics of MAPPA."""
    metrics = {f"eval/{name}": value for name, value in outcome_metrics(episodes).items()}
    metrics |= {f"eval/{name}": value for name, value in behavior_metrics(episodes).items()}
    if tasks and all(isinstance(task.ground_truth, TabularTruth) for task in tasks):
        sound = [(e.task_kind, e.outcome) for e in episodes if e.fault is None]
        metrics |= {f"eval/{name}": value for name, value in table2(sound).items()}
    return metrics
