import filecmp
import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from coachrl.errors import TaskError
from coachrl.tasks.tabular import dsbench_lite_sets
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite, load_dsbench_lite, write_dsbench_lite
from coachrl.tasks.tabular.dsbench_lite_sets import TASKS, load_set
from coachrl.tasks.tabular.grading import grade_submission

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("bokeh_sampledata", "lifelines")),
    reason="needs the extra 'tabular'",
)
LOWER_IS_BETTER = ("rmse", "mae", "rmsle")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tasks(cache):
    return {task.id: task for split in ("train", "eval") for task in load_dsbench_lite(split, cache)}


def tables(task):
    return pd.read_csv(task.files["train.csv"]), pd.read_csv(task.files["test.csv"])


def submit(task, test, predictions):
    truth = task.ground_truth
    frame = pd.DataFrame({truth.id_column: test[truth.id_column], truth.target_columns[0]: predictions})
    outcome = grade_submission(frame.to_csv(index=False).encode(), truth)
    assert outcome.success, outcome.reason
    return outcome.metrics[truth.metric]


def test_both_kinds_on_both_sides_and_no_set_on_two(cache):
    sides = {split: load_dsbench_lite(split, cache) for split in ("train", "eval")}
    assert [len(sides["train"]), len(sides["eval"])] == [14, 6]
    for side in sides.values():
        categories = [task.category for task in side]
        assert categories.count("classification") == categories.count("regression")
        assert set(categories[:2]) == {"classification", "regression"}
    sources = {split: {task.source for task in TASKS if task.split == split} for split in sides}
    assert not sources["train"] & sources["eval"]


def test_every_task_declares_everything(tasks):
    for spec in TASKS:
        task, truth = tasks[spec.name], tasks[spec.name].ground_truth
        assert truth.guessed == ()
        assert (task.category, truth.metric, truth.id_column) == (spec.category, spec.metric, spec.id_column)
        assert truth.target_columns == (spec.target,)
        assert len(task.prompt) < 600
        assert set(task.files) == {"train.csv", "test.csv"}


def test_tables_are_small_shuffled_and_hide_the_target(tasks):
    for task in tasks.values():
        train, test = tables(task)
        truth = task.ground_truth
        ids = pd.concat([train[truth.id_column], test[truth.id_column]])
        assert len(ids) <= 2000
        assert ids.is_unique
        assert abs(np.corrcoef(np.arange(len(ids)), ids)[0, 1]) < 0.2
        assert [column for column in train if column not in test] == list(truth.target_columns)
        assert train[truth.target_columns[0]].notna().all()


def test_the_set_has_the_troubles_of_real_data(tasks):
    train = {name: tables(task)[0] for name, task in tasks.items()}
    features = {name: frame.drop(columns=tasks[name].ground_truth.target_columns[0]) for name, frame in train.items()}
    targets = {name: frame[tasks[name].ground_truth.target_columns[0]] for name, frame in train.items()}
    assert sum(frame.isna().any(axis=None) for frame in features.values()) >= 4
    assert sum(not frame.select_dtypes(exclude=["number", "bool"]).empty for frame in features.values()) >= 8
    classes = [target for name, target in targets.items() if tasks[name].category == "classification"]
    assert sum(not pd.api.types.is_numeric_dtype(target) for target in classes) >= 4
    assert sum(target.value_counts(normalize=True).min() < 0.27 for target in classes) >= 3
    amounts = [target for name, target in targets.items() if tasks[name].category == "regression"]
    assert sum(target.skew() > 2 for target in amounts) >= 2


@pytest.mark.parametrize(
    ("name", "size", "first"),
    [
        ("diabetes", (442, 11), {"age": 59, "sex": "b", "bmi": 32.1, "bp": 101, "s5": 4.8598, "progression": 151}),
        ("iris", (150, 5), {"sepal_length_cm": 5.1, "petal_width_cm": 0.2, "species": "setosa"}),
        ("wine", (178, 14), {"alcohol": 14.23, "proline": 1065, "cultivar": 0}),
        ("breast_cancer", (569, 31), {"mean_radius": 17.99, "diagnosis": "malignant"}),
        ("digits", (1797, 65), {"pixel_0_2": 5, "digit": 0}),
        ("gapminder", (1011, 6), {"country": "Afghanistan", "year": "1970", "region": "South Asia"}),
        ("superstore", (9994, 14), {}),
    ],
)
def test_a_table_holds_what_its_source_measured_in_the_units_of_its_source(name, size, first):
    table = load_set(name)
    assert table.shape == size and {key: table[key].iloc[0] for key in first} == first
    if name == "superstore":
        assert (table["loss"] == "yes").equals(table["profit"] < 0) and set(table["loss"]) == {"yes", "no"}
    if name == "gapminder":
        assert set(table["year"]) == {"1970", "1980", "1990", "2000", "2010"} and table["life_expectancy"].notna().all()


