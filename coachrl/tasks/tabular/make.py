"""Makes a DSBench task of a folder as Kaggle gives them: train.csv, perhaps test.csv, and the name of the target.

Kaggle's test.csv has no answers, so that a part of train.csv becomes the test table, with the columns that test.csv
has. A test.csv that holds the target is taken as it is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from coachrl.errors import ConfigError, TaskError
from coachrl.parsing import read_json
from coachrl.seeding import generator
from coachrl.storage.atomic import drop_left_of, place_aside, write_aside
from coachrl.storage.files import read_text
from coachrl.storage.jsonl import alone_with
from coachrl.tasks.records import read_file
from coachrl.tasks.tabular.dsbench import load_dsbench
from coachrl.tasks.tabular.layout import TabularTask
from coachrl.tasks.tabular.metrics import ALIASES, DEFAULT_METRIC, METRICS
from coachrl.text import counted, nearest, one_line
from coachrl.types import Task

log = logging.getLogger(__name__)

CLEANED_PROMPTS = "cleaned_prompts.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ROWS_OF_A_CLASS = 5  # texts that stand in fewer rows than that, on the average, are not guessed to be classes
_GAPS = ("nan", "na", "n/a", "null", "none")
_FEW_CLASSES = 20  # whole numbers of more different values are not guessed to be classes


@dataclass(frozen=True)
class Wanted:
    """What is said of the folder. None: the metric is the category's, the category and the id column are guessed, the
    name is the folder's."""

    target: str
    about: str | None = None
    category: str | None = None
    metric: str | None = None
    id_column: str | None = None
    name: str | None = None
    test_share: float = 0.25
    seed: int = 0


def make_task(folder: Path, root: Path, task_list: str, wanted: Wanted) -> Task:
    """Write the folder's task below `root` and into its list `task_list`.jsonl, and read it back as a run would.

    Raises TaskError and ConfigError for what cannot be used, and leaves nothing then."""
    # realpath, since resolve raises for links that go in circles, as which reading its tables names the folder.
    name = wanted.name or Path(os.path.realpath(folder)).name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{one_line(name)}' cannot be a task's name: set --name, in letters, digits, '.', '-' and '_'"
        )
    _check_places(folder, root)
    train, test = _tables(folder, wanted)
    category = wanted.category or _category(train[wanted.target], folder / "train.csv")
    if category not in METRICS:
        raise ConfigError(f"--category must be {' or '.join(METRICS)}{nearest(category, METRICS)}")
    metric = _metric(wanted, category)
    id_column = _with_ids(train, test, wanted)
    if not [column for column in test if column in train and column not in (id_column, wanted.target)]:
        raise TaskError(
            f"{folder}: beside {one_line(wanted.target)} and {one_line(id_column)} its train.csv and test.csv share no "
            "column: there is nothing to predict from"
        )
    about = wanted.about or f"Train a model on train.csv and predict {wanted.target} for each row of test.csv."
    task = TabularTask(name, category, metric, wanted.target, about, id_column)
    return _add(task, root, task_list, train, test)


def _metric(wanted: Wanted, category: str) -> str:
    """Raises ConfigError for one that the category does not have."""
    metric, offered = wanted.metric or DEFAULT_METRIC[category], METRICS[category]
    if ALIASES.get(metric, metric) not in offered:
        shown = f"'{one_line(metric)}' is not offered for {category}{nearest(metric, offered)}"
        raise ConfigError(f"--metric {shown}: {', '.join(offered)}")
    return metric


def _with_ids(train: pd.DataFrame, test: pd.DataFrame, wanted: Wanted) -> str:
    """The column that names each row of both tables once, put into them where they have none. Raises ConfigError."""
    id_column = wanted.id_column or _id_column(train, test, wanted.target)
    if id_column not in train:
        if wanted.id_column is not None:
            raise ConfigError(f"--id {one_line(id_column)}: no such column{nearest(id_column, train.columns)}")
        train.insert(0, id_column, [str(number) for number in range(len(train))])
        test.insert(0, id_column, [str(number) for number in range(len(train), len(train) + len(test))])
    if id_column == wanted.target or id_column not in test:
        raise ConfigError(
            f"--id {one_line(id_column)}: it must be a column beside the target, in train.csv and test.csv"
        )
    for name_of, table in (("train.csv", train), ("test.csv", test)):
        if not table[id_column].is_unique:
            raise ConfigError(f"--id {one_line(id_column)}: it names several rows of {name_of} alike")
    return id_column


def _check_places(folder: Path, root: Path) -> None:
    """Raises ConfigError for a file where a folder must be."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: name the folder that holds train.csv")
    there = next((path for path in (root, *root.parents) if path.exists()), root)
    if there.is_file():
        raise ConfigError(f"--out {root}: {there} is a file, and no folder")


def _tables(folder: Path, wanted: Wanted) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows, all as text and with the target."""
    target, train = wanted.target, _read(folder / "train.csv")
    if target not in train:
        raise ConfigError(f"{folder / 'train.csv'}: no column '{one_line(target)}'{nearest(target, train.columns)}")
    given = _read(folder / "test.csv") if (folder / "test.csv").exists() else None
    train = _with_target(train, target, folder / "train.csv")
    if given is not None and target in given:
        if (wanted.test_share, wanted.seed) != (Wanted.test_share, Wanted.seed):
            log.warning("%s has the target: it is the test table, and nothing is divided", folder / "test.csv")
        return train, _with_target(given, target, folder / "test.csv")
    order = generator(wanted.seed, "test rows").permutation(len(train))
    size = int(len(train) * wanted.test_share)
    if size == 0:
        raise TaskError(f"{folder / 'train.csv'}: {len(train)} rows with a target are too few to hold some out")
    test = train.iloc[order[:size]]
    if given is not None:  # columns that test.csv lacks are not known where predictions are asked for
        test = test[[column for column in test if column in given or column == target]]
    return train.iloc[order[size:]].reset_index(drop=True), test.reset_index(drop=True)


