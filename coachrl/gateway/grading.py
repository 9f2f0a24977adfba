"""What a grader of the user's own says of an app's result."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from coachrl.config.choices import import_by_path, is_own_doing
from coachrl.errors import ConfigError, GraderFailed
from coachrl.gateway.apps import called
from coachrl.parsing import is_finite
from coachrl.pipelines.checked import checked_outcome
from coachrl.text import brief, one_line, said
from coachrl.types import Outcome, Task


async def graded(path: str, task: Task, result: Any, success_at: float, limit_s: float) -> Outcome:
    """The outcome that the function at `path` gives, of an `Outcome`, a bool, or a number that counts as success from
    `success_at` up. Raises GraderFailed where it raises or takes longer than `limit_s`, ConfigError where it gives
    something else."""
    grade = import_by_path(path, "grader")
    clock = asyncio.timeout(limit_s)
    try:
        async with clock:
            given = await called(grade, task, result, name="coachrl-grader")
    except BaseException as error:  # the boundary to the user's own code, whatever it raises
        if not is_own_doing(error):
            raise
        if clock.expired():
            raise GraderFailed(f"{path} did not end within {limit_s:g} s for the result {brief(result)}") from error
        reason = one_line(f"{type(error).__name__}: {said(error)}", 300)
        raise GraderFailed(f"{path} raised {reason} for the result {brief(result)}") from error
    if isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, Outcome):
        return checked_outcome(given, f"grader {path}")
    if isinstance(given, bool):
        return Outcome(given)
    if isinstance(given, int | float) and is_finite(given):
        return Outcome(given >= success_at, {"grade": float(given)}, summary=f"The grade is {given:g}.")
    raise ConfigError(f"grader {path} gave {brief(given)}, where it must give an Outcome, a bool or a number")
