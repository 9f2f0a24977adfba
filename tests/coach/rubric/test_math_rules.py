"""Single rules for teams that answer a question, on cases where one word more or less would give another score."""

from dataclasses import replace

import pytest
from coach_requests import VERIFIER, WORD_PROBLEM, coded, make_action, request_for

from coachrl.coach.rubric.math import answer_rules, argument_rules, code_rules, draft_rules
from coachrl.coach.rubric.points import Cap, RubricPoints, Rule, total
from coachrl.coach.rubric.text_features import numbers_given
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Action, Execution, Outcome, Task

CHAIN = Task("t1", "word", "Ada has 24 figs, wins 9, and sells 13. How many has she?", ground_truth=MathTruth("20"))


def ok(printed: str) -> Execution:
    return Execution("ok", stdout=printed)


def found(rules: list[Rule], words: str) -> tuple[float, float] | float | None:
    """Points and the most of the rule whose reason begins so, or the cap; None where there is none."""
    for rule in rules:
        if rule.reason.startswith(words):
            return rule.at_most if isinstance(rule, Cap) else (rule.points, rule.of)
    return None


@pytest.mark.parametrize(("tokens", "points"), [(1, 1.0), (50, 1.0), (75, 0.5), (90, 0.2), (100, 0.0), (110, 0.0)])
def test_brevity_falls_from_half_of_the_limit_to_nothing_at_the_limit(tokens: int, points: float) -> None:
    rules = draft_rules(request_for(make_action("solver", "3 * 4", tokens=tokens)))  # of at most 100
    assert found(rules, "used") == (points, 1)


@pytest.mark.parametrize(
    ("text", "usable", "grounded", "covered"),
    [
        ("3 * 4", 3, 3, 1),
        ("3 * 5", 3, 1.5, 0.5),
        ("3 * 4 = 12\n12 / 2", 3, 1.5, 1),  # 12 came of arithmetic before it
        ("7 * 1", 3, 0, 0),  # what it comes to itself is known from nowhere
        (r"\boxed{12}", 2, 0, 0),
        ("I say 3.", 1, 0, 0.5),
        ("Nothing.", 0, 0, 0),
    ],
)
def test_what_a_draft_is_given_for_its_numbers(text: str, usable: float, grounded: float, covered: float) -> None:
    rules = draft_rules(request_for(make_action("solver", text)))
    points = [(rule.points, rule.of) for rule in rules if isinstance(rule, RubricPoints)]
    assert points[-3:] == [(usable, 3), (grounded, 3), (covered, 1)]


def test_a_wrong_answer_earns_nothing_and_nothing_for_its_agreement() -> None:
    ran, wrong = coded("executor", "print(3 * 4)", ok("12")), make_action("verifier", r"\boxed{13}", index=1)
    rules = answer_rules(request_for(wrong, (ran,), Outcome(False)))
    assert found(rules, "the final answer is wrong") == (0, 6) and found(rules, "contradicts what") == (0, 1)
    misled = coded("executor", "print(3 + 4)", ok("7"))
    rules = answer_rules(request_for(make_action("verifier", r"\boxed{12}", index=1), (misled,), Outcome(True)))
    assert found(rules, "rightly overruled") == (1, 1)


def test_code_is_held_to_no_draft_that_comes_to_nothing() -> None:
    ran, draft = coded("executor", "print(3 * 4)", ok("12"), index=1), make_action("solver", "I do not know.")
    assert found(code_rules(request_for(ran, (draft,))), "does not print") is None
    stated = replace(draft, text="3 * 5 = 15")
    of_another_set = replace(request_for(ran, (stated,), Outcome(False)), task=replace(WORD_PROBLEM, ground_truth="12"))
    assert found(code_rules(of_another_set), "does not print what the draft comes to") == (0, 1)
    right = request_for(ran, (stated,), Outcome(True))
    assert found(code_rules(right), "rightly departs") == (1, 1)


def test_numbers_that_a_problem_gives_in_words_come_from_it() -> None:
    """Else a draft that makes do with those in digits would be worth more than the right one."""
    task = Task("w", "word", "Ann fills three boxes with 4 apples each, and half of them twice.")
    for text, points in (("3 * 4 * 2 / 2", 3), ("4 + 4", 3), ("5 * 4", 1.5)):
        rules = draft_rules(replace(request_for(make_action("solver", text)), task=task))
        assert [rule.points for rule in rules if isinstance(rule, RubricPoints)][-2] == points
    coder = replace(request_for(coded("executor", "print(3 * 4)", ok("12"))), task=task)
    assert found(code_rules(coder), "100% of its numbers") == (1, 1)
    assert {15, 20, 5, 25, 90} <= numbers_given("Fifteen of twenty-five, or ninety") and not numbers_given("a plenty")


