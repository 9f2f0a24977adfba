"""An agent's part: the turns that it takes one after another, each going on from the one before."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.types import Action, Role, ran


def part_so_far(action: Action, previous: Sequence[Action]) -> tuple[Action, ...]:
    """The turns that an agent has taken in its present part, `action` being the last. previous: what came before it in
    the episode.

    A turn goes on from an earlier one where its prompt begins with that one's prompt and reply; a part begins with a
    prompt that goes on from nothing. Nothing is known to go on from a reply without ids: an external model's, or one
    that nobody waited for, after which an app may ask the same again.
    """
    part = [action]
    for earlier in reversed(previous):
        read = (*earlier.prompt_ids, *earlier.response_ids)
        if earlier.role == action.role and earlier.response_ids and part[0].prompt_ids[: len(read)] == read:
            part.insert(0, earlier)
    return tuple(part)


def turn_in_part(action: Action, previous: Sequence[Action]) -> int:
    """How many turns the agent had taken in its present part before `action`."""
    turns_before = sum(earlier.role == action.role for earlier in previous)
    turns_of_earlier_parts = turns_before - (len(part_so_far(action, previous)) - 1)
    return action.turn - turns_of_earlier_parts


def part_is_done(role: Role, action: Action, turn_in_part: int) -> bool:
    """Whether `action` is the last of its agent's part: no turn is left, or what `role.stop_when` waits for has come.

    "answered": a reply without code and without a tool call. "ran": code that ran without an error. "saved": such code,
    with all required files there afterwards. Code that fails may have saved them before it did, and does not end the
    part.
    """
    if turn_in_part + 1 >= role.max_turns:
        return True
    match role.stop_when:
        case "answered":
            return action.code is None and not action.tool_calls
        case "ran":
            return ran(action.execution)
        case "saved":
            return ran(action.execution) and set(role.required_files) <= set(action.files_after)
