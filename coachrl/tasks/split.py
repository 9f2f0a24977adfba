"""Training and held-out tasks: divided by a seeded sample where nobody divided them, and checked to lie apart."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.config.tasks import DividedTasks
from coachrl.errors import TaskError
from coachrl.seeding import generator
from coachrl.types import Task

Sets = tuple[list[Task], list[Task]]
"""Training and held-out tasks."""


def divided(tasks: Sequence[Task], settings: DividedTasks, seed: int) -> Sets:
    """One list as two: a seeded sample is held out, of the size that is asked for, else of the share. Raises TaskError
    where that would leave nothing to train on."""
    held_out = settings.heldout_count or max(1, int(len(tasks) * settings.heldout_share))
    if held_out >= len(tasks):
        raise TaskError(
            f"{held_out} of {len(tasks)} tasks would be held out, and none left to train on; "
            "set a smaller tasks.heldout_count, or tasks.heldout"
        )
    chosen = set(generator(seed, "held-out tasks").permutation(len(tasks))[:held_out].tolist())
    train = [task for place, task in enumerate(tasks) if place not in chosen]
    return train, [tasks[place] for place in sorted(chosen)]


def check_apart(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Raises TaskError naming the training tasks that are held out too."""
    shared = {task.id for task in train} & {task.id for task in heldout}
    if shared:
        raise TaskError(f"{len(shared)} training tasks are held-out tasks too: {', '.join(sorted(shared)[:5])}")