@pytest.mark.parametrize(
    ("text", "points", "cap"),
    [(r"\boxed{12}", 2, None), (r"\boxed{12} \boxed{12}", 2, None), (r"\boxed{12} \boxed{13}", 1, None),
     (r"\boxed{}", 1, None), ("12", 0, 3.0)],
)  # fmt: skip
def test_an_argument_is_held_to_one_boxed_answer(text: str, points: float, cap: float | None) -> None:
    rules = argument_rules(request_for(make_action("solver", text)))
    assert [rule.points for rule in rules if isinstance(rule, RubricPoints) and "boxed answer" in rule.reason] == [
        points
    ]
    assert found(rules, "no boxed answer") == ((0, 2) if cap else None)
    assert [rule.at_most for rule in rules if isinstance(rule, Cap)] == ([cap] if cap else [])


@pytest.mark.parametrize(
    ("reply", "points"),
    [
        ("```python\nprint(3 * 4)\n```", 2),
        ("```python\nprint(3 * 4)\n```\n```python\nprint(1)\n```", 1),
        ("```python\nprint(3 * 4)", 1),
        ("Inline ``` is none.\n  ```python\nprint(3 * 4)\n  ```", 2),
    ],
)
def test_one_closed_block_is_worth_more(reply: str, points: float) -> None:
    action = replace(coded("executor", "print(3 * 4)", ok("12")), text=reply)
    first = code_rules(request_for(action))[0]
    assert isinstance(first, RubricPoints) and (first.points, first.of) == (points, 2)


@pytest.mark.parametrize(("printed", "points"), [("", 0), ("  \n", 0), ("1" * 400, 1), ("1" * 401, 0.5)])
def test_a_short_result_is_printed(printed: str, points: float) -> None:
    assert found(code_rules(request_for(coded("executor", "print(3 * 4)", ok(printed)))), "printed") == (points, 1)


@pytest.mark.parametrize(
    ("code", "points"),
    [
        ("print(3 * 4)", 1.0),
        ("print(3 * 7)", 0.5),
        ("print(3 * 4 - 0 - 1 - 2)", 1.0),  # these stand in every loop
        ("print(1 + 1)", 0.0),  # and say nothing of the boxes and the apples
        ("print(3 * 8)", 1.0),  # the draft's
    ],
)
def test_the_numbers_of_code_come_from_the_task_or_from_what_was_said(code: str, points: float) -> None:
    rules = code_rules(request_for(coded("executor", code, ok("12"), index=1), (make_action("solver", "It is 8."),)))
    shares = [rule.points for rule in rules if isinstance(rule, RubricPoints) and "number" in rule.reason]
    assert shares == [points]


@pytest.mark.parametrize(
    ("text", "previous", "score"),
    [
        ("", (), 0),
        ("No idea.", (), 1),
        ("It is 12.", (), 2),
        ("It is 12.", (coded("executor", "x", Execution("error")),), 2),
        ("It is 12.", (coded("executor", "x", ok("12")), coded("executor", "y", Execution("error", "9"))), 10),
        ("It is 9.", (coded("executor", "x", ok("12")), coded("executor", "y", Execution("error", "9"))), 5),
        ("It is 9.", (coded("executor", "x", ok("12")), coded("executor", "y", ok("9"))), 10),
        ("Done.", (coded("executor", "x", ok("no number")),), 10),
    ],
)
def test_a_closing_report_is_held_against_the_last_code_that_ran(
    text: str, previous: tuple[Action, ...], score: float
) -> None:
    request = request_for(make_action("executor", text, index=2, turn=2), previous)
    assert total(code_rules(request))[0] == score


@pytest.mark.parametrize(
    ("executions", "expected"),
    [
        ((ok("12"),), "agrees"),
        ((ok("13"),), "contradicts"),
        ((ok("12"), Execution("error", stdout="13")), "agrees"),  # what crashed printed nothing that counts
        ((ok("13"), ok("12")), "agrees"),
        ((Execution("error", stdout="13"),), None),
        ((ok("no number"),), None),
    ],
)
def test_an_answer_is_held_against_what_the_last_code_that_ran_printed(
    executions: tuple[Execution, ...], expected: str | None
) -> None:
    previous = tuple(coded("executor", "x", execution) for execution in executions)
    reasons = [rule.reason for rule in answer_rules(request_for(make_action("verifier", r"\boxed{12}"), previous))]
    assert [reason.split()[0] for reason in reasons if "the code printed" in reason] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("after", "points"), [("", 1), ("$$.", 1), (")*]\n", 1), (" apples", 0), ("\n\nI checked it.", 0), ("}", 0)]
)
def test_nothing_follows_the_answer_but_marks(after: str, points: float) -> None:
    request = request_for(make_action("verifier", rf"$\boxed{{12}}{after}"))
    rules = answer_rules(request)
    assert found(rules, "nothing follows the answer" if points else "goes on after the answer") == (points, 1)


