from dataclasses import replace
from pathlib import Path

import pytest
from coach_requests import ENGINEER, coded, make_action, request_for
from hypothesis import given
from hypothesis import strategies as st

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.points import total
from coachrl.coach.rubric.rules import RulesCoach, rubric
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.types import Action, CoachScore, Execution, Outcome

OK = Execution("ok", stdout="12\n", exit_code=0)
SILENT = Execution("ok", exit_code=0)
CRASH = Execution("error", stderr="Traceback ...\nKeyError: 'age'\n", exit_code=1)
NO_X_TEST = Execution(
    "error", stderr="FileNotFoundError: [Errno 2] No such file or directory: 'X_test.pkl'\n", exit_code=1
)
ALL = ("X_test.pkl", "X_train.pkl", "y_train.pkl")


def score(request: CoachRequest) -> float:
    return total(rubric(request))[0]


def reasons(request: CoachRequest) -> str:
    return total(rubric(request))[1]


async def test_a_score_names_its_action_and_its_reasons() -> None:
    given_score = await RulesCoach().score(request_for(make_action("solver", "3 * 4")))
    assert given_score == CoachScore("e1/0", "scored", 10.0, rationale=given_score.rationale, model="rules")
    assert "3 of 3: states arithmetic that can be worked out: 3 * 4" in given_score.rationale


async def test_a_broken_sandbox_is_not_scored() -> None:
    action = coded("executor", "print(1)", Execution("infrastructure"))
    given_score = await RulesCoach().score(request_for(action))
    assert (given_score.status, given_score.process_0_10, given_score.model) == ("abstained", None, "rules")


# Drafts


def test_drafts_are_ranked_by_how_usable_they_are() -> None:
    drafts = ["3 * 4", "3 * 5", "7 * 9", "I think 12", "The boxes hold apples.", ""]
    scores = [score(request_for(make_action("solver", text))) for text in drafts]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
    assert scores[0] == 10
    assert scores[-1] == 0


def test_a_cut_draft_is_capped() -> None:
    request = request_for(make_action("solver", "3 * 4", finish="length", tokens=100))
    assert score(request) == 4
    assert "at most 4: cut at 100 tokens" in reasons(request)


def test_hidden_thoughts_alone_are_no_draft() -> None:
    assert score(request_for(make_action("solver", "<think>3 * 4"))) == 0


def test_the_draft_of_a_non_final_agent_is_not_checked_against_the_answer_unless_asked() -> None:
    wrong, right = make_action("solver", "3 + 4"), make_action("solver", "3 * 4")
    assert score(request_for(wrong)) == score(request_for(right))
    outcome = Outcome(False)
    assert score(request_for(wrong, outcome=outcome)) == 4
    assert score(request_for(right, outcome=outcome)) == 10


# Code without files


def test_code_is_ranked_by_what_it_did() -> None:
    draft = (make_action("solver", "3 * 4"),)
    scores = [
        score(request_for(action, draft))
        for action in (
            coded("executor", "print(3 * 4)", OK, index=1),
            coded("executor", "print(12)", OK, index=1),
            coded("executor", "x = 3 * 4", SILENT, index=1),
            coded("executor", "print(3 * y)", CRASH, index=1),
            coded("executor", "print(3 *", Execution("error", stderr="SyntaxError: '(' was never closed"), index=1),
            make_action("executor", "It is 12.", index=1),
            make_action("executor", "", index=1),
        )
    ]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)
    assert scores[0] == 10
    assert scores[3] <= 5
    assert scores[4] <= 3
    assert scores[-1] == 0


def test_running_the_same_failing_code_again_is_worth_nothing_more() -> None:
    first = coded("executor", "print(3 * y)", CRASH, index=1)
    again = coded("executor", "print(3 * y)", CRASH, index=2, turn=1)
    assert score(request_for(again, (first,))) == 1
    assert "same failing code" in reasons(request_for(again, (first,)))


def test_with_ground_truth_for_all_the_author_of_a_wrong_draft_pays_most() -> None:
    draft = make_action("solver", "3 + 4")
    faithful = coded("executor", "print(3 + 4)", Execution("ok", stdout="7\n"), index=1)
    unfaithful = coded("executor", "print(3 - 4)", Execution("ok", stdout="-1\n"), index=1)
    wrong = Outcome(False)
    assert score(request_for(draft, outcome=wrong)) == 4
    assert score(request_for(faithful, (draft,), wrong)) == 7
    assert score(request_for(unfaithful, (draft,), wrong)) == 4


