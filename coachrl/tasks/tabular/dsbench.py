"""Tabular tasks in DSBench's layout (Jing et al., 2025; MAPPA, Sec. 3.2).

    ROOT/data_resplit/TASK/train.csv, test.csv [, sample_submission.csv]      ROOT/answers/TASK/test_answer.csv

A task list is JSON lines of {"prompt", "metadata": {"task_id", "data_type", "train_file", "test_file", "answer_dir"}};
the part of its paths from `data_resplit` or `answers` on counts, under ROOT. Cleaned prompts are one JSON object: task
id -> {"cleaned_prompt", "task_type", "metric", "target_column" (a name or a list), "id_column"}. Where the two disagree
the cleaned prompts hold. What neither declares is guessed from the columns, with a warning and in
`TabularTruth.guessed`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

import pandas as pd

from coachrl.errors import TaskError
from coachrl.parsing import is_number, json_lines, read_json
from coachrl.storage.files import read_text, usable_path
from coachrl.tasks.tabular.grading import (
    SUBMISSION,
    TabularTruth,
    check_columns,
    check_test_ids,
    read_header,
    read_text_columns,
    sorted_labels,
)
from coachrl.tasks.tabular.metrics import ALIASES, DEFAULT_METRIC, METRICS, SCORE_METRICS
from coachrl.text import brief, counted, one_line
from coachrl.types import Task

log = logging.getLogger(__name__)

Category = Literal["classification", "regression"]
_Guesses = dict[str, str]  # what a task does not declare -> the sentence on what is taken in its place
_SHOWN = 5  # items named in an error
_SHOWN_GUESSES = 2  # tasks of which a guess of one kind is told in full
_LISTED_LABELS = 12  # more of them are not listed in a prompt
_SAMPLE = "sample_submission.csv"


@dataclass(frozen=True)
class _Entry:
    """One line of a task list with its cleaned prompt, if any."""

    id: str
    prompt: str
    declared: Mapping[str, Any]
    train_csv: Path
    test_csv: Path
    sample_csv: Path
    answer_csv: Path


def load_dsbench(
    root: Path,
    task_list: Path,
    cleaned_prompts: Path | None = None,
    *,
    limit: int | None = None,
    skip_unusable: bool = False,
) -> list[Task]:
    """The tasks of a list, in its order; the first `limit` of them where it is given.

    Task.files holds train.csv, test.csv (never with a target column) and sample_submission.csv where there is one;
    Task.ground_truth is a `TabularTruth` whose answers have been read and checked. Raises TaskError for a list that
    cannot be read or is empty, for files that are not there, and for tasks that cannot be graded here (no such column,
    labels in test.csv, a metric that is not offered); skip_unusable leaves the latter out with a warning.
    """
    entries = _read_entries(root, task_list, cleaned_prompts)[:limit]
    if not entries:
        raise TaskError(f"{task_list}: no tasks in it; it must hold one JSON object a line")
    missing = [
        path for entry in entries for path in (entry.train_csv, entry.test_csv, entry.answer_csv) if not path.is_file()
    ]
    if missing:
        raise TaskError(f"{task_list}: {len(missing)} of its files are not there: {_first(map(str, missing))}")
    tasks, problems = [], []
    guesses: list[_Guesses] = []
    for entry in entries:
        guessed: _Guesses = {}
        try:
            tasks.append(_task(entry, guessed))
        except TaskError as error:
            problems.append(f"task {entry.id}: {error}")
        guesses.append(guessed)
    _say_guesses(guesses)
    if problems and not (skip_unusable and tasks):
        raise TaskError(f"{task_list}: {len(problems)} of {len(entries)} tasks cannot be used: {_first(problems)}")
    for problem in problems:
        log.warning("left out %s", problem)
    return tasks


def _say_guesses(guesses: Sequence[_Guesses]) -> None:
    """A benchmark of 72 tasks would bury all else under a line for each guess: of each kind a few are told, the others
    counted."""
    for kind in dict.fromkeys(kind for guessed in guesses for kind in guessed):
        said = [guessed[kind] for guessed in guesses if kind in guessed]
        for sentence in said[:_SHOWN_GUESSES]:
            log.warning(sentence)
        if len(said) > _SHOWN_GUESSES:
            more = counted(len(said) - _SHOWN_GUESSES, "task")
            log.warning("without a declared %s: %s more", kind.replace("_", " ").removesuffix("s"), more)
    if any(guesses):
        log.warning(
            "what is taken may be wrong, a metric above all: tasks.cleaned_prompts=FILE declares it for each task"
        )


def _read_entries(root: Path, task_list: Path, cleaned_prompts: Path | None) -> list[_Entry]:
    cleaned: Any = {}
    if cleaned_prompts is not None:
        cleaned = read_json(cleaned_prompts, str(cleaned_prompts), TaskError)
    if not isinstance(cleaned, dict) or not all(isinstance(value, dict) for value in cleaned.values()):
        raise TaskError(f"{cleaned_prompts}: must be one JSON object that maps task ids to objects")
    entries: dict[str, _Entry] = {}
    for place, line in json_lines(read_text(task_list, str(task_list), TaskError), str(task_list), TaskError):
        try:
            entry = _entry(root, line, cleaned)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else one_line(str(error))
            raise TaskError(f"{task_list}, {place}: not a task: {reason}") from error
        if entry.id in entries:
            raise TaskError(f"{task_list}, {place}: task {entry.id} is listed twice")
        entries[entry.id] = entry
    return list(entries.values())


def _entry(root: Path, line: Any, cleaned: Mapping[str, Mapping[str, Any]]) -> _Entry:
    if not isinstance(line, dict) or not isinstance(line.get("metadata", {}), dict):
        raise TypeError(f"it must be an object, and so must its 'metadata'; it is {brief(line)}")
    metadata = line["metadata"]
    task_id = str(metadata["task_id"]) if is_number(metadata["task_id"]) else _text(metadata, "task_id")
    own = cleaned.get(task_id, {})
    # In a task list "task_type" is the benchmark's name for the whole set; the category is in "data_type".
    listed = {key: metadata[key] for key in ("metric", "target_column", "id_column") if key in metadata}
    listed["task_type"] = metadata.get("data_type")
    if listed["task_type"] and own.get("task_type", listed["task_type"]) != listed["task_type"]:
        log.warning("task %s: listed as %s, cleaned prompts say %s", task_id, listed["task_type"], own["task_type"])
    declared = {**listed, **{key: value for key, value in own.items() if value}}
    _check_declared(declared)
    return _Entry(
        id=task_id,
        prompt=_text(own, "cleaned_prompt") if own.get("cleaned_prompt") else _text(line, "prompt"),
        declared=declared,
        train_csv=_under(root, _text(metadata, "train_file"), "data_resplit"),
        test_csv=_under(root, _text(metadata, "test_file"), "data_resplit"),
        sample_csv=_under(root, str(PurePosixPath(metadata["train_file"]).with_name(_SAMPLE)), "data_resplit"),
        answer_csv=_under(root, f"{_text(metadata, 'answer_dir')}/test_answer.csv", "answers"),
    )


def _text(fields: Mapping[str, Any], key: str) -> str:
    """What `fields` holds under `key`. Raises KeyError where it is missing, and TypeError for what is no text: agents
    would be asked "None"."""
    value = fields[key]
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"'{key}' must hold text, and is {brief(value)}")
    return value


def _check_declared(declared: Mapping[str, Any]) -> None:
    """Raises TypeError for what is neither a name nor, for targets, a list of names."""
    for key in ("task_type", "id_column", "target_column"):
        value = declared.get(key)
        names = value if isinstance(value, list) and key == "target_column" else [value]
        if value is not None and not all(isinstance(name, str) for name in names):
            raise TypeError(f"{key} must be a name{' or a list of names' if key == 'target_column' else ''}")


def _under(root: Path, listed: str, folder: str) -> Path:
    """What `listed` names under `root`. Raises ValueError where it leads out of it: a list that was downloaded must
    not show agents files of this machine."""
    path = PurePosixPath(listed)
    if folder in path.parts:
        path = PurePosixPath(*path.parts[path.parts.index(folder) :])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{brief(listed)} leads out of tasks.root: name a path under {folder}/ there")
    found = usable_path(root / path)
    # A link within the data leads out as well as a path does; the root itself may be one.
    if not Path(os.path.realpath(found)).is_relative_to(os.path.realpath(root)):  # which takes links that go in circles
        raise ValueError(f"{brief(listed)} is a link that leads out of tasks.root: put the files themselves there")
    return found


def _task(entry: _Entry, guessed: _Guesses) -> Task:
    """A task whose declared columns are where they must be; what is guessed goes into `guessed`. Raises TaskError."""
    train, test, answer = (read_header(path) for path in (entry.train_csv, entry.test_csv, entry.answer_csv))
    id_column = entry.declared.get("id_column") or _guess_id(entry, test, answer, guessed)
    targets = _as_tuple(entry.declared.get("target_column")) or _guess_targets(
        entry, id_column, train, test, answer, guessed
    )
    check_columns(entry.test_csv, test, (id_column,))
    check_columns(entry.answer_csv, answer, (id_column, *targets))
    check_columns(entry.train_csv, train, targets)
    leaked = [target for target in targets if target in test]
    if leaked:
        raise TaskError(f"{entry.test_csv}: holds the target column {leaked[0]!r}; agents must not see the answers")

    values = pd.concat([read_text_columns(path, targets) for path in (entry.train_csv, entry.answer_csv)])
    category = _category(entry, values, guessed)
    labels = tuple(_labels(values[target]) for target in targets) if category == "classification" else ()
    metric = _metric(entry, category, labels, guessed)
    truth = TabularTruth(category, metric, id_column, targets, entry.answer_csv, labels, tuple(guessed))
    check_test_ids(entry.test_csv, truth)
    files = {"train.csv": entry.train_csv, "test.csv": entry.test_csv}
    return Task(
        id=entry.id,
        category=category,
        prompt=f"{entry.prompt.strip()}\n\n{_facts(truth)}",
        files=files | ({_SAMPLE: entry.sample_csv} if entry.sample_csv.is_file() else {}),
        ground_truth=truth,
    )


def _metric(entry: _Entry, category: Category, labels: tuple[tuple[str, ...], ...], guessed: _Guesses) -> str:
    declared = entry.declared.get("metric")
    if not declared:
        guessed["metric"] = f"task {entry.id} declares no metric; {DEFAULT_METRIC[category]} is taken"
        return DEFAULT_METRIC[category]
    metric = ALIASES.get(declared, declared) if isinstance(declared, str) else None
    if metric is None or metric not in METRICS[category]:
        raise TaskError(
            f"metric {brief(declared)} is not offered for {category}; offered are {', '.join(METRICS[category])}"
        )
    if metric in SCORE_METRICS and any(len(of_target) != 2 for of_target in labels):
        raise TaskError(f"metric {brief(declared)} needs targets of two classes; there are {max(map(len, labels))}")
    if metric == "log_loss" and len(labels) > 1:
        raise TaskError("metric 'log_loss' over several target columns is not offered; over one it is")
    return metric


def _guess_id(entry: _Entry, test: list[str], answer: list[str], guessed: _Guesses) -> str:
    shared = [column for column in answer if column in test]
    if not shared:
        raise TaskError(
            f"{entry.test_csv}: no id column is declared and none is shared with {entry.answer_csv.name}; "
            f"its columns are {_first(test)}"
        )
    guessed["id_column"] = (
        f"task {entry.id} declares no id column; {shared[0]!r}, first of the answers and in test.csv, is taken"
    )
    return shared[0]


def _guess_targets(
    entry: _Entry, id_column: str, train: list[str], test: list[str], answer: list[str], guessed: _Guesses
) -> tuple[str, ...]:
    targets = tuple(column for column in answer if column in train and column not in test and column != id_column)
    if not targets:
        raise TaskError(
            f"{entry.answer_csv}: no target column is declared and none is in train.csv but not in test.csv; "
            f"its columns are {_first(answer)}"
        )
    guessed["target_columns"] = f"task {entry.id} declares no target column; {', '.join(targets)} taken"
    return targets


def _category(entry: _Entry, values: pd.DataFrame, guessed: _Guesses) -> Category:
    """The declared category; else by text or two values: classification, by fractions: regression. Whole numbers may be
    either, however few they are, so they are refused."""
    declared = entry.declared.get("task_type")
    if declared and declared not in METRICS:
        raise TaskError(f"task_type {brief(declared)} cannot be graded; it must be one of {', '.join(METRICS)}")
    if declared:
        return cast(Category, declared)
    columns = [values[target][values[target] != ""] for target in values]
    numbers = [pd.to_numeric(column, errors="coerce") for column in columns]
    if all(column.nunique() == 2 or number.isna().any() for column, number in zip(columns, numbers, strict=True)):
        category: Category = "classification"
    elif all((number % 1 != 0).any() and number.notna().all() for number in numbers):
        category = "regression"
    else:
        raise TaskError("task_type is not declared, and whole numbers may be classes or amounts; declare it")
    guessed["category"] = f"task {entry.id} declares no category; its targets look like {category}"
    return category


def _labels(column: pd.Series) -> tuple[str, ...]:
    labels = sorted_labels(column[column != ""])
    if len(labels) < 2:
        raise TaskError(
            f"column {column.name!r} of train and answers holds {len(labels)} distinct labels; two are needed"
        )
    return labels


def _facts(truth: TabularTruth) -> str:
    """What a submission must hold, in the same words for every task."""
    names = [truth.id_column, *truth.target_columns]
    lines = [
        f"Id column: {truth.id_column}",
        f"Target column{'s' if len(names) > 2 else ''}: {', '.join(truth.target_columns)} ({truth.category})",
        f"Metric: {truth.metric}",
    ]
    for target, labels in zip(truth.target_columns, truth.labels, strict=False):  # regression has no labels
        if truth.metric in SCORE_METRICS:
            lines.append(f"Predict the probability that {target} is {labels[1]}.")
        elif len(labels) <= _LISTED_LABELS:
            lines.append(f"Labels of {target}: {', '.join(labels)}")
    if truth.metric == "rmsle":
        lines.append("Predictions must not be negative.")
    lines.append(f"{SUBMISSION}: columns {','.join(names)}; one row for each {truth.id_column} in test.csv.")
    return "\n".join(lines)


def _as_tuple(declared: str | list[str] | None) -> tuple[str, ...]:
    return (declared,) if isinstance(declared, str) else tuple(declared or ())


def _first(items: Any) -> str:
    shown = list(items)
    return "; ".join(shown[:_SHOWN]) + (f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
