"""Looks at X_train.pkl, y_train.pkl and X_test.pkl and prints what keeps a model from being fitted on them; at
model.pkl, and prints what keeps others from loading it, or from predicting with it.

Sent as a program into the sandbox, with a call of a `look_at_…` behind it, to look at a copy of the workspace; it
imports nothing of coachrl. One line for each fault, `<file>: <category>: <detail>`, which
`coachrl.tasks.tabular.handover` reads. AT <file> goes before the look at each file of features, and DONE ends it all.
Nothing that an agent wrote is run: not a module of its folder, and not what a pickle names, but for the tables listed
here.
"""

from __future__ import annotations

import contextlib
import os
import sys

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]  # noqa: PTH109

import pickle
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import joblib
import numpy as np
import pandas as pd
from joblib import numpy_pickle
from scipy import sparse

# What arrays and tables are made of when they are unpickled, by full name: plain data, or functions that make it.
_ALLOWED = {
    "builtins": "bytearray bytes complex frozenset range set slice",
    "__builtin__": "bytearray bytes complex frozenset range set slice xrange",
    "_codecs": "encode",
    "collections": "OrderedDict",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "joblib.numpy_pickle": "NumpyArrayWrapper",
    "numpy": "dtype ndarray matrix bool_ float32 float64 int32 int64 memmap",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "numpy.ma": "MaskedArray",
    "numpy.ma.core": "MaskedArray _mareconstruct",
    "pandas._libs.arrays": "__pyx_unpickle_NDArrayBacked",
    "pandas._libs.internals": "_unpickle_block",
    "pandas._libs.interval": "Interval __pyx_unpickle_IntervalMixin",
    "pandas._libs.missing": "NA NAType",
    "pandas._libs.sparse": "BlockIndex IntIndex",
    "pandas._libs.tslibs.nattype": "__nat_unpickle _nat_unpickle",
    "pandas._libs.tslibs.offsets": "BusinessDay Day Hour Minute MonthBegin MonthEnd QuarterEnd Second Week YearEnd",
    "pandas._libs.tslibs.period": "Period",
    "pandas._libs.tslibs.timedeltas": "_timedelta_unpickle",
    "pandas._libs.tslibs.timestamps": "_unpickle_timestamp",
    "pandas.core.arrays.arrow.array": "ArrowExtensionArray",
    "pandas.core.arrays.boolean": "BooleanArray BooleanDtype",
    "pandas.core.arrays.categorical": "Categorical",
    "pandas.core.arrays.datetimes": "DatetimeArray",
    "pandas.core.arrays.floating": "Float32Dtype Float64Dtype FloatingArray",
    "pandas.core.arrays.integer": "Int8Dtype Int16Dtype Int32Dtype Int64Dtype IntegerArray UInt8Dtype UInt16Dtype "
    "UInt32Dtype UInt64Dtype",
    "pandas.core.arrays.interval": "IntervalArray",
    "pandas.core.arrays.numpy_": "NumpyExtensionArray",
    "pandas.core.arrays.period": "PeriodArray",
    "pandas.core.arrays.sparse.array": "SparseArray",
    "pandas.core.arrays.string_": "StringArray StringDtype",
    "pandas.core.arrays.string_arrow": "ArrowStringArray",
    "pandas.core.arrays.timedeltas": "TimedeltaArray",
    "pandas.core.dtypes.dtypes": "ArrowDtype CategoricalDtype DatetimeTZDtype IntervalDtype PeriodDtype SparseDtype",
    "pandas.core.frame": "DataFrame",
    "pandas.core.indexes.base": "Index _new_Index",
    "pandas.core.indexes.category": "CategoricalIndex",
    "pandas.core.indexes.datetimes": "DatetimeIndex _new_DatetimeIndex",
    "pandas.core.indexes.interval": "IntervalIndex _new_IntervalIndex",
    "pandas.core.indexes.multi": "MultiIndex",
    "pandas.core.indexes.period": "PeriodIndex _new_PeriodIndex",
    "pandas.core.indexes.range": "RangeIndex",
    "pandas.core.indexes.timedeltas": "TimedeltaIndex _new_TimedeltaIndex",
    "pandas.core.internals.managers": "BlockManager SingleBlockManager",
    "pandas.core.series": "Series",
    "pyarrow.lib": "_restore_array py_buffer type_for_alias",
    **{
        f"scipy.sparse._{kind}": f"{kind}_array {kind}_matrix"
        for kind in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
    },
}
_OF_PANDAS = [name for module in _ALLOWED if module.startswith("pandas.") for name in _ALLOWED[module].split()]
_CLASSES = " ".join(name for name in _OF_PANDAS if name[0].isupper())
_ALLOWED |= {"pandas": _CLASSES, "pandas.arrays": _CLASSES}  # the same ones, as pandas 3 names them
_PLAIN = {"builtins", "__builtin__", "_codecs", "collections", "copyreg", "numpy", "pandas", "scipy"}
# Parts of scikit-learn in which nothing predicts, but for what a pipeline of them ends with, and one.
_PREPARE = tuple(
    f"sklearn.{part}"
    for part in ("compose", "decomposition", "feature_extraction", "impute", "pipeline", "preprocessing")
)
_PREDICTS_TOO = {"TransformedTargetRegressor"}
_MOST_NAMES = 5
_OF_ARRAYS = ("_reconstruct", "_mareconstruct")  # numpy's own functions that are told which kind of array to make
_WATCHED = ("BUILD", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "SETITEM", "SETITEMS")  # what a pickle asks for


