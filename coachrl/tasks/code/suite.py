"""Runs a program against a test suite in a sandbox, and tells which of the suite's assertions held.

The suite runs as it is written: loops stay loops, names stay bound. Each `assert` is rewritten in its place so that it
reports instead of ending the suite; it held where it was reached and every evaluation of it was true. A suite may hold
`check(candidate)` (HumanEval's form), functions `test_*()`, or assertions at the top. Here nothing is executed: texts
are parsed, and what runs them is the workspace.

Program and suite are run by two processes (`suite_program.py`): the suite's never runs a line of the program, and
compares values that it has rebuilt from JSON; the program's knows nothing of the suite. Reports are lines of the
suite's standard output behind a mark that is drawn for each run. What the program prints is swallowed.

What a suite can make of a program is what passes that line: plain values, times, and lists, dicts and their views,
sets, queues of them, also changed in place; functions, classes and objects by handles that can be called and asked for
attributes. A StopIteration comes as a RuntimeError, or it would end the suite's loops; it stays one for a suite that
names it. Operators on an object
of the program's own class (`==`, `len`, `in`) are the suite's: it equals itself alone. Assertions that an agent wrote
are run as they are; a suite can lie about itself, a program about nothing but its own results.
"""

from __future__ import annotations

import ast
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from coachrl.errors import SandboxError
from coachrl.sandbox.base import WITHOUT_WORKSPACE, Workspace
from coachrl.text import clip_middle
from coachrl.types import ExecutionState

_ENTER, _REPORT, _FAILED = "_suite_enter", "_suite_report", "_suite_failed"
_LEFT, _ERROR = "_suite_left", "_suite_error"
_SHOWN_CHARS = 200
_MAX_ENTERED = 300  # reports of where the suite is; a longer one that does not end counts as if nothing had held


class SuiteError(ValueError):
    """A test suite that cannot be run: no Python, or nothing in it that tests."""


@dataclass(frozen=True)
class Suite:
    """A test suite. source: as it was written; assertions: the text of each that can fail, in order."""

    source: str
    assertions: tuple[str, ...]

    @cached_property
    def instrumented(self) -> str:
        """The same program, each assertion reporting under its position."""
        tree = _Instrument().visit(ast.parse(self.source))
        return ast.unparse(ast.fix_missing_locations(tree))

    @cached_property
    def loops(self) -> list[set[str]]:
        """The places of the assertions of each loop, which are reached again and again together."""
        return self._places(ast.For, ast.AsyncFor, ast.While)

    @cached_property
    def helpers(self) -> set[str]:
        """The places of assertions in functions that the suite itself may call, how often and when nobody can tell."""
        return {place for part in self._places(ast.FunctionDef, ast.AsyncFunctionDef) for place in part}

    def _places(self, *kinds: type[ast.stmt]) -> list[set[str]]:
        """Those in each part of these kinds, but for the functions that `_run_suite` of the program inside calls."""
        tree = ast.parse(self.source)
        places = {id(node): str(place) for place, node in enumerate(_assertions(tree))}
        tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_test(node.name)]
        parts = [node for node in ast.walk(tree) if isinstance(node, kinds) and node not in tests]
        return [{places[id(node)] for node in ast.walk(part) if id(node) in places} for part in parts]

    @cached_property
    def names(self) -> list[str]:
        """Every name that it mentions, in order."""
        tree = ast.parse(self.source)
        return sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})


@dataclass(frozen=True)
class SuiteResult:
    """What a suite found, assertion by assertion.

    passed: which held. ran: which came to a verdict, without an exception. failures: one line for each that was
    evaluated and did not hold. loaded: the program ran without an exception, and defines the entry point. finished: the
    suite ran to its end. problem: why not.
    """

    passed: tuple[bool, ...]
    ran: tuple[bool, ...]
    failures: tuple[str, ...]
    loaded: bool
    finished: bool
    state: ExecutionState
    problem: str = ""

    @property
    def share(self) -> float:
        """Share of assertions that held, 0 to 1."""
        return sum(self.passed) / len(self.passed)

    @property
    def all_passed(self) -> bool:
        return self.finished and all(self.passed)

    @property
    def summary(self) -> str:
        """What did not go well, a line each; empty where everything did."""
        return "\n".join([*self.failures, *([self.problem] if self.problem else [])])


def parse_suite(source: str) -> Suite:
    """Raises SuiteError where `source` is no Python, nests too deeply, or holds no assertion that can fail."""
    try:
        suite = Suite(source, tuple(ast.unparse(node.test) for node in _assertions(ast.parse(source))))
        for text in (suite.instrumented, *suite.assertions):  # made and read once, here, where an error is the tests'
            ast.parse(text)
        _ = suite.names, suite.loops, suite.helpers
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SuiteError(f"the tests are not Python: {error}") from error
    if not suite.assertions:
        raise SuiteError("the tests hold no assertion")
    return suite


