"""What the columns of a tabular task are, in the words that agents read: taken from files that agents may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from coachrl.errors import TaskError
from coachrl.tasks.tabular.grading import TabularTruth, read_rows
from coachrl.text import listed

_ROWS_READ = 5000  # enough to tell types and gaps; official tables have hundreds of thousands of rows
COLUMN_FIELDS = frozenset(
    ("table", "id_column", "target", "number_count", "number_columns", "text_columns", "gap_columns", "submission")
)  # keys of `column_fields`


@dataclass(frozen=True)
class Columns:
    """Columns of train.csv and test.csv by what must be done about them.

    numbers and text: features in both tables. gaps: features with missing values in either. train_only: in train.csv
    beside the targets. Types and gaps are those of the first rows of each table.
    """

    id_column: str
    targets: tuple[str, ...]
    numbers: tuple[str, ...]
    text: tuple[str, ...]
    gaps: tuple[str, ...]
    train_only: tuple[str, ...] = ()


def read_columns(files: Mapping[str, Path], truth: TabularTruth) -> Columns:
    """The columns of a task's train.csv and test.csv. Raises TaskError where one of them is not there or not a CSV.

    Of `truth` only the names of the id and target columns are used.
    """
    train, test = (_read(files, name) for name in ("train.csv", "test.csv"))
    features = [name for name in test.columns if name != truth.id_column and name in train.columns]
    numbers = [name for name in features if pd.api.types.is_numeric_dtype(train[name])]
    known = {truth.id_column, *truth.target_columns, *features}
    return Columns(
        id_column=truth.id_column,
        targets=truth.target_columns,
        numbers=tuple(numbers),
        text=tuple(name for name in features if name not in numbers),
        gaps=tuple(name for name in features if train[name].isna().any() or test[name].isna().any()),
        train_only=tuple(str(name) for name in train.columns if name not in known),
    )


def column_fields(columns: Columns) -> dict[str, str]:
    """The columns as values for the fields of a prompt, by field name."""
    targets = listed(columns.targets)
    lines = [
        f"id: {columns.id_column}",
        f"target: {targets}",
        f"numbers: {listed(columns.numbers)}",
        f"text: {listed(columns.text)}",
        f"missing values in: {listed(columns.gaps)}",
    ]
    if columns.train_only:
        lines.append(f"in train.csv only: {listed(columns.train_only)}")
    return {
        "table": "\n".join(lines),
        "id_column": columns.id_column,
        "target": targets,
        "number_count": str(len(columns.numbers)),
        "number_columns": listed(columns.numbers),
        "text_columns": listed(columns.text),
        "gap_columns": listed(columns.gaps),
        "submission": f"a CSV file with the columns {columns.id_column}, {targets}",
    }


def _read(files: Mapping[str, Path], name: str) -> pd.DataFrame:
    if name not in files:
        raise TaskError(f"a tabular task needs {name} among its files; it has {listed(sorted(files))}")
    return read_rows(files[name], _ROWS_READ)
