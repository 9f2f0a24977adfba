"""Outcome caps: how high a score may be, whatever else was good, once something has been measured or seen.

A coach prompt declares them in its header, and its body shows them to the model as {{caps}}:

    caps:
      failed: 3                                                            # a situation: the score is at most this
      roc_auc: {from: {0.85: 9, 0.75: 8, 0.65: 6, 0.55: 4}, else: 3}       # more is better: from this value on
      rmse_pct_range: {below: {10: 9, 25: 8}, up_to: {50: 6}, else: 4}     # less is better
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coachrl.coach.rubric.points import Cap
from coachrl.errors import ConfigError
from coachrl.parsing import is_number
from coachrl.text import brief, nearest
from coachrl.types import HIGHEST_SCORE, Outcome

SITUATIONS = {
    "failed": "The measured outcome is a failure, and the cause is this agent's",
    "no_answer": "No answer in the required form",
    "no_code": "No code that could be run, where code was its duty and nothing that it needed was missing",
    "code_failed": "Its code failed by its own fault",
    "nothing_saved": "It ended its part without a file that it owed, though nothing that it needed was missing",
    "unfit_files": "It handed on files that the next agent cannot use as they are",
    "false_report": "It said that a file which it had been given is missing, and saved nothing",
    "wrong_estimator": "Its model is of the wrong kind: a classifier for amounts, or a regressor for classes",
    "cut": "The reply was cut off at its length limit",
}
"""What a prompt may cap beside metrics, in the words that the model reads."""

METRICS = {
    "roc_auc": "ROC-AUC",
    "accuracy": "Accuracy",
    "f1": "F1",
    "rmse_pct_range": "RMSE in % of the range of the targets",
    "rmse_pct_iqr": "RMSE in % of the interquartile range of the targets",
    "mae_pct_range": "MAE in % of the range of the targets",
    "mae_pct_iqr": "MAE in % of the interquartile range of the targets",
}
_BOUNDS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    "from": (operator.ge, "{} and up"),
    "below": (operator.lt, "below {}"),
    "up_to": (operator.le, "up to {}"),
}
"""How a measured value is compared with the bound, and in which words."""


@dataclass(frozen=True)
class Level:
    """One step of a metric's caps. bound: "from", "below" or "up_to"."""

    bound: str
    value: float
    at_most: float

    def holds(self, measured: float) -> bool:
        return _BOUNDS[self.bound][0](measured, self.value)

    def words(self) -> str:
        return f"{_BOUNDS[self.bound][1].format(f'{self.value:g}')}: at most {self.at_most:g}"


@dataclass(frozen=True)
class MetricCaps:
    """Caps by the value of one metric: the first level that holds, from the best value down, else `otherwise`."""

    metric: str
    levels: tuple[Level, ...]
    otherwise: float

    def at_most(self, measured: float) -> float:
        return next((level.at_most for level in self.levels if level.holds(measured)), self.otherwise)

    def words(self) -> str:
        levels = "; ".join(level.words() for level in self.levels)
        return f"{METRICS[self.metric]} {levels}; otherwise: at most {self.otherwise:g}"


@dataclass(frozen=True)
class Caps:
    """All caps of one rubric. Of its metrics the first one that an outcome holds counts."""

    situations: Mapping[str, float]
    metrics: tuple[MetricCaps, ...] = ()

    def of_situation(self, name: str) -> float:
        """The highest score that the situation leaves; 10 where the rubric does not name it."""
        return self.situations.get(name, HIGHEST_SCORE)

    def of_outcome(self, outcome: Outcome) -> Cap | None:
        """What the measured outcome allows; None where the rubric does not bound it."""
        if not outcome.success:
            at_most = self.situations.get("failed")
            return None if at_most is None else Cap(at_most, f"the outcome is a failure: {outcome.reason}")
        for caps in self.metrics:
            if caps.metric in outcome.metrics:
                measured = outcome.metrics[caps.metric]
                return Cap(caps.at_most(measured), f"{METRICS[caps.metric]} is {measured:.4g}")
        return None

    def words(self) -> str:
        """As a list, one cap a line, for the model that must keep to them."""
        lines = [f"- {SITUATIONS[name]}: at most {at_most:g}." for name, at_most in self.situations.items()]
        return "\n".join([*lines, *(f"- {caps.words()}." for caps in self.metrics)]) or "None."


def parse_caps(header: Mapping[str, Any], name: str) -> Caps:
    """The caps that a prompt's header declares; none where it has no `caps`. Raises ConfigError naming the entry."""
    entries = header.get("caps", {})
    if not isinstance(entries, dict):
        raise ConfigError(f"coach prompt {name}: 'caps' must be a mapping such as {{failed: 3}}")
    situations: dict[str, float] = {}
    metrics: list[MetricCaps] = []
    for key, entry in entries.items():
        place = f"coach prompt {name}: caps.{key}"
        if key in SITUATIONS:
            situations[key] = _score(entry, place)
        elif key in METRICS:
            metrics.append(_metric_caps(key, entry, place))
        else:
            known = [*SITUATIONS, *METRICS]
            raise ConfigError(f"{place}: unknown{nearest(str(key), known)}; caps may name {', '.join(known)}")
    return Caps(situations, tuple(metrics))


def _metric_caps(metric: str, entry: Any, place: str) -> MetricCaps:
    if not isinstance(entry, dict) or "else" not in entry or not entry.keys() <= {*_BOUNDS, "else"}:
        raise ConfigError(f"{place}: must read {{from: {{VALUE: SCORE, …}}, else: SCORE}}, or below, up_to for from")
    given = {bound: entry[bound] for bound in _BOUNDS if bound in entry}
    if not given or ("from" in given and len(given) > 1):
        raise ConfigError(f"{place}: 'from' (more is better), or 'below' and 'up_to' (less is better)")
    levels = []
    for bound, steps in given.items():
        if not isinstance(steps, dict) or not steps or not all(is_number(value) for value in steps):
            raise ConfigError(f"{place}.{bound}: must be a mapping of values to scores")
        levels += [Level(bound, float(value), _score(score, f"{place}.{bound}")) for value, score in steps.items()]
    # From the best value down; at one value "below" is narrower than "up_to".
    levels.sort(key=lambda level: (level.value, level.bound == "up_to"), reverse="from" in given)
    return MetricCaps(metric, tuple(levels), _score(entry["else"], f"{place}.else"))


def _score(value: Any, place: str) -> float:
    if not is_number(value) or not 0 <= value <= 10:
        raise ConfigError(f"{place}: {brief(value)} is no score from 0 to 10")
    return float(value)
