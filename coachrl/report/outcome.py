"""Did it get better? Held-out results before and after training, and what the gain is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from coachrl.report.contents import Contents, EpisodeFile, draw_key
from coachrl.runs.checkpoints import best_step
from coachrl.stats import (
    COVERAGE,
    POSITIVE,
    SHARE,
    UNLIMITED,
    DrawKey,
    Estimate,
    Limits,
    estimate_mean,
    paired_difference,
)
from coachrl.tasks.tabular.grading import FAILED
from coachrl.text import counted
from coachrl.trainers.limits import untrained
from coachrl.trainers.metrics import behavior_metrics, by_role, is_updated, lacks_advantage
from coachrl.types import Episode


@dataclass(frozen=True)
class BeforeAfter:
    """One line of a before/after table; None where nothing was measured."""

    name: str
    before: Estimate | None
    after: Estimate | None
    difference: Estimate | None


@dataclass(frozen=True)
class BehaviorRow:
    """A mean over all actions of one role; n_* counts its replies."""

    name: str
    before: float | None
    after: float | None
    n_before: int
    n_after: int


BEHAVIOR = {
    "response_tokens": "response length, tokens",
    "finish_rate": "share of replies that ended by themselves",
    "code": "share of replies with a code block",
    "code_success_rate": "share of replies whose code ran without error",
    "turns": "turns per episode",
}

# Metric of a submission -> (its name in words, what it can be at all).
METRICS: dict[str, tuple[str, Limits]] = {
    "accuracy": ("accuracy", SHARE),
    "f1": ("F1", SHARE),
    "roc_auc": ("ROC-AUC", SHARE),
    "mae_pct_range": ("MAE in % of the range (lower is better)", POSITIVE),
    "rmse_pct_range": ("RMSE in % of the range (lower is better)", POSITIVE),
}


def ends(contents: Contents) -> tuple[EpisodeFile | None, EpisodeFile | None]:
    """The first and the last evaluation that measured anything; the last is None where there is one only."""
    measured = [evaluation for evaluation in contents.evaluations if evaluation.valid]
    first = measured[0] if measured else None
    return first, measured[-1] if len(measured) > 1 else None


def unpaired(first: EpisodeFile, last: EpisodeFile | None) -> str:
    """A sentence where the two evaluations were not of the same tasks, since the task set was changed in between; else
    an empty one."""
    if last is None:
        return ""
    before, after = ({(e.task_id, e.task_prompt) for e in evaluation.episodes} for evaluation in (first, last))
    if before == after:
        return ""
    return (
        f"Not of the same held-out tasks: {counted(len(before), 'task')} after step {first.step}, {len(after):,} after "
        f"step {last.step}, {len(before & after):,} of them both times; the paired difference is of those alone."
    )


def nothing_learned(contents: Contents) -> str:
    """A sentence where the run was to train, and no step moved any weights; else an empty one."""
    steps = [metrics for metrics in contents.steps.values() if "train/trained_actions" in metrics]
    flat = sum(map(lacks_advantage, steps))
    why = {key for metrics in steps for key in metrics if key.startswith("train/masked/")}
    if flat == 0 and why != {"train/masked/frozen"}:
        said = untrained(steps)
        return f"{said[0].upper()}{said[1:]}." if said else ""
    if flat == 0 or any(map(is_updated, steps)):
        return ""
    others = f", and in {counted(len(steps) - flat, 'step')} no action was trained on" if flat < len(steps) else ""
    return (
        f"Nothing was learned: in {counted(flat, 'step')} every advantage was 0{others}. The weights are what they "
        "were. Mostly the rewards that are compared are all equal, as where no episode succeeds, or every one "
        "(docs/reading_a_run.md says what to look at)."
    )


def success_rows(first: EpisodeFile, last: EpisodeFile | None) -> list[BeforeAfter]:
    """Success of all held-out tasks, then by task category."""
    categories = sorted({episode.task_category for episode in first.valid})
    rows = [_before_after("all tasks", first, last, _success, SHARE)]
    if len(categories) > 1:
        rows += [
            _before_after(category, first, last, _of_category(_success, category), SHARE) for category in categories
        ]
    return rows


def table2_rows(first: EpisodeFile, last: EpisodeFile | None) -> list[BeforeAfter]:
    """Raw and fair metrics of tabular tasks as in MAPPA's Table 2.

    Raw: over the successes alone; they differ before and after, so there is no paired difference. Fair: over all runs,
    failures counted as `coachrl.tasks.tabular.grading.FAILED` says.
    """
    rows = []
    categories = {episode.task_category for episode in first.valid}
    for category in sorted(categories & set(FAILED)):
        for metric, failed_value in FAILED[category].items():
            raw, fair = _metric(metric, category, None), _metric(metric, category, failed_value)
            name, limits = METRICS.get(metric, (metric, UNLIMITED))
            rows.append(replace(_before_after(f"{name}, raw", first, last, raw, limits), difference=None))
            rows.append(_before_after(f"{name}, fair", first, last, fair, limits))
    return [row for row in rows if row.before is not None or row.after is not None]


def behavior_rows(first: EpisodeFile, last: EpisodeFile | None) -> dict[str, list[BehaviorRow]]:
    """What the gain is made of: role -> its behavior before and after."""
    before, after = behavior_metrics(first.episodes), behavior_metrics(last.episodes) if last else {}
    n_before, n_after = _replies(first), _replies(last) if last else {}
    rows: dict[str, list[BehaviorRow]] = {}
    for role in dict.fromkeys([*n_before, *n_after]):
        for what, name in BEHAVIOR.items():
            key = f"behavior/{what}/{role}"
            if key in before or key in after:
                counts = n_before.get(role, 0), n_after.get(role, 0)
                rows.setdefault(role, []).append(BehaviorRow(name, before.get(key), after.get(key), *counts))
    return rows


def conclusion(difference: Estimate | None) -> str:
    """One sentence that claims no more than the interval allows."""
    if difference is None:
        return "There is no second evaluation of these tasks to compare with."
    if difference.low is None or difference.high is None:
        return _without_interval(difference)
    if difference.low > 0:
        return "Better: the interval of the paired difference lies above zero."
    if difference.high < 0:
        return "Worse: the interval of the paired difference lies below zero."
    return "Not told apart from no change: the interval of the paired difference holds zero."


def _without_interval(difference: Estimate) -> str:
    """p, where there is one, is that of a difference that is the same in every task."""
    if difference.value == 0:
        return "No held-out task was solved more or less often."
    if difference.p is None or difference.p > 1 - COVERAGE:
        return "Too few tasks for an interval."
    return "Better: every task gained the same." if difference.value > 0 else "Worse: every task lost the same."


def success_by_step(contents: Contents) -> dict[int, Estimate]:
    """Held-out success of every evaluation that measured anything."""
    return {e.step: estimate_mean(_observations(e, _success), SHARE) for e in contents.evaluations if e.valid}


def best_evaluation(contents: Contents) -> str:
    """A sentence on the best of several evaluations, where the run keeps its checkpoint; else an empty one."""
    success = {step: metrics["eval/success"] for step, metrics in contents.steps.items() if "eval/success" in metrics}
    count, best = sum(step > 0 for step in success), best_step(contents.steps)
    kept = contents.config is not None and contents.config.train.keep_best
    measured = [evaluation for evaluation in contents.evaluations if evaluation.valid and evaluation.step == best]
    if not kept or best is None or count < 2 or not measured:  # its episodes may have been removed
        return ""
    estimate = estimate_mean(_observations(measured[0], _success), SHARE)
    no_better = ", no better than before training" if success[best] <= success.get(0, -1.0) else ""
    return (
        f"Best held-out success {estimate.interval()} after step {best} (--checkpoint best){no_better}. The highest of "
        f"{count} evaluations tends to be too high: tasks that the run has not seen measure it fairly."
    )


Measure = Callable[[Episode], float | None]


def _before_after(
    name: str, first: EpisodeFile, last: EpisodeFile | None, measure: Measure, limits: Limits
) -> BeforeAfter:
    before = _observations(first, measure)
    after = _observations(last, measure) if last else {}
    return BeforeAfter(
        name,
        estimate_mean(before, limits) if before else None,
        estimate_mean(after, limits) if after else None,
        paired_difference(before, after, limits) if before and after else None,
    )


def _observations(evaluation: EpisodeFile, measure: Measure) -> dict[DrawKey, float]:
    values = {draw_key(episode): measure(episode) for episode in evaluation.valid}
    return {key: value for key, value in values.items() if value is not None}


def _success(episode: Episode) -> float:
    return float(episode.outcome.success)


def _of_category(measure: Measure, category: str) -> Measure:
    return lambda episode: measure(episode) if episode.task_category == category else None


def _metric(metric: str, category: str, failed_value: float | None) -> Measure:
    def measure(episode: Episode) -> float | None:
        return episode.outcome.metrics.get(metric) if episode.outcome.success else failed_value

    return _of_category(measure, category)


def _replies(evaluation: EpisodeFile) -> dict[str, int]:
    """How many actions of each role there are, without calls that were given up."""
    roles = by_role(evaluation.episodes)
    return {role: sum(not action.is_given_up for action in actions) for role, actions in roles.items()}


def changed_draws(
    first: EpisodeFile, last: EpisodeFile | None, fits: Callable[[Episode, Episode], bool] = lambda before, after: True
) -> Sequence[tuple[str, Episode, Episode]]:
    """(why it is shown, before, after) of up to three draws of one task: one that was won, one that was lost, one that
    still fails; of each the first in the order of the file that `fits`."""
    if last is None:
        return []
    after = {draw_key(episode): episode for episode in last.valid}
    pairs = [(episode, after[draw_key(episode)]) for episode in first.valid if draw_key(episode) in after]
    wanted = {"solved only after training": (False, True), "solved only before training": (True, False)}
    wanted["failed before and after"] = (False, False)
    if not any(b.outcome.success != a.outcome.success for b, a in pairs):
        wanted["solved before and after"] = (True, True)
    shown = []
    for why, (was, now) in wanted.items():
        sort = (p for p in pairs if (p[0].outcome.success, p[1].outcome.success) == (was, now))
        pair = next((p for p in sort if fits(*p)), None)
        if pair is not None:
            shown.append((why, *pair))
    return shown
