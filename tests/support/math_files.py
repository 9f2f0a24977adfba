"""The problems of a file whose fields have their usual names."""

from __future__ import annotations

from pathlib import Path

from coachrl.config.tasks import ProblemFields
from coachrl.tasks.math.problems import math_tasks
from coachrl.tasks.records import read_file
from coachrl.types import Task


def load_math(path: Path, limit: int | None = None) -> list[Task]:
    """The first `limit` of them."""
    source = read_file(path)
    return math_tasks(source, source.split("train", ""), ProblemFields(), limit)
