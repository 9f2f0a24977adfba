import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachrl.errors import TaskError
from coachrl.tasks.tabular.grading import TabularTruth, grade_submission, sorted_labels, table2
from coachrl.types import Outcome


def truth_of(folder: Path, answers: dict, metric: str, category: str = "classification") -> TabularTruth:
    path = folder / "test_answer.csv"
    frame = pd.DataFrame(answers)
    frame.to_csv(path, index=False)
    id_column, *targets = frame.columns
    labels = tuple(sorted_labels(map(str, frame[target])) for target in targets) if category == "classification" else ()
    return TabularTruth(category, metric, id_column, tuple(targets), path, labels)


def csv_of(columns: dict) -> bytes:
    return pd.DataFrame(columns).to_csv(index=False).encode()


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prices")
    return truth_of(folder, {"id": [7, 3, 9, 4], "price": [0.0, 10.0, 20.0, 30.0]}, "rmse", "regression")


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    return truth_of(folder, {"key": list("abcd"), "flower": ["rose", "tulip", "lily", "rose"]}, "accuracy")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    return truth_of(folder, {"id": [1, 2, 3, 4], "click": [0, 0, 1, 1]}, "roc_auc")


def test_regression_metrics_by_hand(prices):
    outcome = grade_submission(csv_of({"id": [7, 3, 9, 4], "price": [3, 10, 20, 26]}), prices)
    assert outcome.success
    # errors 3, 0, 0, 4; range 30; quartiles of 0, 10, 20, 30 are 7.5 and 22.5
    assert outcome.metrics["rmse"] == pytest.approx(2.5)
    assert outcome.metrics["mae"] == pytest.approx(1.75)
    assert outcome.metrics["rmse_pct_range"] == pytest.approx(100 * 2.5 / 30)
    assert outcome.metrics["rmse_pct_iqr"] == pytest.approx(100 * 2.5 / 15)
    assert outcome.metrics["mae_pct_range"] == pytest.approx(100 * 1.75 / 30)
    assert outcome.metrics["mae_pct_iqr"] == pytest.approx(100 * 1.75 / 15)
    assert outcome.metrics["rmsle"] == pytest.approx(
        math.sqrt((math.log(4) ** 2 + (math.log(27) - math.log(31)) ** 2) / 4)
    )
    assert "RMSE 2.5 (8.3 % of the target range" in outcome.summary


def test_perfect_submissions_get_perfect_metrics(prices, flowers, clicks):
    regression = grade_submission(prices.answer_csv.read_bytes(), prices)
    assert all(value == 0 for value in regression.metrics.values())
    for truth in (flowers, clicks):
        classified = grade_submission(truth.answer_csv.read_bytes(), truth)
        assert classified.metrics == {"accuracy": 1.0, "f1": 1.0, "roc_auc": 1.0}


def test_string_labels_and_macro_f1(flowers):
    outcome = grade_submission(csv_of({"key": list("abcd"), "flower": ["rose", "rose", "lily", "rose"]}), flowers)
    assert outcome.metrics["accuracy"] == 0.75
    assert outcome.metrics["f1"] == pytest.approx((0.8 + 0 + 1) / 3)
    # one against the rest: rose 0.75, tulip 0.5, lily 1
    assert outcome.metrics["roc_auc"] == pytest.approx(2.25 / 3)


def test_scores_give_auc_and_labels_by_threshold(clicks):
    probabilities = grade_submission(csv_of({"id": [1, 2, 3, 4], "click": [0.1, 0.6, 0.4, 0.9]}), clicks)
    assert probabilities.metrics == {"accuracy": 0.5, "f1": 0.5, "roc_auc": 0.75}
    margins = grade_submission(csv_of({"id": [1, 2, 3, 4], "click": [-3, -0.1, 0.2, 7]}), clicks)
    assert margins.metrics == {"accuracy": 1.0, "f1": 1.0, "roc_auc": 1.0}
    labels = grade_submission(csv_of({"id": [1, 2, 3, 4], "click": [0.0, 1.0, 1.0, 1.0]}), clicks)
    assert labels.metrics["roc_auc"] == 0.75


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([0.49, 0.5, 0.51, 1.0], [0, 1, 1, 1]),
        ([0.0, 0.1, 0.2, 1.01], [1, 1, 1, 1]),  # beyond 1: a decision function, whose border is 0
        ([-0.01, 0.0, 0.4, 0.6], [0, 1, 1, 1]),
        ([-2, -1, -0.5, -0.1], [0, 0, 0, 0]),
    ],
)
def test_labels_are_the_scores_from_the_border_up(clicks, scores, labels):
    ids = {"id": [1, 2, 3, 4]}
    as_scores, as_labels = (grade_submission(csv_of({**ids, "click": said}), clicks) for said in (scores, labels))
    assert {name: as_scores.metrics[name] for name in ("accuracy", "f1")} == {
        name: as_labels.metrics[name] for name in ("accuracy", "f1")
    }


