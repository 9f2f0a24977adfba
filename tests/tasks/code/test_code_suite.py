"""Suites run as they are written, in the sandbox, and say which of their assertions held."""

import ast

import pytest

from coachrl.tasks.code.suite import SuiteError, parse_suite, run_suite

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOP = """
def check(candidate):
    expected = [0, 1, 4]
    for i, value in enumerate(expected):
        assert candidate(i) == value, i
    assert candidate(5) == 25
"""
GUARDED = """
def check(candidate):
    assert True
    try:
        candidate(-1)
        assert False
    except ValueError:
        pass
    assert candidate(2) == 4
"""
HANGS = "import time\ndef f(i):\n    while i == 5:\n        time.sleep(60)\n    return i * i"


async def run(workspace, program, suite=LOOP, timeout_s=None):
    return await run_suite(workspace, program, parse_suite(suite), "f", timeout_s)


async def test_an_assertion_in_a_loop_is_one_and_stays_in_its_loop(code_workspace):
    result = await run(code_workspace, "def f(i):\n    return i * i")
    assert result.passed == (True, True) and result.all_passed and result.share == 1.0 and not result.summary
    wrong = await run(code_workspace, "def f(i):\n    return i * i if i < 2 or i == 5 else 0")
    assert wrong.passed == (False, True) and wrong.share == 0.5 and not wrong.all_passed
    assert wrong.failures == ("candidate(i) == value: got 0",)


async def test_a_constant_program_earns_the_share_of_a_yes_no_suite_that_asks_for_it_and_is_no_solution(code_workspace):
    suite = "def check(candidate):\n" + "".join(f"    assert candidate({n}) is {n > 2}\n" for n in range(4))
    says_no = await run(code_workspace, "def f(i): return False", suite)
    assert says_no.share == 0.75 and not says_no.all_passed
    says_yes = await run(code_workspace, "def f(i): return True", suite)
    assert says_yes.share == 0.25 and not says_yes.all_passed
    solves = await run(code_workspace, "def f(i): return i > 2", suite)
    assert solves.share == 1.0 and solves.all_passed


@pytest.mark.parametrize(
    ("program", "loaded", "words"),
    [
        ("def f(i): return i / 0", True, "candidate(i) == value: ZeroDivisionError: division by zero"),
        ("def f(i): raise SystemExit(0)", True, "SystemExit"),
        ("import os\nos._exit(0)", False, "the program ended before the tests did"),
        ("def f(i): __import__('os')._exit(0)", True, "the program ended before the tests did"),
        ("import no_such_module", False, "cannot be run: ModuleNotFoundError"),
        ("def g(i): return i", False, "cannot be run: KeyError: 'f'"),
        ("def f(:", False, "cannot be run: SyntaxError"),
        ("raise SystemExit", False, "cannot be run: SystemExit"),
    ],
)
async def test_a_program_that_breaks_passes_nothing_and_says_why(code_workspace, program, loaded, words):
    result = await run(code_workspace, program)
    assert result.passed == (False, False) and not result.all_passed
    assert result.loaded is loaded and words in result.summary


async def test_half_a_character_in_what_an_error_says_fails_one_assertion(code_workspace):
    result = await run(code_workspace, "def f(i):\n    if i == 1: raise ValueError('\\ud83d')\n    return i * i")
    assert result.passed == (False, True) and result.finished
    assert result.failures == (r"candidate(i) == value: ValueError: \ud83d",)
    broken = await run(code_workspace, "raise ValueError('\\ud83d')")
    assert broken.problem == r"the program cannot be run: ValueError: \ud83d"


async def test_what_had_passed_before_a_hang_counts(code_workspace):
    result = await run(code_workspace, HANGS, timeout_s=6)
    assert result.state == "timeout" and result.passed == (True, False)
    assert result.problem == "the time limit was reached"


async def test_places_that_must_not_be_reached(code_workspace):
    assert (await run(code_workspace, "def f(i):\n    if i < 0: raise ValueError\n    return 4", GUARDED)).all_passed
    reached = await run(code_workspace, "def f(i): return 4", GUARDED)
    assert not reached.all_passed and "the tests stopped: AssertionError" in reached.summary


async def test_what_a_program_prints_is_no_report(code_workspace):
    noisy = "print('x' * 500_000)\ndef f(i):\n    print('done')\n    return 0"
    result = await run(code_workspace, noisy)
    assert result.state == "ok" and result.passed == (False, False)


async def test_files_of_an_earlier_program_change_no_verdict(code_workspace):
    await code_workspace.run("open('os.py', 'w').write('raise SystemExit')\nopen('sys.py', 'w').write('1/0')")
    assert (await run(code_workspace, "def f(i): return i * i")).all_passed


async def test_tests_may_stand_at_the_top_or_in_functions(code_workspace):
    suite = "assert f(1) == 1\n\ndef test_two():\n    assert f(2) == 4\n\ndef test_three():\n    assert f(3) == 8\n"
    result = await run(code_workspace, "def f(i): return i * i", suite)
    assert result.passed == (True, True, False) and result.finished and not result.all_passed


async def test_a_program_may_have_tests_of_its_own_by_the_same_names(code_workspace):
    suite = """
def check(candidate):
    assert candidate(1) == 1

def test_two():
    assert f(2) == 4

if __name__ == "__main__":
    check(f)
    test_two()
"""
    for right, own in ((True, "return i * i"), (False, "return i")):
        program = f"def f(i): {own}\ndef check(candidate): pass\ndef test_two(): pass"
        assert (await run(code_workspace, program, suite)).passed == (True, right)


async def test_nothing_of_it_runs_here(code_workspace, tmp_path):
    trace = tmp_path / "trace"
    writes = f"open({str(trace)!r}, 'w').close()"
    suite = f"{writes}\nassert f(1) == 1"
    for program, tests in ((writes, "assert f(1) == 1"), ("def f(i): return i", suite)):
        result = await run(code_workspace, program, tests)
        assert not result.all_passed and not trace.exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "no assertion"),
        ("def check(candidate):\n    assert True", "no assertion"),
        ("# assert f(1) == 1\n'assert f(1) == 1'", "no assertion"),
        ("assert f(1) ==", "not Python"),
        ("assert f(1) == 1" + " + 1" * 1500, "recursion depth"),
        ("assert f(1) == 1\nx = 1" + " + 1" * 1500, "recursion depth"),
    ],
)
async def test_what_is_no_suite_is_refused(source, words):
    with pytest.raises(SuiteError, match=words):
        parse_suite(source)


@pytest.mark.parametrize("text", ['f"{1:\'>3}"', 'f"{1!s:\'}#"', "rf'{1:\\x00}'"])
async def test_a_suite_that_is_taken_can_be_read_again(text):
    """Python 3.12 writes quotes in the format of an f-string so that it cannot read them itself."""
    try:
        suite = parse_suite(f"assert f(1) == {text}")
    except SuiteError:
        return
    assert [ast.unparse(ast.parse(source)) for source in (suite.instrumented, *suite.assertions)]
