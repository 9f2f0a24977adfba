"""What code of one's own gives for an episode or an action: checked, and with NumPy's numbers as Python's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coachrl.errors import ConfigError
from coachrl.parsing import is_finite
from coachrl.text import brief
from coachrl.types import Outcome, Reward


def checked_outcome(outcome: object, who: str) -> Outcome:
    """What a pipeline or a grader of one's own gives. who: what messages begin with. Raises ConfigError where it is
    none."""
    shown = f"{who} gave"
    if not isinstance(outcome, Outcome):
        raise ConfigError(f"{shown} {type(outcome).__name__}, where it must return an Outcome")
    if not isinstance(outcome.success, (bool, np.bool_)):
        raise ConfigError(f"{shown} an Outcome whose success is {brief(outcome.success)}, neither True nor False")
    if not isinstance(outcome.metrics, Mapping):
        raise ConfigError(f"{shown} an Outcome whose metrics are {brief(outcome.metrics)}, no numbers by name")
    for name, value in outcome.metrics.items():
        if not isinstance(name, str) or not _is_number(value):
            raise ConfigError(f"{shown} an Outcome whose metric {brief(name)} is {brief(value)}, no finite number")
    check_texts(outcome, ("reason", "summary"), f"{shown} an Outcome")
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    return replace(outcome, success=bool(outcome.success), metrics=metrics)


def checked_reward(reward: object, who: str) -> Reward:
    """A reward of one's own. Raises ConfigError where it is none, or a float holds no number of it: it would be trained
    on, or written into episodes that nobody could read again."""
    if not isinstance(reward, Reward) or not isinstance(reward.checks, Mapping):
        raise ConfigError(f"{who} gave the reward {brief(reward)}, where it must be a Reward")
    for number in (reward.team, reward.local, *reward.checks.values()):
        if not _is_number(number):
            raise ConfigError(f"{who} gave a Reward that holds {brief(number)}, no finite number")
    checks = {str(name): float(number) for name, number in reward.checks.items()}
    return Reward(float(reward.team), float(reward.local), checks)


def check_texts(given: object, names: tuple[str, ...], shown: str) -> None:
    """Raises ConfigError for the first of these attributes that is no text. shown: what the message begins with."""
    for name in names:
        if not isinstance(getattr(given, name), str):
            raise ConfigError(f"{shown} whose {name} is {brief(getattr(given, name))}, no text")


def _is_number(value: object) -> bool:
    return is_finite(value) or isinstance(value, np.bool_)
