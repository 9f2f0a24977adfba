"""Programs of the data engineer: from train.csv and test.csv to X_train.pkl, y_train.pkl and X_test.pkl."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from coachrl.tasks.tabular.metrics import SCORE_METRICS

from .programs import Craft, Fault, misspelt, quoted, unbalanced, without_import
from .tables import TableTask

_NAMES = (("train", "test", "X", "Z", "y"), ("train", "test", "A", "B", "y"), ("df", "new", "X", "X_new", "y"))
_FRAMES = ("ordinal", "codes", "frequency")  # styles that hand on every column of the training table


@dataclass(frozen=True)
class _Words:
    """Variable names of one program, and the id and target columns as Python strings."""

    train: str
    test: str
    X: str
    Z: str
    y: str
    id_: str
    target: str


def _words(table: TableTask, rng: np.random.Generator) -> _Words:
    names = _NAMES[int(rng.integers(len(_NAMES)))]
    return _Words(*names, quoted(table.truth.id_column), quoted(table.target))


def _read(w: _Words, imports: str = "") -> str:
    return f"""import pandas as pd
{imports}
{w.train} = pd.read_csv("train.csv")
{w.test} = pd.read_csv("test.csv")
{w.y} = {w.train}[{w.target}]
"""


def _split(w: _Words) -> str:
    return f"""{w.X} = {w.train}.drop(columns=[{w.id_}, {w.target}])
{w.Z} = {w.test}.drop(columns=[{w.id_}])
"""


def _save(w: _Words, rng: np.random.Generator, frames: bool) -> str:
    files = (("X_train.pkl", w.X), ("y_train.pkl", w.y), ("X_test.pkl", w.Z))
    shapes = (
        f"print({w.X}.shape, {w.Z}.shape)",
        f'print("saved", {w.X}.shape, {w.Z}.shape)',
        f'print("train", {w.X}.shape, "test", {w.Z}.shape)',
    )
    if frames and rng.random() < 0.5:
        lines = [f'{value}.to_pickle("{file}")' for file, value in files]
    else:
        lines = [f'pd.to_pickle({value}, "{file}")' for file, value in files]
    return "\n".join([*lines, str(rng.choice(shapes))])


def _dummies(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    return f"""{_read(w)}{_split(w)}{w.X} = pd.get_dummies({w.X}, dtype=float)
{w.Z} = pd.get_dummies({w.Z}, dtype=float).reindex(columns={w.X}.columns, fill_value=0)
{w.X}, {w.Z} = {w.X}.fillna({w.X}.median()), {w.Z}.fillna({w.X}.median())
{_save(w, rng, frames=True)}"""


def _ordinal(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    names = ", ".join(map(quoted, table.text))
    return f"""{_read(w, "from sklearn.preprocessing import OrdinalEncoder" + chr(10))}{_split(w)}text = [{names}]
enc = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
{w.X}[text] = enc.fit_transform({w.X}[text])
{w.Z}[text] = enc.transform({w.Z}[text])
{w.X}, {w.Z} = {w.X}.fillna({w.X}.median()), {w.Z}.fillna({w.X}.median())
{_save(w, rng, frames=True)}"""


def _codes(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    return f"""{_read(w)}{_split(w)}for c in {w.X}.select_dtypes("object"):
    codes = {{v: i for i, v in enumerate({w.X}[c].dropna().unique())}}
    {w.X}[c], {w.Z}[c] = {w.X}[c].map(codes), {w.Z}[c].map(codes)
{w.X}, {w.Z} = {w.X}.fillna(-1), {w.Z}.fillna(-1)
{_save(w, rng, frames=True)}"""


def _frequency(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    return f"""{_read(w)}{_split(w)}for c in {w.X}.select_dtypes("object"):
    freq = {w.X}[c].value_counts(normalize=True)
    {w.X}[c], {w.Z}[c] = {w.X}[c].map(freq), {w.Z}[c].map(freq)
{w.X}, {w.Z} = {w.X}.fillna(0), {w.Z}.fillna(0)
{_save(w, rng, frames=True)}"""


def _transformer(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    imports = """from sklearn.compose import make_column_selector as pick, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
"""
    return f"""{_read(w, imports)}prep = make_column_transformer(
    (SimpleImputer(), pick(dtype_include="number")),
    (OneHotEncoder(handle_unknown="ignore", sparse_output=False), pick(dtype_include=object)),
)
{w.X} = prep.fit_transform({w.train}.drop(columns=[{w.id_}, {w.target}]))
{w.Z} = prep.transform({w.test}.drop(columns=[{w.id_}]))
{_save(w, rng, frames=False)}"""


def _numbers(table: TableTask, rng: np.random.Generator) -> str:
    w = _words(table, rng)
    imports = """from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
"""
    return f"""{_read(w, imports)}cols = {w.test}.drop(columns=[{w.id_}]).select_dtypes("number").columns
prep = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
{w.X} = prep.fit_transform({w.train}[cols])
{w.Z} = prep.transform({w.test}[cols])
{_save(w, rng, frames=False)}"""


def _wrong_column(code: str, table: TableTask, rng: np.random.Generator) -> str:
    name = table.target if rng.random() < 0.5 else table.truth.id_column
    return code.replace(quoted(name), quoted(misspelt(name, rng)))


def _target_kept(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return code.replace(f", {quoted(table.target)}])", "])")


def _refitted(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """Dummies of the test table without the columns of the training table, or the transformer fitted again on it."""
    return re.sub(r"\.reindex\(.*\)", "", code).replace("prep.transform(", "prep.fit_transform(")


def _gaps_kept(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return "\n".join(line for line in code.split("\n") if "fillna(" not in line)


def _text_kept(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The block that encodes text left out: a loop with its body, or the lines about the encoder."""
    code = re.sub(r"for c in .*\n(?:    .*\n)+", "", code)
    lines = [line for line in code.split("\n") if "[text]" not in line and "OrdinalEncoder" not in line]
    return re.sub(r"\w+\.median\(\)", "0", "\n".join(line for line in lines if not line.startswith("text =")))


def _no_x_test(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return "\n".join(line for line in code.split("\n") if "X_test.pkl" not in line)


def _labels_coded(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return code.replace(f"[{quoted(table.target)}]\n", f'[{quoted(table.target)}].astype("category").cat.codes\n')


def _rows_dropped(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return re.sub(r"(read_csv\(\"\w+\.csv\"\))", r"\1.dropna()", code)


ENGINEER = Craft(
    styles={
        "dummies": _dummies,
        "ordinal": _ordinal,
        "codes": _codes,
        "frequency": _frequency,
        "transformer": _transformer,
        "numbers": _numbers,
    },
    usable=lambda style, table: style != "ordinal" or bool(table.text),
    plain_style="dummies",
    faults={
        "no X_test.pkl": Fault("missing", _no_x_test),
        "wrong column": Fault("error", _wrong_column),
        "target kept": Fault("later", _target_kept, lambda t: not t.text_labels, _FRAMES),
        "encoder fitted twice": Fault("later", _refitted, lambda t: bool(t.text), ("dummies", "transformer")),
        "gaps kept": Fault("later", _gaps_kept, lambda t: t.number_gaps, ("dummies", "codes", "frequency", "ordinal")),
        "text kept": Fault("later", _text_kept, lambda t: bool(t.text), _FRAMES),
        "labels coded": Fault("later", _labels_coded, lambda t: t.text_labels and t.truth.metric not in SCORE_METRICS),
        "rows dropped": Fault("later", _rows_dropped, lambda t: bool(t.gaps)),
        "import left out": Fault("error", without_import),
        "syntax": Fault("error", unbalanced),
    },
)