class _Tables:
    """Of an unpickler: it makes arrays and tables of what joblib, pandas or pickle wrote, and nothing else.

    records: whether arrays may hold some, which are no columns that can be fitted.
    """

    records: ClassVar[bool] = False
    stack: list[Any]
    metastack: list[list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, "").split():
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array and no table")
        if name in _REPLACED:
            return _REPLACED[name]
        return super().find_class(module, name)  # type: ignore[misc]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of the file")

    def load_reduce(self) -> None:
        _check_call(self.stack[-2], self.stack[-1])
        super().load_reduce()  # type: ignore[misc]

    def load_newobj(self) -> None:
        _check_call(self.stack[-2], self.stack[-1])
        super().load_newobj()  # type: ignore[misc]

    def load_newobj_ex(self) -> None:
        _check_call(self.stack[-3], self.stack[-2])
        super().load_newobj_ex()  # type: ignore[misc]

    def _instantiate(self, made: Any, given: Any) -> None:
        _check_call(made, given)
        super()._instantiate(made, given)  # type: ignore[misc]

    def load_setitem(self) -> None:
        _check_filled(self.stack[-3])
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        _check_filled(self.metastack[-1][-1])
        super().load_setitems()  # type: ignore[misc]

    def load_build(self) -> None:
        """Fill in what an object holds: never what it does, and never for all objects of a class."""
        state, made = self.stack[-1], self.stack[-2]
        parts = [part for part in (state if isinstance(state, tuple) else (state,)) if isinstance(part, dict)]
        for part in parts:
            part.pop("_cache", None)  # what pandas has found out about its values, and might be a lie
        if callable(made) or any(callable(getattr(type(made), str(name), None)) for part in parts for name in part):
            raise pickle.UnpicklingError(f"it changes what {getattr(made, '__name__', type(made).__name__)} does")
        if isinstance(made, np.ndarray) and made.size:  # others may look at the memory that it would let go of
            raise pickle.UnpicklingError("it fills an array twice")
        super().load_build()  # type: ignore[misc]
        if isinstance(made, np.dtype) and not _is_sound(made, self.records):
            raise pickle.UnpicklingError("it holds a kind of number that numpy does not make")


def _check_call(made: Any, given: Any) -> None:
    """Arrays come of numpy's own functions alone, and of bytes: one that is called up with a piece of memory may take
    numbers in it for objects, and one of another's memory may change them."""
    if isinstance(made, _StandIn) or made is _StandIn:
        return
    name = getattr(made, "__name__", "")
    if _is_array(made) or (name not in _OF_ARRAYS and any(map(_is_array, given))):
        raise pickle.UnpicklingError("it makes an array of a piece of memory")
    if name == "_frombuffer" and not isinstance(given[0], (bytes, bytearray)):
        raise pickle.UnpicklingError("it makes an array of another one's memory")


def _is_array(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, np.ndarray)


def _check_filled(made: Any) -> None:
    if not isinstance(made, (dict, _StandIn)):
        raise pickle.UnpicklingError(f"it puts something into a {type(made).__name__}")


