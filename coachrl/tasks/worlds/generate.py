"""Different instances of a world from a seed, training and held-out ones apart by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from coachrl.errors import TaskError
from coachrl.seeding import generator
from coachrl.tasks.split import Split, split_of
from coachrl.types import Task

_ATTEMPTS = 400  # for each instance that is asked for


class Instance(Protocol):
    """What a world begins as. `text` is all of it: equal instances have equal texts."""

    @property
    def text(self) -> str: ...


W = TypeVar("W", bound=Instance)


def generate_tasks(
    draw: Callable[[np.random.Generator], W | None],
    rules: Callable[[W], str],
    count: int,
    seed: int,
    split: Split,
    kind: str,
) -> list[Task]:
    """`count` different instances that `draw` gives (None: that one cannot be solved, draw another).

    A task's prompt is the instance's `rules` and text, its ground truth the instance; its id comes from its content.
    Raises TaskError where too few are found.
    """
    rng, found = generator(seed, kind, split), dict[str, Task]()
    for _ in range(_ATTEMPTS * count):
        if len(found) == count:
            break
        instance = draw(rng)
        if instance is None or instance.text in found or split_of(instance.text) != split:
            continue
        name = f"{kind}-{hashlib.sha256(instance.text.encode()).hexdigest()[:12]}"
        found[instance.text] = Task(name, kind, f"{rules(instance)}\n\n{instance.text}", ground_truth=instance)
    if len(found) < count:
        raise TaskError(
            f"{kind}: {count} different solvable {split} instances were asked for, and {len(found)} found in "
            f"{_ATTEMPTS * count} attempts; ask for fewer, or for a larger world"
        )
    return list(found.values())
