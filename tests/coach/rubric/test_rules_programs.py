"""The rules coach on programs, tests and arguments: the better action scores higher, and says why."""

from dataclasses import replace
from itertools import pairwise

import pytest
from coach_requests import make_action

from coachrl.coach.base import CoachRequest
from coachrl.coach.prompt_rendering import find_coach_prompt, render_request
from coachrl.coach.rubric.points import Cap, RubricPoints, total
from coachrl.coach.rubric.programs import is_programming, program_rules
from coachrl.coach.rubric.rules import RulesCoach, rubric
from coachrl.config import EvidenceConfig, PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.tasks.code.problems import load_coop_code
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Outcome, Reward, Task

TASK = next(task for task in load_coop_code("train") if task.ground_truth.entry_point == "prime_gaps")
PROMPT_STYLES = pytest.mark.parametrize("prompt_style", ["full", "short"])


def block(code):
    return f"```python\n{code}\n```"


def ask(pipeline, role, text, prompt_style="full", outcome=None, finish="stop", task=TASK, **options):
    team = make_pipeline(PipelineConfig(name=pipeline, prompt_style=prompt_style, options=options)).roles
    [member] = [member for member in team if member.name == role]
    action = make_action(role, text, finish=finish, tokens=20)
    return CoachRequest(task, member, team, action, is_last_role=role == team[-1].name, outcome=outcome)


def score(*args, **kwargs):
    return total(rubric(ask(*args, **kwargs)))[0]


def reasons(*args, **kwargs):
    return total(rubric(ask(*args, **kwargs)))[1]


def falling(scores):
    return all(before > after for before, after in pairwise(scores))


FUNCTION = block("def prime_gaps(limit):\n    return [limit]")
WITH_AUX = block("def prime_gaps(limit):\n    return [aux(n) for n in range(limit)]")
WRAPPER = block("def prime_gaps(limit):\n    return aux(limit)")


@PROMPT_STYLES
def test_a_coder(prompt_style):
    tries = [
        FUNCTION,
        "def prime_gaps(limit):\n    return [limit]",
        block("def other(limit):\n    return []"),
        "I cannot.",
    ]
    assert falling([score("code", "coder", text, prompt_style) for text in tries])
    assert score("code", "coder", FUNCTION, prompt_style, finish="length") == 4.0


@pytest.mark.parametrize("body", ["pass", "return []", "raise NotImplementedError"])
def test_a_function_that_looks_at_nothing_is_no_program(body):
    stub = block(f"def prime_gaps(limit):\n    {body}")
    assert score("code", "coder", stub) == 3.0
    assert "prime_gaps makes nothing of what it is given" in reasons("code", "coder", stub)


@pytest.mark.parametrize("signature", ["def prime_gaps()", "async def prime_gaps(limit)", "def prime_gaps(*limit)"])
def test_a_function_that_cannot_look_at_anything_is_no_program_either(signature):
    assert score("code", "coder", block(f"{signature}: return []")) == 3.0


def test_a_function_that_is_called_without_arguments_needs_none():
    task = replace(TASK, prompt="What does prime_gaps() return?")
    assert score("code", "coder", block("def prime_gaps(): return [1]"), task=task) == 10.0


@pytest.mark.parametrize("signature", ["aux(n)", "aux(*all)"])
def test_a_helper_that_looks_at_nothing_is_no_help(signature):
    stub = block(f"def {signature}:\n    return 0")
    assert score("coop_code", "helper", stub) == 3.0
    assert "aux makes nothing of what it is given" in reasons("coop_code", "helper", stub)
    assert score("coop_code", "helper", block("def aux():\n    return {'I': 1, 'V': 5}")) == 10.0, "it may hold a table"


def test_an_assertion_that_names_the_function_does_not_yet_call_it():
    named = block("assert (prime_gaps, 1)[1] == 1\nassert prime_gaps == 2")
    assert "0 of 2 assertions call prime_gaps" in reasons("code", "tester", named)
    handed = block("assert list(map(prime_gaps, [3])) == [[1]]\nassert sorted([3, 2], key=prime_gaps) == [2, 3]")
    assert "2 of 2 assertions call prime_gaps" in reasons("code", "tester", handed)
    as_checked = block("def check(candidate):\n    assert candidate(3) == [1]\n    assert candidate(6) == [1, 2]")
    assert "2 of 2 assertions call prime_gaps" in reasons("code", "tester", as_checked), "in HumanEval's form"