def test_the_tasks_metric_is_told_first_and_the_others_after_it(clicks, tmp_path):
    outcome = grade_submission(csv_of({"id": [1, 2, 3, 4], "click": [0.1, 0.6, 0.4, 0.9]}), clicks)
    told = "ROC-AUC 0.75, accuracy 0.5, F1 0.5. The task's metric is roc_auc."
    assert outcome.summary == f"submission.csv graded on 4 rows: {told}"
    truth = truth_of(tmp_path, {"id": [1, 2], "y": [0.0, 10.0]}, "mae", "regression")
    summary = grade_submission(csv_of({"id": [1, 2], "y": [1, 11]}), truth).summary
    spans = "(10.0 % of the target range, 20.0 % of the interquartile range)"
    assert summary.startswith(f"submission.csv graded on 2 rows: MAE 1 {spans}, RMSE 1 {spans}, RMSLE ")
    assert summary.count("_pct_") == 0 and summary.endswith(". The task's metric is mae.")


def test_scores_are_no_labels_where_labels_are_asked(tmp_path):
    truth = truth_of(tmp_path, {"id": [1, 2], "click": [0, 1]}, "accuracy")
    outcome = grade_submission(csv_of({"id": [1, 2], "click": [0.2, 0.8]}), truth)
    assert not outcome.success
    assert "no label of the task (first: '0.2'); its labels are '0', '1'" in outcome.reason


def test_boolean_labels_take_ones_and_zeros(tmp_path):
    truth = truth_of(tmp_path, {"id": [1, 2], "ok": [True, False]}, "accuracy")
    for written in (["True", "False"], ["true", "FALSE"], [1, 0], [1.0, 0.0]):
        assert grade_submission(csv_of({"id": [1, 2], "ok": written}), truth).metrics["accuracy"] == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_ones_and_zeros_take_boolean_labels(tmp_path, metric):
    """`scores > 0.5` is written as True and False."""
    truth = truth_of(tmp_path, {"id": [1, 2, 3], "ok": [1, 0, 1]}, metric)
    for written in (["True", "False", "True"], ["true", "FALSE", "1"], [1, 0, 1], ["1.0", "00", "01"]):
        assert grade_submission(csv_of({"id": [1, 2, 3], "ok": written}), truth).metrics[metric] == 1.0
    assert not grade_submission(csv_of({"id": [1, 2, 3], "ok": ["yes", "no", "yes"]}), truth).success


def test_several_targets_are_averaged(tmp_path):
    truth = truth_of(tmp_path, {"id": [1, 2], "a": [0.0, 10.0], "b": [0.0, 100.0]}, "mcrmse", "regression")
    outcome = grade_submission(csv_of({"b": [10, 110], "a": [1, 11], "id": [1, 2]}), truth)
    assert outcome.metrics["mcrmse"] == outcome.metrics["rmse"] == pytest.approx(5.5)
    assert outcome.metrics["rmse_pct_range"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("metric", "category", "predicted", "value"),
    [
        ("normalized_gini", "classification", [0.1, 0.6, 0.4, 0.9], 0.5),
        ("log_loss", "classification", [0.5, 0.5, 0.5, 0.5], math.log(2)),
        ("quadratic_weighted_kappa", "classification", [0, 0, 1, 1], 1.0),
        ("f1_micro", "classification", [0, 1, 1, 1], 0.75),
        ("medae", "regression", [0, 0, 1, 3], 0.0),
        ("r2", "regression", [0.5, 0.5, 0.5, 0.5], 0.0),
        ("smape", "regression", [0, 0, 3, 1], 25.0),
        ("pearson", "regression", [1, 1, 3, 3], 1.0),
    ],
)
def test_declared_metrics_of_official_tasks(tmp_path, metric, category, predicted, value):
    truth = truth_of(tmp_path, {"id": [1, 2, 3, 4], "y": [0, 0, 1, 1]}, metric, category)
    outcome = grade_submission(csv_of({"id": [1, 2, 3, 4], "y": predicted}), truth)
    assert outcome.metrics[metric] == pytest.approx(value)


