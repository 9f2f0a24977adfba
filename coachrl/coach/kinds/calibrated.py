"""A coach on people's scale: each role's scores go through a curve that was fitted to people's scores of its actions.

The file is written by `coachrl audit --calibrate FILE` and named in `coach.calibration`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coachrl.coach.base import Checkable, Coach, CoachRequest
from coachrl.errors import CoachError, ConfigError
from coachrl.parsing import read_json
from coachrl.types import CoachScore

_Score = Annotated[float, Field(ge=0, le=10)]


class RoleCurve(BaseModel):
    """given: the coach's scores at the curve's corners, rising; people: what people give there, never falling.

    actions, tasks: what it was fitted to. error_as_given, error_calibrated: mean absolute difference from people's
    scores, in points, without the curve and with one fitted to other tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    given: tuple[_Score, ...] = Field(min_length=1)
    people: tuple[_Score, ...] = Field(min_length=1)
    actions: int
    tasks: int
    error_as_given: float
    error_calibrated: float

    @model_validator(mode="after")
    def _is_a_curve(self) -> RoleCurve:
        if len(self.given) != len(self.people):
            raise ValueError("given and people must be of one length")
        if any(a >= b for a, b in pairwise(self.given)) or any(a > b for a, b in pairwise(self.people)):
            raise ValueError("given must rise, and people must not fall")
        return self

    def at(self, score: float) -> float:
        """What people give where the coach gives `score`: on straight lines between the corners, level beyond them."""
        return float(np.interp(score, self.given, self.people))


class CalibrationFile(BaseModel):
    """coach: the label of the coach that it is for; prompt_hash: of the prompt that it was asked with, empty for
    rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    coach: str
    prompt_hash: str = ""
    raters: tuple[str, ...]
    roles: dict[str, RoleCurve] = Field(min_length=1)


def read_calibration(path: Path, coach: str) -> CalibrationFile:
    """Raises ConfigError where the file cannot be read, is none, or is for another coach than `coach`."""
    record = read_json(path, f"coach.calibration {path}")
    try:
        found = CalibrationFile.model_validate(record)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "it"
        raise ConfigError(f"coach.calibration {path}: {where}: {wrong['msg']}") from None
    if found.coach != coach:
        raise ConfigError(f"coach.calibration {path}: it was fitted to coach '{found.coach}', not '{coach}'")
    return found


class CalibratedCoach:
    """Asks `coach`, and puts its scores on people's scale. The score as it was given stays in the rationale."""

    def __init__(self, coach: Coach, calibration: CalibrationFile) -> None:
        self.name = coach.name
        self._coach, self._calibration = coach, calibration

    async def check(self) -> None:
        if isinstance(self._coach, Checkable):
            await self._coach.check()

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where no curve is for the role or the prompt, and what the coach raises."""
        curve = self._calibration.roles.get(request.role.name)
        if curve is None:
            roles = ", ".join(self._calibration.roles)
            raise CoachError(f"coach.calibration has no curve for role '{request.role.name}'; it has {roles}")
        score = await self._coach.score(request)
        if score.process_0_10 is None:
            return score
        if score.prompt_hash != self._calibration.prompt_hash:
            raise CoachError("coach.calibration was fitted to scores of another prompt: fit it again, or leave it out")
        people = curve.at(score.process_0_10)
        said = f"{people:.2g} on people's scale, where the coach gave {score.process_0_10:g}"
        return replace(
            score,
            process_0_10=people,
            rationale=f"{said}\n{score.rationale}".rstrip(),
            model=f"{score.model} (calibrated)",
        )

    async def close(self) -> None:
        await self._coach.close()
