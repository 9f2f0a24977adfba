"""What a coach is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coachrl.types import Action, CoachScore, Outcome, Role, Task


@dataclass(frozen=True)
class CoachRequest:
    """Everything a coach may know about one action.

    previous: the episode's earlier actions, in order. outcome: what the environment measured; given for the actions of
    the last agent only (MAPPA, Sec. 2.2), None otherwise; its `summary` holds the measured metrics or the comparison
    with the reference answer in words. is_last_role: whether `role` is the pipeline's last. statistics: what the run
    has come to so far, in words, where the coach keeps track of it (`strategic`). residual: what the actions after this
    one left unexplained of the outcome, in words; in a backward pass only (`backprop`).
    """

    task: Task
    role: Role
    team: tuple[Role, ...]
    action: Action
    previous: tuple[Action, ...] = ()
    is_last_role: bool = False
    outcome: Outcome | None = None
    statistics: str = ""
    residual: str = ""


class Coach(Protocol):
    """Scores one action at a time; many calls are in flight at once."""

    name: str

    async def score(self, request: CoachRequest) -> CoachScore:
        """The score of `request.action`. Raises CoachError when there is none; never invents a number."""
        ...

    async def close(self) -> None: ...
