"""Programs of the analyst: from X_test.pkl and model.pkl to submission.csv."""

from __future__ import annotations

import re

import numpy as np

from coachrl.tasks.tabular.metrics import SCORE_METRICS

from .programs import (
    Craft,
    Fault,
    Writer,
    misspelt,
    quoted,
    swapped,
    unbalanced,
    without_import,
    without_line,
)
from .tables import TableTask

_READ_TEST = 'test = pd.read_csv("test.csv")'
_OUT = '"submission.csv"'
# From the test table `test` and the predictions `pred` to the file; ID and TARGET stand for the quoted names.
_ENDS = {
    "frame": f"sub = pd.DataFrame({{ID: test[ID], TARGET: pred}})\nsub.to_csv({_OUT}, index=False)",
    "copy": f"sub = test[[ID]].copy()\nsub[TARGET] = pred\nsub.to_csv({_OUT}, index=False)",
    "assign": f"sub = test[[ID]].assign(**{{TARGET: pred}})\nsub.to_csv({_OUT}, index=False)",
    "column": f"test[TARGET] = pred\nsub = test[[ID, TARGET]]\nsub.to_csv({_OUT}, index=False)",
    "series": f"sub = pd.Series(pred, index=test[ID], name=TARGET)\nsub.to_csv({_OUT})",
}


def _prediction(table: TableTask) -> str:
    """Scores of the positive class for metrics that rank, no negative amounts for RMSLE, else plain predictions."""
    if table.truth.metric in SCORE_METRICS:
        return "model.predict_proba(X)[:, 1]"
    return "model.predict(X).clip(0)" if table.truth.metric == "rmsle" else "model.predict(X)"


def _writer(style: str) -> Writer:
    def write(table: TableTask, rng: np.random.Generator) -> str:
        opener = str(rng.choice(["pd.read_pickle", "joblib.load"]))
        names = {"ID": quoted(table.truth.id_column), "TARGET": quoted(table.target)}
        end = re.sub(r"\b(ID|TARGET)\b", lambda match: names[match.group()], _ENDS[style])
        summary = str(rng.choice(["print(sub.shape)", "print(sub.head())", 'print("rows", len(sub))']))
        return f"""import joblib
import pandas as pd

{_READ_TEST}
X = {opener}("X_test.pkl")
model = joblib.load("model.pkl")
pred = {_prediction(table)}
{end}
{summary}"""

    return write


def _ids_numbered(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """Row numbers in place of the ids."""
    numbers = str(rng.choice(["range(len(test))", "range(1, len(test) + 1)", "test.index"]))
    return code.replace(f"test[{quoted(table.truth.id_column)}]", numbers)


def _ids_lost(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The predictions alone, under the frame's own index."""
    id_ = quoted(table.truth.id_column)
    return code.replace(f"{{{id_}: test[{id_}], ", "{").replace(", index=False", "")


def _wrong_header(code: str, table: TableTask, rng: np.random.Generator) -> str:
    wrong = str(rng.choice(["prediction", "predictions", misspelt(table.target, rng)]))
    return code.replace(quoted(table.target), quoted(wrong))


def _wrong_column(code: str, table: TableTask, rng: np.random.Generator) -> str:
    name = table.truth.id_column
    return code.replace(quoted(name), quoted(misspelt(name, rng)))


def _table_of_probabilities(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return code.replace(_prediction(table), "model.predict_proba(X)")


ANALYST = Craft(
    styles={style: _writer(style) for style in _ENDS},
    plain_style="frame",
    faults={
        "ids numbered": Fault("later", _ids_numbered, styles=("frame",)),
        "ids lost": Fault("later", _ids_lost, styles=("frame",)),
        "wrong header": Fault("later", _wrong_header),
        "wrong column": Fault("error", _wrong_column),
        "submission not saved": Fault("missing", without_line("to_csv")),
        "other file name": Fault(
            "missing", swapped("submission.csv", "submissions.csv", "predictions.csv", "output.csv")
        ),
        "training rows predicted": Fault("error", swapped("X_test.pkl", "X_train.pkl")),
        "table of probabilities": Fault("error", _table_of_probabilities),
        "test table not read": Fault("error", without_line("test.csv")),
        "import left out": Fault("error", without_import),
        "syntax": Fault("error", unbalanced),
    },
)
