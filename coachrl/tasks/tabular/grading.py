"""Grades the submission of a tabular task: joined with the answers on the id column, never by row position.

How values are compared
- Ids: as text without surrounding blanks. Where all ids of a task are whole numbers, "7", "007", "7.0" and "7.00e+00"
  (as numpy's `savetxt` writes it) are one id.
- Labels: likewise; where the labels are True and False, 1 and 0 are taken for them, and the other way round.
- Columns of the submission beyond the id and the targets are ignored, and so is the order of rows and columns.
- Two-class tasks whose metric ranks (ROC-AUC, Gini, log loss) take labels or scores of the positive class, which is the
  second of the sorted labels (1 of 0/1, True of False/True). Labels are made from scores at 0.5 where all scores are
  within 0..1, and at 0 (a decision function) where not. Other classification tasks take labels only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coachrl.errors import TaskError
from coachrl.stats import mean_of
from coachrl.storage.files import bounded_file
from coachrl.tasks.tabular.metrics import (
    RANKED_METRICS,
    SCORE_METRICS,
    Classified,
    Regressed,
    classification_metrics,
    regression_metrics,
)
from coachrl.types import Outcome

SUBMISSION = "submission.csv"
MAX_COLUMNS = 1000
# What a submission may weigh: room for ids, long floats and some columns too many, none for a flood.
_BYTES_PER_ROW, _BYTES_BASE = 256, 1024 * 1024
_LARGER = 4  # larger than other files may be is a table of which some columns are held
_WHOLE = re.compile(r"([+-]?[0-9]{1,40})(?:\.0*)?")
_EXPONENTIAL = re.compile(r"[+-]?[0-9](?:\.[0-9]{0,40})?[eE][+-]?[0-9]{1,2}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MISSING = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>", "nat"})
_UNITS = {"accuracy": "accuracy", "f1": "F1", "roc_auc": "ROC-AUC", "rmse": "RMSE", "mae": "MAE", "rmsle": "RMSLE"}

# category -> metric of an outcome -> what a failed run counts (MAPPA, App. A.2; ROC-AUC by the same rule: a coin's
# value).
FAILED = {
    "classification": {"accuracy": 0.5, "f1": 0.0, "roc_auc": 0.5},
    "regression": {"mae_pct_range": 50.0, "rmse_pct_range": 50.0},
}


@dataclass(frozen=True)
class TabularTruth:
    """What grades one tabular task. It never enters a workspace or an agent's prompt.

    metric: the task's own metric, a name from `tabular_metrics.METRICS[category]`. labels: for classification, the
    sorted labels of each target column as text, from train and answers. guessed: what the task did not declare itself.
    """

    category: Literal["classification", "regression"]
    metric: str
    id_column: str
    target_columns: tuple[str, ...]
    answer_csv: Path
    labels: tuple[tuple[str, ...], ...] = ()
    guessed: tuple[str, ...] = ()


class _Refused(Exception):
    """A submission that cannot be graded; the message says why."""


def grade_submission(csv_bytes: bytes | None, truth: TabularTruth) -> Outcome:
    """The outcome of a submission (None: there is none). success means that it could be graded, whatever its quality.

    Metrics, each a mean over target columns and left out where undefined:
    - classification: accuracy; f1 of the positive class, macro for more than two classes; roc_auc, for more than two
      classes the macro mean of one class against the rest, from labels;
    - regression: rmse, mae, rmsle; and rmse_pct_range, rmse_pct_iqr, mae_pct_range, mae_pct_iqr in % of the range and
      of the interquartile range of the true targets;
    - the task's own metric, where it is another.
    Raises TaskError where the answers cannot be read.
    """
    answers = read_answers(truth)
    try:
        if csv_bytes is None:
            raise _Refused(f"no predictions found: {SUBMISSION} was not made")
        submission = _parse(csv_bytes, truth, len(answers))
        metrics = _metrics(answers, _join(submission, answers, truth), truth)
    except _Refused as refused:
        reason = str(refused)
        return Outcome(success=False, reason=reason, summary=f"ERROR: {reason[0].upper()}{reason[1:]}.")
    return Outcome(success=True, metrics=metrics, summary=_summary(metrics, truth, len(answers)))


def table2(results: Iterable[tuple[str, Outcome]]) -> dict[str, float]:
    """MAPPA's Table 2 from (task category, outcome) pairs: success rates, raw and fair means of metrics.

    Keys: success, success_<category>, and for each metric in `FAILED` <metric>_raw, over successful runs alone, and
    <metric>_fair, over all runs of the category with failures counted as `FAILED` says. Rates are 0..1, *_pct_* in %.
    A successful run whose metric is undefined is left out of that metric's two means. What has no runs has no key.
    """
    pairs = list(results)
    table: dict[str, float] = {}
    if pairs:
        table["success"] = float(np.mean([outcome.success for _, outcome in pairs]))
    for category in sorted({category for category, _ in pairs}):
        outcomes = [outcome for its_kind, outcome in pairs if its_kind == category]
        table[f"success_{category}"] = float(np.mean([outcome.success for outcome in outcomes]))
        failures = sum(not outcome.success for outcome in outcomes)
        for metric, failed_value in FAILED.get(category, {}).items():
            raw = [outcome.metrics[metric] for outcome in outcomes if outcome.success and metric in outcome.metrics]
            if raw:
                table[f"{metric}_raw"] = mean_of(raw)
            if raw or failures:
                table[f"{metric}_fair"] = mean_of(raw + [failed_value] * failures)
    return table


@lru_cache(maxsize=64)
def read_answers(truth: TabularTruth) -> pd.DataFrame:
    """The answers as text, indexed by comparable id.

    Raises TaskError where an id repeats, a target is missing, or the metric is undefined even for perfect predictions,
    or for three labels or more without an order.
    """
    wanted = [truth.id_column, *truth.target_columns]
    answers = read_text_columns(truth.answer_csv, wanted)
    ids = _comparable_ids(answers[truth.id_column], answers[truth.id_column])
    if answers.empty or ids.duplicated().any():
        what = "no rows" if answers.empty else f"id {_show(ids[ids.duplicated()].iloc[0])} more than once"
        raise TaskError(f"{truth.answer_csv}: {what}; it must hold each test id once")
    for column in truth.target_columns:
        regression = truth.category == "regression"
        bad = ~pd.Series(np.isfinite(_numbers(answers[column]))) if regression else answers[column] == ""
        if bad.any():
            value = answers.loc[bad, column].iloc[0]
            raise TaskError(
                f"{truth.answer_csv}: column {column!r} holds {_show(value)}, not a {truth.category} target"
            )
    unordered = [labels[0] for labels in truth.labels if len(labels) > 2 and not _are_numbers(labels)]
    if truth.metric in RANKED_METRICS and unordered:
        raise TaskError(
            f"{truth.answer_csv}: {truth.metric} counts how far labels are apart, and {_show(unordered[0])} has no "
            "place in an order: write numbers, or take another metric"
        )
    answers = answers.set_index(ids)[list(truth.target_columns)]
    try:
        _metrics(answers, answers, truth)
    except _Refused as refused:
        raise TaskError(f"{truth.answer_csv}: perfect predictions could not be graded: {refused}") from refused
    return answers


def check_test_ids(test_csv: Path, truth: TabularTruth) -> None:
    """Raises TaskError where the table that agents see has other ids than the answers: no submission could be right."""
    answers = read_answers(truth)
    ids = _comparable_ids(read_text_columns(test_csv, [truth.id_column])[truth.id_column], answers.index.to_series())
    wrong = [*ids[ids.duplicated()], *sorted({*ids}.symmetric_difference(answers.index))]
    if wrong:
        raise TaskError(
            f"{test_csv}: column {truth.id_column!r} must hold the ids of {truth.answer_csv.name}, once each; "
            f"{len(wrong)} are missing, repeated or others (first: {_show(wrong[0])})"
        )


def read_text_columns(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of a CSV file as stripped text. Raises TaskError naming file and columns found where one is not there."""
    check_columns(path, read_header(path), columns)
    try:
        frame = pd.read_csv(path, usecols=list(columns), index_col=False, dtype=str, keep_default_na=False)[
            list(columns)
        ]
    except ValueError as error:
        raise TaskError(f"{path}: cannot be read as CSV: {error}") from error
    return frame.apply(lambda column: column.str.strip())


