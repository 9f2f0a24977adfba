"""Looks at X_train.pkl, y_train.pkl and X_test.pkl and prints what keeps a model from being fitted on them.

Sent as a program into the sandbox, where agents' files may be unpickled; it imports nothing of coachrl. One line for
each fault, `<file>: <category>: <detail>`, which `coachrl.tasks.tabular.features` reads. Then DONE.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from scipy import sparse

_MOST_NAMES = 5


def main() -> None:
    tables = {name: _table(name) for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl")}
    for name, table in tables.items():
        if table is not None:
            _check_values(name, table)
    X, y, Z = tables.values()
    if X is not None and y is not None and len(X) != len(y):
        _say("X_train.pkl", "rows", f"{len(X)}, and {len(y)} in y_train.pkl")
    if X is not None and Z is not None:
        _check_columns(X, Z)
    if Z is not None and Path("test.csv").exists():
        rows = len(pd.read_csv("test.csv"))
        if len(Z) != rows:
            _say("X_test.pkl", "rows", f"{len(Z)}, and {rows} in test.csv")
    print("DONE")


def _table(name: str) -> pd.DataFrame | None:
    """Rows and columns of whatever was saved; None where it holds none."""
    try:
        value = _load(name)
    except Exception as error:  # noqa: BLE001  whatever an agent's file raises
        _say(name, "unreadable", f"{type(error).__name__}: {error}")
        return None
    if value is None:
        _say(name, "unreadable", "no table, but None")
        return None
    if isinstance(value, pd.DataFrame):
        return value
    try:
        return pd.DataFrame(value.toarray() if sparse.issparse(value) else value)
    except Exception:  # noqa: BLE001
        _say(name, "unreadable", f"no table, but {type(value).__name__}")
        return None


def _load(name: str) -> Any:
    try:
        return pd.read_pickle(name)
    except Exception:  # noqa: BLE001  joblib writes a form of its own
        return joblib.load(name)


def _check_values(name: str, table: pd.DataFrame) -> None:
    text, gaps = [], []
    for column, values in table.items():  # two columns may have one name
        gap = values.isna()
        if name.startswith("X_"):  # labels may be words
            numbers = _as_numbers(values)
            if (numbers.isna() & ~gap).any():
                text.append(column)
            gap |= np.isinf(numbers)
        if gap.any():
            gaps.append(column)
    _say_names(name, "not numbers", text)
    _say_names(name, "gaps", gaps)


def _as_numbers(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_bool_dtype(column) and not pd.api.types.is_numeric_dtype(column):
        if not isinstance(column.dtype, pd.CategoricalDtype) and column.dtype != object and column.dtype != "str":
            return pd.Series(np.nan, index=column.index)  # dates and the like
        column = pd.to_numeric(column, errors="coerce")
    return column.astype(float)


def _check_columns(X: pd.DataFrame, Z: pd.DataFrame) -> None:
    if X.shape[1] != Z.shape[1]:
        _say("X_test.pkl", "columns", f"{Z.shape[1]}, and {X.shape[1]} in X_train.pkl")
    elif list(X.columns) != list(Z.columns):
        odd = [column for column in Z if column not in set(X.columns)]
        _say_names("X_test.pkl", "columns", odd or ["in another order than in X_train.pkl"])


def _say_names(name: str, category: str, columns: list[Any]) -> None:
    if columns:
        more = f" and {len(columns) - _MOST_NAMES} more" if len(columns) > _MOST_NAMES else ""
        _say(name, category, ", ".join(map(str, columns[:_MOST_NAMES])) + more)


def _say(name: str, category: str, detail: str) -> None:
    print(f"{name}: {category}: {' '.join(detail.split())[:200]}")


if __name__ == "__main__":
    main()
