"""Held-out outcome metrics: the pipeline as it is now, no coach, no updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coachrl.errors import TaskError
from coachrl.seeding import derive_seed
from coachrl.tasks.tabular.grading import TabularTruth, table2
from coachrl.trainers.metrics import behavior_metrics, outcome_metrics
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Episode, Task

PASS_AT = (1, 3, 5, 10)  # the k of MAGRPO's table


async def evaluate(
    tasks: Sequence[Task], context: RolloutContext, samples_per_task: int, seed: int, label: str
) -> list[Episode]:
    """`samples_per_task` episodes of every task. The draws depend on `seed` and task alone, not on the step, so that
    evaluations before and after training are paired. Raises TaskError on an empty task set."""
    if not tasks:
        raise TaskError("nothing to evaluate on: the held-out task set is empty")
    specs = [
        EpisodeSpec(f"{label}.{task.id}.{sample}", task, derive_seed(seed, "eval", task.id, sample))
        for task in tasks
        for sample in range(samples_per_task)
    ]
    return await rollout(specs, context)


def speed_metrics(episodes: Sequence[Episode], wall_s: float, drawn: int | None = None) -> dict[str, float]:
    """`time/…` of an evaluation that took `wall_s`: seconds, and generated tokens a second, programs' time included.
    drawn: how many of the tokens were, where some were on disk."""
    if drawn is None:
        drawn = sum(len(action.response_ids) for episode in episodes for action in episode.actions)
    return {"time/eval_s": wall_s, "time/eval_tokens_per_s": drawn / wall_s}


def pass_at(episodes: Sequence[Episode], ks: Sequence[int]) -> dict[int, float]:
    """k -> mean over tasks of pass@k: the chance that of k episodes, drawn without replacement from a task's n, one or
    more succeed, 1 - C(n - c, k) / C(n, k) where c succeeded (Chen et al. 2021, Eq. 1). Unbiased, unlike a power of
    pass@1.

    Episodes that broke are not counted. A k that some task has too few episodes for is left out, and everything where
    no task has two.
    """
    counts: dict[str, list[bool]] = {}
    for episode in episodes:
        if episode.infra_error is None:
            counts.setdefault(episode.task_id, []).append(episode.outcome.success)
    sizes = [len(successes) for successes in counts.values()]
    if max(sizes, default=0) < 2:
        return {}
    return {
        k: sum(_pass_at(len(successes), sum(successes), k) for successes in counts.values()) / len(counts)
        for k in ks
        if k <= min(sizes)
    }


def _pass_at(n: int, c: int, k: int) -> float:
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def evaluation_metrics(tasks: Sequence[Task], episodes: Sequence[Episode]) -> dict[str, float]:
    """`eval/…`: success by category, outcome metrics, behavior, pass@k where tasks have several episodes; for tabular
    tasks the raw and fair metrics of MAPPA."""
    metrics = {f"eval/{name}": value for name, value in outcome_metrics(episodes).items()}
    metrics |= {f"eval/{name}": value for name, value in behavior_metrics(episodes).items()}
    metrics |= {f"eval/pass@{k}": value for k, value in pass_at(episodes, PASS_AT).items()}
    if tasks and all(isinstance(task.ground_truth, TabularTruth) for task in tasks):
        valid = [(e.task_category, e.outcome) for e in episodes if e.infra_error is None]
        metrics |= {f"eval/{name}": value for name, value in table2(valid).items()}
    return metrics
