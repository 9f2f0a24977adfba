"""What agents did, as numbers: the metrics that say what a gain is made of."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from coachrl.resources import say_once
from coachrl.stats import mean_of
from coachrl.text import brief
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.trainers.samples import all_samples
from coachrl.types import Action, CoachScore, Episode, Usage, ran

log = logging.getLogger(__name__)

_OF_SOME_STEPS = ("loss/", "skipped/")  # which say whether a step moved any weights


def by_role(episodes: Iterable[Episode], all_actions: bool = False) -> dict[str, list[Action]]:
    """Actions of the episodes that did not break under their role, in order; with `all_actions`, rejected_candidates
    too."""
    roles: dict[str, list[Action]] = {}
    for episode in episodes:
        if episode.infra_error is not None:
            continue
        for action in episode.all_actions if all_actions else episode.actions:
            roles.setdefault(action.role, []).append(action)
    return roles


def behavior_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`behavior/<what>/<role>`: means over the role's actions.

    response_tokens; finish_rate (share that ended by itself); code (share with a closed code block, of roles that ever
    ran code); code_success_rate (share of all actions whose code ended in state ok); turns (actions per episode). Of
    calls that an app left before there was a reply only the turns are counted.
    """
    metrics: dict[str, float] = {}
    for role, actions in by_role(episodes).items():
        metrics[f"behavior/turns/{role}"] = len(actions) / len({a.episode_id for a in actions})
        actions = [action for action in actions if not action.is_given_up]
        if not actions:
            continue
        metrics[f"behavior/response_tokens/{role}"] = mean_of(len(a.response_ids) for a in actions)
        metrics[f"behavior/finish_rate/{role}"] = mean_of(a.finish_reason == "stop" for a in actions)
        if any(a.execution is not None for a in actions):
            metrics[f"behavior/code/{role}"] = mean_of(a.code is not None for a in actions)
            metrics[f"behavior/code_success_rate/{role}"] = mean_of(ran(a.execution) for a in actions)
    return metrics