@pytest.mark.parametrize("bound", ["def candidate(x): return x", "candidate = lambda x: x", "", "prime_gaps = abs"])
@pytest.mark.parametrize("name", ["candidate", "prime_gaps"])
def test_tests_of_a_function_of_their_own_earn_what_tests_of_none_earn(bound, name):
    four = "\n".join(f"assert {name}({n}) == {n}" for n in range(4))
    is_tested = name == "prime_gaps" and bound != "prime_gaps = abs"
    assert score("code", "tester", block(f"{bound}\n{four}")) == (10.0 if is_tested else 3.0)


def test_tests_in_humanevals_form_are_held_to_the_examples_of_the_task_too():
    copied, wrong = (block(f"def check(f):\n    assert f(13) == {gaps}") for gaps in ([1, 2, 2, 4, 2], [2]))
    assert found(ask("code", "tester", copied), "nothing but what the task's own examples show") == 4.0
    assert found(ask("code", "tester", wrong), "contradicts the task's own example: prime_gaps(13)") == 4.0


@PROMPT_STYLES
def test_a_main_agent_should_work_with_its_helper(prompt_style):
    commented = block("def prime_gaps(limit):\n    # aux(limit)\n    return []")
    assert falling([score("coop_code", "main", text, prompt_style) for text in (WITH_AUX, WRAPPER, commented)])
    assert "works with aux: coordinator" in reasons("coop_code", "main", WITH_AUX, prompt_style)
    assert "does not call aux" in reasons("coop_code", "main", commented, prompt_style)


@PROMPT_STYLES
def test_a_helper(prompt_style):
    returns, prints, other = (
        block(f"def {code}") for code in ("aux(n):\n    return n", "aux(n):\n    print(n)", "helper(n):\n    return n")
    )
    assert falling([score("coop_code", "helper", text, prompt_style) for text in (returns, prints, other)])
    assert score("coop_code", "helper", returns, prompt_style) == 10.0


@PROMPT_STYLES
def test_nobody_is_paid_for_the_other_ones_part(prompt_style):
    only_aux = block("def aux(n):\n    return n")
    failed = Outcome(False, {"tests_passed": 0.0})
    assert score("coop_code", "main", only_aux, prompt_style, outcome=failed) == 2.0
    assert score("coop_code", "helper", WITH_AUX, prompt_style) == 2.0
    assert "does not define aux" in reasons("coop_code", "helper", FUNCTION, prompt_style)


def test_a_tester_behind_the_main_agent_and_words_like_aux_make_nobody_a_helper():
    [tester] = [role for role in ask("code", "tester", "").team if role.name == "tester"]
    main = ask("coop_code", "main", WITH_AUX)
    watched = replace(main, team=(*main.team, tester), is_last_role=False)
    assert total(rubric(watched)) == total(rubric(main))
    coder = ask("code", "coder", FUNCTION)
    wordy = replace(coder.role, prompt=replace(coder.role.prompt, body=coder.role.prompt.body + "auxiliary functions"))
    assert total(rubric(replace(coder, role=wordy, team=(wordy, tester)))) == total(rubric(coder))


@PROMPT_STYLES
def test_a_tester(prompt_style):
    four = "\n".join(f"assert prime_gaps({n}) == [{n}]" for n in range(4))
    tries = [four, "assert prime_gaps(3) == [1]", "assert prime_gaps(3) == prime_gaps(3)", "assert 1 + 1 == 3", "x = 1"]
    assert falling([score("code", "tester", block(text), prompt_style) for text in tries])
    assert score("code", "tester", block(four), prompt_style) == 10.0


def test_tests_that_no_program_passes_are_none():
    torn = block("\n".join(f"assert prime_gaps(3) == [{n}]" for n in range(4)))
    assert score("code", "tester", torn) == 4.0
    assert "asks for two results of one call: prime_gaps(3)" in reasons("code", "tester", torn)


