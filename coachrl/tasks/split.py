"""Training and held-out tasks: divided by a seeded sample where nobody divided them, and checked to lie apart."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from coachrl.config.tasks import MOST_HELD_OUT, DividedTasks
from coachrl.errors import TaskError
from coachrl.seeding import generator
from coachrl.types import Task

log = logging.getLogger(__name__)

Split = Literal["train", "heldout"]
Sets = tuple[list[Task], list[Task]]
"""Training and held-out tasks."""


_HELDOUT_SHARE = 4  # one generated task in so many is a held-out one


def split_of(text: str) -> Split:
    """Which set a generated task belongs to. It goes by `text` alone, so no seed and no count can make the two sets
    overlap."""
    return "heldout" if hashlib.sha256(text.encode()).digest()[0] % _HELDOUT_SHARE == 0 else "train"


def divided(tasks: Sequence[Task], settings: DividedTasks, seed: int) -> Sets:
    """One list as two: a seeded sample is held out, of the size that is asked for, or of the share. Raises TaskError
    where that would leave nothing to train on."""
    if settings.heldout_count is not None and settings.heldout_share is not None:
        log.warning("tasks.heldout_share=%g is not read: tasks.heldout_count is given", settings.heldout_share)
    held_out = settings.heldout_count or _by_share(len(tasks), settings.heldout_share)
    if held_out >= len(tasks):
        smaller = "set a smaller tasks.heldout_count" if held_out > 1 else "give more of them"
        raise TaskError(
            f"{held_out} of {len(tasks)} tasks would be held out, and none left to train on; {smaller}, or held-out "
            "tasks of their own"
        )
    chosen = set(generator(seed, "held-out tasks").permutation(len(tasks))[:held_out].tolist())
    train = [task for place, task in enumerate(tasks) if place not in chosen]
    return train, [tasks[place] for place in sorted(chosen)]


def _by_share(tasks: int, share: float | None) -> int:
    if share is not None:
        return max(1, int(tasks * share))
    tenth = max(1, tasks // 10)
    if tenth <= MOST_HELD_OUT:
        return tenth
    log.warning(
        "%d of %d tasks are held out, and not a tenth: each evaluation plays them all; tasks.heldout_count sets more",
        MOST_HELD_OUT,
        tasks,
    )
    return MOST_HELD_OUT


def warn_of_share(settings: DividedTasks) -> None:
    """Of a share that is asked for where held-out tasks are given."""
    if settings.heldout_share is not None:
        log.warning("tasks.heldout_share=%g holds out nothing: held-out tasks are given", settings.heldout_share)


def check_apart(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Raises TaskError naming the training tasks that are held out too."""
    shared = {task.id for task in train} & {task.id for task in heldout}
    if shared:
        raise TaskError(f"{len(shared)} training tasks are held-out tasks too: {', '.join(sorted(shared)[:5])}")


def normalised(prompt: str) -> str:
    """A problem but for case and white space."""
    return " ".join(prompt.split()).casefold()


def of_own_id(placed: Iterable[tuple[str, Task]]) -> list[Task]:
    """The tasks, each given with its place for messages. Raises TaskError for the first whose id one before it has."""
    tasks: dict[str, Task] = {}
    for place, task in placed:
        if task.id in tasks:
            raise TaskError(f"{place}: another task before it has the id '{task.id}' too")
        tasks[task.id] = task
    return list(tasks.values())
