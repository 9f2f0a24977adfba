"""The child that compares answers: what a hostile one costs, and what it leaves for those after it."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from cases import every

from coachrl.tasks.math.judge import MathJudge
from coachrl.tasks.math.problems import MathTruth, grade_math


@pytest.mark.parametrize("hostile", every(3, ["9^{9^9}", "99999999!", "x^{100000}+1=(x+1)^{5000}"]))
def test_hostile_answer_costs_the_child_only(hostile: str) -> None:
    judge = MathJudge()
    try:
        assert judge.equal("7", hostile) is None
        assert judge.equal("1/2", r"\frac{2}{4}") is True
    finally:
        judge.close()


def test_an_answer_is_no_less_right_where_those_before_it_ended_the_child() -> None:
    judge = MathJudge()
    try:
        assert judge.equal("1/2", r"\frac{2}{4}") is True
        assert judge._child is not None
        judge._child.kill()
        assert judge.equal("1/2", r"\frac{3}{6}") is True
    finally:
        judge.close()


def test_a_child_that_holds_much_of_what_it_computed_ends() -> None:
    program = "from coachrl.tasks.math import judge\njudge._MOST_HELD = 0\njudge._serve()"
    asked = 2 * '["1/2", "\\\\frac{2}{4}"]\n'
    child = subprocess.run([sys.executable, "-c", program], input=asked, text=True, stdout=subprocess.PIPE)
    assert (child.stdout, child.returncode) == ("ready\ntrue\n", 0)


def test_a_child_is_not_charged_for_the_memory_of_who_starts_it() -> None:
    program = (
        "from coachrl.tasks.math.judge import MathJudge\n"
        "held, judge = b'1' * 600_000_000, MathJudge()\n"
        "judge.equal('1', '1')\nfirst = judge._child\njudge.equal('1', '1')\nassert judge._child is first\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("by_the_clock", "work", "ended_by"),
    [
        (60, "time.sleep(0.6)\nos._exit(0)", 0),
        (60, "while True: pass", -signal.SIGPROF),
        (0.3, "time.sleep(60)", -signal.SIGALRM),
    ],
)
def test_a_machine_that_has_much_else_to_do_makes_no_answer_wrong(
    by_the_clock: float, work: str, ended_by: int
) -> None:
    program = (
        f"import os, time\nfrom coachrl.tasks.math.judge import limit_time\nlimit_time(0.3, {by_the_clock})\n{work}"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == ended_by


def test_grading_works_in_many_threads() -> None:
    replies = [rf"\boxed{{\frac{{{n}}}{{2}}}}" for n in range(16)]
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda reply: grade_math(reply, MathTruth(r"\frac{5}{2}")), replies))
    assert [n for n, outcome in enumerate(outcomes) if outcome.success] == [5]