def off_by_one(program: str, entry_point: str, right_for: Sequence[str] = ()) -> str:
    """`program` with other results: numbers one more, lists one longer, no error where there was one. Calls with the
    arguments of `right_for`, as `arguments_in` gives them, keep theirs."""
    source = files("coachrl.tasks.code").joinpath("off_by_one_program.py").read_text(encoding="utf-8")
    known = f"[{', '.join(right_for)}]"
    changed = f"(lambda space: exec({source!r}, space) or space['_off_by_one'])({{}})({entry_point}, {known})"
    return f"{program}\n\n{entry_point} = {changed}\n"  # no name is left by which tests could tell that it is this


async def run_suite(
    workspace: Workspace,
    program: str,
    suite: Suite,
    entry_point: str,
    timeout_s: float | None = None,
    given: str = "",
) -> SuiteResult:
    """Run `suite` on `program`, each in a process of its own, in a copy of the workspace: what the program notes of the
    tests there tells no agent, and no later program, anything. given: what the task itself defines and the suite may
    name; a program that defines the same changes nothing of it. Raises SandboxError where the sandbox broke."""
    mark = secrets.token_hex(12)
    settings = {
        "program": program,
        "given": given,
        "suite": suite.instrumented,
        "names": suite.names,
        "entry_point": entry_point,
        "mark": mark,
        "tools": (_ENTER, _REPORT, _FAILED),
        "chars": _SHOWN_CHARS,
        "most_entered": _MAX_ENTERED,
    }
    source = files("coachrl.tasks.code").joinpath("suite_program.py").read_text(encoding="utf-8")
    script = f"{WITHOUT_WORKSPACE}source = {source!r}\nexec(source)\njudge(source, **{settings!r})\n"
    branch = await workspace.copy()
    try:
        execution = await branch.run(script, timeout_s)
    finally:
        await branch.close()
    if execution.state == "infrastructure":
        raise SandboxError(f"the sandbox broke while it ran tests: {execution.stderr.strip()[-200:]}")
    return _read(execution.stdout, mark, suite, execution.state)


def _read(output: str, mark: str, suite: Suite, state: ExecutionState) -> SuiteResult:
    told: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith(mark):
            category, _, rest = line.removeprefix(mark).strip().partition(" ")
            told.setdefault(category, []).append(rest)
    finished = "done" in told and state == "ok"
    held = set(told.get("pass", ()))
    entered = told.get("enter", [])
    if not finished and len(entered) < _MAX_ENTERED:
        # It ended inside of this one, or on the way to another one of the same loop, or to a helper's next call.
        held -= suite.helpers.union(
            entered[-1:], *(places for places in suite.loops if places.intersection(entered[-1:]))
        )
    elif not finished:
        held = set()
    failed = dict(_placed(line) for line in told.get("fail", ()))
    crashed = dict(_placed(line) for line in told.get("crash", ()))
    notes = failed | crashed
    ran = (held | failed.keys()) - crashed.keys()
    places = [str(place) for place in range(len(suite.assertions))]
    return SuiteResult(
        passed=tuple(place in held and place not in notes for place in places),
        ran=tuple(place in ran for place in places),
        failures=tuple(f"{suite.assertions[int(place)]}: {notes[place]}" for place in places if place in notes),
        loaded="loaded" in told,
        finished=finished,
        state=state,
        problem=_problem("".join(told.get("problem", ())), finished, state),
    )


def _placed(line: str) -> tuple[str, str]:
    """The place of an assertion, and what is said of it."""
    place, _, words = line.partition(" ")
    return place, words


def _problem(told: str, finished: bool, state: ExecutionState) -> str:
    if told or finished:
        return clip_middle(told, 2 * _SHOWN_CHARS)
    reasons = {"timeout": "the time limit was reached", "oom": "the memory limit was reached"}
    return reasons.get(state, f"the program ended before the tests did (state '{state}')")


def _assertions(tree: ast.AST) -> list[ast.Assert]:
    """Assertions that can fail, in the order of the text."""
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
    ]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _is_test(name: str) -> bool:
    return name == "check" or name.startswith("test")


class _Instrument(ast.NodeTransformer):
    """Turns the n-th assertion into a report under n. `assert True` says nothing, and `assert False`, which marks a
    place that must not be reached, goes on ending the suite."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self._places = {id(found): place for place, found in enumerate(_assertions(node))}
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if id(node) not in self._places:
            return node
        place = ast.Constant(self._places[id(node)])
        test, shown = node.test, []
        steps: list[ast.stmt] = [_call(_ENTER, [place])]
        if isinstance(test, ast.Compare) and len(test.ops) == 1:  # keep the left side, to tell what came out
            steps.append(ast.Assign([ast.Name(_LEFT, ast.Store())], test.left))
            test = ast.Compare(ast.Name(_LEFT, ast.Load()), test.ops, test.comparators)
            shown.append(ast.Name(_LEFT, ast.Load()))
        handler = ast.ExceptHandler(
            ast.Name("BaseException", ast.Load()), _ERROR, [_call(_FAILED, [place, ast.Name(_ERROR, ast.Load())])]
        )
        return ast.Try([*steps, _call(_REPORT, [place, test, *shown])], [handler], [], [])


def _call(name: str, arguments: list[ast.expr]) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), arguments, []))
