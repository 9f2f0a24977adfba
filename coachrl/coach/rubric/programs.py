"""Rules for teams that write programs which others run: a function, a helper's `aux`, tests. The table is in
`coachrl.coach.rubric.rules`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.points import Cap, RubricPoints, Rule, all_or_none, checked, cut, nothing_written
from coachrl.tasks.code.cooperation import AUX, defines, find_cooperation, parse_code
from coachrl.tasks.code.examples import asserted_in, examples_in, restates
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import SuiteError, parse_suite
from coachrl.tasks.code.tested import by_own_name
from coachrl.text import fences_in, visible, written_code
from coachrl.types import Role

_AUX = re.compile(rf"\b{AUX}\b")
_ENOUGH_TESTS = 4
_NO_CODE_CAP = 2.0
_CONTRARY_CAP = 4.0
_STUB_CAP = 3.0


def is_programming(request: CoachRequest) -> bool:
    return isinstance(request.task.ground_truth, CodeTruth)


def program_rules(request: CoachRequest) -> list[Rule]:
    """A reply that is code: which of the three it is follows from the prompt of its role, whatever it wrote."""
    truth, text = request.task.ground_truth, visible(request.action.text)
    if not isinstance(truth, CodeTruth):
        raise TypeError(f"task {request.task.id} is no programming task")
    if not text:
        return [nothing_written(request)]
    code = written_code(text)
    valid = parse_code(code) is not None
    rules: list[Rule] = [_block(text), all_or_none(valid, 2, "valid Python", "not valid Python"), *cut(request)]
    if not valid:
        return [*rules, Cap(_NO_CODE_CAP, "what it wrote is not Python")]
    prompt = request.role.prompt.body
    if "assert" in prompt:
        with suppress(SuiteError):  # which `_tests` tells of
            code = by_own_name(parse_suite(code), truth.entry_point).source
        return rules + _tests(request, code, truth.entry_point) + _right_tests(request, code)
    if request.role.name in (parts := _parts_of_one_program(request.team))[:-1]:
        return rules + _helper(code)
    return rules + _function(request, code, truth.entry_point, uses_aux=request.role.name in parts)


def _parts_of_one_program(team: Sequence[Role]) -> list[str]:
    """The roles that write `aux`, and at last the one that calls it: as they are declared."""
    return [role.name for role in team if _AUX.search(role.prompt.body) and "assert" not in role.prompt.body]


def _block(text: str) -> RubricPoints:
    fences = fences_in(text)
    if fences == 2:
        return RubricPoints(1, 1, "one closed code block")
    return RubricPoints(0.5 if fences != 1 else 0, 1, f"{fences} code fences, where one closed block was to be")


def _function(request: CoachRequest, code: str, entry_point: str, uses_aux: bool) -> list[Rule]:
    if not defines(code, entry_point):
        return [RubricPoints(0, 3, f"does not define {entry_point}"), Cap(_NO_CODE_CAP, f"no function {entry_point}")]
    rules: list[Rule] = [RubricPoints(3, 3, f"defines {entry_point}")]
    if uses_aux:
        rules += _cooperation(code, entry_point)
    outcome = request.outcome
    if outcome is not None:
        of_this = checked(request, "tests")
        share = of_this if of_this is not None else outcome.metrics.get("tests_passed", float(outcome.success))
        rules.append(RubricPoints(round(4 * share, 2), 4, f"the program passes {share:.0%} of the tests"))
        if share < 1 or (request.action.reward is None and not outcome.success):
            rules.append(Cap(3.0 + 3 * share, "the program fails some tests"))
    # The tests tell better, where they are known.
    elif _is_stub(code, entry_point, f"{entry_point}()" in request.task.prompt):
        rules.append(Cap(_STUB_CAP, f"{entry_point} makes nothing of what it is given"))
    return rules


def _is_stub(code: str, name: str, may_take_none: bool) -> bool:
    """Whether the function names none of its parameters, as `pass` and a constant do, or takes none and may not."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = [node for node in ast.parse(code).body if isinstance(node, functions) and node.name == name]
    nodes = [node for function in named[-1:] for node in ast.walk(function)]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(named) and parameters.isdisjoint(used) and (bool(parameters) or not may_take_none)


