"""Single rules for agents that must leave files, on cases where one word more or less would give another score."""

from dataclasses import replace

import pytest
from coach_requests import coded, make_action, request_for

from coachrl.coach.rubric.files import FILE_CAPS, file_rules
from coachrl.coach.rubric.points import total
from coachrl.types import Action, Execution, Outcome

NEEDED = ("X_test.pkl", "model.pkl")
CRASH = Execution("error", stderr="KeyError: 'age'\n")


def scored(action: Action, *previous: Action, outcome: Outcome | None = None) -> tuple[float, str]:
    return total(file_rules(request_for(action, previous, outcome)))


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("X_test.pkl is missing and model.pkl is missing.", 7),
        ("X_test.pkl:\nmissing\n\n\nmodel.pkl: No such file", 7),  # a list may put the two a line apart
        ("Missing are:\n- X_test.pkl\n- model.pkl", 7),
        ("Missing are:\n\n\n- X_test.pkl\nmodel.pkl", 1),  # further apart they are not together
        ("X_test.pkl\n\nis missing", 1),
        ("model.pkl does not exist.", 5),
        ("I looked for X_test.pkl and model.pkl.", 1),
        ("Something is missing.", 1),
        ("", 0),
    ],
)
def test_what_an_agent_without_code_says_of_missing_files(said: str, score: float) -> None:
    given, why = scored(make_action("analyst", said))
    assert given == score
    assert ("model.pkl (owed by modeler)" in why) == (score >= 5)


FEATURES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
OK, TOLD = Execution("ok"), Execution("ok", stdout="X_test.pkl is missing\n")
NOT_PYTHON = Execution("error", stderr="SyntaxError: invalid syntax\n")


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (make_action("engineer", "", turn=0), "0 of 10: empty reply"),
        (make_action("engineer", "Thinking.", turn=0), "1 of 10: no executable block"),
        (
            make_action("analyst", "model.pkl is missing."),
            "5 of 10: reported model.pkl, but not every missing file: X_test.pkl (owed by engineer), model.pkl (owed "
            "by modeler)",
        ),
        (
            coded("analyst", "look()", TOLD, before=("model.pkl",)),
            "7 of 10: the code reported what upstream left out: X_test.pkl (owed by engineer)",
        ),
        (
            coded("analyst", "look()", replace(TOLD, state="error"), before=("model.pkl",)),
            "7 of 10: the code reported what upstream left out: X_test.pkl (owed by engineer)",
        ),
        (
            coded("analyst", "load()", Execution("error", stderr="FileNotFoundError: X_test.pkl")),
            "5 of 10: crashed on what upstream left out: X_test.pkl (owed by engineer); not its own fault",
        ),
        (
            coded("engineer", "save()", OK, after=FEATURES, turn=1),
            "8 of 10: code ran, all required files saved",
        ),
        (
            coded("engineer", "save()", Execution("ok", stdout="a"), after=FEATURES),
            "9 of 10: code ran, all required files saved, printed a summary, at the first attempt",
        ),
        (
            coded("engineer", "save()", OK, after=FEATURES[:2]),
            "6.66667 of 10: code ran, most required files saved, not X_test.pkl",
        ),
        (
            coded("engineer", "save()", OK, after=FEATURES[:1]),
            "5.33333 of 10: code ran, few required files saved, not y_train.pkl, X_test.pkl",
        ),
        (
            coded("engineer", "pd.read_csv('train.csv')", Execution("ok", stdout="a"), before=("train.csv",)),
            "5 of 10: code ran and looked at the data, saved nothing of X_train.pkl, y_train.pkl, X_test.pkl",
        ),
        (
            coded("engineer", "print(os.listdir())", Execution("ok", stdout="train.csv"), before=("train.csv",)),
            "5 of 10: code ran and looked at the data, saved nothing of X_train.pkl, y_train.pkl, X_test.pkl",
        ),
        (
            coded("modeler", "print('missing: model.pkl')", Execution("ok", stdout="missing: model.pkl")),
            "4 of 10: code ran, looked at no file, saved nothing of model.pkl",
        ),
        (
            coded("engineer", "look()", Execution("ok", stdout=" \n")),
            "4 of 10: code ran, printed nothing, saved nothing of X_train.pkl, y_train.pkl, X_test.pkl",
        ),
        (
            coded("engineer", "x['age']", CRASH),
            "4.5 of 10: own bug, the code failed (error: KeyError: 'age')",
        ),
        (
            coded("engineer", "x[", NOT_PYTHON, after=FEATURES),
            "4 of 10: own bug, the code is not valid Python (error: SyntaxError: invalid syntax)",
        ),
    ],
    ids=lambda value: value.split(":", 1)[1][1:40] if isinstance(value, str) else "",
)
def test_the_level_that_an_action_reached_says_why_and_who_owed_what(action: Action, why: str) -> None:
    assert scored(action)[1].splitlines()[0] == why