def outcome_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`success`, `success/<category>` and the mean of each outcome metric over the episodes that have it. One that is
    called as a figure of coachrl's own does not take its place, and is warned of once.

    Episodes that broke (`infra_error`) are left out, and counted under `faulty_fraction`.
    """
    valid = [episode for episode in episodes if episode.infra_error is None]
    metrics = {
        "episodes": float(len(valid)),
        "faulty_fraction": 1 - len(valid) / len(episodes) if episodes else 0.0,
        "overflowed_fraction": mean_of(e.overflowed for e in episodes) if episodes else 0.0,
    }
    if not valid:
        return metrics
    metrics["success"] = mean_of(e.outcome.success for e in valid)
    for category in sorted({e.task_category for e in valid}):
        metrics[f"success/{category}"] = mean_of(e.outcome.success for e in valid if e.task_category == category)
    for name in sorted({name for e in valid for name in e.outcome.metrics}):
        if name in metrics or name.startswith(_OF_SOME_STEPS):
            said = "the metric %s is called as a figure of coachrl's own, and stays in the episodes alone"
            say_once(log.warning, said, brief(name))
        else:
            metrics[name] = mean_of(e.outcome.metrics[name] for e in valid if name in e.outcome.metrics)
    return metrics


def score_metrics(episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> dict[str, float]:
    """`coach/score/<role>` (mean 0-10), `coach/contribution/<role>` (mean of the retrospective pass, -10 to 10),
    `coach/disagreement` (mean, of an ensemble), `coach/failed_fraction`, `coach/calls` (with repairs, retries, members
    of an ensemble and the retrospective pass)."""
    metrics: dict[str, float] = {}
    for role, actions in by_role(episodes, all_actions=True).items():
        given = [scores[action.id] for action in actions if action.id in scores]
        metrics |= _mean_of_known(f"coach/score/{role}", [score.process_0_10 for score in given])
        metrics |= _mean_of_known(f"coach/contribution/{role}", [score.contribution for score in given])
    metrics |= _mean_of_known("coach/disagreement", [score.disagreement for score in scores.values()])
    if scores:
        metrics["coach/calls"] = float(sum(score.usage.attempts for score in scores.values()))
        metrics["coach/failed_fraction"] = mean_of(s.status == "failed" for s in scores.values())
        metrics["coach/latency_s"] = mean_of(s.usage.latency_s for s in scores.values())
    return metrics


def _mean_of_known(name: str, values: Iterable[float | None]) -> dict[str, float]:
    """The mean under its name, where any value is known."""
    known = [value for value in values if value is not None]
    return {name: mean_of(known)} if known else {}


def reward_metrics(
    episodes: Sequence[Episode], rewards: dict[str, float | None], batch: AdvantageBatch
) -> dict[str, float]:
    """What one step learned from: how many actions, why others were left out, groups, and the mean reward by role."""
    metrics = {f"train/masked/{reason}": float(count) for reason, count in batch.masked.items()}
    metrics["train/trained_actions"] = float(len(all_samples(batch.samples)) - sum(batch.masked.values()))
    metrics |= {f"train/unknown_returns/{role}": float(count) for role, count in batch.unknown_returns.items()}
    metrics |= {f"train/{name}": value for name, value in batch.metrics.items()}
    if batch.groups:
        metrics["train/groups"] = float(batch.groups)
        metrics["train/groups_of_one"] = float(batch.groups_of_one)
        metrics["train/groups_without_spread"] = float(batch.groups_without_spread)
    for role, actions in by_role(episodes, all_actions=True).items():
        values = [value for action in actions if (value := rewards[action.id]) is not None]
        if values:
            metrics[f"train/reward/{role}"] = sum(values) / len(values)
    return metrics


def is_updated(metrics: Mapping[str, float]) -> bool:
    """Whether a step of training tried to move the weights of any policy."""
    return any(key.startswith(("train/loss/", "train/skipped/")) for key in metrics)


def lacks_advantage(metrics: Mapping[str, float]) -> bool:
    """Whether a step of training had actions to train on, and no advantage other than 0 among them."""
    return bool(metrics.get("train/trained_actions")) and not is_updated(metrics)


def cost_metrics(episodes: Sequence[Episode], scores: dict[str, CoachScore]) -> dict[str, float]:
    """Tokens and dollars of one step. Where the price of any call is unknown, so is the sum: no figure is written."""
    actions = [action for episode in episodes for action in episode.all_actions]
    metrics = {
        "tokens/generated": float(sum(len(action.response_ids) for action in actions)),
        "tokens/prompt": float(sum(len(action.prompt_ids) for action in actions)),
    }
    cost_usd = sum((score.usage for score in scores.values()), Usage()).cost_usd
    if cost_usd is not None:
        metrics["cost/usd"] = cost_usd
    # Of roles that models of providers play. An episode with a call of unknown price tells no dollars.
    told = [e.outcome.metrics for e in episodes if "external/calls" in e.outcome.metrics]
    if told:
        metrics["cost/external/calls"] = sum(outcome["external/calls"] for outcome in told)
    if told and all("external/usd" in outcome for outcome in told):
        metrics["cost/external/usd"] = sum(outcome["external/usd"] for outcome in told)
    return metrics


def coach_usd(metrics: Mapping[str, float]) -> float | None:
    """Dollars that a step's coach took, for scoring the reference set again, too. None where a price is not known."""
    if "cost/reference_set/calls" not in metrics:
        return metrics.get("cost/usd")
    if "cost/usd" not in metrics or "cost/reference_set/usd" not in metrics:
        return None
    return metrics["cost/usd"] + metrics["cost/reference_set/usd"]


class Clock:
    """Seconds between laps, as `time/<lap>_s`, and their sum as `time/step_s`."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[f"time/{name}_s"] = now - self._last
        self._last = now

    def rate(self, name: str, tokens: int, beside: bool = False) -> dict[str, float]:
        """`time/<lap>_tokens_per_s` of a lap in which so many were drawn. beside: they were drawn while other work went
        on, and the lap only waited for the last of them; then of the whole step."""
        taken_s = self.metrics()["time/step_s" if beside else f"time/{name}_s"]
        return {f"time/{name}_tokens_per_s": tokens / max(taken_s, 1e-9)}

    def metrics(self) -> dict[str, float]:
        return {**self._laps, "time/step_s": sum(self._laps.values())}
