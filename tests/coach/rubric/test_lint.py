"""The rubric lint, on shipped rubrics and on made ones."""

from pathlib import Path

import pytest

from coachrl.coach.prompt_rendering import find_coach_prompt
from coachrl.coach.rubric.caps import parse_caps
from coachrl.coach.rubric.lint import (
    Row,
    drawn_baselines,
    findings,
    idle_baselines,
    lint_prompt,
    lint_rules,
    task_baselines,
)
from coachrl.prompts import parse_prompt
from coachrl.tasks.tabular.grading import TabularTruth, read_answers
from coachrl.types import Outcome, Task

BASELINES = drawn_baselines()


def made(header: str):
    return parse_prompt(f"---\nfields: []\n{header}\n---\nScore it.", "made")


@pytest.mark.parametrize("name", ["dsbench", "rules"])
def test_the_papers_caps_favour_regression(name: str) -> None:
    prompt = find_coach_prompt(None, "dsbench")
    rows = lint_rules(BASELINES) if name == "rules" else lint_prompt(prompt, BASELINES)
    scores = {(row.baseline, row.category): row.scores for row in rows}
    assert set(scores["a constant prediction", "classification"].values()) == {3.0}
    # A mean has an RMSE of 14 % of the range of 1,000 normal targets, 5 % of lognormal and 30 % of uniform ones.
    assert scores["a constant prediction", "regression"] == {
        "normal": 8.0,
        "exponential": 8.0,
        "lognormal": 9.0,
        "uniform": 6.0,
    }
    assert any("regression is favoured: a constant prediction" in finding for finding in findings(rows))


@pytest.mark.parametrize("name", ["dsbench-strict", "generic", "strict", "mathchat", "mathchat-strict"])
def test_the_other_shipped_voices_are_clean(name: str) -> None:
    rows = lint_prompt(find_coach_prompt(Path(name), None), BASELINES)
    assert rows and findings(rows) == []


def test_a_rubric_without_caps_is_found() -> None:
    assert len(findings(lint_prompt(made("categories: [math]"), BASELINES))) == 3
    categories = {row.category for row in lint_prompt(made("score_range: [0, 10]"), BASELINES)}
    assert categories == {"classification", "regression", "math"}


def test_a_rubric_that_favours_classification_is_found() -> None:
    caps = "caps: {failed: 1, roc_auc: {from: {0.5: 5}, else: 0}, rmse_pct_iqr: {below: {50: 9}, else: 2}}"
    [finding] = findings(lint_prompt(made(caps), BASELINES))
    assert finding == "classification is favoured: a constant prediction may score 5 there, 2 in regression"


@pytest.mark.parametrize(
    ("classification", "regression", "said"),
    [
        ((4.0,), (5.0,), ["regression is favoured: b may score 5 there, 4 in classification"]),
        ((4.01,), (5.0,), []),
        ((5.0,), (5.0,), []),
        (
            (3.0, 5.0),
            (2.0, 3.5),
            ["classification is favoured: b may score 3 to 5 (4.0 on average) there, 2 to 3.5 (2.8 on average) in "
             "regression"],
        ),
        (
            (9.0,),
            (9.0,),
            ["b in classification and regression may score 9 without any skill: declare caps that hold it down"],
        ),
        ((5.1,), (5.0,), ["b in classification may score 5.1 without any skill: declare caps that hold it down"]),
    ],
)  # fmt: skip
def test_a_point_between_categories_and_more_than_five_for_no_skill_are_faults(
    classification: tuple[float, ...], regression: tuple[float, ...], said: list[str]
) -> None:
    given = {"classification": classification, "regression": regression, "math": (0.0,)}
    rows = [Row("p", "b", name, {str(shape): score for shape, score in enumerate(of)}) for name, of in given.items()]
    assert findings(rows) == said


def test_what_the_rules_give_to_replies_that_do_nothing() -> None:
    scores = {(row.baseline, row.category): row.scores[""] for row in lint_rules(idle_baselines())}
    nothing, printing = "an empty reply", "code that only prints"
    assert scores == {
        (nothing, "classification"): 0,
        (printing, "classification"): 3,  # it ends its part without the final deliverable
        (nothing, "regression"): 0,
        (printing, "regression"): 3,
        (nothing, "math"): 0,
        (printing, "math"): 1,  # no boxed answer
        ("a constant answer", "math"): 3,
    }


def test_constants_of_given_tasks(tmp_path: Path) -> None:
    answers = tmp_path / "answers.csv"
    answers.write_text("id,y\n1,0\n2,0\n3,0\n4,10\n")
    regression = Task("r", "x", "", ground_truth=TabularTruth("regression", "rmse", "id", ("y",), answers))
    labels = Task(
        "c", "x", "", ground_truth=TabularTruth("classification", "f1", "id", ("y",), answers, (("0", "10"),))
    )
    made = task_baselines([regression, labels, Task("m", "math", "")])
    constants = {baseline.shape: baseline.outcome for baseline in made if baseline.shape}
    assert constants["r"].metrics["rmse_pct_range"] == pytest.approx(100 * 0.1875**0.5)
    assert constants["c"].metrics["accuracy"] == 0.75
    assert list(read_answers(regression.ground_truth)["y"]) == ["0", "0", "0", "10"]


def test_bounds_of_levels() -> None:
    caps = parse_caps({"caps": {"rmse_pct_iqr": {"up_to": {30: 5, 10: 7}, "below": {10: 9}, "else": 1}}}, "made")
    given = {value: caps.of_outcome(Outcome(True, {"rmse_pct_iqr": value})).at_most for value in (9.9, 10, 30, 31)}
    assert given == {9.9: 9, 10: 7, 30: 5, 31: 1}
    assert caps.of_outcome(Outcome(True, {"f1": 0.1})) is None
    assert caps.of_outcome(Outcome(False)) is None


def test_a_constant_prediction_is_right_as_often_as_the_largest_class() -> None:
    measured = {b.shape: b.outcome.metrics["accuracy"] for b in BASELINES if b.saved and b.category == "classification"}
    assert measured == {"balanced": 0.5, "three to seven": 0.7, "one in ten": 0.9, "three": 0.5}
    assert not any(b.outcome.success for b in idle_baselines())
