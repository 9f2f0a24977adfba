"""Rules that every rubric shares."""

from dataclasses import replace

from coach_requests import coded, request_for

from coachrl.coach.rubric.points import part_ends, same_code_failed_before
from coachrl.types import Execution

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
