"""Tasks from a function of the user's own, named by its import path, and the checks of what it gives.

def load(config: RunConfig) -> tuple[list[Task], list[Task]]:  # training and held-out tasks
def load(config: RunConfig) -> list[Task]:                     # all tasks, of which a part is held out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coachrl.config import RunConfig
from coachrl.config.choices import import_by_path
from coachrl.config.tasks import ImportedTasks
from coachrl.errors import CoachrlError, ConfigError, TaskError
from coachrl.seeding import generator
from coachrl.text import brief
from coachrl.types import Task

Sets = tuple[list[Task], list[Task]]

_ONE_HELD_OUT_OF = 10  # tasks of a list that comes without a split


def load_imported(settings: ImportedTasks, config: RunConfig) -> Sets:
    """Training and held-out tasks. Raises ConfigError where the function cannot be imported, and TaskError where it
    fails or gives something else than tasks."""
    name = f"tasks.source={settings.source}"
    load = _imported(settings.source, name)
    try:
        found = load(config)
    except CoachrlError:
        raise
    except Exception as error:  # whatever a function of the user's own may raise
        raise TaskError(f"{name} failed: {type(error).__name__}: {error}") from error
    if isinstance(found, tuple):
        if len(found) != 2:
            raise TaskError(f"{name} gave {len(found)} values; it must give (training, held-out) tasks, or a list")
        train, heldout = (_checked(part, name) for part in found)
        sets = train[: settings.train_count], heldout[: settings.heldout_count]
    else:
        sets = _divided(_checked(found, name), settings, config.seed)
    check_apart(*sets)
    return sets


def check_apart(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Raises TaskError naming the training tasks that are held out too."""
    shared = {task.id for task in train} & {task.id for task in heldout}
    if shared:
        raise TaskError(f"{len(shared)} training tasks are held-out tasks too: {', '.join(sorted(shared)[:5])}")


def _imported(source: str, name: str) -> Callable[[RunConfig], Any]:
    load: Callable[[RunConfig], Any] = import_by_path(source, "tasks")
    if not callable(load):
        raise ConfigError(f"{name} is no function: it must take the run's configuration and give tasks")
    return load


def _checked(tasks: Any, name: str) -> list[Task]:
    """`tasks` as a list of different tasks. Raises TaskError."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, (str, bytes)):
        raise TaskError(f"{name} gave {brief(tasks)}; it must give a list of coachrl.types.Task, or two of them")
    seen: set[str] = set()
    for place, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise TaskError(f"{name}: entry {place} is {brief(task)}, and no coachrl.types.Task")
        wrong = [key for key in ("id", "category", "prompt") if not isinstance(getattr(task, key), str)]
        if wrong:
            raise TaskError(f"{name}: the {wrong[0]} of entry {place} is no text")
        if task.id in seen:
            raise TaskError(f"{name}: two tasks have the id '{task.id}'")
        seen.add(task.id)
    return list(tasks)


def _divided(tasks: list[Task], settings: ImportedTasks, seed: int) -> Sets:
    """One list as two: a seeded sample is held out, of the size that is asked for, else a tenth."""
    held_out = settings.heldout_count or max(1, len(tasks) // _ONE_HELD_OUT_OF)
    chosen = set(generator(seed, "held-out tasks").permutation(len(tasks))[:held_out].tolist())
    train = [task for place, task in enumerate(tasks) if place not in chosen]
    return train[: settings.train_count], [tasks[place] for place in sorted(chosen)]
