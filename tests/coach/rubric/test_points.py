"""Rules that every rubric shares."""

from dataclasses import replace

import pytest
from coach_requests import coded, make_action, request_for

from coachrl.coach.rubric.points import (
    Cap,
    RubricPoints,
    all_or_none,
    cut,
    error_line,
    nothing_written,
    part_ends,
    same_code_failed_before,
    total,
)
from coachrl.types import Execution, ran

CRASH = Execution("error", stderr="KeyError: 'age'\n", exit_code=1)


def test_the_first_turn_of_a_second_part_does_not_end_it():
    def turn(number, prompt):
        return replace(coded("engineer", "x", CRASH, turn=number, index=number), prompt_ids=prompt, response_ids=(9,))

    first, last, anew = turn(0, (1,)), turn(1, (1, 9, 2)), turn(2, (5,))
    assert not part_ends(request_for(first, max_turns=2))
    assert part_ends(request_for(last, (first,), max_turns=2))
    assert not part_ends(request_for(anew, (first, last), max_turns=2))


def test_the_same_code_failed_before_only_where_it_was_the_same_agents():
    again = coded("modeler", "fit()", CRASH, index=2)
    own, anothers = coded("modeler", "fit()", CRASH, index=1), coded("engineer", "fit()", CRASH, index=0)
    assert same_code_failed_before(request_for(again, (anothers, own)))
    assert not same_code_failed_before(request_for(again, (anothers,)))
    assert not same_code_failed_before(request_for(again, (replace(own, code="other()"),)))
    assert not same_code_failed_before(request_for(again, (replace(own, execution=Execution("ok")),)))
    broken = replace(again, code="fit(\n")  # no Python
    assert not same_code_failed_before(request_for(broken, (replace(own, code="other(\n"),)))
    assert same_code_failed_before(request_for(broken, (replace(own, code=" fit("),)))


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ([RubricPoints(1, 3, "a"), RubricPoints(1.5, 4, "b")], 3.57),  # 25 / 7
        ([RubricPoints(3, 3, "a"), Cap(6, "b"), Cap(4, "c"), Cap(5, "d")], 4.0),
        ([RubricPoints(1, 4, "a"), Cap(6, "b")], 2.5),
        ([RubricPoints(4, 4, "a"), RubricPoints(-1, 0, "b")], 7.5),
        ([RubricPoints(1, 4, "a"), RubricPoints(-2, 0, "b")], 0.0),
        ([RubricPoints(4, 4, "a"), RubricPoints(1, 0, "b")], 10.0),
    ],
)
def test_a_total_is_the_share_of_the_points_less_deductions_under_the_lowest_cap(rules, score):
    assert total(rules)[0] == score


def test_the_reasons_of_a_total_stand_one_a_line_with_caps_last():
    rules = [Cap(4, "cut"), RubricPoints(1.5, 2, "half"), RubricPoints(-1, 0, "late")]
    assert total(rules)[1] == "1.5 of 2: half\n-1: late\nat most 4: cut"
    assert all_or_none(True, 2, "yes", "no") == RubricPoints(2, 2, "yes")
    assert all_or_none(False, 2, "yes", "no") == RubricPoints(0, 2, "no")


def test_how_an_execution_ended_is_its_last_line():
    assert error_line(CRASH) == "error: KeyError: 'age'" and error_line(None) == "the code was not run"
    trace = "Traceback (most recent call last):\n  File \"main.py\", line 1\nKeyError: 'age'\n\n"
    assert error_line(Execution("error", stderr=trace)) == "error: KeyError: 'age'"
    assert error_line(Execution("timeout", stderr=" \n")) == "timeout, without a message"
    assert len(error_line(Execution("error", stderr="x" * 500))) == len("error: ") + 120
    assert ran(Execution("ok")) and not ran(CRASH) and not ran(None)


def test_what_shows_nothing_and_what_was_cut():
    assert nothing_written(request_for(make_action("solver", ""))).reason == "empty reply"
    hidden = request_for(make_action("solver", "<think>a</think>"))
    assert nothing_written(hidden) == RubricPoints(0, 10, "nothing written outside of hidden thoughts")
    assert cut(request_for(make_action("solver", "a"))) == []
    assert cut(request_for(make_action("solver", "a", finish="length"))) == [Cap(4.0, "cut at 100 tokens")]