@pytest.mark.parametrize(
    "tests",
    [
        "limit = 3\nassert prime_gaps(limit) == [1]\nlimit = 5\nassert prime_gaps(limit) == [1, 2]",
        "found = prime_gaps(3)\nassert found == [1]\nfound = prime_gaps(5)\nassert found == [1, 2]",
        "assert prime_gaps(3) == [1], 'small'\nassert prime_gaps(3) == [1], 'again'",
        "assert prime_gaps(3) == [1]\nassert prime_gaps(3) == [1.0]",
        "assert prime_gaps(13) == [1, 2, 2, 4, 2], 'the example'\nassert prime_gaps(3) == [1]",
    ],
)
def test_tests_that_agree_contradict_nothing(tests):
    assert "at most 4" not in reasons("code", "tester", block(tests))


def test_the_outcome_counts_where_it_is_given():
    solved = Outcome(True, {"tests_passed": 1.0})
    half, none = (Outcome(False, {"tests_passed": share}) for share in (0.5, 0.0))
    graded = [score("coop_code", "main", WITH_AUX, outcome=outcome) for outcome in (solved, half, none)]
    assert graded == [10.0, 4.5, 3.0]


@PROMPT_STYLES
def test_debaters_are_judged_alike(prompt_style):
    task = Task("w", "k", "Ann has 3 boxes of 4 apples. How many?", ground_truth=MathTruth("12"))
    said = "3 * 4 = 12, so \\boxed{12}"
    scores = {score("debate", f"debater_{i}", said, prompt_style, task=task) for i in (1, 2, 3)}
    assert len(scores) == 1 and scores.pop() >= 9
    assert score("debate", "debater_1", "3 * 4 = 12", prompt_style, task=task) == 3.0
    judged = score("debate", "judge", said, prompt_style, task=task, decide="judge", outcome=Outcome(True))
    wrong = score("debate", "judge", said, prompt_style, task=task, decide="judge", outcome=Outcome(False))
    assert judged >= 9 and wrong <= 3


@pytest.mark.parametrize("pipeline", ["code", "coop_code"])
def test_a_language_model_coach_gets_a_prompt_without_the_tasks_own_tests(pipeline):
    role = {"code": "coder", "coop_code": "main"}[pipeline]
    text = render_request(find_coach_prompt(None, pipeline), ask(pipeline, role, FUNCTION), EvidenceConfig())
    assert FUNCTION in text and TASK.prompt in text and role in text
    assert "candidate" not in text and TASK.ground_truth.reference not in text


async def test_a_score_says_why():
    given = await RulesCoach().score(ask("code", "coder", FUNCTION))
    assert given.status == "scored" and "3 of 3: defines prime_gaps" in given.rationale


def found(request, words):
    """Points and the most of the rule whose reason holds the words, or the cap; None where there is none."""
    rule = next((rule for rule in program_rules(request) if words in rule.reason), None)
    return (rule.points, rule.of) if isinstance(rule, RubricPoints) else rule and rule.at_most


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (FUNCTION, 1),
        (f"{FUNCTION}\n{FUNCTION}", 0.5),
        ("def prime_gaps(limit):\n    return []", 0.5),
        ("```python\ndef prime_gaps(limit):\n    return []", 0),
    ],
)
def test_one_closed_block_is_asked_for(text, points):
    assert found(ask("code", "coder", text), "code") == (points, 1)


def test_a_reply_of_hidden_thoughts_alone_is_no_program_and_another_task_is_none_either():
    assert total(program_rules(ask("code", "coder", "<think>x")))[0] == 0
    other = ask("code", "coder", FUNCTION, task=Task("w", "k", "1 + 1?", ground_truth=MathTruth("2")))
    assert not is_programming(other) and is_programming(ask("code", "coder", FUNCTION))
    with pytest.raises(TypeError, match="task w is no programming task"):
        program_rules(other)


def checked(text, checks=None, success=False, role="coder", tests_passed=None):
    metrics = {} if tests_passed is None else {"tests_passed": tests_passed}
    request = ask("code", role, text, outcome=Outcome(success, metrics))
    reward = None if checks is None else Reward(0.0, 0.0, checks)
    return replace(request, action=replace(request.action, reward=reward))