def test_departing_from_a_wrong_draft_is_right_where_the_answer_is_known() -> None:
    draft = make_action("solver", "3 + 4")
    corrected = coded("executor", "print(3 * 4)", OK, index=1)
    assert score(request_for(corrected, (draft,), Outcome(False))) == 10
    assert score(request_for(corrected, (draft,))) == 9


# The final answer


@pytest.mark.parametrize(
    ("text", "success", "expected"),
    [
        (r"\boxed{12}", True, 10),
        (r"\boxed{12} and so on and on", True, 9),
        (r"\boxed{13}", True, 10),  # it overruled the code, and was right
        (r"\boxed{12}", False, 3),  # faithful to code that was wrong
        (r"\boxed{13}", False, 1.5),
        ("12", True, 1),
        ("12", False, 1),
        ("", False, 0),
    ],
)
def test_final_answers(text: str, success: bool, expected: float) -> None:
    previous = (coded("executor", "print(3 * 4)", OK),)
    outcome = Outcome(success, reason="" if success else "wrong answer")
    assert score(request_for(make_action("verifier", text, index=1), previous, outcome)) == expected


def test_who_comes_last_of_two_that_are_asked_the_same_argues_and_does_not_answer_for_the_team() -> None:
    alone = request_for(make_action("verifier", r"\boxed{12}"))
    peer = replace(alone.team[0], prompt=alone.role.prompt)
    assert "correctness is not known here" in reasons(alone)
    assert "wrote a draft" in reasons(replace(alone, team=(peer, alone.role)))


def test_without_an_outcome_correctness_earns_nothing() -> None:
    request = request_for(make_action("verifier", r"\boxed{12}"))
    assert score(request) < 5
    assert "not known" in reasons(request)


# Files


def test_levels_of_an_agent_that_must_save_files() -> None:
    def at(code: str, execution: Execution, after: tuple[str, ...], turn: int = 0) -> float:
        return score(request_for(coded("engineer", code, execution, after=after, turn=turn)))

    assert at("x = 1", OK, ALL) == 9
    assert at("x = 1", SILENT, ALL, turn=1) == 8
    assert at("x = 1", OK, ALL[:2]) == pytest.approx(6.67)
    assert at("x = 1", OK, ALL[:1]) == pytest.approx(5.33)
    assert at("x = os.listdir()", OK, ()) == 5
    assert at("x = 1", OK, ()) == at("x = os.listdir()", SILENT, ()) == 4
    assert 4 <= at("x = df['age']", CRASH, ALL[:1]) <= 5
    assert at("x = (", Execution("error", stderr="SyntaxError: '(' was never closed"), ()) == 4
    assert score(request_for(make_action("engineer", "I would load the data."))) == 1
    assert score(request_for(make_action("engineer", ""))) == 0


def test_the_upstream_agent_that_ends_without_a_needed_file_pays() -> None:
    request = request_for(coded("engineer", "x = 1", OK, after=("X_train.pkl", "y_train.pkl"), turn=1))
    assert score(request) == 3
    assert "at most 3: ended its part without X_test.pkl (needed by analyst)" in reasons(request)


def test_the_downstream_agent_does_not_pay_for_a_file_that_upstream_owed() -> None:
    before = ("X_train.pkl", "model.pkl", "y_train.pkl")
    blind = request_for(
        coded("analyst", "x = open('X_test.pkl')", NO_X_TEST, before=before, turn=1),
        outcome=Outcome(False, reason="no predictions found"),
    )
    assert score(blind) == 5
    assert "X_test.pkl (owed by engineer)" in reasons(blind)
    told = request_for(make_action("analyst", "I cannot predict: X_test.pkl is missing.", before=before, turn=1))
    assert score(told) == 7
    checked = coded(
        "analyst", "...", Execution("ok", stdout="X_test.pkl was not found, stopping\n"), before=before, turn=1
    )
    assert score(request_for(checked)) == 7


def test_an_own_bug_is_paid_for_even_where_the_metric_is_missing() -> None:
    own = request_for(
        coded("analyst", "x['age']", CRASH, before=("X_test.pkl", "model.pkl"), turn=1),
        outcome=Outcome(False, reason="no predictions found"),
    )
    assert score(own) == 3
    assert "own bug" in reasons(own)
    assert "final deliverable" in reasons(own)