def test_who_ends_its_part_and_reports_only_some_of_what_is_missing_owes_its_file() -> None:
    for said, score in (("X_test.pkl is missing.", 3), ("X_test.pkl and model.pkl are missing.", 7)):
        assert scored(make_action("analyst", said, turn=1))[0] == score


def test_what_only_another_agent_had_was_not_given() -> None:
    took = coded("modeler", "remove()", Execution("ok"), before=NEEDED, after=())
    assert scored(make_action("analyst", "X_test.pkl and model.pkl are missing.", turn=1, index=1), took)[0] == 7


def test_who_writes_no_code_and_ends_its_part_owes_its_file_unless_it_lists_all_that_is_missing() -> None:
    owes = "ended its part without submission.csv"
    assert owes in scored(make_action("analyst", "I am done.", before=NEEDED, turn=1))[1]
    assert owes in scored(make_action("analyst", "```text\nmissing: X_test.pkl\n```", turn=1))[1]
    assert owes not in scored(make_action("analyst", "```text\nmissing: X_test.pkl, model.pkl\n```", turn=1))[1]


def test_a_task_of_another_category_asks_for_no_kind_of_estimator() -> None:
    saved = coded("modeler", "Ridge().fit(X, y)", Execution("ok"), after=("model.pkl",))
    request = request_for(saved)
    forecast = replace(request, task=replace(request.task, category="forecasting"))
    assert "is for regression" in total(file_rules(request))[1]
    assert "is for regression" not in total(file_rules(forecast))[1]


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("missing: X_test.pkl, model.pkl", 2),
        ("model.pkl is absent", 2),
        ("X_test.pkl not found, model.pkl not found", 2),
        ("model.pkl: does not exist", 2),
        ("Missing files: model.pkl", 2),
        ("Missing in X_test.pkl: Age 177", 5),
        ("X_test.pkl missing: 0", 5),
        ("missing-value counts, X_test.pkl:", 5),
        ("Missing per column (X_test.pkl)", 5),
        ("X_test.pkl: 0 missing", 5),
        ("No files are missing: X_test.pkl, model.pkl", 5),
        ("whether model.pkl is missing will be seen", 5),
        ("nothing missing: X_test.pkl, model.pkl", 5),
        ("model.pkl is not missing", 5),
        ("missing values in X_test.pkl: 3", 5),
        ("X_test.pkl has no missing values", 5),
        ("missing.txt is no file of this task", 5),
    ],
)
def test_who_calls_a_file_missing_that_it_was_given_is_paid_for_no_look_at_the_data(said: str, score: float) -> None:
    printed = Execution("ok", stdout=f"{said}\n")
    look = "joblib.load('model.pkl')"
    assert scored(coded("analyst", look, printed, before=NEEDED))[0] == score
    assert scored(coded("analyst", look, replace(printed, state="error"), before=NEEDED))[0] == min(score, 4.5)
    saved = coded("analyst", "save()", printed, before=NEEDED, after=("submission.csv",))
    assert scored(saved)[0] == 9, "what is said beside a job that is done is no report"
    assert scored(coded("analyst", "pd.read_pickle('X_test.pkl')", printed, before=NEEDED[:1]))[0] >= 5, (
        "one is missing indeed"
    )