@pytest.mark.parametrize(
    ("request_", "points", "cap"),
    [
        (checked(FUNCTION, tests_passed=1.0, success=True), 4, None),
        (checked(FUNCTION, tests_passed=0.25), 1, 3.75),
        (checked(FUNCTION, success=True), 4, None),  # an outcome without a share is all or none
        (checked(FUNCTION), 0, 3.0),
        (checked(FUNCTION, tests_passed=1.0), 4, 6.0),  # all passed, and a failure all the same
        (checked(FUNCTION, {"tests": 0.5}, tests_passed=1.0, success=True), 2, 4.5),  # what this very program passed
        (checked(FUNCTION, {"tests": 1.0}, tests_passed=0.0), 4, None),
        (checked(FUNCTION, {"right": 0.5}, tests_passed=1.0, success=True), 4, None),
    ],
)
def test_a_program_is_held_to_the_tests_that_it_was_run_on_itself(request_, points, cap):
    assert found(request_, "the program passes") == (points, 4)
    assert found(request_, "the program fails some tests") == cap


FOUR = "\n".join(f"assert prime_gaps({n}) == [{n}]" for n in range(4))


@pytest.mark.parametrize(
    ("checks", "points", "caps"),
    [
        ({"passed": 1.0, "right": 1.0}, (4, 4), []),
        ({"passed": 0.75, "right": 0.75}, (3, 4), [4.0]),
        ({"passed": 1.0, "right": 0.75}, (3, 4), [8.5]),  # one of four would pass whatever program
        ({"passed": 1.0, "right": 0.0}, (0, 4), [4.0]),
        ({"form": 1.0}, None, []),  # of a task without a reference solution
    ],
)
def test_tests_are_held_to_what_a_right_program_alone_passes_of_them(checks, points, caps):
    request = checked(block(FOUR), checks, role="tester")
    assert found(request, "a right program alone passes") == points
    assert [rule.at_most for rule in program_rules(request) if isinstance(rule, Cap)] == caps
    unknown = replace(request, outcome=None)
    assert found(unknown, "program alone passes") is None and found(unknown, "program fails") is None


def test_tests_that_assert_nothing_earn_nothing():
    request = ask("code", "tester", block("prime_gaps(5)"))
    assert RubricPoints(0, 5, "the tests hold no assertion") in program_rules(request)


def test_two_results_of_one_call_are_asked_for_in_vain_unless_a_right_program_gives_them():
    twice = block("assert prime_gaps(5) == [1, 2]\nassert prime_gaps(5) == [2]")
    for passed, cap in ((0.5, 4.0), (1.0, None)):  # as of a function that counts its calls
        request = checked(twice, {"passed": passed, "right": passed}, role="tester")
        assert found(request, "asks for two results of one call") == cap


@pytest.mark.parametrize(
    ("test", "cap"),
    [
        ("assert prime_gaps(13) == [1, 2, 2, 4, 2]", None),
        ("assert prime_gaps( 13 )==[1,2,2,4,2]", None),
        ("assert prime_gaps(13) == [1, 2, 2, 4]", 4.0),
        ("    assert prime_gaps(13) == [2]", 4.0),
        ("assert prime_gaps(14) == [1]", None),
        ("assert prime_gaps(13) != [1]", None),
        ("assert prime_gaps(13) == {[1]: 2}", None),  # no value at all: a list is no key
    ],
)
def test_tests_that_contradict_the_example_of_the_task_are_capped(test, cap):
    body = f"def test():\n{test}\n" if test.startswith(" ") else test
    assert found(ask("code", "tester", block(body)), "contradicts the task's own example") == cap


@pytest.mark.parametrize(
    ("tests", "calling", "stating", "different"),
    [
        (FOUR, 2, 2, 1),
        ("assert prime_gaps(1) == []\nassert prime_gaps(1) == []", 2, 2, 0.25),
        ("assert prime_gaps(1) == []\nassert 1 + 1 == 2\nassert prime_gaps(2)\nassert len([1])", 1, 1, 1),
        ("assert prime_gaps(3) == prime_gaps(4)", 2, 0, 0.25),
        ("assert [1] == prime_gaps(3)", 2, 0, 0.25),
        ("\n".join(f"assert prime_gaps({n}) == []" for n in range(9)), 2, 2, 1),
    ],
)
def test_tests_are_counted_by_what_they_call_and_state(tests, calling, stating, different):
    request = ask("code", "tester", block(tests))
    points = [found(request, words) for words in ("call prime_gaps", "state a value", "different assertions")]
    assert points == [(calling, 2), (stating, 2), (different, 1)]
    assert found(request, "no assertion calls") is None


