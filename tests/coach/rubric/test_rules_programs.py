"""The rules coach on programs, tests and arguments: the better action scores higher, and says why."""

from itertools import pairwise

import pytest
from coach_requests import make_action

from coachrl.coach.base import CoachRequest
from coachrl.coach.prompt_rendering import find_coach_prompt, render_request
from coachrl.coach.rubric.points import total
from coachrl.coach.rubric.rules import RulesCoach, rubric
from coachrl.config import EvidenceConfig, PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.tasks.code.problems import load_coop_code
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Outcome, Task

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


FUNCTION = block("def prime_gaps(limit):\n    return []")
WITH_AUX = block("def prime_gaps(limit):\n    return [aux(n) for n in range(limit)]")
WRAPPER = block("def prime_gaps(limit):\n    return aux(limit)")


@PROMPT_STYLES
def test_a_coder(prompt_style):
    tries = [FUNCTION, "def prime_gaps(limit):\n    return []", block("def other(limit):\n    return []"), "I cannot."]
    assert falling([score("code", "coder", text, prompt_style) for text in tries])
    assert score("code", "coder", FUNCTION, prompt_style, finish="length") == 4.0


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
def test_a_tester(prompt_style):
    four = "\n".join(f"assert prime_gaps({n}) == [{n}]" for n in range(4))
    tries = [four, "assert prime_gaps(3) == [1]", "assert prime_gaps(3) == prime_gaps(3)", "assert 1 + 1 == 3", "x = 1"]
    assert falling([score("code", "tester", block(text), prompt_style) for text in tries])
    assert score("code", "tester", block(four), prompt_style) == 10.0


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
