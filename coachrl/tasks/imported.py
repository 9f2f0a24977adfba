"""Tasks from a function of the user's own, named by its import path, and the checks of what it gives.

def load(config: RunConfig) -> tuple[list[Task], list[Task]]:  # training and held-out tasks
def load(config: RunConfig) -> list[Task]:                     # all tasks, of which a part is held out
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from coachrl.config import RunConfig
from coachrl.config.choices import import_function, user_code
from coachrl.config.tasks import ImportedTasks
from coachrl.errors import TaskError
from coachrl.tasks.math.problems import MathTruth
from coachrl.tasks.split import Sets, check_apart, divided, normalised, of_own_id, warn_of_share
from coachrl.text import brief, one_line, whole_characters
from coachrl.types import Task

log = logging.getLogger(__name__)


def load_imported(settings: ImportedTasks, config: RunConfig) -> Sets:
    """Training and held-out tasks. Raises ConfigError where the function cannot be imported, and TaskError where it
    fails or gives something else than tasks."""
    name = f"tasks.source={settings.source}"
    load = find_loader(settings.source)
    with user_code(f"{name} failed", TaskError):
        found = load(config.model_copy(deep=True))
    if isinstance(found, tuple):
        if len(found) != 2:
            raise TaskError(f"{name} gave {len(found)} values; it must give (training, held-out) tasks, or a list")
        warn_of_share(settings)
        train, heldout = (_checked(part, name) for part in found)
        sets = train[: settings.train_count], heldout[: settings.heldout_count]
    elif isinstance(found, list) and not found:
        raise TaskError(f"{name} gave an empty list of tasks")
    else:
        train, heldout = divided(_checked(found, name), settings, config.seed)
        sets = train[: settings.train_count], heldout
    check_apart(*sets)
    if shared := _on_both_sides(*sets):
        named = one_line(", ".join(task.id for task in shared[:5]))
        log.warning(
            "%s: %d of %d training tasks are held out under another id (%s): what is measured on those was trained on",
            name,
            len(shared),
            len(sets[0]),
            named,
        )
    return sets


def _on_both_sides(train: Sequence[Task], heldout: Sequence[Task]) -> list[Task]:
    """The training tasks whose prompt and ground truth a held-out one has."""
    held: dict[str, list[Task]] = {}
    for task in heldout:
        held.setdefault(normalised(task.prompt), []).append(task)
    return [task for task in train if any(_same_truth(task, one) for one in held.get(normalised(task.prompt), ()))]


def _same_truth(one: Task, other: Task) -> bool:
    try:
        return bool(one.ground_truth == other.ground_truth)
    except Exception:  # noqa: BLE001  of the user's own class: tables have no one answer
        return False


def find_loader(source: str) -> Callable[[RunConfig], Any]:
    """The function at the import path. Raises ConfigError where there is none."""
    return import_function(source, "tasks", ("config",), setting="tasks.source")


def _checked(tasks: Any, name: str) -> list[Task]:
    """`tasks` as a list of different tasks. Raises TaskError."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, (str, bytes)):
        raise TaskError(f"{name} gave {brief(tasks)}; it must give a list of coachrl.types.Task, or two of them")
    for place, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise TaskError(f"{name}: entry {place} is {brief(task)}, and no coachrl.types.Task")
        for key in ("id", "category", "prompt"):
            text = getattr(task, key)
            if not isinstance(text, str):
                raise TaskError(f"{name}: the {key} of entry {place} is no text")
            if whole_characters(text) != text:  # which no tokenizer takes, and pandas tells from no other such name
                raise TaskError(f"{name}: the {key} of entry {place} holds half a character")
        truth = task.ground_truth
        if isinstance(truth, MathTruth) and not truth.grader and not isinstance(truth.answer, str):
            raise TaskError(f"{name}: the answer of entry {place} is {brief(truth.answer)}, no text: write it as one")
    return of_own_id((f"{name}: entry {place}", task) for place, task in enumerate(tasks))