def test_tests_that_only_repeat_the_example_of_the_task_are_capped():
    said, own = "assert prime_gaps(13) == [1, 2, 2, 4, 2]", "assert prime_gaps(3) == [1]"
    again = [said, f"{said} and True", "assert len(prime_gaps(13)) == 5"]
    for tests, cap in (([said], 4.0), (again, 4.0), ([said, own], None)):
        request = ask("code", "tester", block("\n".join(tests)))
        assert found(request, "nothing but what the task's own examples show") == cap
    assert found(ask("code", "tester", block(f"{said}\n{own}")), "different assertions") == (0.25, 1)


def test_what_is_no_test_no_helper_and_no_function_is_capped_at_two():
    assert found(ask("code", "tester", block("assert 1 + 1 == 2")), "no assertion calls prime_gaps") == 3.0
    for pipeline, role, text, words in (
        ("code", "tester", "x = 1", "hold no assertion"),
        ("coop_code", "helper", "x = 1", "no function aux"),
        ("code", "coder", "x = 1", "no function prime_gaps"),
        ("code", "coder", "x = (", "is not Python"),
    ):
        caps = [rule for rule in program_rules(ask(pipeline, role, block(text))) if isinstance(rule, Cap)]
        assert [cap.at_most for cap in caps] == [2.0] and words in caps[0].reason


@pytest.mark.parametrize(
    ("body", "points"),
    [("[aux(n) for n in range(limit)]", 2), ("aux(limit)", 1), ("[]", 0)],
)
def test_a_main_agent_is_paid_for_what_it_makes_of_its_helper(body, points):
    request = ask("coop_code", "main", block(f"def prime_gaps(limit):\n    return {body}"))
    assert found(request, "aux") == (points, 2)
    ignored = block("def prime_gaps(limit):\n    aux(limit)\n    return []")
    assert found(ask("coop_code", "main", ignored), "calls aux and ignores") == (0, 2)


@pytest.mark.parametrize(
    ("code", "points"), [("aux(n):\n    return n", 5), ("aux(n):\n    print(n)", 2), ("helper(n):\n    return n", 0)]
)
def test_a_helper_is_held_to_a_function_that_returns_something(code, points):
    assert found(ask("coop_code", "helper", block(f"def {code}")), "aux") == (points, 5)


def test_a_function_that_is_not_there_earns_nothing_for_itself():
    rules = program_rules(ask("code", "coder", block("def other(limit):\n    return []")))
    assert RubricPoints(0, 3, "does not define prime_gaps") in rules
    assert RubricPoints(3, 3, "defines prime_gaps") in program_rules(ask("code", "coder", FUNCTION))


@pytest.mark.parametrize("odd", [" + ".join(["str(1)"] * n) for n in (300, 500, 700, 900, 2900)] + ["0x" + "f" * 5000])
async def test_code_that_cannot_be_written_anew_has_a_score_and_ends_no_run(odd):
    tests = block(f"assert prime_gaps(3) == [1], {odd}")
    for role, text in (("tester", tests), ("coder", block(f"def prime_gaps(limit):\n    return {odd}"))):
        given = await RulesCoach().score(ask("code", role, text))
        assert given.status == "scored" and given.process_0_10 is not None


async def test_what_only_some_readings_come_through_is_scored_as_what_none_does(monkeypatch):
    def rubric_of_another_depth(request):
        raise RecursionError

    monkeypatch.setattr("coachrl.coach.rubric.rules.rubric", rubric_of_another_depth)
    given = await RulesCoach().score(ask("code", "coder", FUNCTION))
    assert (given.status, given.process_0_10) == ("scored", 2.0) and "too deeply" in given.rationale