def _is_sound(kind: np.dtype[Any], records: bool) -> bool:
    """Whether it is as numpy makes it from its name or, of records of plain numbers, from those of its parts. One that
    hides that it holds objects would take any number for one of them, and so run what it likes."""
    plain = np.dtype(kind.str)
    if records and kind.fields is not None:
        parts, offsets = zip(*((part, offset) for part, offset, *_ in kind.fields.values()), strict=True)
        if any(part.hasobject or not _is_sound(part, records) for part in parts):
            return False
        whole: Any = {"names": list(kind.fields), "formats": parts, "offsets": offsets, "itemsize": kind.itemsize}
        plain = np.dtype(whole, align=kind.isalignedstruct)
    elif kind.fields is not None:
        return False
    same = (kind.num, kind.itemsize, kind.flags) == (plain.num, plain.itemsize, plain.flags)
    return same and kind.subdtype is None


def _refuse_old_form(*_: object) -> NoReturn:
    raise pickle.UnpicklingError("it has the form of an old joblib")


class _StandIn:
    """In the place of all that is no table: it takes what is put into it, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return super().__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> _StandIn:
        return self

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    add = append


def _arrow_column(data: tuple[Any, ...]) -> Any:
    """Text or numbers as Arrow holds them, made of what a pickle says of them and checked, which Arrow does not do when
    it unpickles: lengths and offsets that say too much would have it read memory that is not the column's."""
    import pyarrow  # where pandas has saved with it

    kind, rows, _, offset, buffers, *_ = data
    if not (pyarrow.types.is_primitive(kind) or kind in (pyarrow.string(), pyarrow.large_string())):
        raise pickle.UnpicklingError(f"it holds a column of {kind}")
    if offset < 0:  # the one thing that Arrow's own check leaves out
        raise pickle.UnpicklingError("it holds a column that begins before its memory does")
    parts = [None if buffer is None else pyarrow.py_buffer(buffer) for buffer in buffers]
    column = pyarrow.Array.from_buffers(kind, rows, parts, offset=offset)
    column.validate(full=True)
    return column


# Who makes a memmap opens a file of any name, and may write to it: it is a plain array here.
_REPLACED = {"memmap": np.ndarray, "_restore_array": _arrow_column, "py_buffer": bytes}


class _Models(_Tables):
    """Likewise: tables as above, and a stand-in for all else, of which it notes the full name."""

    records = True  # as trees have
    named: ClassVar[set[tuple[str, str]]] = set()

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, "").split():
            return super().find_class(module, name)
        self.named.add((module, name))
        return _StandIn

    def load_build(self) -> None:
        if isinstance(self.stack[-2], _StandIn):
            self.stack.pop()
        else:
            super().load_build()


def _unpickler(kind: type[_Tables], base: Any) -> Any:
    """An unpickler of joblib's that makes what `kind` says. joblib calls the `load_build` of the base by name."""
    rules = {**base.dispatch, **{getattr(pickle, name)[0]: getattr(kind, f"load_{name.lower()}") for name in _WATCHED}}
    return type(kind.__name__, (kind, base), {"load_build": base.load_build, "dispatch": rules})


def _read_by(kind: type[_Tables]) -> None:
    """Have joblib make what `kind` says, and nothing else."""
    inner = _unpickler(kind, numpy_pickle.Unpickler)  # of arrays of objects, which are pickles within the pickle
    numpy_pickle.NumpyUnpickler = _unpickler(kind, numpy_pickle.NumpyUnpickler)
    numpy_pickle.Unpickler = inner
    numpy_pickle.pickle = SimpleNamespace(load=lambda file: inner(file).load())  # by which joblib read them before 1.6
    numpy_pickle.load_compatibility = _refuse_old_form


def look_at_model() -> None:
    """What cannot be read here may be read by its maker's libraries: only what is sure to fail elsewhere is told."""
    _read_by(_Models)
    alone = False  # one object, and no collection of parts that somebody may know how to use
    with contextlib.suppress(Exception), open("model.pkl", "rb") as file:  # noqa: PTH123
        alone = isinstance(joblib.load(file), _StandIn) and not file.read(1)
    own = sorted(name for module, name in _Models.named if module == "__main__")
    if own:
        _say("model.pkl", "unreadable", f"it needs {_listed(own)}, which its maker's program alone defines")
    elif alone and (parts := _prepares_only(_Models.named)):
        _say("model.pkl", "cannot predict", f"{_listed(parts)} alone: no model is in it")


def _prepares_only(named: set[tuple[str, str]]) -> list[str]:
    """The transformers of scikit-learn, and pipelines of them, where a file names nothing else that might predict."""
    parts = {(module, name) for module, name in named if module.partition(".")[0] not in _PLAIN}
    prepares = all(module.startswith(_PREPARE) and name not in _PREDICTS_TOO for module, name in parts)
    return sorted(name for _, name in parts) if prepares else []


