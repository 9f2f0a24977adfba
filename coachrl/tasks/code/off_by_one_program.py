"""Makes a right function wrong in every result. Sent into the sandbox behind a reference solution, to tell tests that
check what comes out from tests that any program passes; imports nothing of coachrl."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _off_by_one(function: Callable[..., Any], right_for: Sequence[_Arguments] = ()) -> Callable[..., Any]:
    """`function` with another result of the same kind, and with one where it raises; where it gives nothing, what it
    was given is changed too. Calls that it makes of itself stay right, so that it ends where `function` does, and so
    do calls with the arguments of `right_for`."""
    depth = 0
    known = [_by_name(function, *given) for given in right_for]

    def wrong(*arguments: Any, **named: Any) -> Any:
        nonlocal depth
        stays_right = depth > 0 or (bool(known) and _by_name(function, arguments, named) in known)
        depth += 1
        try:
            value = function(*arguments, **named)
        except Exception:  # the boundary to a program: an error is a result too, and to be another one
            if stays_right:
                raise
            return None
        finally:
            depth -= 1
        if stays_right:
            return value
        if value is None:
            for argument in (*arguments, *named.values()):
                _change(argument)
        return _other(value)

    return wrong


def _by_name(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> object:
    """What each parameter is given; the arguments as they stand, where they do not fit."""
    from inspect import signature  # here, for most programs are changed throughout and are to start soon

    try:
        bound = signature(function).bind(*arguments, **named)
    except (TypeError, ValueError):
        return arguments, named
    bound.apply_defaults()
    return bound.arguments


def _other(value: Any) -> Any:
    """Another value of the same kind, made of parts of the same kind: what tests ask of any result still holds."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1 if value + 1 != value else 0
    if isinstance(value, str):
        return value + (value[-1:] or "?")
    if isinstance(value, (bytes, bytearray)):
        return value + (value[-1:] or b"?")
    if isinstance(value, list):
        return [*value, _next(value)]
    if isinstance(value, tuple):
        return (*value, _next(value))
    if isinstance(value, (set, frozenset)):
        return value | {_missing(value)}
    if isinstance(value, dict):
        return {**value, _missing(value): next(iter(value.values()), 0)}
    return 0 if value is None else None


def _next(items: Sequence[Any]) -> Any:
    return _other(items[-1]) if items else 0


def _missing(items: Collection[Any]) -> Any:
    """What is not among `items`, and alike."""
    found = next(iter(items), 0)
    for _ in range(len(items) + 1):
        if found not in items:
            return found
        found = _other(found)
    return None  # there are no more of this kind than True and False


def _change(argument: Any) -> None:
    if isinstance(argument, list):
        argument.append(_next(argument))
    elif isinstance(argument, dict):
        argument[_missing(argument)] = next(iter(argument.values()), 0)
    elif isinstance(argument, set):
        argument.add(_missing(argument))
