"""Makes a right function wrong in every result. Sent into the sandbox behind a reference solution, to tell tests that
check what comes out from tests that any program passes; imports nothing of coachrl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _off_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with another result of the same kind, and with one where it raises; where it gives nothing, what it
    was given is changed too. Calls that it makes of itself stay right, so that it ends where `function` does."""
    depth = 0

    def wrong(*arguments: Any, **named: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            value = function(*arguments, **named)
        except Exception:  # the boundary to a program: an error is a result too, and to be another one
            if depth > 1:
                raise
            return None
        finally:
            depth -= 1
        if depth:
            return value
        if value is None:
            for argument in (*arguments, *named.values()):
                _change(argument)
        return _other(value)

    return wrong


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1 if value + 1 != value else 0
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, (bytes, bytearray)):
        return value + b"?"
    if isinstance(value, list):
        return [*value, None]
    if isinstance(value, tuple):
        return (*value, None)
    if isinstance(value, (set, frozenset)):
        return value | {None}
    if isinstance(value, dict):
        return {**value, None: None}
    return 0 if value is None else None


def _change(argument: Any) -> None:
    if isinstance(argument, list):
        argument.append(None)
    elif isinstance(argument, dict):
        argument[None] = None
    elif isinstance(argument, set):
        argument.add(None)