@pytest.mark.parametrize("ids", [["7", "3", "9", "4"], ["7.0", "3.0", "9.0", "4.0"], ["007", " 3", "+9", "4."]])
def test_whole_number_ids_compare_as_numbers(prices, ids):
    assert grade_submission(csv_of({"id": ids, "price": [0, 10, 20, 30]}), prices).metrics["rmse"] == 0


def test_whole_numbers_are_read_as_numpy_saves_them(tmp_path):
    truth = truth_of(tmp_path, {"id": [1, 20, 300], "y": [0, 1, 2]}, "accuracy", "classification")
    np.savetxt(tmp_path / "saved.csv", [[1, 0], [20, 1], [300, 2]], delimiter=",", header="id,y", comments="")
    assert grade_submission((tmp_path / "saved.csv").read_bytes(), truth).metrics["accuracy"] == 1
    assert not grade_submission(b"id,y\n1,0\n20,1\n300,1.5e0\n", truth).success
    assert not grade_submission(b"id,y\n1,0\n20,1\n3.001e2,2\n", truth).success


def test_ids_that_differ_only_in_zeros_stay_apart(tmp_path):
    path = tmp_path / "test_answer.csv"
    path.write_text("id,y\n007,1\n7,5\n")
    truth = TabularTruth("regression", "rmse", "id", ("y",), path)
    assert grade_submission(path.read_bytes(), truth).metrics["rmse"] == 0
    assert "repeated ids" in grade_submission(b"id,y\n7,1\n7,5\n", truth).reason


def test_ids_of_which_one_is_a_word_are_compared_as_they_are_written(tmp_path):
    path = tmp_path / "test_answer.csv"
    path.write_text("id,y\na,1\n7,5\n")
    truth = TabularTruth("regression", "rmse", "id", ("y",), path)
    assert grade_submission(b"id,y\n7,5\na,1\n", truth).success
    assert "ids that the test set does not have (first: '07')" in grade_submission(b"id,y\n07,5\na,1\n", truth).reason


def test_extra_columns_blank_lines_and_byte_order_mark_do_not_matter(prices):
    content = "\ufeff,price,note,id\n0,0,=cmd(),7\n1,10,x,3\n\n2,20,,9\n3,30,y,4\n"
    assert grade_submission(content.encode(), prices).metrics["rmse"] == 0
    assert grade_submission(b"\r\n\n" + csv_of({"id": [7, 3, 9, 4], "price": [0, 10, 20, 30]}), prices).success


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no predictions found: submission.csv was not made"),
        (b"", "is empty"),
        (b"id,price\n", "has a header but no rows"),
        (b"\xff\xfe\x00binary\x00", "not readable as UTF-8 CSV"),
        (b'id,price\n7,"1\n3,2', "not readable as UTF-8 CSV"),
        (b"id,cost\n7,1\n", "has no column 'price'; its columns are 'id', 'cost'"),
        (b"price\n1\n", "has no column 'id'"),
        (b"id,price,price\n7,1,2\n", "more than one column 'price'"),
        (b"id,price\n7,1,2\n", "line 2 has 3 fields; the header has 2"),
        (b"id,price\n7,0\n", "3 of 4 test ids have no prediction (first: '3')"),
        (b"id,price\n7,0\n3,1\n9,2\n4,3\n5,4\n", "1 ids that the test set does not have (first: '5')"),
        (b"id,price\n7,0\n3,1\n9,2\n9,2\n", "1 repeated ids (first: '9')"),
        (b"id,price\n7,0\n3,1\n9,2\n4,\n", "1 missing predictions (first: id '4')"),
        (b"id,price\n7,0\n3,nan\n9,2\n4,3\n", "1 missing predictions (first: id '3')"),
        (b"id,price\n7,0\n3,-inf\n9,2\n4,3\n", "no finite number (first: '-inf')"),
        (b"id,price\n7,0\n3,cheap\n9,=1+1\n4,3\n", "2 values that are no finite number (first: 'cheap')"),
        (b"id,price\n7,0\n3,1e2147483648\n9,1e999999999999\n4,3\n", "2 values that are no finite number (first: '1e"),
        (b"id,price\n7,0\n3," + b"9" * 131_000 + b"x\n9,2\n4,3\n", "1 values that are no finite number (first: '99"),
        (b"id,price\n7,0\n3,1e300\n9,2\n4,3\n", "so large that the error overflows"),
        (b"id,price\n" + b"7,0\n" * 100, "more than 8 rows; the test set has 4"),
        (b"a," * 5000 + b"id\n", "has 5001 columns; at most 1000 are read"),
        (b"id,price\n7," + b"9" * 200_000 + b"\n", "not readable as UTF-8 CSV"),
        (b"id,price\n7,0\n3,10\x00 or 11\n9,20\n4,30\n", "not readable as UTF-8 CSV: it holds a NUL"),
        (b"x" * 2_000_000, "has 2000000 bytes; for 4 rows at most 1049600 are read"),
    ],
)
def test_bad_submissions_fail_with_a_named_reason(prices, content, reason):
    outcome = grade_submission(content, prices)
    assert not outcome.success
    assert outcome.metrics == {}
    assert reason in outcome.reason
    assert len(outcome.reason) < 600
    assert outcome.summary.startswith("ERROR: ")


