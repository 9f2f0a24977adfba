"""The learning rate of a step: a function of its number alone, so that a resumed run goes on with the same."""

from __future__ import annotations

import math

from coachrl.config import TrainConfig
from coachrl.config.training import LrSchedule


def learning_rate_of(step: int, settings: TrainConfig) -> float:
    """Of training step 1, 2, …; every optimizer step within it has the same."""
    share = share_of_highest(settings.lr_schedule, step - 1, settings.steps, settings.warmup_steps)
    return settings.learning_rate * share


def share_of_highest(schedule: LrSchedule, step: int, total_steps: int, warmup_steps: int) -> float:
    """Of step 0 .. total_steps - 1: up over the warm-up in a line, then as the schedule says; never zero."""
    rising = (step + 1) / warmup_steps if warmup_steps else 1.0
    left = min(1.0, (total_steps - step) / max(1, total_steps - warmup_steps))
    falling = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}
    return min(1.0, rising, falling[schedule])