def test_the_same_bytes_each_time(cache, tasks, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    write_dsbench_lite(again)
    made = ensure_dsbench_lite(cache)
    names = sorted(str(path.relative_to(again)) for path in again.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(made, again, names, shallow=False) == (names, [], [])


def test_the_folder_is_made_once_and_whole(cache, tasks):
    made = ensure_dsbench_lite(cache)
    stamp = (made / "train.jsonl").stat().st_mtime_ns
    assert [path.name for path in cache.iterdir()] == [made.name]
    load_dsbench_lite("train", cache)
    assert (made / "train.jsonl").stat().st_mtime_ns == stamp


def test_two_that_make_it_at_once_end_with_one(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        made = set(pool.map(ensure_dsbench_lite, [tmp_path, tmp_path]))
    assert list(tmp_path.iterdir()) == list(made)


def test_nothing_is_left_when_a_package_is_missing(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        dsbench_lite_sets.importlib.util, "find_spec", lambda name: None if name == "lifelines" else real(name)
    )
    with pytest.raises(TaskError, match=r"needs the package lifelines: pip install 'coachrl\[tabular\]'"):
        load_dsbench_lite("train", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_lacks_a_file_is_to_be_upgraded(tmp_path, monkeypatch):
    """lifelines 0.30.0 came without ACTG175.csv."""
    monkeypatch.setitem(dsbench_lite_sets._SETS, "actg175", lambda: dsbench_lite_sets._lifelines("absent.csv"))
    with pytest.raises(TaskError, match=r"actg175 cannot be read: .*absent\.csv.* --upgrade 'coachrl\[tabular\]'"):
        load_dsbench_lite("train", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path))
    assert load_dsbench_lite("eval")[0].files["train.csv"].is_relative_to(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(TaskError, match=r"cannot write dsbench-lite into .*; set COACHRL_CACHE"):
        load_dsbench_lite("train", blocked / "cache")


def test_an_unknown_split(cache):
    with pytest.raises(TaskError, match="no split 'test'; its splits are train and eval"):
        load_dsbench_lite("test", cache)


def constant(task, train, test):
    target = train[task.ground_truth.target_columns[0]]
    if task.ground_truth.metric == "roc_auc":
        return np.full(len(test), 0.5)
    if task.category == "classification":
        return np.full(len(test), target.mode()[0])
    if task.ground_truth.metric == "rmsle":
        return np.full(len(test), np.expm1(np.log1p(target).mean()))
    return np.full(len(test), target.mean() if task.ground_truth.metric == "rmse" else target.median())


def forest(task, train, test):
    truth = task.ground_truth
    target = train[truth.target_columns[0]]
    X_train, X_test = train[test.columns].drop(columns=truth.id_column), test.drop(columns=truth.id_column)
    prepare = make_column_transformer(
        (SimpleImputer(), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", max_categories=30), make_column_selector(dtype_exclude="number")),
    )
    options = {"n_estimators": 60, "min_samples_leaf": 3, "random_state": 0}
    if task.category == "classification":
        model = make_pipeline(prepare, RandomForestClassifier(**options, class_weight="balanced")).fit(X_train, target)
        return model.predict_proba(X_test)[:, 1] if truth.metric == "roc_auc" else model.predict(X_test)
    logs = truth.metric == "rmsle"
    model = make_pipeline(prepare, RandomForestRegressor(**options)).fit(X_train, np.log1p(target) if logs else target)
    return np.expm1(model.predict(X_test)) if logs else model.predict(X_test)


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_a_plain_model_beats_a_constant(tasks, name):
    task = tasks[name]
    train, test = tables(task)
    floor, reached = (submit(task, test, predict(task, train, test)) for predict in (constant, forest))
    if task.ground_truth.metric in LOWER_IS_BETTER:
        assert reached < 0.95 * floor
    else:
        assert reached > floor + 0.05


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_the_answers_grade_as_perfect(tasks, name):
    truth = tasks[name].ground_truth
    answers = pd.read_csv(truth.answer_csv, dtype=str)
    shuffled = answers.sample(frac=1, random_state=0)
    outcome = grade_submission(shuffled.to_csv(index=False).encode(), truth)
    perfect = 0.0 if truth.category == "regression" else 1.0
    assert set(outcome.metrics.values()) == {perfect}
    assert not grade_submission(answers.head(1).to_csv(index=False).encode(), truth).success