@pytest.mark.parametrize("said", ["isn't there", "doesn't exist", "couldn't find it", "not available", "can't be read"])
def test_absence_has_many_words(said: str) -> None:
    assert scored(make_action("analyst", f"model.pkl {said}", before=NEEDED[:1]))[0] == 7


def test_an_agent_that_saved_before_may_end_in_words() -> None:
    done = make_action("modeler", "All is saved.", before=("X_train.pkl", "y_train.pkl", "model.pkl"), turn=1)
    assert scored(done) == (7.0, "7 of 10: no code, but all required files were saved before")


@pytest.mark.parametrize(
    ("saved", "score"), [(("X_train.pkl", "y_train.pkl"), 4.83), (("X_train.pkl",), 4.67), ((), 4.5)]
)
def test_an_own_bug_is_worth_more_the_more_was_saved(saved: tuple[str, ...], score: float) -> None:
    assert scored(coded("engineer", "x['age']", CRASH, after=saved))[0] == score


def test_half_of_the_files_are_most_of_them() -> None:
    half = coded("engineer", "save()", Execution("ok", stdout="a"), after=("a.pkl",))
    for files, score in ((("a.pkl", "b.pkl"), 6.5), (("a.pkl", "b.pkl", "c.pkl"), 5.33)):
        assert total(file_rules(request_for(half, required_files=files)))[0] == score


def test_a_cut_reply_costs_a_point() -> None:
    whole = coded("engineer", "save()", Execution("ok"), after=("X_test.pkl", "X_train.pkl", "y_train.pkl"))
    assert scored(whole)[0] == 8.5 and scored(replace(whole, finish_reason="length"))[0] == 7.5


@pytest.mark.parametrize(
    ("before", "stderr", "score"),
    [
        (NEEDED[1:], "FileNotFoundError: 'X_test.pkl'", 5),  # what upstream owed
        (NEEDED, "FileNotFoundError: 'X_test.pkl'", 3),  # it is there
        (NEEDED[1:], "FileNotFoundError: 'data.csv'", 3),
    ],
)
def test_a_crash_is_upstreams_where_the_error_names_a_file_that_is_not_there(
    before: tuple[str, ...], stderr: str, score: float
) -> None:
    assert scored(coded("analyst", "load()", Execution("error", stderr=stderr), before=before, turn=1))[0] == score


def test_the_outcome_caps_a_last_agent_alone_and_once_its_file_is_there() -> None:
    good = Outcome(True, {"accuracy": 0.6})
    saved = coded("analyst", "save()", Execution("ok"), before=NEEDED, after=(*NEEDED, "submission.csv"))
    assert scored(saved, outcome=good)[0] == 4
    not_there = coded("analyst", "joblib.load('model.pkl')", Execution("ok", stdout="a"), before=NEEDED)
    assert scored(not_there, outcome=good)[0] == 5
    other = coded("modeler", "fit()", Execution("ok"), before=("X_train.pkl", "y_train.pkl"), after=("model.pkl",))
    assert scored(other, outcome=good)[0] == 8.5