def look_at_features(test_rows: int) -> None:
    """test_rows: those of the task's test.csv. The agent may have changed that of the workspace."""
    _read_by(_Tables)
    tables = {}
    for name in ("X_train.pkl", "y_train.pkl", "X_test.pkl"):
        print("AT", name, flush=True)
        tables[name] = table = _table(name)
        if table is not None:
            _check_values(name, table)
    X, y, Z = tables.values()
    for name, table in (("X_train.pkl", X), ("y_train.pkl", y)):
        if table is not None and not _varies(table):
            _say(name, "nothing to learn", "all rows are alike")
    if X is not None and y is not None and len(X) != len(y):
        _say("X_train.pkl", "rows", f"{len(X)}, and {len(y)} in y_train.pkl")
    if X is not None and Z is not None:
        _check_columns(X, Z)
    if Z is not None and len(Z) != test_rows:
        _say("X_test.pkl", "rows", f"{len(Z)}, and {test_rows} in test.csv")
    print("DONE")


def _table(name: str) -> pd.DataFrame | None:
    """Rows and columns of whatever was saved; None where it holds none."""
    try:
        value = joblib.load(name)  # plain pickles, too
    except Exception as error:  # noqa: BLE001  the boundary to an agent's file: what it raises is told to the agent
        _say(name, "unreadable", f"{type(error).__name__}: {error}")
        return None
    if value is None:
        _say(name, "unreadable", "no table, but None")
        return None
    if isinstance(value, pd.DataFrame):
        return value
    if name.startswith("X_") and getattr(value, "ndim", 2) == 1:
        _say(name, "unreadable", f"no table, but one column ({type(value).__name__})")
        return None
    try:
        return pd.DataFrame(value.toarray() if sparse.issparse(value) else value)
    except MemoryError:
        _say(name, "unreadable", f"{type(value).__name__} is too large to be looked at as a table")
        return None
    except Exception:  # noqa: BLE001  the same boundary: a list or a matrix of the agent's that is no table
        _say(name, "unreadable", f"no table, but {type(value).__name__}")
        return None


def _check_values(name: str, table: pd.DataFrame) -> None:
    text, gaps = [], []
    for column, values in table.items():  # two columns may have one name
        gap = np.asarray(values.isna())
        if name.startswith("X_") or pd.api.types.is_float_dtype(values):  # labels may be words
            numbers = np.asarray(_as_numbers(values))
            if (np.isnan(numbers) & ~gap).any():
                text.append(column)
            gap = gap | np.isinf(numbers)
        if gap.any():
            gaps.append(column)
    odd = [column for column in table if type(column) is not str]
    if name.startswith("X_") and 0 < len(odd) < table.shape[1]:  # scikit-learn takes either, and no mixture
        _say(name, "columns", f"names that are text, and {_listed(odd)}")
    _say_names(name, "not numbers", text)
    _say_names(name, "gaps", gaps)


def _varies(table: pd.DataFrame) -> bool:
    """Whether two rows differ in anything."""
    try:
        return any(values.nunique(dropna=False) > 1 for _, values in table.items())
    except TypeError:  # lists and the like, which are told as no numbers
        return True


def _as_numbers(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_bool_dtype(column) and not pd.api.types.is_numeric_dtype(column):
        if not isinstance(column.dtype, (pd.CategoricalDtype, pd.StringDtype)) and column.dtype != object:
            return pd.Series(np.nan, index=column.index)  # dates and the like
        column = pd.to_numeric(column, errors="coerce")
    if pd.api.types.is_complex_dtype(column):  # scikit-learn fits none
        return pd.Series(np.nan, index=column.index)
    return column.astype(float)


def _check_columns(X: pd.DataFrame, Z: pd.DataFrame) -> None:
    if X.shape[1] != Z.shape[1]:
        _say("X_test.pkl", "columns", f"{Z.shape[1]}, and {X.shape[1]} in X_train.pkl")
    elif list(X.columns) != list(Z.columns):
        odd = [column for column in Z if column not in set(X.columns)]
        _say_names("X_test.pkl", "columns", odd or ["in another order than in X_train.pkl"])


def _say_names(name: str, category: str, columns: list[Any]) -> None:
    if columns:
        _say(name, category, _listed(columns))


def _listed(names: list[Any]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(str, names[:_MOST_NAMES])) + more


def _say(name: str, category: str, detail: str) -> None:
    line = f"{name}: {category}: {' '.join(detail.split())[:200]}"
    print(line.encode("utf-8", "backslashreplace").decode())  # a name of a column may hold half a character