@pytest.mark.parametrize(
    ("task", "said", "printed", "cap"),
    [
        (CHAIN, r"\boxed{21}", "21", 5.0),  # the code's mistake
        (CHAIN, r"\boxed{21}", "20", 1.5),
        (CHAIN, r"\boxed{21}", "", 3.0),
        (WORD_PROBLEM, r"\boxed{21}", "21", 3.0),  # one step anybody can check
    ],
)
def test_who_hands_a_wrong_answer_on_pays_less_than_who_makes_it(
    task: Task, said: str, printed: str, cap: float
) -> None:
    request = replace(
        request_for(make_action("verifier", said), (coded("executor", "x", ok(printed)),), Outcome(False)), task=task
    )
    assert min(rule.at_most for rule in answer_rules(request) if isinstance(rule, Cap)) == cap


def test_a_wrong_answer_that_was_said_and_not_printed_was_handed_on_too() -> None:
    said = (coded("executor", "x", ok("20")), make_action("executor", "It gives 21."))
    request = replace(
        request_for(make_action("verifier", r"\boxed{21}"), said, Outcome(False, reason="not 20")), task=CHAIN
    )
    assert found(answer_rules(request), "not 20, as it was handed on") == (2, 6)


def test_with_ground_truth_for_all_a_report_of_a_wrong_program_is_no_fault_of_its_own() -> None:
    wrong = coded("executor", "print(3 + 4)", ok("7"))
    for text, cap in (("It is 7.", 7), ("It is 8.", 4)):
        rules = code_rules(request_for(make_action("executor", text, index=1, turn=1), (wrong,), Outcome(False)))
        assert found(rules, "its result is not the reference answer") == cap
    rules = code_rules(request_for(make_action("executor", "It is 12.", index=1, turn=1), (wrong,), Outcome(False)))
    assert found(rules, "its result is the reference answer") == (1, 1)


def test_a_draft_is_the_last_text_of_another_agent_that_ran_no_code() -> None:
    others = (make_action("solver", "3 * 4"), coded("verifier", "print(7)", ok("7")))
    rules = code_rules(request_for(coded("executor", "print(3 * 4)", ok("12"), index=2), others))
    assert found(rules, "prints what the draft comes to") == (1, 1)
    own = (make_action("solver", "3 * 4"), make_action("executor", "3 + 4"))
    assert found(code_rules(request_for(coded("executor", "print(12)", ok("12"), index=2), own)), "prints what") == (
        1,
        1,
    )


def test_the_last_agent_is_held_to_the_outcome_where_it_computes() -> None:
    for is_last in (True, False):
        request = request_for(coded("executor", "print(3 * 5)", ok("15")), outcome=Outcome(False))
        rules = code_rules(replace(request, is_last_role=is_last))
        assert found(rules, "its result is not the reference answer") == 4


@pytest.mark.parametrize(
    ("text", "points"),
    [(r"\boxed{12}", 1), (r"\boxed{12} \boxed{12}", 1), (r"\boxed{12} \boxed{13}", 0.5), (r"\boxed{}", 0.5), ("12", 0)],
)
def test_an_answer_is_held_to_one_box(text: str, points: float) -> None:
    rules = answer_rules(request_for(make_action("verifier", text)))
    assert [rule.points for rule in rules if isinstance(rule, RubricPoints) and "boxed" in rule.reason] == [points]


def test_an_agent_that_is_asked_for_no_box_is_not_held_to_one() -> None:
    request = request_for(
        make_action("verifier", "12"), outcome=Outcome(True), prompt=replace(VERIFIER.prompt, body="")
    )
    assert total(answer_rules(request))[0] == 10


def test_a_wrong_result_is_excused_by_code_of_its_own_and_in_words_alone() -> None:
    own = coded("executor", "print(3 + 4)", ok("7"))
    again = coded("executor", "print(7)", ok("7"), index=1, turn=1)
    assert found(code_rules(request_for(again, (own,), Outcome(False))), "its result is not the reference") == 4
    said = make_action("solver", "3 + 4", index=1)
    assert found(draft_rules(request_for(said, (own,), Outcome(False))), "its result is not the reference") == 4