def test_a_file_name_in_code_is_no_report() -> None:
    text = "```python\nload('X_test.pkl')  # cannot be missing\n```"
    action = make_action("analyst", text, code="load('X_test.pkl')\n", execution=CRASH, before=("model.pkl",))
    assert "own bug" in reasons(request_for(action))


@pytest.mark.parametrize(
    ("category", "code", "at_most"),
    [
        ("regression", "model = LogisticRegression(max_iter=1000)", 3),
        ("regression", "model = make_pipeline(StandardScaler(), KNeighborsClassifier(", 3),
        ("regression", "model = Ridge(alpha=1.0)", 9),
        ("regression", "model = RandomForestRegressor() if len(X) > 9 else LogisticRegression()", 9),
        ("regression", "model = build()", 9),
        ("classification", "model = GradientBoostingRegressor()", 3),
        ("classification", "model = GradientBoostingClassifier()", 9),
        ("arithmetic", "model = GradientBoostingClassifier()", 9),
    ],
)
def test_an_estimator_of_the_wrong_kind_is_capped(category: str, code: str, at_most: float) -> None:
    before = ("X_train.pkl", "y_train.pkl")
    action = coded("modeler", f"{code}\nmodel.fit(X, y)", OK, before=before, after=(*before, "model.pkl"))
    request = request_for(action)
    request = replace(request, task=replace(request.task, category=category))
    assert score(request) == at_most
    assert (f"the task is {category}" in reasons(request)) == (at_most == 3)


def test_a_regressor_may_rank_the_rows_where_a_roc_auc_is_asked_for() -> None:
    truth = TabularTruth("classification", "roc_auc", "id", ("label",), Path("answers.csv"))
    action = coded("modeler", "model = Ridge().fit(X, y)", OK, after=("model.pkl",))
    request = request_for(action)
    ranked = replace(request, task=replace(request.task, category="classification", ground_truth=truth))
    assert score(ranked) == 9


UNFIT = "X_train.pkl: not numbers: origin, name\nX_test.pkl: columns: 8, and 9 in X_train.pkl"
FEATURES = ENGINEER.required_files


def handed_on(result: str) -> Action:
    return replace(coded("engineer", "save()", OK, after=FEATURES), result=result)


def test_who_saves_features_that_no_model_can_use_pays() -> None:
    assert score(request_for(handed_on("X_train.pkl, y_train.pkl, X_test.pkl: looked at, nothing wrong"))) == 9
    unfit = request_for(handed_on(UNFIT))
    assert score(unfit) == 4
    assert "X_train.pkl: not numbers: origin, name; X_test.pkl: columns" in reasons(unfit)


def test_a_model_that_cannot_predict_is_worth_no_more_than_none() -> None:
    code, said = "scaler.fit(X)", "model.pkl: cannot predict: Pipeline, StandardScaler alone: no model is in it"
    for execution in (OK, CRASH):
        saved = coded("modeler", code, execution, before=FEATURES, after=(*FEATURES, "model.pkl"), index=1)
        assert score(request_for(saved)) > 4
        assert score(request_for(replace(saved, result=said))) == 3
        crash = Execution("error", stderr="AttributeError: 'Pipeline' object has no attribute 'predict'")
        after = coded("analyst", "predict()", crash, before=(*FEATURES, "model.pkl"), turn=1, index=2)
        assert "not its own fault" in reasons(request_for(after, (replace(saved, result=said),)))


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("    raise x\nValueError: could not convert string to float: 'Europe'\n", 5),
        ("    X.fillna('could not convert')\nNameError: name 'X' is not defined\n", 3),  # a bug of its own
        ("ValueError: Input X contains NaN.\nRidge does not accept missing values\n", 3),  # there are no gaps
        ("ValueError: The feature names should match:\n- age\n", 3),  # X_test.pkl is not the modeler's to use
    ],
)
def test_who_crashes_on_unfit_features_does_not_pay_for_them(stderr: str, expected: float) -> None:
    crash = coded("modeler", "fit()", Execution("error", stderr=stderr), before=FEATURES, turn=1, index=1)
    request = request_for(crash, (handed_on(UNFIT),))
    assert score(request) == expected
    assert ("not its own fault" in reasons(request)) == (expected == 5)
    assert score(request_for(crash)) == 3, "features that were not looked at explain nothing"


