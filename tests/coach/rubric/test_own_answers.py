"""Who answers for itself is held to its own answer: whoever comes last, whatever others say, whatever comes later."""

from dataclasses import replace

import pytest
from coach_requests import WORD_PROBLEM, coded, make_action, request_for

from coachrl.coach.rubric.math import answer_rules, code_rules, draft_rules
from coachrl.coach.rubric.points import Cap, Rule, total
from coachrl.coach.rubric.rules import rubric
from coachrl.config import PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.tasks.math.problems import MathTruth
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Execution, Outcome, Reward, Task

RIGHT, WRONG = r"3 * 4 = 12, so \boxed{12}", r"3 + 4 = 7, so \boxed{7}"


def caps(rules: list[Rule]) -> list[float]:
    return [rule.at_most for rule in rules if isinstance(rule, Cap)]


async def scores(replies: list[str], **options: object) -> list[float]:
    """Of a debate about a word problem in which the agents say these in turn, in the order of the episode."""
    pipeline = make_pipeline(PipelineConfig(name="debate", max_new_tokens=200, options=options))
    said, requests = iter(replies), []
    context = RolloutContext(
        pipeline, ScriptedPolicy(lambda call: next(said)), None, submit=requests.append, outcome_to="all"
    )
    await rollout([EpisodeSpec("e", WORD_PROBLEM, 0)], context)
    return [total(rubric(one))[0] for one in sorted(requests, key=lambda request: request.action.index)]


@pytest.mark.parametrize(
    ("replies", "expected"),
    [([RIGHT] * 3, [10] * 3), ([WRONG] * 3, [4] * 3), ([WRONG, WRONG, RIGHT], [4, 4, 10])],
    ids=["right", "all copy a wrong one", "one is right and outvoted"],
)
async def test_each_debater_is_paid_for_its_own_answer(replies: list[str], expected: list[float]) -> None:
    assert await scores(replies, rounds=1) == expected


async def test_an_answer_that_its_agent_takes_back_is_judged_as_it_was() -> None:
    first, second = await scores([WRONG, RIGHT], agents=1, rounds=2)
    assert first <= 3 and second >= 9


@pytest.mark.parametrize("right", [True, False])
def test_a_program_that_answers_is_held_to_what_was_found_of_it(right: bool) -> None:
    """What it prints may be equal to the reference without being the same number."""
    action = coded("executor", "print('x', 3 * 4)", Execution("ok", stdout="x 12"), index=1)
    action = replace(action, reward=Reward(0.0, 0.0, {"form": 1.0, "right": float(right)}))
    request = replace(request_for(action, (make_action("solver", "3 * 4"),), Outcome(right)), is_last_role=True)
    assert caps(code_rules(request)) == ([] if right else [4.0])
    assert caps(code_rules(replace(request, outcome=None))) == []  # nobody has shown the coach


@pytest.mark.parametrize("reference", [r"2\pi", "(3, 4)", r"3\sqrt{2}", "x^2 + 1"])
def test_a_reference_that_only_holds_numbers_makes_no_result_wrong(reference: str) -> None:
    """Which number such a result comes to rules cannot tell."""
    task = replace(WORD_PROBLEM, ground_truth=MathTruth(reference))
    action = coded("executor", "print(3 * 4)", Execution("ok", stdout="12"), index=1)
    request = replace(request_for(action, outcome=Outcome(False)), task=task)
    assert caps(code_rules(request)) == []
    for written in ("13", r"\frac{26}{2}", "-13", "1,013", "13 apples"):
        assert caps(code_rules(replace(request, task=replace(task, ground_truth=MathTruth(written))))) == [4.0]


def test_a_last_program_that_was_graded_as_right_is_not_wrong_for_how_it_prints() -> None:
    action = coded("executor", "print('12 in', 3 * 1, 'boxes')", Execution("ok", stdout="12 in 3 boxes"), index=1)
    request = replace(request_for(action, outcome=Outcome(True)), is_last_role=True)
    assert caps(code_rules(request)) == [] and caps(code_rules(replace(request, outcome=Outcome(False)))) == [4.0]


def test_an_early_answer_overrules_code_rightly_whatever_the_team_answers_last() -> None:
    """A judge that reads the outcome of the whole episode would call a right answer wrong, and against the code."""
    printed = coded("executor", "print(3 + 4)", Execution("ok", stdout="7"), index=0)
    answer = replace(
        make_action("verifier", r"\boxed{12}", index=1), reward=Reward(0.0, 1.0, {"form": 1.0, "right": 1.0})
    )
    for outcome in (Outcome(False), Outcome(True)):
        rules = answer_rules(request_for(answer, (printed,), outcome))
        assert caps(rules) == [] and "rightly overruled what the code printed" in [rule.reason for rule in rules]


def test_a_draft_on_a_problem_without_numbers_is_compared_where_the_answer_is_known() -> None:
    dozen = Task("d", "word", "How many are half of a dozen?", ground_truth=MathTruth("6"))
    for text, outcome, expected in (("6", Outcome(True), []), ("99", Outcome(False), [4.0]), ("99", None, [7.0])):
        request = replace(request_for(make_action("solver", text), outcome=outcome), task=dozen)
        assert caps(draft_rules(request)) == expected


def test_a_reply_in_which_no_answer_can_be_read_is_worth_little() -> None:
    nothing = Reward(0.0, 0.0, {"format": 0.0})
    printed = replace(coded("executor", "print(3 + 4)", Execution("ok", stdout="7")), reward=nothing)
    assert caps(code_rules(request_for(printed))) == [3.0]
    said = replace(make_action("verifier", "Done."), reward=nothing)
    assert 3.0 in caps(answer_rules(request_for(said, outcome=Outcome(True))))
