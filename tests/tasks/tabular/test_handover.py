"""What keeps handed-on features from being fitted is found in the sandbox, whatever form they were saved in."""

# ruff: noqa: E501  a forgery is a line of the table, however long

from __future__ import annotations

import contextlib

import pytest
import pytest_asyncio

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxUnavailable
from coachrl.sandbox import make_sandbox
from coachrl.tasks.tabular.handover import FileFault, inspect_features, inspect_model, read_faults

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIT = """
import datetime, pickle
import joblib, numpy as np, pandas as pd
from scipy import sparse
X = pd.DataFrame({"floor": [1.0, 2, 3], "age": [30, 40, 50], "lift": [True, False, True]})
y = pd.Series(["gas", "oil", "gas"])
Z = X.iloc[:2].copy()
"""
SAVE = """
for name, value in (("X_train.pkl", X), ("y_train.pkl", y), ("X_test.pkl", Z)):
    joblib.dump(value, name)
pd.DataFrame({"id": [7, 8]}).to_csv("test.csv", index=False)
"""
TEST_ROWS = 2


@contextlib.asynccontextmanager
async def started(packages=None):
    box = make_sandbox(SandboxConfig(disk_mb=32), packages)
    try:
        await box.start()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield box
    await box.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    async with started() as box:
        yield box


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_arrow():
    pytest.importorskip("pyarrow")
    async with started(["pandas", "scikit-learn", "pyarrow"]) as box:
        yield box


@pytest_asyncio.fixture(loop_scope="module")
async def workspace(sandbox):
    opened = await sandbox.open({})
    yield opened
    await opened.close()


async def inspected(sandbox, code):
    workspace = await sandbox.open({})
    try:
        execution = await workspace.run(FIT + code + SAVE)
        assert execution.state == "ok", execution.stderr
        return await inspect_features(workspace, TEST_ROWS)
    finally:
        await workspace.close()


@pytest.mark.parametrize(
    "code",
    [
        "",
        "X, Z = X.to_numpy(), Z.to_numpy()",
        "X, Z = sparse.csr_matrix(X.astype(float)), sparse.csr_matrix(Z.astype(float))",
        "X, Z = X.values.tolist(), Z.values.tolist()",
        "X['age'], Z['age'] = X['age'].astype(str).astype('category'), Z['age'].astype(str)",
        "X['age'], Z['age'] = X['age'].astype('string'), Z['age'].astype('string')",
        "y = y.to_frame()",
        "X.columns = Z.columns = range(3)",
        "X.columns = Z.columns = pd.interval_range(0, 3)",
    ],
    ids=[
        "frames",
        "arrays",
        "sparse",
        "lists",
        "numbers as words",
        "as strings",
        "labels in a frame",
        "no names",
        "spans",
    ],
)
async def test_features_that_can_be_fitted_have_no_fault(sandbox, code):
    said = await inspected(sandbox, code)
    assert said == "X_train.pkl, y_train.pkl, X_test.pkl: looked at, nothing wrong"
    assert read_faults(said) == ()


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("X['fuel'], Z['fuel'] = y, 'gas'", ["X_train.pkl: not numbers: fuel", "X_test.pkl: not numbers: fuel"]),
        ("X['age'] = X['age'] + 1j", ["X_train.pkl: not numbers: age"]),
        ("X['age'] = pd.Series([1j] * 3, dtype=object)", ["X_train.pkl: not numbers: age"]),
        ("Z['age'] = pd.Timestamp('2026-01-01')", ["X_test.pkl: not numbers: age"]),
        ("Z['age'] = pd.array(['5', None], dtype='string')", ["X_test.pkl: gaps: age"]),
        ("Z['age'] = pd.array(['5', 'x'], dtype='string')", ["X_test.pkl: not numbers: age"]),
        ("Z.loc[0, 'floor'] = None", ["X_test.pkl: gaps: floor"]),
        ("X.loc[0, 'floor'] = np.inf", ["X_train.pkl: gaps: floor"]),
        ("y[1] = None", ["y_train.pkl: gaps: 0"]),
        ("y = np.log(pd.Series([0, 1, 2], name='rent', dtype=float))", ["y_train.pkl: gaps: rent"]),
        (
            "X, Z = (pd.concat([table, pd.DataFrame(table.to_numpy())], axis=1) for table in (X, Z))",
            [f"{name}.pkl: columns: names that are text, and 0, 1, 2" for name in ("X_train", "X_test")],
        ),
        (
            "X, Z = X['age'], Z['age'].to_numpy()",
            [
                "X_train.pkl: unreadable: no table, but one column (Series)",
                "X_test.pkl: unreadable: no table, but one column (ndarray)",
            ],
        ),
        ("y = y[:2]", ["X_train.pkl: rows: 3, and 2 in y_train.pkl"]),
        ("Z = X", ["X_test.pkl: rows: 3, and 2 in test.csv"]),
        ("X['rent'] = 5", ["X_test.pkl: columns: 3, and 4 in X_train.pkl"]),
        (
            "X, Z = pd.concat([X, X], axis=1), pd.concat([Z, Z[['floor']]], axis=1)",
            ["X_test.pkl: columns: 4, and 6 in X_train.pkl"],
        ),
        ("y = None", ["y_train.pkl: unreadable: no table, but None"]),
        ("Z = Z.rename(columns={'age': 'years'})", ["X_test.pkl: columns: years"]),
        ("y[:] = 'gas'", ["y_train.pkl: nothing to learn: all rows are alike"]),
        ("X, Z = X * 0, Z * 0", ["X_train.pkl: nothing to learn: all rows are alike"]),
        ("X, Z = X[[]], Z[[]]", ["X_train.pkl: nothing to learn: all rows are alike"]),
        ("Z = Z[['age', 'floor', 'lift']]", ["X_test.pkl: columns: in another order than in X_train.pkl"]),
    ],
)
async def test_every_fault_is_named_with_its_file_and_columns(sandbox, code, faults):
    said = await inspected(sandbox, code)
    assert said.splitlines() == faults == [str(fault) for fault in read_faults(said)]


