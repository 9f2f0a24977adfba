"""The rules on problems of several steps, where one agent's slip is told from another's before the outcome is known."""

from dataclasses import replace

import pytest
from coach_requests import coded, make_action, request_for

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.points import total
from coachrl.coach.rubric.rules import rubric
from coachrl.coach.rubric.text_features import first_invented_number
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Action, Execution, Outcome, Task

CHAIN = Task("t1", "word", "Ada has 24 figs, wins 9, and sells 13. How many has she?", ground_truth=MathTruth("20"))
DRAFT = "24 + 9 = 33\n33 - 13 = 20"


def asked(action: Action, *previous: Action, outcome: Outcome | None = None) -> CoachRequest:
    return replace(request_for(action, previous, outcome), task=CHAIN)


def scored(action: Action, *previous: Action, outcome: Outcome | None = None) -> tuple[float, str]:
    return total(rubric(asked(action, *previous, outcome=outcome)))


def ran(code: str, printed: str) -> Action:
    return coded("executor", code, Execution("ok", stdout=f"{printed}\n"), index=1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DRAFT, ""),
        ("24 + 9 - 13 = 20", ""),
        ("24 + 9 = 34\n34 - 13 = 21", ""),  # a step that does not hold is another matter
        ("So she has 33 figs at first: 24 + 9. Then 33 - 13.", ""),
        ("24 + 8 = 32\n32 - 13 = 19", "8 in 24 + 8"),
        ("24 + 9 = 33\n33 - 14 = 19", "14 in 33 - 14"),
        ("(24 + 9) * 100 / 60", ""),  # units
        ("no arithmetic at all, 77", ""),
    ],
)
def test_the_first_number_from_nowhere_is_found(text: str, found: str) -> None:
    assert first_invented_number(text, CHAIN.prompt) == found


def test_numbers_of_units_and_halves_come_from_nowhere_and_may() -> None:
    usual = (0, 1, 2, 7, 10, 12, 24, 30, 31, 52, 60, 100, 365)
    found = [number for number in range(401) if not first_invented_number(f"24 + {number}", "She has 24 figs.")]
    assert found == list(usual) and first_invented_number("24 + 1000", "She has 24 figs.") == ""


@pytest.mark.parametrize("words", ["Three more come.", "It grows by 20%.", "She doubles them.", "Half are left."])
def test_of_numbers_in_words_nobody_can_say_where_they_come_from(words: str) -> None:
    assert first_invented_number("24 + 8 = 32", f"{CHAIN.prompt} {words}") == ""


def test_a_draft_with_a_number_that_nobody_gave_is_capped() -> None:
    assert scored(make_action("solver", DRAFT))[0] == 10
    given, why = scored(make_action("solver", "24 + 9 = 33\n33 - 14 = 19"))
    assert given == 4 and "at most 4: a number that nobody gave: 14 in 33 - 14" in why


def test_code_that_departs_from_a_sound_draft_is_capped_and_from_a_faulty_one_is_not() -> None:
    code = ran("x = 24\nx += 9\nx += 13\nprint(x)", "46")
    given, why = scored(code, make_action("solver", DRAFT))
    assert given == 4 and "at most 4: departs from a draft" in why
    for faulty in ("24 + 9 = 34\n34 - 13 = 21", "24 + 8 = 32\n32 - 13 = 19", "24 + 9 = 33", "24 - 4"):
        assert scored(code, make_action("solver", faulty))[0] > 8, faulty
    right = ran("print(24 + 9 - 13)", "20")
    assert scored(right, make_action("solver", DRAFT))[0] == 10


def test_code_that_rightly_departs_keeps_its_score_where_the_outcome_is_shown() -> None:
    wrong = make_action("solver", "24 - 9 = 15\n15 - 13 = 2")
    right = ran("print(24 + 9 - 13)", "20")
    assert scored(right, wrong)[0] == 4  # each step holds: who of the two is wrong cannot be seen
    assert scored(right, wrong, outcome=Outcome(True))[0] == 10


def test_a_report_of_another_number_than_was_printed_is_capped_and_one_without_any_is_not() -> None:
    code = ran("print(24 + 9 - 13)", "20")
    assert scored(make_action("executor", "So it is 20.", index=2, turn=1), code)[0] == 10
    given, why = scored(make_action("executor", "So it is 21.", index=2, turn=1), code)
    assert given == 4 and "reports another number than its code printed" in why
    assert scored(make_action("executor", "Done.", index=2, turn=1), code)[0] == 5