def test_what_was_looked_at_last_counts() -> None:
    crash = Execution("error", stderr="ValueError: could not convert string to float: 'Europe'")
    again = replace(handed_on("X_train.pkl: rows: 3, and 2 in y_train.pkl"), turn=1, index=1)
    action = coded("modeler", "fit()", crash, before=FEATURES, turn=1, index=2)
    assert score(request_for(action, (handed_on(UNFIT), again))) == 3


@pytest.mark.parametrize(
    ("metrics", "at_most"),
    [
        ({"roc_auc": 0.9}, 9),
        ({"roc_auc": 0.85}, 9),
        ({"roc_auc": 0.8, "accuracy": 0.99}, 8),
        ({"roc_auc": 0.7}, 6),
        ({"roc_auc": 0.6}, 4),
        ({"roc_auc": 0.5}, 3),
        ({"accuracy": 0.7}, 6),
        ({"rmse_pct_range": 5.0}, 9),
        ({"rmse_pct_range": 10.0}, 8),
        ({"rmse_pct_range": 25.0}, 6),
        ({"rmse_pct_range": 50.0}, 6),
        ({"rmse_pct_range": 80.0}, 4),
    ],
)
def test_the_outcome_caps_the_last_agent(metrics: dict[str, float], at_most: float) -> None:
    before = ("X_test.pkl", "model.pkl")
    action = coded("analyst", "save()", OK, before=before, after=(*before, "submission.csv"))
    assert score(request_for(action, outcome=Outcome(True, metrics))) == at_most


def test_a_failed_submission_is_capped_and_named() -> None:
    before = ("X_test.pkl", "model.pkl")
    action = coded("analyst", "save()", OK, before=before, after=(*before, "submission.csv"))
    request = request_for(action, outcome=Outcome(False, reason="3 ids are missing"))
    assert score(request) == 3
    assert "3 ids are missing" in reasons(request)


@given(
    st.sampled_from(["solver", "executor", "verifier", "engineer", "modeler", "analyst"]),
    st.text(),
    st.one_of(st.none(), st.text()),
    st.sampled_from(["ok", "error", "timeout", "oom", "output_limit"]),
    st.text(),
    st.sampled_from([None, Outcome(True), Outcome(False, reason="wrong")]),
    st.sampled_from(["stop", "length"]),
)
def test_any_action_has_a_score_with_reasons(role, text, code, state, output, outcome, finish) -> None:  # type: ignore[no-untyped-def]
    execution = Execution(state, stdout=output, stderr=output) if code is not None else None
    action = make_action(role, text, code=code, execution=execution, finish=finish)
    value, why = total(rubric(request_for(action, outcome=outcome)))
    assert 0 <= value <= 10
    assert why


# A model that nobody fitted

UNFITTED = "model = LogisticRegression()\npickle.dump(model, open('model.pkl', 'wb'))"
NOT_FITTED = Execution(
    "error", stderr="sklearn.exceptions.NotFittedError: This LogisticRegression is not fitted yet.\n"
)


def modeler(code: str) -> Action:
    return coded("modeler", code, SILENT, before=ALL, after=(*ALL, "model.pkl"))


def test_who_saves_a_model_unfitted_pays_and_not_who_crashes_on_it() -> None:
    saved = modeler(UNFITTED)
    analyst = coded("analyst", "model.predict(X)", NOT_FITTED, before=(*ALL, "model.pkl"), turn=1, index=1)
    assert score(request_for(saved)) == 4 and "without fitting it" in reasons(request_for(saved))
    handed = request_for(analyst, (saved,), Outcome(False))
    assert score(handed) == 5 and "not its own fault" in reasons(handed)


@pytest.mark.parametrize(
    "fitting", ["model.fit(X, y)", "GridSearchCV(model, {}).fit(X, y)", "model.partial_fit(X, y)", "lgb.train({}, X)"]
)
def test_a_model_that_was_fitted_is_not_held_against_anybody(fitting: str) -> None:
    assert score(request_for(modeler(f"{UNFITTED}\n{fitting}"))) > 4
    fitted = modeler(f"{UNFITTED}\n{fitting}")
    analyst = coded("analyst", "LogisticRegression().predict(X)", NOT_FITTED, before=(*ALL, "model.pkl"), turn=1)
    assert "not its own fault" not in reasons(request_for(analyst, (fitted,)))
