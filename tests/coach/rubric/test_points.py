"""Rules that every rubric shares."""

from dataclasses import replace

from coach_requests import coded, request_for

from coachrl.coach.rubric.points import part_ends
from coachrl.types import Execution

CRASH = Execution("error", stderr="KeyError: 'age'\n", exit_code=1)


def test_the_first_turn_of_a_second_part_does_not_end_it():
    def turn(number, prompt):
        return replace(coded("engineer", "x", CRASH, turn=number, index=number), prompt_ids=prompt, response_ids=(9,))

    first, last, anew = turn(0, (1,)), turn(1, (1, 9, 2)), turn(2, (5,))
    assert not part_ends(request_for(first, max_turns=2))
    assert part_ends(request_for(last, (first,), max_turns=2))
    assert not part_ends(request_for(anew, (first, last), max_turns=2))