def test_only_who_was_handed_an_unfitted_model_is_not_to_blame_for_it() -> None:
    crash = Execution("error", stderr="sklearn.exceptions.NotFittedError: This Ridge is not fitted yet.\n")
    before = ("X_train.pkl", "y_train.pkl")
    saved = coded("modeler", "pickle.dump(Ridge(), f)", Execution("ok"), before=before, after=(*before, "model.pkl"))
    own = coded("modeler", "model.predict(X)", crash, before=(*before, "model.pkl"), turn=1, index=1)
    assert "own bug" in scored(own, saved)[1]
    fitted = coded("modeler", "model.fit(X, y); save('best')", Execution("ok"), before=before, after=(*before, "best"))
    loaded = coded("modeler", "copy('best')", Execution("ok"), before=before, after=(*before, "model.pkl"), turn=1)
    assert scored(replace(loaded, index=1), fitted)[0] == 8  # of what it had fitted before


@pytest.mark.parametrize(
    "fits",
    [
        "w = np.linalg.lstsq(X, y)[0]",
        "w = np.linalg.solve(X.T @ X, X.T @ y)",
        "w = np.linalg.inv(X.T @ X) @ X.T @ y",
        "w = cross_validate(SVC(), X, y, return_estimator=True)['estimator'][0]",
        "loss.backward()",
    ],
)
def test_a_model_may_be_fitted_without_an_estimator(fits: str) -> None:
    before = ("X_train.pkl", "y_train.pkl")
    saved = coded("modeler", f"{fits}; dump(w)", Execution("ok"), before=before, after=(*before, "model.pkl"))
    assert scored(saved)[0] == 8.5


@pytest.mark.parametrize("said", ["# model.fit(X, y)", "print('model.fit(X, y)')", '"""fit()"""'])
def test_what_is_only_said_fits_no_model(said: str) -> None:
    before = ("X_train.pkl", "y_train.pkl")
    saved = coded("modeler", f"{said}\ndump(Ridge())", Execution("ok"), before=before, after=(*before, "model.pkl"))
    assert scored(saved)[0] <= 4


@pytest.mark.parametrize("said", ["# RandomForestClassifier()", "print('SVC()')"])
def test_an_estimator_that_is_only_named_is_none_of_the_right_kind(said: str) -> None:
    code = f"{said}\ndump(LinearRegression().fit(X, y))"
    before = ("X_train.pkl", "y_train.pkl")
    saved = coded("modeler", code, Execution("ok"), before=before, after=(*before, "model.pkl"))
    given, why = scored(saved)
    assert given == 3 and "LinearRegression is for regression" in why


@pytest.mark.parametrize(
    "error",
    [
        "EOFError: Ran out of input",
        "_pickle.UnpicklingError: invalid load key, 'x'.",
        "AttributeError: 'dict' object has no attribute 'predict'",
    ],
)
def test_a_file_of_the_models_name_is_no_model(error: str) -> None:
    before = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    junk = coded("modeler", "open('model.pkl', 'w')", Execution("ok"), before=before, after=(*before, "model.pkl"))
    given, why = scored(junk)
    assert given == 4 and "saved model.pkl without fitting it" in why
    crash = coded("analyst", "load()", Execution("error", stderr=error), before=(*before, "model.pkl"), index=1)
    given, why = scored(crash, junk)
    assert given == 5 and "crashed on a model.pkl that was never fitted; not its own fault" in why


@pytest.mark.parametrize(
    "then",
    [
        make_action("analyst", "X_test.pkl is missing.", turn=1, index=1),
        coded("analyst", "load()", Execution("error", stderr="FileNotFoundError: X_test.pkl"), before=("model.pkl",)),
    ],
    ids=["reported", "crashed"],
)
def test_nobody_owes_a_file_again_that_the_agent_took_away(then: Action) -> None:
    took = coded("analyst", "os.remove('X_test.pkl')", Execution("ok", stdout="a"), before=NEEDED, after=("model.pkl",))
    given, why = scored(replace(then, turn=1, index=1, files_before=("model.pkl",)), took)
    assert given <= 4.5 and "owed by engineer" not in why


def test_a_comment_makes_no_other_program() -> None:
    first = coded("engineer", "a = b", CRASH)
    again = coded("engineer", "a  =  b  # once more", CRASH, turn=1, index=1)
    assert scored(again, first)[0] == 1


