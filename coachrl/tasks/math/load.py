"""The training and held-out problems that the settings name: from one file or data set, or from two."""

from __future__ import annotations

from coachrl.config.tasks import MathTasks
from coachrl.tasks.math.problems import math_tasks
from coachrl.tasks.records import Source, read_source
from coachrl.tasks.split import Sets, divided
from coachrl.types import Task


def load_math_sets(settings: MathTasks, seed: int) -> Sets:
    """Training and held-out problems, which may overlap where two lists hold the same. Raises TaskError."""
    assert settings.train is not None
    source = read_source(settings.train, settings.subset)
    train = math_tasks(source, source.split(settings.train_split, "tasks.train_split"), settings.fields)
    if settings.heldout is not None:
        return train, _heldout(read_source(settings.heldout, settings.subset), settings)
    if settings.heldout_split is not None or source.heldout_name() not in (None, settings.train_split):
        return train, _heldout(source, settings)
    return divided(train, settings, seed)


def _heldout(source: Source, settings: MathTasks) -> list[Task]:
    """The split that is asked for, or that is named as such, or the only one."""
    name = settings.heldout_split or source.heldout_name()
    if name is None:
        name = next(iter(source.splits)) if len(source.splits) == 1 else "test"
    entries = source.split(name, "tasks.heldout_split")
    return math_tasks(source, entries, settings.fields, settings.heldout_count)