def _with_target(table: pd.DataFrame, target: str, path: Path) -> pd.DataFrame:
    """The rows that have a target. Words for a gap, as NaN, are gaps among numbers, and may be a class among texts."""
    values = table[target].str.strip()
    known = values != ""
    said = known & ~values.str.lower().isin(_GAPS)
    if said.any() and pd.to_numeric(values[said], errors="coerce").notna().all():
        known = said
    if not known.all():
        log.warning(
            "%s: left out %s without a value of %s", path, counted(int((~known).sum()), "row"), one_line(target)
        )
    return table[known].reset_index(drop=True)


def _read(path: Path) -> pd.DataFrame:
    source = read_file(path)
    rows = source.split("train", "")
    if not rows:
        raise TaskError(f"{path}: it holds no rows")
    return pd.DataFrame([row for _, row in rows], dtype=str)


def _category(values: pd.Series, path: Path) -> str:
    """Text and few whole numbers are classes, fractions are amounts; else somebody has to say it."""
    numbers = pd.to_numeric(values, errors="coerce")
    different = values.nunique()
    if numbers.isna().any() and different > max(_FEW_CLASSES, len(values) / _ROWS_OF_A_CLASS):
        raise ConfigError(
            f"{path}: the {different} texts of '{one_line(str(values.name))}' in {len(values)} rows are hardly "
            "classes: set --category classification, or write amounts as plain numbers"
        )
    if numbers.isna().any() or different == 2:
        return "classification"
    if (numbers % 1 != 0).any() or different > _FEW_CLASSES:
        return "regression"
    raise ConfigError(
        f"{path}: the {different} whole numbers of '{one_line(str(values.name))}' may be classes or amounts: "
        "set --category classification or regression"
    )


def _id_column(train: pd.DataFrame, test: pd.DataFrame, target: str) -> str:
    """A first column that is named like an id and names each row once; else a new one."""
    first = str(train.columns[0])
    named = re.search(r"(^|_|\b)id$", first, re.IGNORECASE) or first.endswith("Id") or first.endswith("ID")
    if named and first != target and train[first].is_unique:
        return first
    new = "row_id"
    while new in train or new in test:
        new = f"new_{new}"
    return new


def _add(task: TabularTask, root: Path, task_list: str, train: pd.DataFrame, test: pd.DataFrame) -> Task:
    drop_left_of(root / task.name)  # by a process that was killed over it
    if taken := [folder for folder in task.folders(root) if folder.exists()]:
        raise ConfigError(
            f"{root} has a task '{task.name}' already: set --name, or another --out; where a process was killed over "
            f"it, remove {' and '.join(map(str, taken))}"
        )
    alone, placed = place_aside(root / task.name), list[Path]()
    try:
        alone.mkdir(parents=True)
        task.write_tables(alone, train, test)
        (alone / "list").write_text(task.list_line(), encoding="utf-8")
        (alone / "prompts").write_text(json.dumps({task.name: task.cleaned_prompt()}), encoding="utf-8")
        _read_back(task, alone)  # as a run would, before a run could see it
        for made, folder in zip(task.folders(alone), task.folders(root), strict=True):
            folder.parent.mkdir(exist_ok=True)
            made.rename(folder)
            placed.append(folder)
        [whole] = load_dsbench(root, alone / "list", alone / "prompts")
        _list(task, root, root / f"{task_list}.jsonl")
        shutil.rmtree(alone, ignore_errors=True)
    except BaseException as error:  # Ctrl-C too leaves nothing
        for folder in (alone, *placed):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (*(folder.parent for folder in task.folders(root)), root):
            with contextlib.suppress(OSError):  # others' are in it
                folder.rmdir()
        # A write that fails for lack of room names no file.
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = str(root)
        raise
    return whole


def _list(task: TabularTask, root: Path, list_path: Path) -> None:
    """Name the task where runs look for it. One process at a time: each writes the files again, with what others
    have added."""
    prompts_path = root / CLEANED_PROMPTS
    folder = os.open(root, os.O_RDONLY)
    try:
        with alone_with(folder):
            prompts = read_json(prompts_path, str(prompts_path)) if prompts_path.exists() else {}
            before = read_text(list_path, str(list_path)) if list_path.exists() else ""
            write_aside(prompts_path, json.dumps(prompts | {task.name: task.cleaned_prompt()}, indent=1) + "\n")
            write_aside(list_path, before + task.list_line())
    finally:
        os.close(folder)


def _read_back(task: TabularTask, alone: Path) -> None:
    """The task as a run reads it. Raises TaskError that names none of the files that will not stay."""
    try:
        load_dsbench(alone, alone / "list", alone / "prompts")
    except TaskError as error:
        reason = str(error).removeprefix(f"{alone / 'list'}: 1 of 1 tasks cannot be used: ")
        answers = str(alone / "answers" / task.name / "test_answer.csv")
        raise TaskError(reason.replace(answers, "the test table")) from error