def test_unknown_labels_and_missing_labels_fail(flowers):
    unknown = grade_submission(csv_of({"key": list("abcd"), "flower": ["rose", "daisy", "lily", "rose"]}), flowers)
    assert "1 values that are no label of the task (first: 'daisy')" in unknown.reason
    missing = grade_submission(csv_of({"key": list("abcd"), "flower": ["rose", None, "lily", "rose"]}), flowers)
    assert "missing predictions (first: id 'b')" in missing.reason


def test_the_declared_metric_must_be_defined(tmp_path):
    truth = truth_of(tmp_path, {"id": [1, 2], "y": [1.0, 2.0]}, "rmsle", "regression")
    outcome = grade_submission(csv_of({"id": [1, 2], "y": [1, -2]}), truth)
    assert outcome.reason == "rmsle is undefined for these predictions (no prediction may be negative)"


def test_undefined_side_metrics_have_no_key(prices, tmp_path):
    negative = grade_submission(csv_of({"id": [7, 3, 9, 4], "price": [-1, 10, 20, 30]}), prices)
    assert negative.success
    assert "rmsle" not in negative.metrics
    constant = truth_of(tmp_path, {"id": [1, 2], "y": [5.0, 5.0]}, "mae", "regression")
    outcome = grade_submission(csv_of({"id": [1, 2], "y": [4, 6]}), constant)
    assert outcome.metrics["mae"] == 1
    assert not [name for name in outcome.metrics if "_pct_" in name]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("id,y\n1,1\n1,2\n", "more than once"),
        ("id,y\n", "no rows"),
        ("id,y\n1,\n", "not a regression target"),
        ("id,z\n1,1\n", "no column 'y'; its columns are 'id', 'z'"),
    ],
)
def test_broken_answers_are_a_task_error(tmp_path, answers, message):
    path = tmp_path / "test_answer.csv"
    path.write_text(answers)
    with pytest.raises(TaskError, match=message):
        grade_submission(b"id,y\n1,1\n", TabularTruth("regression", "rmse", "id", ("y",), path))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(3)
    ids = rng.choice(10_000, size=40, replace=False)
    folder = tmp_path_factory.mktemp("table")
    return truth_of(folder, {"id": ids, "y": rng.normal(size=40)}, "rmse", "regression")


def guess(truth: TabularTruth) -> pd.DataFrame:
    answers = pd.read_csv(truth.answer_csv)
    return answers.assign(y=answers["y"].round(0))


def to_bytes(frame: pd.DataFrame) -> bytes:
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False)
    return buffer.getvalue().encode()


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(40)))
def test_row_order_does_not_matter(table, order):
    frame = guess(table)
    assert grade_submission(to_bytes(frame.iloc[list(order)]), table) == grade_submission(to_bytes(frame), table)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 39), min_size=1))
def test_dropping_any_rows_fails(table, dropped):
    outcome = grade_submission(to_bytes(guess(table).drop(index=list(dropped))), table)
    assert not outcome.success


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 39), st.integers(0, 39), st.booleans())
def test_duplicating_or_overwriting_any_row_fails(table, row, other, append):
    frame = guess(table)
    if append:
        frame = pd.concat([frame, frame.iloc[[row]]])
    elif row == other:
        frame.loc[row, "id"] = 10_001
    else:
        frame.loc[row, "id"] = frame.loc[other, "id"]
    assert not grade_submission(to_bytes(frame), table).success


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_can_raise(table, content):
    assert not grade_submission(content, table).success
    assert not grade_submission(b"id,y\n" + content, table).success


