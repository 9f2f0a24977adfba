"""What agents are told of the columns of their tables."""

from __future__ import annotations

import pandas as pd
import pytest

from coachrl.errors import TaskError
from coachrl.tasks.tabular.columns import COLUMN_FIELDS, Columns, column_fields, listed, read_columns
from coachrl.tasks.tabular.grading import TabularTruth


@pytest.fixture
def files(tmp_path):
    train = {"id": [1, 2], "a": [1, 2], "b": ["x", None], "c": [1.5, 2.5], "y": [0, 1], "after": [5, 6]}
    test = {"id": [3, 4], "c": [None, 1.0], "b": ["x", "z"], "a": [3, 4], "new": [1, 2]}
    for name, table in (("train.csv", train), ("test.csv", test)):
        pd.DataFrame(table).to_csv(tmp_path / name, index=False)
    return {name: tmp_path / name for name in ("train.csv", "test.csv")}


TRUTH = TabularTruth("classification", "accuracy", "id", ("y",), answer_csv=None)


def test_features_are_the_columns_of_both_tables_and_a_gap_in_either_is_one(files):
    found = read_columns(files, TRUTH)
    assert found == Columns("id", ("y",), numbers=("c", "a"), text=("b",), gaps=("c", "b"), train_only=("after",))
    fields = column_fields(found)
    assert fields.keys() == COLUMN_FIELDS
    assert fields["table"].splitlines() == [
        "id: id",
        "target: y",
        "numbers: c, a",
        "text: b",
        "missing values in: c, b",
        "in train.csv only: after",
    ]
    assert (fields["number_count"], fields["number_columns"], fields["text_columns"], fields["gap_columns"]) == (
        "2",
        "c, a",
        "b",
        "c, b",
    )
    assert fields["submission"] == "a CSV file with the columns id, y"


def test_a_table_that_is_missing_is_named(files):
    with pytest.raises(TaskError, match=r"a tabular task needs test\.csv among its files; it has train\.csv"):
        read_columns({"train.csv": files["train.csv"]}, TRUTH)


def test_of_many_names_the_first_are_listed():
    names = [f"c{n}" for n in range(26)]
    assert listed([]) == "none" and listed(names[:24]) == ", ".join(names[:24])
    assert listed(names) == f"{', '.join(names[:24])} and 2 more"