@pytest.mark.parametrize(
    ("task", "draft"),
    [(CHAIN, "24 + 9 - 13 = 20"), (WORD_PROBLEM, "3 * 4 = 12\n12 * 1 = 12"), (CHAIN, "24 - 9 = 15\n15 + 4 = 19")],
    ids=["one step", "a problem of one step", "a number is left out"],
)
def test_code_may_depart_from_a_draft_that_is_no_chain_of_sound_steps(task: Task, draft: str) -> None:
    request = request_for(coded("executor", "print(46 * 1)", ok("46"), index=1), (make_action("solver", draft),))
    rules = code_rules(replace(request, task=task))
    assert found(rules, "does not print what the draft comes to") == (0, 1)
    assert [rule for rule in rules if isinstance(rule, Cap)] == []


def test_giving_up_is_told_from_never_having_begun() -> None:
    said = make_action("executor", "It is 12.", index=1, turn=1)
    for previous, words in (((), "no closed code block"), ((coded("executor", "x", Execution("error")),), "gave up")):
        assert found(code_rules(request_for(said, previous)), words) == (2, 10)
    mute = make_action("executor", "No idea.", index=1)
    assert found(code_rules(request_for(mute)), "no closed code block, so nothing was run; names no number") == (1, 10)


@pytest.mark.parametrize(
    ("text", "usable", "grounded"),
    [
        ("3 * 4", "states arithmetic that can be worked out: 3 * 4", "100% of its arithmetic's numbers come from the"),
        (r"\boxed{12}", "states an answer, but no arithmetic", "no arithmetic whose numbers could come from"),
        ("I say 3.", "holds numbers, but no arithmetic", "no arithmetic whose numbers could come from"),
        ("Nothing.", "holds no number", "no arithmetic whose numbers could come from"),
    ],
)
def test_a_draft_is_told_what_its_numbers_lack(text: str, usable: str, grounded: str) -> None:
    reasons = [rule.reason for rule in draft_rules(request_for(make_action("solver", text)))]
    assert reasons[-3] == usable and reasons[-2].startswith(grounded)


def test_a_reply_at_its_length_limit_has_not_ended_by_itself() -> None:
    for reason, points in (("ended by itself", (1, 1)), ("hit the length limit", (0, 1))):
        action = make_action("solver", "3 * 4", finish="stop" if points[0] else "length")
        rules = draft_rules(request_for(action))
        assert found([rule for rule in rules if isinstance(rule, RubricPoints)], reason) == points


@pytest.mark.parametrize(
    ("code", "execution", "said", "cap"),
    [
        ("print(3 * 4)", ok("12"), {"the code computes": (2, 2), "printed a short result": (1, 1)}, None),
        ("print(12)", ok("12"), {"the code only states a constant": (0, 2), "printed a short result": (1, 1)}, None),
        ("x = 3 * 4", ok(""), {"printed nothing": (0, 1), "printed nothing, so no result": 6.0}, 6.0),
        ("print(3 * 4)", ok("1" * 401), {"printed 401 characters; a result is shorter": (0.5, 1)}, None),
        ("print(3 * 4)", Execution("error"), {"printed nothing": (0, 1), "tried, but the code failed": 5.0}, 5.0),
        ("print(3 *", ok("12"), {"not valid Python": (0, 1), "the code is not valid Python": 3}, 3),
    ],
)
def test_an_executor_is_told_what_its_code_lacks(
    code: str, execution: Execution, said: dict[str, object], cap: float | None
) -> None:
    rules = code_rules(request_for(coded("executor", code, execution)))
    assert {words: found(rules, words) for words in said} == said
    assert [rule.at_most for rule in rules if isinstance(rule, Cap)] == ([] if cap is None else [cap])


@pytest.mark.parametrize(
    ("fences", "reason"),
    [(2, "one closed code block"), (3, "a code block that is never closed"), (4, "several code blocks")],
)
def test_blocks_are_told_apart_by_their_fences(fences: int, reason: str) -> None:
    action = replace(coded("executor", "print(3 * 4)", ok("12")), text="```\nprint(3 * 4)\n" * fences)
    assert code_rules(request_for(action))[0].reason == reason


def test_a_report_says_whether_it_is_what_the_code_printed() -> None:
    before = (coded("executor", "x", ok("12")),)
    for text, words, points in (("It is 12.", "reports what", 7), ("It is 9.", "does not report what", 2)):
        rules = code_rules(request_for(make_action("executor", text, index=1, turn=1), before))
        assert found(rules, f"{words} the code printed") == (points, 7)