def test_labels_sort_numbers_by_size():
    assert sorted_labels(["10", "9.0", "1"]) == ("1", "9", "10")
    assert sorted_labels(["10.5", "9.5", "-2.5"]) == ("-2.5", "9.5", "10.5")
    assert sorted_labels(["b", "10", "a"]) == ("10", "a", "b")


def test_how_far_labels_are_apart_is_counted_in_their_order(tmp_path):
    halves = truth_of(tmp_path, {"id": [1, 2, 3, 4], "y": [2.5, 9.5, 10.5, 2.5]}, "quadratic_weighted_kappa")
    near, far = (
        grade_submission(csv_of({"id": [1, 2, 3, 4], "y": guessed}), halves).metrics["quadratic_weighted_kappa"]
        for guessed in ([2.5, 9.5, 9.5, 2.5], [2.5, 9.5, 2.5, 2.5])
    )
    assert near > far
    two = truth_of(tmp_path, {"id": [1, 2], "y": ["low", "high"]}, "quadratic_weighted_kappa")
    assert grade_submission(b"id,y\n1,low\n2,high\n", two).success  # of two, one is as far from the other
    words = truth_of(tmp_path, {"id": [1, 2, 3], "y": ["low", "high", "fair"]}, "quadratic_weighted_kappa")
    with pytest.raises(TaskError, match=r"counts how far labels are apart, and 'fair' has no place in an order"):
        grade_submission(b"id,y\n1,low\n2,high\n3,fair\n", words)


def ok(**metrics: float) -> Outcome:
    return Outcome(success=True, metrics=metrics)


FAILED = Outcome(success=False, reason="no predictions")


def test_a_failed_run_counts_as_a_failure_whatever_was_measured_of_it():
    failed = Outcome(False, {"accuracy": 0.9}, reason="late")
    table = table2([("classification", Outcome(True, {"accuracy": 1.0})), ("classification", failed)])
    assert (table["accuracy_raw"], table["accuracy_fair"]) == (1.0, 0.75)


def test_table2_has_means_of_the_errors_of_models_that_diverge():
    table = table2([("regression", Outcome(True, {"rmse": 1.5e308, "rmse_pct_range": 1.5e308}))] * 2)
    assert len(table) > 2 and np.isfinite(list(table.values())).all()


def test_table2_raw_and_fair():
    table = table2(
        [
            ("classification", ok(accuracy=0.9, f1=0.6, roc_auc=0.8)),
            ("classification", FAILED),
            ("regression", ok(mae_pct_range=5.0, rmse_pct_range=10.0)),
            ("regression", ok(mae_pct_range=7.0, rmse_pct_range=12.0)),
            ("regression", FAILED),
            ("regression", FAILED),
        ]
    )
    assert table == pytest.approx(
        {
            "success": 0.5,
            "success_classification": 0.5,
            "success_regression": 0.5,
            "accuracy_raw": 0.9,
            "accuracy_fair": 0.7,
            "f1_raw": 0.6,
            "f1_fair": 0.3,
            "roc_auc_raw": 0.8,
            "roc_auc_fair": 0.65,
            "mae_pct_range_raw": 6.0,
            "mae_pct_range_fair": 28.0,
            "rmse_pct_range_raw": 11.0,
            "rmse_pct_range_fair": 30.5,
        }
    )


def test_table2_follows_the_papers_own_numbers():
    # Epoch 11: 7 of 8 regressions succeed, RMSE 9.5 %, fair 14.6 %; 9 of 16 classifications, F1 0.309, fair 0.174.
    regression = [("regression", ok(rmse_pct_range=9.5))] * 7 + [("regression", FAILED)]
    assert table2(regression)["rmse_pct_range_fair"] == pytest.approx(14.6, abs=0.05)
    classification = [("classification", ok(f1=0.309, accuracy=0.889))] * 9 + [("classification", FAILED)] * 7
    assert table2(classification)["f1_fair"] == pytest.approx(0.174, abs=0.0005)
    assert table2(classification)["accuracy_fair"] == pytest.approx(0.719, abs=0.0005)


def test_table2_has_no_key_for_what_did_not_run():
    assert table2([]) == {}
    only_failed = table2([("classification", FAILED)])
    assert only_failed == {
        "success": 0,
        "success_classification": 0,
        "accuracy_fair": 0.5,
        "f1_fair": 0,
        "roc_auc_fair": 0.5,
    }