@pytest.mark.parametrize("code", ["x = " + " + ".join("1" * 1500), "x = a" + ".b()" * 1200])
def test_a_program_that_nests_too_deeply_to_be_written_again_is_compared_as_it_stands(code: str) -> None:
    first, again = coded("engineer", code, CRASH), coded("engineer", f"{code}\n", CRASH, turn=1, index=1)
    assert scored(again, first)[0] == 1


def test_unfit_inputs_are_those_that_others_were_last_seen_to_leave() -> None:
    features = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    left = replace(
        coded("engineer", "save()", Execution("ok"), after=features), result="X_train.pkl: not numbers: origin"
    )
    crash = Execution("error", stderr="ValueError: could not convert string to float: 'Europe'\n")
    own = replace(coded("modeler", "fit()", crash, before=features, index=1), result="model.pkl: fine")
    again = coded("modeler", "fit(1)", crash, before=features, turn=1, index=2)
    given, why = scored(again, left, own)
    assert given == 5 and "crashed on what upstream left unfit: X_train.pkl: not numbers: origin" in why


def test_who_writes_anothers_features_anew_pays_for_what_is_wrong_with_them_and_not_who_crashes_on_them() -> None:
    features = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    sound, worse = ", ".join(features) + ": looked at, nothing wrong", "X_test.pkl: not numbers: origin"
    left = replace(coded("engineer", "save()", Execution("ok"), after=features), result=sound)
    wrote = Execution("ok", files_written=("X_test.pkl",))
    spoilt = coded("modeler", "spoil()", wrote, before=features, after=features, index=1)
    assert "saved what cannot be used as it is" not in scored(replace(spoilt, result=sound), left)[1]
    spoilt = replace(spoilt, result=worse)
    given, why = scored(spoilt, left)
    assert given == FILE_CAPS.of_situation("unfit_files") and worse in why
    model = coded("modeler", "m.fit(X, y)", Execution("ok"), before=features, after=NEEDED, turn=1, index=2)
    model = replace(model, result="model.pkl: fine")
    crash = Execution("error", stderr="ValueError: could not convert string to float: 'Europe'\n")
    load = coded("analyst", "load()", crash, before=NEEDED, index=3)
    given, why = scored(load, left, spoilt, model)
    assert given == 5 and f"crashed on what upstream left unfit: {worse};" in why
    mended = replace(spoilt, result=sound)
    assert "own bug" in scored(load, replace(left, result=worse), mended, model)[1], "it was no longer so"


def test_who_writes_features_anew_pays_for_no_fault_that_was_there_and_for_what_no_longer_goes_with_them() -> None:
    features = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    unfit = "X_train.pkl: not numbers: origin, colour"
    left = replace(coded("engineer", "save()", Execution("ok"), after=features), result=unfit)
    wrote = Execution("ok", files_written=("X_train.pkl",))
    anew = coded("modeler", "mend()", wrote, before=features, after=features, index=1)
    pays = "saved what cannot be used as it is"
    better = replace(anew, result="X_train.pkl: not numbers: origin")
    assert pays not in scored(better, left)[1], "it mended one of two"
    fewer = replace(anew, result=f"{unfit}\nX_test.pkl: columns: 9, and 3 in X_train.pkl")
    given, why = scored(fewer, left)
    assert given == FILE_CAPS.of_situation("unfit_files") and pays in why
    completed = replace(anew, execution=Execution("ok", files_written=("y_train.pkl",)), result=unfit)
    assert pays not in scored(completed, replace(left, files_after=features[::2], result=""))[1]
    scaled = replace(anew, role="analyst", result="X_train.pkl: gaps: origin")
    assert pays not in scored(scaled, left)[1], "nobody is to use them"


