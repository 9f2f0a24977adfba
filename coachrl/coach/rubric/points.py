"""What a rule hands back, how a score is made of it, and the rules that every rubric shares."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from coachrl.coach.base import CoachRequest
from coachrl.pipelines.parts import part_is_done, turn_in_part
from coachrl.types import HIGHEST_SCORE, Execution, ran

_UNREAD_CAP = 3.0


@dataclass(frozen=True)
class RubricPoints:
    """`points` reached out of `of`, and why. A deduction has of=0 and points < 0."""

    points: float
    of: float
    reason: str


@dataclass(frozen=True)
class Cap:
    """The score is at most this, whatever else was good, and why."""

    at_most: float
    reason: str


Rule = RubricPoints | Cap


def all_or_none(holds: bool, of: float, reason: str, otherwise: str) -> RubricPoints:
    """All of the points where something holds, else none of them."""
    return RubricPoints(of, of, reason) if holds else RubricPoints(0, of, otherwise)


def nothing_written(request: CoachRequest) -> RubricPoints:
    """What a reply gets that shows nothing."""
    return RubricPoints(0, 10, "nothing written outside of hidden thoughts" if request.action.text else "empty reply")


def checked(request: CoachRequest, name: str) -> float | None:
    """What the environment found of this very reply, 0 to 1, where it looks for `name`; an outcome tells of the last
    reply alone."""
    reward = request.action.reward
    return reward.checks.get(name) if reward is not None else None


def unread(request: CoachRequest) -> list[Cap]:
    """The cap of a reply in which the environment could read no answer."""
    found = [checked(request, name) for name in ("format", "form")]
    return [Cap(_UNREAD_CAP, "no answer could be read in it")] if 0.0 in found else []


def cut(request: CoachRequest) -> list[Cap]:
    """The cap of a reply that its length limit cut off."""
    if request.action.finish_reason != "length":
        return []
    return [Cap(4.0, f"cut at {request.role.max_new_tokens} tokens")]


def total(rules: Sequence[Rule]) -> tuple[float, str]:
    """(score 0-10, its reasons as lines): 10 * points / of over the rules that give points, then the lowest cap."""
    given = [rule for rule in rules if isinstance(rule, RubricPoints)]
    caps = [rule for rule in rules if isinstance(rule, Cap)]
    score = 10 * sum(rule.points for rule in given) / sum(rule.of for rule in given)
    score = max(0.0, min([HIGHEST_SCORE, score, *(cap.at_most for cap in caps)]))
    lines = [
        f"{rule.points:g} of {rule.of:g}: {rule.reason}" if rule.of else f"{rule.points:g}: {rule.reason}"
        for rule in given
    ]
    return round(score, 2), "\n".join([*lines, *(f"at most {cap.at_most:g}: {cap.reason}" for cap in caps)])


def error_line(execution: Execution | None) -> str:
    """How an execution that did not go well ended, in a few words."""
    if execution is None:
        return "the code was not run"
    lines = execution.stderr.strip().splitlines()
    return f"{execution.state}: {lines[-1][:120]}" if lines else f"{execution.state}, without a message"


def part_ends(request: CoachRequest) -> bool:
    """Whether this action is the last of its agent's part."""
    return part_is_done(request.role, request.action, turn_in_part(request.action, request.previous))


def _program(code: str | None) -> str:
    """The code as Python reads it, or as it stands where it is no Python, or nests too deeply."""
    try:
        return ast.unparse(ast.parse(code or ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return (code or "").strip()


def same_code_failed_before(request: CoachRequest) -> bool:
    """Whether this agent ran the same code earlier in its part, but for comments and white space, and it failed
    then."""
    return any(
        earlier.role == request.role.name
        and earlier.execution is not None
        and not ran(earlier.execution)
        and _program(earlier.code) == _program(request.action.code)
        for earlier in request.previous
    )
