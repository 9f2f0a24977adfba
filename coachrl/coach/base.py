"""What a coach is asked and what it answers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from coachrl.types import Action, CoachScore, Episode, Outcome, Role, Task

OutcomeTo = Literal["last", "all", "none"]
"""Whose actions the coach sees the measured outcome for."""
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class CoachRequest:
    """Everything a coach may know about one action.

    previous: the episode's earlier actions, in order. outcome: what the environment measured; given for the actions of
    the last agent only (MAPPA, Sec. 2.2), None otherwise; its `summary` holds the measured metrics or the comparison
    with the reference answer in words. is_last_role: whether `role` is the pipeline's last. statistics: what the run
    has come to so far, in words, where the coach keeps track of it (`strategic`). residual: what the actions after this
    one left unexplained of the outcome, in words; in a retrospective pass only (`algorithm.name=retrospective`).
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


def is_import_path(name: str) -> bool:
    """Whether a coach's name is that of a class or a function, "my_package.my_module:MyCoach", and of no model."""
    return _IMPORT_PATH.fullmatch(name) is not None


def is_language_model(name: str) -> bool:
    """Whether the coach of that name is a language model: no rules, and none of the user's own."""
    return name != "rules" and not is_import_path(name)


def is_mistyped_rules(name: str) -> bool:
    """Whether the name is "rules" but for a letter or two: "rule", "Rules"."""
    return name != "rules" and bool(difflib.get_close_matches(name.strip().lower(), ["rules"], cutoff=0.75))


def sees_outcome(role: str, team: Sequence[Role], outcome_to: OutcomeTo) -> bool:
    """Whether the coach is shown the measured outcome with this role's actions."""
    return outcome_to == "all" or (outcome_to == "last" and role == team[-1].name)


def make_request(
    task: Task, team: tuple[Role, ...], role: Role, action: Action, previous: Sequence[Action], outcome: Outcome | None
) -> CoachRequest:
    """What the coach is asked about `action` of `role`, while the episode runs and when a saved one is rescored."""
    return CoachRequest(
        task=task,
        role=role,
        team=team,
        action=action,
        previous=tuple(previous),
        is_last_role=role.name == team[-1].name,
        outcome=outcome,
    )


def episode_requests(
    task: Task, team: tuple[Role, ...], actions: Sequence[Action], outcome: Outcome
) -> list[CoachRequest]:
    """What a retrospective pass goes over: every action of an episode, in order, each with the outcome."""
    roles = {role.name: role for role in team}
    return [
        make_request(task, team, roles[action.role], action, actions[:place], outcome)
        for place, action in enumerate(actions)
    ]


class Coach(Protocol):
    """Scores one action at a time; many calls are in flight at once."""

    name: str

    async def score(self, request: CoachRequest) -> CoachScore:
        """The score of `request.action`. Raises CoachError when there is none; never invents a number."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Checkable(Protocol):
    """A coach that can tell before any rollout whether it can be used."""

    async def check(self) -> None:
        """Raises CoachUnavailable where it cannot."""


@runtime_checkable
class Comparer(Protocol):
    """A coach that can score siblings against each other: actions that answer one state, or one task in one turn.
    most_compared: as many at once."""

    most_compared: int

    async def compare(self, requests: Sequence[CoachRequest]) -> list[CoachScore]:
        """The score of each, in their order, or CoachError for all of them."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A coach that goes by what the run has come to. memory_steps: how many finished steps it goes by."""

    memory_steps: int

    def briefed(self, request: CoachRequest) -> CoachRequest:
        """The request with what the coach goes by now: it may be asked later, when more steps are finished."""
        ...

    def observe(self, step: int, episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> None:
        """Told of every finished training step, in order, and after a resume of the last `memory_steps` again."""