def _cooperation(code: str, entry_point: str) -> list[Rule]:
    found = find_cooperation(code, entry_point)
    if not found.called:
        return [RubricPoints(0, 2, "does not call aux")]
    if not found.used:
        return [RubricPoints(0, 2, "calls aux and ignores what comes back")]
    return [
        RubricPoints(1, 2, "merely wraps aux")
        if found.wrapper
        else RubricPoints(2, 2, f"works with aux: {', '.join(found.schemes)}")
    ]


def _helper(code: str) -> list[Rule]:
    if defines(code, AUX, needs_return=True):
        is_stub = _is_stub(code, AUX, may_take_none=True)  # it may hold a table
        caps = [Cap(_STUB_CAP, f"{AUX} makes nothing of what it is given")] if is_stub else []
        return [RubricPoints(5, 5, "defines aux, which returns something"), *caps]
    if defines(code, AUX):
        return [RubricPoints(2, 5, "defines aux, which returns nothing")]
    return [RubricPoints(0, 5, "does not define aux"), Cap(_NO_CODE_CAP, "no function aux")]


def _tests(request: CoachRequest, code: str, entry_point: str) -> list[Rule]:
    try:
        suite = parse_suite(code)
    except SuiteError as error:
        return [RubricPoints(0, 5, str(error)), Cap(_NO_CODE_CAP, str(error))]
    trees = [ast.parse(text, mode="eval").body for text in suite.assertions]
    calling = sum(_calls(tree, entry_point) for tree in trees)
    worked_out = sum(isinstance(tree, ast.Compare) and _is_literal(tree.comparators[-1]) for tree in trees)
    examples = examples_in(request.task.prompt)
    distinct = len({text for text in suite.assertions if not restates(text, examples)})
    rules: list[Rule] = [
        RubricPoints(round(2 * calling / len(trees), 2), 2, f"{calling} of {len(trees)} assertions call {entry_point}"),
        RubricPoints(
            round(2 * worked_out / len(trees), 2), 2, f"{worked_out} of {len(trees)} state a value to compare with"
        ),
        RubricPoints(min(1.0, distinct / _ENOUGH_TESTS), 1, f"{distinct} different assertions"),
    ]
    if not distinct:
        rules.append(Cap(_CONTRARY_CAP, "tests nothing but what the task's own examples show"))
    return rules if calling else [*rules, Cap(3.0, f"no assertion calls {entry_point}")]


def _calls(tree: ast.expr, name: str) -> bool:
    """Whether the function is called, or handed to something that calls it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = (part for call in calls for part in (call.func, *call.args, *(word.value for word in call.keywords)))
    return any(isinstance(part, ast.Name) and part.id == name for part in named)


def _right_tests(request: CoachRequest, code: str) -> list[Rule]:
    """Do the tests ask for what is right: by the examples of the task, and, where outcomes are given, by the share of
    them that the reference solution passes, and one with other results does not?"""
    given, asserted = examples_in(request.task.prompt), asserted_in(code)
    wrong = [call for call, value in asserted if call in given and given[call] != value]
    rules: list[Rule] = [Cap(_CONTRARY_CAP, f"contradicts the task's own example: {wrong[0][:80]}")] if wrong else []
    passed, right = checked(request, "passed"), checked(request, "right")
    last = dict(asserted)
    torn = [call for call, value in asserted if last[call] != value]
    if torn and passed != 1:
        rules.append(Cap(_CONTRARY_CAP, f"asks for two results of one call: {torn[0][:80]}"))
    if request.outcome is None or passed is None or right is None:
        return rules
    rules.append(RubricPoints(round(4 * right, 2), 4, f"a right program alone passes {right:.0%} of the tests"))
    if passed < 1:
        rules.append(Cap(_CONTRARY_CAP, f"a right program fails {1 - passed:.0%} of the tests"))
    elif right < 1:
        why = f"{1 - right:.0%} of the tests tell nothing: a wrong program passes them, or the task shows them"
        rules.append(Cap(round(4 + 6 * right, 2), why))
    return rules


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True