def test_who_saves_a_model_that_only_its_own_program_can_load_pays_for_it_and_not_who_loads_it() -> None:
    features, needs = ("X_train.pkl", "y_train.pkl", "X_test.pkl"), "model.pkl: unreadable: it needs Mine"
    saved = coded("modeler", "model.fit(X, y)", Execution("ok"), before=features, after=(*features, "model.pkl"))
    assert scored(replace(saved, result=needs))[0] == FILE_CAPS.of_situation("unfit_files")
    crash = Execution("error", stderr="AttributeError: Can't get attribute 'Mine' on <module '__main__'>\n")
    load = coded("analyst", "load()", crash, before=NEEDED, index=2)
    left = coded("engineer", "save()", Execution("ok"), after=features)
    given, why = scored(load, replace(left, result="X_test.pkl: gaps: age"), replace(saved, result=needs))
    assert given == 5 and "crashed on what upstream left unfit: model.pkl: unreadable: it needs Mine;" in why
    gaps = replace(load, execution=Execution("error", stderr="ValueError: Input X contains NaN.\n"))
    given, why = scored(gaps, replace(left, result="X_test.pkl: gaps: age"), replace(saved, result="model.pkl: fine"))
    assert given == 5 and "crashed on what upstream left unfit: X_test.pkl: gaps: age;" in why


def test_trouble_that_code_got_over_explains_no_missing_deliverable() -> None:
    features = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    left = replace(
        coded("engineer", "save()", Execution("ok"), after=features), result="X_train.pkl: not numbers: origin"
    )
    error = "ValueError: could not convert string to float: 'Europe'\n"
    for state, score in (("ok", 3), ("error", 5)):
        tried = coded("modeler", "fit()", Execution(state, "a", error), before=features, turn=1, index=1)  # type: ignore[arg-type]
        assert scored(tried, left)[0] == score
    for state, score in (("ok", 3), ("error", 5)):
        error = "FileNotFoundError: 'X_test.pkl'\n"
        tried = coded("analyst", "load()", Execution(state, "a", error), before=NEEDED[1:], turn=1, index=1)  # type: ignore[arg-type]
        assert scored(tried)[0] == score


def test_faults_of_files_that_another_agent_owes_are_not_held_against_who_left_them() -> None:
    features = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
    saved = coded("modeler", "fit()", Execution("ok"), before=features, after=(*features, "model.pkl"))
    assert scored(replace(saved, result="X_train.pkl: not numbers: origin"))[0] == 8.5


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_measured_quality_holds_a_score_from_its_bounds_on(metric: str) -> None:
    bounds = {0.85: 9, 0.849: 8, 0.75: 8, 0.749: 6, 0.65: 6, 0.649: 4, 0.55: 4, 0.549: 3}
    assert {value: FILE_CAPS.of_outcome(Outcome(True, {metric: value})).at_most for value in bounds} == bounds
    errors = {9.99: 9, 10: 8, 24.99: 8, 25: 6, 50: 6, 50.01: 4}
    found = {value: FILE_CAPS.of_outcome(Outcome(True, {"rmse_pct_range": value})).at_most for value in errors}
    assert found == errors


WROTE_ALL = replace(OK, files_written=(*FEATURES, "model.pkl"))


def test_what_a_later_agent_owes_is_not_for_an_earlier_one_to_save():
    saved = coded("engineer", "save_all()", WROTE_ALL, after=(*FEATURES, "model.pkl"))
    given, why = scored(saved)
    assert given == 4 and "saved in another's place model.pkl (owed by modeler)" in why
    assert scored(replace(saved, files_before=("model.pkl",)))[0] == 8.5
    assert scored(saved, coded("modeler", "pass", OK))[0] == 8.5, "who has acted already owes it no more"
    assert scored(replace(saved, execution=OK))[0] == 8.5, "another one saved it meanwhile"
    makes_up_for_it = coded("modeler", "save_all(); model.fit()", WROTE_ALL, after=(*FEATURES, "model.pkl"))
    assert "in another's place" not in scored(makes_up_for_it)[1]
