"""How the lines that a suite reports are read, and what makes a right program wrong; nothing is run in a sandbox."""

import pytest

from coachrl.tasks.code.examples import arguments_in
from coachrl.tasks.code.off_by_one_program import _off_by_one
from coachrl.tasks.code.suite import _MAX_ENTERED, _read, off_by_one, parse_suite

SUITE = parse_suite("assert f(1) == 1\nassert f(2) == 4\nassert f(3) == 9\n")


def read(*lines, state="ok"):
    return _read("\n".join(f"@@{line}" for line in lines), "@@", SUITE, state)


def test_an_assertion_holds_where_every_evaluation_of_it_did():
    found = read("loaded", "enter 0", "pass 0", "enter 1", "pass 1", "enter 1", "fail 1 got 5", "done")
    assert found.passed == (True, False, False) and found.ran == (True, True, False)
    assert found.failures == ("f(2) == 4: got 5",) and found.summary == "f(2) == 4: got 5"
    assert found.finished and found.loaded and not found.all_passed and found.share == 1 / 3


def test_one_that_crashed_came_to_no_verdict():
    found = read("loaded", "enter 0", "pass 0", "enter 0", "crash 0 ValueError: 1", "enter 2", "pass 2", "done")
    assert found.passed == (False, False, True) and found.ran == (False, False, True)
    assert found.failures == ("f(1) == 1: ValueError: 1",)


@pytest.mark.parametrize(
    ("lines", "state", "passed", "problem"),
    [
        (["enter 0", "pass 0", "enter 1"], "timeout", (True, False, False), "the time limit was reached"),
        (["enter 0", "pass 0", "enter 0"], "oom", (False, False, False), "the memory limit was reached"),
        (["pass 0", "done"], "error", (True, False, False), "the program ended before the tests did (state 'error')"),
        (["pass 0", "problem it broke"], "ok", (True, False, False), "it broke"),
    ],
)
def test_what_it_ended_inside_of_does_not_hold(lines, state, passed, problem):
    found = read(*lines, state=state)
    assert found.passed == passed and not found.finished and found.problem == problem and not found.loaded


def test_of_a_suite_that_entered_too_often_to_be_followed_nothing_holds_unless_it_ended():
    lines = ["enter 0", "pass 0"] * _MAX_ENTERED
    assert read(*lines[:-2], state="timeout").passed == (False, False, False)
    assert read(*lines, "enter 1", state="timeout").passed == (False, False, False)
    assert read(*lines, "done").passed == (True, False, False)
    # As many as are followed may have been all, and may not; one fewer is known to have ended inside of the last.
    in_turn = ["enter 0", "pass 0", "enter 1", "pass 1"] * (_MAX_ENTERED // 2)
    assert read(*in_turn, state="timeout").passed == (False, False, False)
    assert read(*in_turn[2:], state="timeout").passed == (True, False, False)


def test_all_hold_only_where_the_suite_came_to_its_end():
    lines = ["pass 0", "pass 1", "pass 2"]
    assert read(*lines, "done").all_passed and not read(*lines).all_passed
    assert not read(*lines, "done", state="timeout").all_passed


def test_lines_without_the_mark_are_no_reports():
    found = _read("pass 0\n@@pass 1\nx@@pass 2\n", "@@", SUITE, "ok")
    assert found.passed == (False, True, False)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (True, False),
        (1, 2),
        (0.5, 1.5),
        (1e300, 0),  # one more would be the same number
        ("ab", "abb"),
        ("", "?"),
        (b"a", b"aa"),
        (b"", b"?"),
        ([1], [1, 2]),
        ([], [0]),
        (["a", [True]], ["a", [True], [True, False]]),
        ((1,), (1, 2)),
        ({1, 2}, {1, 2, 3}),
        ({True, False}, {True, False, None}),
        (set(), {0}),
        ({"a": 2}, {"a": 2, "aa": 2}),
        ({}, {0: 0}),
        (None, 0),
        (len, None),
    ],
)
def test_each_result_becomes_another_of_its_kind(value, other):
    wrong = _off_by_one(lambda: value)()
    assert wrong == other and (type(wrong) is type(value) or value in (1e300, None, len))


def test_errors_and_changes_in_place_become_others_and_recursion_stays_right():
    def fails(n):
        raise ValueError(n)

    assert _off_by_one(fails)(1) is None
    lists, named = [1], {"a": 1}
    assert _off_by_one(lambda xs, *, by: None)(lists, by=named) == 0
    assert (lists, named) == ([1, 2], {"a": 1, "aa": 1})

    def factorial(n):
        return 1 if n == 0 else n * wrong(n - 1)

    wrong = _off_by_one(factorial)
    assert [wrong(5), wrong(3)] == [121, 7]


def test_calls_with_given_arguments_stay_right_however_they_are_given():
    def power(base, exponent=2):
        return base**exponent

    wrong = _off_by_one(power, [((3,), {}), ((2,), {"exponent": 5})])
    assert [wrong(3), wrong(base=3), wrong(3, 2), wrong(2, 5)] == [9, 9, 9, 32]
    assert [wrong(3, 3), wrong(2)] == [28, 5]
    assert _off_by_one(max, [((1, 2), {})])(1, 2) == 2, "a builtin may have no signature"
    assert _off_by_one(power, [((3,), {})])() is None


def test_given_calls_that_call_the_function_again_stay_right():
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    fibonacci = _off_by_one(fibonacci, [((10,), {})])
    assert (fibonacci(10), fibonacci(9)) == (55, 35)


@pytest.mark.parametrize(
    ("example", "others", "right"),
    [
        ("same(1e999)", "1e308", "1e999"),
        ("same(value=-1)", "value=1", "-1"),
        ("same(**{'value': {1, 2}})", "{1}", "{2, 1}"),
        ("same()", "value=1", ""),
        ("same('\"\\n')", "'\"'", "value='\"\\n'"),
    ],
)
def test_examples_stay_right_however_they_are_written(example, others, right):
    space = {}
    program = "def same(value=0):\n    return value\nplain = same\n"
    exec(off_by_one(program, "same", arguments_in([example], "same")), space)
    assert eval(f"same({right}) == plain({right})", space)
    assert eval(f"same({others}) != plain({others})", space)


@pytest.mark.parametrize("example", ["same(0x" + "f" * 5000 + ")", "same(other)", "same(*[1])", "len(same(1))"])
def test_examples_that_do_not_write_their_arguments_out_are_left_out(example):
    assert arguments_in([example], "same") == []
