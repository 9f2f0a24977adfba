"""What code of one's own says that an episode came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coachrl.errors import ConfigError
from coachrl.parsing import is_finite
from coachrl.text import brief
from coachrl.types import Outcome


def checked_outcome(outcome: object, who: str) -> Outcome:
    """What a pipeline or a grader of one's own gives, with NumPy's numbers as Python's. who: what messages begin with.
    Raises ConfigError where it is none."""
    shown = f"{who} gave"
    if not isinstance(outcome, Outcome):
        raise ConfigError(f"{shown} {type(outcome).__name__}, where it must return an Outcome")
    if not isinstance(outcome.success, (bool, np.bool_)):
        raise ConfigError(f"{shown} an Outcome whose success is {brief(outcome.success)}, neither True nor False")
    if not isinstance(outcome.metrics, Mapping):
        raise ConfigError(f"{shown} an Outcome whose metrics are {brief(outcome.metrics)}, no numbers by name")
    for name, value in outcome.metrics.items():
        if not isinstance(name, str) or not (is_finite(value) or isinstance(value, np.bool_)):
            raise ConfigError(f"{shown} an Outcome whose metric {brief(name)} is {brief(value)}, no finite number")
    for what in ("reason", "summary"):
        if not isinstance(getattr(outcome, what), str):
            raise ConfigError(f"{shown} an Outcome whose {what} is {brief(getattr(outcome, what))}, no text")
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    return replace(outcome, success=bool(outcome.success), metrics=metrics)
