"""The examples that a programming task shows, as doctests, and which assertions say no more than these."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping
from itertools import pairwise


def examples_in(prompt: str) -> dict[str, str]:
    """Call -> value, each in Python's own spelling: doctests with the value on the line below."""
    return dict(_equations(">>> ", prompt))


def asserted_in(code: str) -> list[tuple[str, str]]:
    """(call, value) in the same spelling, of the lines `assert f(1) == 2`."""
    return list(_equations("assert ", code))


def restates(assertion: str, examples: Mapping[str, str]) -> bool:
    """Whether an assertion asks about calls of the task's examples and no others: it tests what all have been told."""
    names = {call.partition("(")[0] for call in examples}
    calls = [node for node in ast.walk(ast.parse(assertion, mode="eval")) if isinstance(node, ast.Call)]
    asked = {ast.unparse(call) for call in calls if isinstance(call.func, ast.Name) and call.func.id in names}
    return bool(asked) and asked <= examples.keys()


def _equations(mark: str, text: str) -> Iterator[tuple[str, str]]:
    lines = [*text.splitlines(), ""]
    for line, below in pairwise(lines):
        if line.strip().startswith(mark):
            expression = line.strip().removeprefix(mark)
            call, _, value = expression.rpartition(" == ") if mark == "assert " else (expression, "", below.strip())
            with contextlib.suppress(SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
                yield ast.unparse(ast.parse(call, mode="eval")), repr(ast.literal_eval(value))