def check_columns(path: Path, found: Sequence[str], wanted: Iterable[str]) -> None:
    """Raises TaskError for the first of the wanted columns that was not found in the file."""
    for column in wanted:
        if column not in found:
            raise TaskError(f"{path}: no column {column!r}; its columns are {_listed(found)}")


def read_header(path: Path) -> list[str]:
    """Column names of a CSV file. Raises TaskError as `read_rows`."""
    return [str(name) for name in read_rows(path, 0).columns]


def read_rows(path: Path, rows: int) -> pd.DataFrame:
    """The first rows of a CSV file. Raises TaskError where it is missing, empty or not a CSV."""
    try:
        return pd.read_csv(bounded_file(path, _LARGER), nrows=rows)
    except (OSError, ValueError) as error:  # pandas' own parse errors are ValueErrors, and so are encoding errors
        raise TaskError(f"{path}: cannot be read as CSV with a header: {error}") from error


def sorted_labels(values: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: numbers by size, whole ones written plainly ("1.0" as "1")."""
    labels = set(values)
    if all(_WHOLE.fullmatch(label) for label in labels):
        return tuple(sorted({_plain(label) for label in labels}, key=int))
    return tuple(sorted(labels, key=float if _are_numbers(labels) else str))


def _are_numbers(labels: Iterable[str]) -> bool:
    return all(map(_NUMBER.fullmatch, labels))


def _parse(csv_bytes: bytes, truth: TabularTruth, answer_rows: int) -> pd.DataFrame:
    """The wanted columns of a submission as stripped text, in its own row order. Bounded in size, rows and columns."""
    limit = _BYTES_BASE + _BYTES_PER_ROW * answer_rows
    if len(csv_bytes) > limit:
        raise _Refused(f"{SUBMISSION} has {len(csv_bytes)} bytes; for {answer_rows} rows at most {limit} are read")
    if b"\0" in csv_bytes:  # pandas ends a number there, whatever comes after it
        raise _Refused(f"{SUBMISSION} is not readable as UTF-8 CSV: it holds a NUL")
    try:
        reader = csv.reader(io.StringIO(csv_bytes.decode("utf-8-sig"), newline=""), strict=True)
        lines = (row for row in reader if row)
        header = [name.strip() for name in next(lines, [])]
        wanted = [truth.id_column, *truth.target_columns]
        positions = [_position(header, column) for column in wanted]
        rows = []
        for row in islice(lines, 2 * answer_rows + 1):
            if len(row) != len(header):
                raise _Refused(
                    f"{SUBMISSION} line {reader.line_num} has {len(row)} fields; the header has {len(header)}"
                )
            rows.append([row[position].strip() for position in positions])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _Refused(f"{SUBMISSION} is not readable as UTF-8 CSV: {error}") from error
    if not rows:
        raise _Refused(f"{SUBMISSION} has a header but no rows")
    if len(rows) > 2 * answer_rows:
        raise _Refused(f"{SUBMISSION} has more than {2 * answer_rows} rows; the test set has {answer_rows}")
    return pd.DataFrame(rows, columns=wanted, dtype=str)


def _position(header: list[str], column: str) -> int:
    if not header:
        raise _Refused(f"{SUBMISSION} is empty")
    if len(header) > MAX_COLUMNS:
        raise _Refused(f"{SUBMISSION} has {len(header)} columns; at most {MAX_COLUMNS} are read")
    if header.count(column) != 1:
        how_often = "no column" if column not in header else "more than one column"
        raise _Refused(f"{SUBMISSION} has {how_often} {column!r}; its columns are {_listed(header)}")
    return header.index(column)


def _join(submission: pd.DataFrame, answers: pd.DataFrame, truth: TabularTruth) -> pd.DataFrame:
    """The predictions in the order of the answers. Refused unless the ids are those of the test set, once each."""
    ids = _comparable_ids(submission[truth.id_column], answers.index.to_series())
    repeated, extra = ids[ids.duplicated()], ids[~ids.isin(answers.index)]
    missing = answers.index[~answers.index.isin(ids)]
    for found, problem in (
        (extra, "ids that the test set does not have"),
        (repeated, "repeated ids"),
        (missing, f"of {len(answers)} test ids have no prediction"),
    ):
        if len(found):
            first = found[0] if isinstance(found, pd.Index) else found.iloc[0]
            raise _Refused(f"{SUBMISSION} column {truth.id_column!r}: {len(found)} {problem} (first: {_show(first)})")
    return submission.set_index(ids).loc[answers.index, list(truth.target_columns)]


def _metrics(answers: pd.DataFrame, predictions: pd.DataFrame, truth: TabularTruth) -> dict[str, float]:
    """Means over the target columns of the metrics that are defined for each of them."""
    columns = []
    for position, name in enumerate(truth.target_columns):
        if truth.category == "classification":
            classified = _classified(answers[name], predictions[name], truth.labels[position], truth)
            columns.append(classification_metrics(classified, truth.metric))
        else:
            regressed = Regressed(_numbers(answers[name]), _finite(predictions[name]))
            columns.append(regression_metrics(regressed, truth.metric))
    means = {name: float(np.mean([column[name] for column in columns])) for name in columns[0]}
    if any(np.isinf(value) for value in means.values()):
        raise _Refused(f"{SUBMISSION} holds predictions so large that the error overflows")
    if np.isnan(means[truth.metric]):
        needs = {"rmsle": " (no prediction may be negative)", "log_loss": " (probabilities must lie within 0..1)"}
        raise _Refused(f"{truth.metric} is undefined for these predictions{needs.get(truth.metric, '')}")
    return {name: value for name, value in means.items() if not np.isnan(value)}


def _classified(answers: pd.Series, predicted: pd.Series, labels: tuple[str, ...], truth: TabularTruth) -> Classified:
    """One classification column as labels, and as scores of the positive class where there are two classes."""
    true_N, given = _as_labels(answers, labels), _as_labels(predicted, labels)
    unknown = ~given.isin(labels)
    score_N = None
    if unknown.any():
        if len(labels) != 2 or truth.metric not in SCORE_METRICS:
            _refuse_missing(predicted[unknown])
            raise _Refused(
                f"column {predicted.name!r} holds {int(unknown.sum())} values that are no label of the task "
                f"(first: {_show(predicted[unknown].iloc[0])}); its labels are {_listed(labels)}"
            )
        score_N = _finite(predicted)
        threshold = 0.5 if score_N.min() >= 0 and score_N.max() <= 1 else 0.0
        predicted_N = np.where(score_N >= threshold, labels[1], labels[0])
    else:
        predicted_N = given.to_numpy(dtype=str)
        if len(labels) == 2:
            score_N = (predicted_N == labels[1]).astype(float)
    return Classified(true_N.to_numpy(dtype=str), predicted_N, labels, score_N)


def _as_labels(column: pd.Series, labels: tuple[str, ...]) -> pd.Series:
    """The column with each value written as the label that it stands for; what stands for none is left as it is."""
    for no, yes in (("False", "True"), ("0", "1")):
        if set(labels) <= {no, yes}:
            names = {"true": yes, "false": no, "1": yes, "0": no}
            plain = column.map(_plain).str.lower()
            return column.where(~plain.isin(list(names)), plain.map(names))
    return column.map(_plain) if all(_WHOLE.fullmatch(label) for label in labels) else column


def _comparable_ids(ids: pd.Series, test_ids: pd.Series) -> pd.Series:
    """Ids as they are compared. Whole numbers are written plainly where that keeps all ids of the test set apart."""
    whole = test_ids.map(_WHOLE.fullmatch).notna().all()
    return ids.map(_plain) if whole and test_ids.map(_plain).nunique() == test_ids.nunique() else ids


def _plain(text: str) -> str:
    """A whole number without sign, zeros and point that say nothing; any other text as it is."""
    if match := _WHOLE.fullmatch(text):
        return str(int(match.group(1)))
    value = Fraction(text) if _EXPONENTIAL.fullmatch(text) else None
    return str(value.numerator) if value is not None and value.denominator == 1 else text


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    """The column as floats, NaN where the text is no number. pandas' own reader of numbers ends the whole process where
    an exponent is too large for it."""
    return np.array([float(text) if _NUMBER.fullmatch(text) else np.nan for text in column], dtype=np.float64)


def _finite(column: pd.Series) -> NDArray[np.float64]:
    """The column as floats. Refused where one is missing, not a number or infinite."""
    values_N = _numbers(column)
    bad_N = ~np.isfinite(values_N)
    if bad_N.any():
        _refuse_missing(column[bad_N])
        first = _show(column[bad_N].iloc[0])
        raise _Refused(
            f"column {column.name!r} holds {int(bad_N.sum())} values that are no finite number (first: {first})"
        )
    return values_N


def _refuse_missing(column: pd.Series) -> None:
    missing = column.str.lower().isin(_MISSING)
    if missing.any():
        first = _show(str(column.index[missing][0]))
        raise _Refused(f"column {column.name!r} holds {int(missing.sum())} missing predictions (first: id {first})")


def _show(text: object) -> str:
    """A value from a file for a message: quoted, escaped and short."""
    shown = repr(str(text))
    return shown if len(shown) <= 42 else f"{shown[:38]}...'"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(_show(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _summary(metrics: dict[str, float], truth: TabularTruth, rows: int) -> str:
    def words(name: str) -> str:
        text = f"{_UNITS.get(name, name)} {metrics[name]:.4g}"
        spans = [
            f"{metrics[f'{name}_pct_{of}']:.1f} % of the {label}"
            for of, label in (("range", "target range"), ("iqr", "interquartile range"))
            if f"{name}_pct_{of}" in metrics
        ]
        return f"{text} ({', '.join(spans)})" if spans else text

    names = [truth.metric] + [name for name in metrics if name != truth.metric and "_pct_" not in name]
    return (
        f"{SUBMISSION} graded on {rows} rows: "
        + ", ".join(map(words, names))
        + f". The task's metric is {truth.metric}."
    )