async def test_files_that_cannot_be_read_are_faults(workspace):
    await workspace.run(FIT + SAVE + "open('X_train.pkl', 'w').write('x')\npd.to_pickle(print, 'y_train.pkl')")
    faults = read_faults(await inspect_features(workspace, TEST_ROWS))
    assert [(fault.file, fault.category) for fault in faults] == [
        ("X_train.pkl", "unreadable"),
        ("y_train.pkl", "unreadable"),
    ]


async def test_a_sparse_table_that_is_too_large_is_said_to_be_one(sandbox):
    said = await inspected(sandbox, "X = Z = sparse.csr_matrix((3, 2**40))")
    words = "unreadable: csr_matrix is too large to be looked at as a table"
    assert said.splitlines() == [f"X_train.pkl: {words}", f"X_test.pkl: {words}"]


async def test_many_odd_columns_are_cut_short_and_odd_names_stay_on_one_line(sandbox):
    code = "for i in range(9):\n    X[f'a\\nX_test.pkl: rows: {i}'] = Z[f'a\\nX_test.pkl: rows: {i}'] = 'x'"
    said = await inspected(sandbox, code)
    assert {(fault.file, fault.category) for fault in read_faults(said)} == {
        ("X_train.pkl", "not numbers"),
        ("X_test.pkl", "not numbers"),
    }
    assert len(said) < 600


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.mkdir('test.csv')",
        "open('test.csv', 'w').write('id\\n7\\n')",
        "open('test.csv', 'w').write('\\0')",
    ],
    ids=["a folder", "fewer rows", "no table"],
)
async def test_what_agents_do_to_the_tasks_table_changes_nothing_of_what_is_said(workspace, code):
    made = await workspace.run(FIT + SAVE + f"import os; os.remove('test.csv')\n{code}")
    assert made.state == "ok", made.stderr
    assert (
        await inspect_features(workspace, TEST_ROWS) == "X_train.pkl, y_train.pkl, X_test.pkl: looked at, nothing wrong"
    )


async def test_half_a_character_in_a_columns_name_hides_no_other_fault(sandbox):
    said = await inspected(sandbox, "X['a\\ud83d'] = 'x'\ny = None")
    assert [fault.file for fault in read_faults(said)] == ["X_train.pkl", "y_train.pkl", "X_test.pkl"], said
    assert r"a\ud83d" in said


