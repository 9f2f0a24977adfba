"""The examples that a programming task shows, as doctests, and which assertions say no more than these."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

_UNREAD = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)


def examples_in(prompt: str) -> dict[str, Any]:
    """Call, in Python's own spelling -> value: doctests with the value on the line below."""
    found = {}
    for line, below in pairwise([*prompt.splitlines(), ""]):
        if line.strip().startswith(">>> "):
            with contextlib.suppress(*_UNREAD):
                call = ast.unparse(ast.parse(line.strip().removeprefix(">>> "), mode="eval"))
                found[call] = ast.literal_eval(below.strip())
    return found


def arguments_in(examples: Iterable[str], name: str) -> list[str]:
    """Of those of the examples' calls that are calls of `name` alone, and write their arguments out: these, as the
    source of a pair (by position, by name)."""
    found = []
    for example in examples:
        match ast.parse(example, mode="eval").body:
            case ast.Call(func=ast.Name(id=called), args=args, keywords=keywords) if called == name:
                names: list[ast.expr | None] = [ast.Constant(word.arg) if word.arg else None for word in keywords]
                given = ast.Tuple([ast.Tuple(args), ast.Dict(names, [word.value for word in keywords])])
                with contextlib.suppress(*_UNREAD):
                    for value in (*args, *(word.value for word in keywords)):
                        ast.literal_eval(value)
                    found.append(ast.unparse(given))
    return found


def asserted_in(code: str) -> list[tuple[str, Any]]:
    """(call, value) of each `assert f(1) == 2` in a program that can be parsed. Calls whose arguments are not written
    out are left out: they may ask for something else wherever they stand."""
    found = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Assert(test=ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[value])):
                with contextlib.suppress(*_UNREAD):
                    for argument in (*call.args, *(word.value for word in call.keywords)):
                        ast.literal_eval(argument)
                    found.append((ast.unparse(call), ast.literal_eval(value)))
    return found


def restates(assertion: str, examples: Mapping[str, Any]) -> bool:
    """Whether an assertion asks about calls of the task's examples and no others: it tests what all have been told."""
    names = {call.partition("(")[0] for call in examples}
    calls = [node for node in ast.walk(ast.parse(assertion, mode="eval")) if isinstance(node, ast.Call)]
    asked = {ast.unparse(call) for call in calls if isinstance(call.func, ast.Name) and call.func.id in names}
    return bool(asked) and asked <= examples.keys()
