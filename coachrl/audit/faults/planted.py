"""A team with planted faults, and the same team without them: whose fault it is that the team fails is known, because
it was planted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coachrl.types import Task

Place = tuple[str, int]
"""An action of an episode: its role, and how many turns that agent had taken before."""
Replies = Mapping[str, tuple[str, ...]]
"""Role -> what it says, turn by turn; the last reply again where there are more turns."""

T = TypeVar("T")


@dataclass(frozen=True)
class PlantedFault:
    """One fault, or several, in the play of a task. culprits: the actions that are at fault; whoever acts after them
    does what a sound agent makes of what it was handed. sound: the same for all faults of a task."""

    task: Task
    fault: str
    culprits: frozenset[Place]
    sound: Replies
    faulty: Replies


def planted(task: Task, sound: Replies, fault: str, faulty: Replies, *culprits: Place) -> PlantedFault:
    return PlantedFault(task, fault, frozenset(culprits), sound, faulty)


def in_turn(options: Sequence[T], number: int) -> Iterator[T]:
    """All options, beginning with another one for each number."""
    first = number % len(options)
    return iter([*options[first:], *options[:first]])


def fenced(code: str) -> str:
    """A program as a reply."""
    return f"```python\n{code}\n```"