EVIL = """
class Call:
    def __init__(self, function, *values): self.made = function, values
    def __reduce__(self): return self.made
FORGED = "print('X_train.pkl: looked at\\\\nDONE', flush=True); open('submission.csv', 'w').write('id,y'); import os; os._exit(0)"
# Pieces of a pickle: what a name stands for, a value, something kept under a number, and taken from there.
def name(module, name): return f"c{module}\\n{name}\\n".encode()
def held(value): return pickle.dumps(value, 3)[2:-1]
def kept(number): return b"r" + number.to_bytes(4, "little")
def taken(number): return b"j" + number.to_bytes(4, "little")
"""
FORGERIES = {
    "a call": "pickle.dump(Call(exec, FORGED), open('X_test.pkl', 'wb'))",
    "an end": "pickle.dump(Call(__import__('os')._exit, 0), open('X_test.pkl', 'wb'))",
    "a call in an array": "joblib.dump(np.array([[Call(exec, FORGED)]], dtype=object), 'X_test.pkl')",
    "a call in a table": "pd.DataFrame({'floor': [Call(exec, FORGED)] * 2}).to_pickle('X_test.pkl')",
    "a call, packed": "joblib.dump(Call(exec, FORGED), 'X_test.pkl', compress=3)",
    "a function of numpy's": "pickle.dump(Call(np.load, 'evil.npy'), open('X_test.pkl', 'wb'))",
    "a function of pandas'": "pickle.dump(Call(pd.eval, FORGED), open('X_test.pkl', 'wb'))",
    "a name with dots": r"open('X_test.pkl', 'wb').write(b'\x80\x04\x8c\x11pandas.core.frame\x8c\x1dDataFrame.__init__.__globals__\x93.')",
    "a table that hides its columns": "Z.loc[0, 'floor'] = None\n"
    "class Odd(pd.DataFrame):\n    def __reduce__(self): return Call(pd.DataFrame).made + ({**Z.__getstate__(), 'items': __import__('collections').OrderedDict},)\n"
    "pickle.dump(Odd(Z), open('X_test.pkl', 'wb'))",
    "a class changed": r"open('X_test.pkl', 'wb').write(b'\x80\x02cpandas.core.arrays.string_\nStringArray\nN}X\x04\x00\x00\x00isnac__builtin__\nset\ns\x86b.')",
    "a file that it writes to": "pickle.dump([Call(np.memmap, 'X_train.pkl', np.dtype('u1'), 'w+', 0, (9,))], open('X_test.pkl', 'wb'))",
    "what is elsewhere": r"open('X_test.pkl', 'wb').write(b'\x80\x02X\x01\x00\x00\x00aQ.')",
    "objects that pass for numbers": """
kind = name("numpy", "dtype") + held(("O8", False, True)) + b"R" + held((3, "|", None, None, None, -1, -1, 0)) + b"b"
call = name("numpy._core.multiarray", "scalar") + b"(" + kind + held(id(exec).to_bytes(8, "little")) + b"tR"
open("X_test.pkl", "wb").write(b"\\x80\\x03" + call + held((FORGED,)) + b"R.")
""",
    "records of objects that pass for numbers": """
state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
kind = name("numpy", "dtype") + held(("V8", False, True)) + b"R" + held(state) + b"b"
open("X_test.pkl", "wb").write(b"\\x80\\x03" + kind + b".")
""",
    "a look at memory that is free": """
array, kind = name("numpy", "ndarray"), np.dtype("u8")
begin = array + held(((1 << 20,),)) + b"R" + kept(800) + b"0"
look = array + b"(" + held(1 << 20) + held(kind) + taken(800) + b"tR" + kept(801) + b"0"
end = taken(800) + held((1, (0,), kind, False, b"")) + b"b0" + taken(801) + b"."
open("X_test.pkl", "wb").write(b"\\x80\\x03" + begin + look + end)
""",
    "a function that makes what it likes": """
made = name("numpy._core.numeric", "_frombuffer")
state = b"(N" + held({"__defaults__": (bytes(8), np.dtype("f8"), (1,), "C")}) + b"t"
open("X_test.pkl", "wb").write(b"\\x80\\x03" + made + state + b"b.")
""",
    "objects that pass for numbers, in an array of objects": """
kind = name("numpy", "dtype") + held(("O8", False, True)) + b"R" + held((3, "|", None, None, None, -1, -1, 0)) + b"b"
call = name("numpy._core.multiarray", "scalar") + b"(" + kind + held(id(exec).to_bytes(8, "little")) + b"tR"
joblib.dump(np.array([None], dtype=object), "X_test.pkl")
saved = open("X_test.pkl", "rb").read()
outer = saved[:saved.index(b"\\x80", 1)]  # and then the array's own pickle, and the end of the outer one
open("X_test.pkl", "wb").write(outer + b"\\x80\\x03" + call + held((FORGED,)) + b"R..")
""",
    "objects in a piece of memory": "pickle.dump(Call(np.ndarray, (1,), np.dtype('O'), bytearray(8)), open('X_test.pkl', 'wb'))",
    "objects in a piece of memory, by an index": """
asked = {"shape": (1,), "dtype": np.dtype("O"), "buffer": bytearray(8)}
pickle.dump(Call(pd.core.indexes.base._new_Index, np.ndarray, asked), open("X_test.pkl", "wb"))
""",
    "objects seen as numbers": """
asked = np.array([0, 1], dtype=object), np.dtype("i8"), (2,), "C"
pickle.dump(Call(np._core.numeric._frombuffer, *asked), open("X_test.pkl", "wb"))
""",
    "a number put into an array": "open('X_test.pkl', 'wb').write(b'\\x80\\x03' + held(np.zeros(2)) + held(0) + held(5) + b's.')",
    "an old form": "open('X_test.pkl', 'wb').write(b'ZF0x10                 ' + bytes(32))",
    "an array without end": r"open('X_test.pkl', 'wb').write(b'\x80\x02c__builtin__\nbytearray\n\x8a\x06\xff\xff\xff\xff\xff\x7f\x85R.')",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_file_that_speaks_for_itself_is_unreadable_and_runs_nothing(workspace, name):
    made = await workspace.run(FIT + SAVE + EVIL + FORGERIES[name])
    assert made.state == "ok", made.stderr
    before = await workspace.files()
    faults = read_faults(await inspect_features(workspace, TEST_ROWS))
    assert [(fault.file, fault.category) for fault in faults] == [("X_test.pkl", "unreadable")], faults
    assert not faults[0].detail.startswith(("no table", "reading it ended"))  # it is refused as it is read
    assert await workspace.files() == before


async def test_modules_of_the_agents_folder_are_not_imported(workspace):
    made = await workspace.run(
        FIT + SAVE + "for name in ('joblib', 'scipy', 'pandas', 'pathlib', 'types', 'pickle'):\n"
        "    open(name + '.py', 'w').write('print(\"DONE\"); import os; os._exit(0)')\n"
        "X.loc[0, 'floor'] = None; X.to_pickle('X_train.pkl')"
    )
    assert made.state == "ok", made.stderr
    assert await inspect_features(workspace, TEST_ROWS) == "X_train.pkl: gaps: floor"


async def test_every_usual_kind_of_column_is_readable(sandbox):
    code = """
kinds = pd.DataFrame({
    "whole": pd.array([1, 2, 3], dtype="Int64"), "half": pd.array([1.5, 2, 3], dtype="Float64"),
    "flag": pd.array([True, False, True], dtype="boolean"), "bit": np.array([1, 2, 3], dtype="uint8"),
    "thin": pd.arrays.SparseArray([0, 0, 1]), "code": pd.Categorical([1, 2, 1]),
})
kinds["object"] = np.array([1, 2.5, True], dtype=object)
X, Z = kinds.set_index(pd.MultiIndex.from_product([["a"], [1, 2, 3]])), kinds.iloc[:2]
y = pd.Series([1, 2, 3], index=pd.date_range("2026-01-01", periods=3, freq="D"), dtype="category")
"""
    for save in (SAVE, SAVE.replace("joblib.dump(value, name)", "pickle.dump(value, open(name, 'wb'), 2)")):
        workspace = await sandbox.open({})
        made = await workspace.run(FIT + code + save)
        assert made.state == "ok", made.stderr
        assert (
            await inspect_features(workspace, TEST_ROWS)
            == "X_train.pkl, y_train.pkl, X_test.pkl: looked at, nothing wrong"
        )
        await workspace.close()


async def test_columns_that_arrow_holds_are_looked_at_like_others(with_arrow):
    code = """
X["fuel"] = Z["fuel"] = pd.Series(["gas", "oil", "gas"], dtype="string[pyarrow]")
X["words"] = Z["words"] = pd.Series(["1", "2", "3"], dtype="string[pyarrow]")
X["age"] = Z["age"] = pd.Series([30, None, 50], dtype="int64[pyarrow]")
y = pd.Series([True, False, True], index=pd.Index(["a", "b", "c"], dtype="string[pyarrow]"), dtype="bool[pyarrow]")
"""
    said = await inspected(with_arrow, code)
    names = ("X_train.pkl", "X_test.pkl")
    assert said.splitlines() == [f"{name}: {fault}" for name in names for fault in ("not numbers: fuel", "gaps: age")]


ARROW = """
import pyarrow
def column(rows, offset, *buffers):
    call = Call(pyarrow.lib._restore_array, (KIND, rows, 0, offset, [each and pyarrow.py_buffer(each) for each in buffers], [], None))
    class Odd(pd.DataFrame):
        def __reduce__(self): return Call(pd.DataFrame, {"a": call}).made
    pickle.dump(Odd(), open("X_test.pkl", "wb"))
"""


@pytest.mark.parametrize(
    "code",
    [
        "KIND = pyarrow.int64(); column(1000, 0, None, bytes(8))",
        "KIND = pyarrow.int64(); column(1, -1000, None, bytes(8))",
        "KIND = pyarrow.string(); column(1, 0, None, np.array([0, 2**30], dtype='i4').tobytes(), b'gas')",
        "KIND = pyarrow.string(); column(1, 0, None, np.array([-9, 3], dtype='i4').tobytes(), b'gas')",
        "KIND = pyarrow.list_(pyarrow.int64()); column(1, 0, None, bytes(8))",
    ],
    ids=["too many", "before its memory", "text beyond it", "text before it", "lists"],
)
async def test_what_a_pickle_says_of_arrows_memory_is_not_believed(with_arrow, code):
    workspace = await with_arrow.open({})
    made = await workspace.run(FIT + SAVE + EVIL + ARROW + code)
    assert made.state == "ok", made.stderr
    faults = read_faults(await inspect_features(workspace, TEST_ROWS))
    await workspace.close()
    assert [(fault.file, fault.category) for fault in faults] == [("X_test.pkl", "unreadable")], faults
    assert faults[0].detail.startswith(("ArrowInvalid", "UnpicklingError: it holds")), faults


@pytest.mark.parametrize(
    ("category", "error", "explained"),
    [
        ("not numbers", "ValueError: could not convert string to float: 'Malaysia'", True),
        ("not numbers", "ValueError: Complex data not supported\n[[0.+1.j 1.+0.j]]", True),
        ("not numbers", "NameError: name 'X' is not defined", False),
        ("gaps", "ValueError: Input X contains NaN.\nRidge does not accept missing values", True),
        ("gaps", "ValueError: could not convert string to float: 'a'", False),
        ("rows", "ValueError: Found input variables with inconsistent numbers of samples: [86, 256]", True),
        ("columns", "ValueError: X has 10 features, but Ridge is expecting 11 features as input.", True),
        ("columns", "ValueError: The feature names should match those that were passed during fit.", True),
        ("columns", "TypeError: Feature names are only supported if all input features have string names", True),
        ("unreadable", "_pickle.UnpicklingError: invalid load key, 'x'.", True),
        ("unreadable", "ValueError: Expected 2D array, got 1D array instead:\narray=[1. 2.]", True),
        ("unreadable", "ValueError: Expected a 2-dimensional container but got <class 'pandas.Series'>", True),
        ("nothing to learn", "ValueError: This solver needs samples of at least 2 classes in the data, but", True),
        ("nothing to learn", "ValueError: y contains 1 class after sample_weight trimmed classes", True),
        ("nothing to learn", "ValueError: Found array with 0 feature(s) (shape=(3, 0)) while a minimum", True),
        ("nothing to learn", "NameError: name 'classes' is not defined", False),
    ],
)
async def test_a_fault_explains_the_errors_that_it_causes(category, error, explained):
    assert FileFault("X_train.pkl", category, "a").explains(error) is explained


FINE = "model.pkl: looked at, nothing known against it"
FITTED = """
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

class Mine:
    def __init__(self, model): self.model = model
    def predict(self, X): return self.model.predict(X)

def halved(X): return X / 2

forest = RandomForestClassifier(5, random_state=0).fit(X, y)
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("joblib.dump(forest, 'model.pkl')", FINE),
        ("joblib.dump(forest, 'model.pkl', compress=3)", FINE),
        ("pickle.dump(forest, open('model.pkl', 'wb'), protocol=2)", FINE),
        ("pickle.dump({'model': make_pipeline(StandardScaler(), forest), 'columns': list(X)}, open('model.pkl', 'wb'))", FINE),
        ("joblib.dump((np.linalg.lstsq(X.astype(float), np.ones(3))[0], 'weights'), 'model.pkl')", FINE),
        ("open('model.pkl', 'w').write('no pickle')", FINE),
        ("joblib.dump(Mine(forest), 'model.pkl')", "model.pkl: unreadable: it needs Mine, which its maker's program alone defines"),
        ("joblib.dump(make_pipeline(StandardScaler()).fit(X), 'model.pkl')", "model.pkl: cannot predict: Pipeline, StandardScaler alone: no model is in it"),
        ("joblib.dump(make_pipeline(FunctionTransformer(np.abs), forest), 'model.pkl')", FINE),
        ("joblib.dump({'scaler': StandardScaler().fit(X), 'weights': np.ones(2)}, 'model.pkl')", FINE),
        ("file = open('model.pkl', 'wb'); pickle.dump(StandardScaler(), file); pickle.dump(forest, file)", FINE),
        (
            "pickle.dump([make_pipeline(FunctionTransformer(halved), forest), Mine], open('model.pkl', 'wb'))",
            "model.pkl: unreadable: it needs Mine, halved, which its maker's program alone defines",
        ),
    ],
)  # fmt: skip
async def test_a_model_that_no_other_program_can_use_is_a_fault(workspace, code, said):
    made = await workspace.run(FIT + FITTED + code)
    assert made.state == "ok", made.stderr
    assert await inspect_model(workspace) == said
    loaded = await workspace.run("import joblib; joblib.load('model.pkl').predict([[0.0]])")
    assert said == FINE or (loaded.state == "error" and read_faults(said)[0].explains(loaded.stderr))


async def test_nothing_that_a_model_names_is_run(workspace):
    made = await workspace.run(
        "import pickle\nclass Evil:\n    def __reduce__(self): return print, ('model.pkl: unreadable: it needs nobody',)\n"
        "pickle.dump([Evil(), Evil()], open('model.pkl', 'wb'))"
    )
    assert made.state == "ok", made.stderr
    assert await inspect_model(workspace) == FINE


async def test_records_that_hide_objects_end_the_look_at_a_model(sandbox):
    """What comes behind them is not read: here a name that would be a fault."""
    records = """
def look(*state): return b"\\x80\\x03" + name("numpy", "dtype") + held(("V8", False, True)) + b"R" + held(state) + b"b0c__main__\\nMine\\n."
"""
    for part, flags, is_read in (("f8", 16, True), ("f8", 27, False), ("O", 16, False)):
        state = f"look(3, '|', None, ('a',), {{'a': (np.dtype('{part}'), 0)}}, 8, 1, {flags})"
        workspace = await sandbox.open({})
        try:
            made = await workspace.run(FIT + EVIL + records + f"open('model.pkl', 'wb').write({state})")
            assert made.state == "ok", made.stderr
            assert (await inspect_model(workspace) != FINE) is is_read, (part, flags)
        finally:
            await workspace.close()
