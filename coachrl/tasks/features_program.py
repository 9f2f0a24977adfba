"""Looks at X_train.pkl, y_train.pkl and X_test.pkl and prints what keeps a model from being fitted on them.

Sent as a program into the sandbox, where agents' files may be unpickled; it imports nothing of coachrl. One line for
each fault, `<file>: <kind>: <detail>`, which `coachrl.tasks.features` reads. Then DONE.
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
    loaded = {name: _load(name) for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl")}
    tables = {name: _table(name, value) for name, value in loaded.items() if value is not None}
    for name, table in tables.items():
        if table is not None:
            _check_values(name, table)
    X, y, Z = (tables.get(name) for name in loaded)
    if X is not None and y is not None and len(X) != len(y):
        _say("X_train.pkl", "rows", f"{len(X)}, and {len(y)} in y_train.pkl")
    if X is not None and Z is not None:
        _check_columns(X, Z)
    if Z is not None and Path("test.csv").exists():
        rows = len(pd.read_csv("test.csv"))
        if len(Z) != rows:
            _say("X_test.pkl", "rows", f"{len(Z)}, and {rows} in test.csv")
    print("DONE")


def _load(name: str) -> Any:
    for load in (pd.read_pickle, joblib.load):
        try:
            return load(name)
        except Exception as error:  # noqa: BLE001  whatever an agent's file raises
            said = f"{type(error).__name__}: {error}"
    _say(name, "unreadable", said)
    return None


def _table(name: str, value: Any) -> pd.DataFrame | None:
    """Rows and columns of whatever was saved."""
    if isinstance(value, pd.DataFrame):
        return value
    try:
        if sparse.issparse(value):
            value = value.toarray()
        return pd.DataFrame(value)
    except Exception:  # noqa: BLE001
        _say(name, "unreadable", f"no table, but {type(value).__name__}")
        return None


def _check_values(name: str, table: pd.DataFrame) -> None:
    numbers = table.apply(_as_numbers)
    if name.startswith("X_"):
        text = [column for column in table if (numbers[column].isna() & table[column].notna()).any()]
        _say_names(name, "not numbers", text)
        endless = [column for column in table if np.isinf(numbers[column]).any()]
    else:  # labels may be words
        endless = []
    _say_names(name, "gaps", [column for column in table if table[column].isna().any() or column in endless])


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


def _say_names(name: str, kind: str, columns: list[Any]) -> None:
    if columns:
        more = f" and {len(columns) - _MOST_NAMES} more" if len(columns) > _MOST_NAMES else ""
        _say(name, kind, ", ".join(map(str, columns[:_MOST_NAMES])) + more)


def _say(name: str, kind: str, detail: str) -> None:
    print(f"{name}: {kind}: {' '.join(detail.split())[:200]}")


if __name__ == "__main__":
    main()
