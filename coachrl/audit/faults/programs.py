"""Planted faults in programs and in the tests that are written for them: the shipped programming tasks, in the code
pipeline."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import partial

import numpy as np

from coachrl.audit.faults.planted import PlantedFault, Replies, fenced, in_turn, planted
from coachrl.seeding import generator
from coachrl.tasks.code.problems import CodeTruth, load_coop_code
from coachrl.types import Task

_MOST_TESTS = 5
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def code_faults(seed: int) -> Iterator[list[PlantedFault]]:
    """For one task after another, again and again with other faults: a wrong program, wrong tests, and a right program
    or right tests given up in the second turn for the other's wrong ones."""
    tasks = [task for split in ("train", "heldout") for task in load_coop_code(split)]
    order = generator(seed, "planted faults").permutation(len(tasks))
    number = 0
    while True:
        for place in order:
            yield list(_faults_of(tasks[place], number, generator(seed, "planted faults", tasks[place].id, number)))
            number += 1


def _faults_of(task: Task, number: int, rng: np.random.Generator) -> Iterator[PlantedFault]:
    truth = task.ground_truth
    assert isinstance(truth, CodeTruth) and truth.reference is not None
    tests = _tests(truth)
    wrong_tests, programs = _wrong_tests(tests, rng), mutants(truth.reference)
    if wrong_tests is None or not programs:
        return
    kinds = sorted({kind for kind, _ in programs})
    kind = next(in_turn(kinds, number))
    options = [program for name, program in programs if name == kind]
    wrong = fenced(options[int(rng.integers(len(options)))])
    right, right_tests, bad_tests = fenced(truth.reference), fenced("\n".join(tests)), fenced("\n".join(wrong_tests))
    sound: Replies = {"coder": (right,), "tester": (right_tests,)}
    plant = partial(planted, task, sound)
    yield plant(f"program: {kind}", {**sound, "coder": (wrong, right)}, ("coder", 0))
    yield plant("tests: a wrong value", {**sound, "tester": (bad_tests, right_tests)}, ("tester", 0))
    faulty: Replies = {"coder": (right, wrong, right), "tester": (bad_tests, right_tests)}
    yield plant("a right program given up for wrong tests", faulty, ("tester", 0), ("coder", 1))
    faulty = {"coder": (wrong, right), "tester": (right_tests, bad_tests, right_tests)}
    yield plant("right tests given up for a wrong program", faulty, ("coder", 0), ("tester", 1))


def mutants(program: str) -> list[tuple[str, str]]:
    """(what is wrong, the program with one expression changed), all there are."""
    tree = ast.parse(program)
    looping = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    found = []
    for place, node in enumerate(ast.walk(tree)):
        for name, changed in _changes(node) if id(node) not in looping else ():  # it might never end
            spoiled = copy.deepcopy(tree)
            target = list(ast.walk(spoiled))[place]
            target.__dict__.update(changed)
            found.append((name, ast.unparse(ast.fix_missing_locations(spoiled))))
    return found


def _changes(node: ast.AST) -> Iterator[tuple[str, dict[str, object]]]:
    """(what is wrong, the attributes that the node then has)."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "off by one", {"value": value + 1}
        case ast.Compare(ops=[operator]) if type(operator) in _FLIPPED:
            yield "off by one at a limit", {"ops": [_FLIPPED[type(operator)]()]}
        case ast.BinOp(op=operator) if type(operator) in _SIGNS:
            yield "a sign", {"op": _SIGNS[type(operator)]()}
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "a condition turned round", {"test": ast.UnaryOp(ast.Not(), test)}


def _tests(truth: CodeTruth) -> list[str]:
    """The task's own assertions that state a value and stand by themselves, as a tester would write them."""
    chosen = []
    for text in truth.suite.assertions:
        tree = ast.parse(text, mode="eval").body
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if names == {"candidate"} and _stated(tree) is not None:
            chosen.append(f"assert {text.replace('candidate(', f'{truth.entry_point}(')}")
    return chosen[:_MOST_TESTS]


def _wrong_tests(tests: list[str], rng: np.random.Generator) -> list[str] | None:
    """The tests with one value that is not right; None where no value can be changed."""
    for place in rng.permutation(len(tests)):
        call, _, _ = tests[place].rpartition(" == ")
        value = _stated(ast.parse(tests[place].removeprefix("assert "), mode="eval").body)
        if call and (other := _another(value)) != value:
            return [*tests[:place], f"{call} == {other!r}", *tests[place + 1 :]]
    return None


def _stated(tree: ast.expr) -> object:
    """The value that an assertion compares with; None where it is no literal."""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or not isinstance(tree.ops[0], ast.Eq):
        return None
    try:
        found: object = ast.literal_eval(tree.comparators[0])
    except ValueError:
        return None
    return found


def _another(value: object) -> object:
    """One off, one short, or the same the other way round."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str() if value:
            return value[:-1]
        case list() | tuple() if value:
            return value[:-1]
        case _:
            return value
