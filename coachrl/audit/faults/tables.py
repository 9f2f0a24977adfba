"""Planted faults in the work on tables: made-up ones, with a second table to join, in the DSBench pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from coachrl.audit.faults.planted import Place, PlantedFault, Replies, fenced, planted
from coachrl.pipelines.base import Pipeline
from coachrl.seeding import generator
from coachrl.tasks.tabular.grading import TabularTruth, sorted_labels
from coachrl.types import Task

_TRAIN, _TEST = 160, 80
_REGIONS = ("amber", "coast", "delta", "inland", "north", "upland")
_LOOKS = {  # a first turn that only looks
    "data_engineer": 'import pandas as pd\n\ntrain = pd.read_csv("train.csv")\nprint(train.head())',
    "modeler": 'import pandas as pd\n\nX = pd.read_pickle("X_train.pkl")\nprint(X.describe())',
    "analyst": 'import pandas as pd\n\nX = pd.read_pickle("X_test.pkl")\nprint(X.shape)',
}


@dataclass(frozen=True)
class Slip:
    """One edit of a sound program. only: the category of tasks that it fits."""

    role: str
    name: str
    old: str
    new: str
    only: str = ""


_DROP = 'X = train.drop(columns=["id", "target", "region"])'
_IMPUTE = "X, Z = X.fillna(X.median()), Z.fillna(X.median())"
SLIPS = (
    Slip(
        "data_engineer",
        "leakage: the target stays among the features",
        _IMPUTE,
        'X["code"] = pd.factorize(train["target"], sort=True)[0]\nZ["code"] = 0\n' + _IMPUTE,
    ),
    Slip(
        "data_engineer",
        "a wrong join: rows by position",
        'train = train.merge(regions, on="region", how="left")',
        'train = train.join(regions[["rate"]].sample(len(train), replace=True, random_state=0, ignore_index=True))',
    ),
    Slip("data_engineer", "rows dropped: an inner join", 'test = test.merge(regions, on="region", how="left")',
         'test = test.merge(regions.iloc[1:], on="region", how="inner")'),
    Slip("data_engineer", "labels shifted by a row", 'y = train["target"]', 'y = train["target"].shift(1).bfill()'),
    Slip("data_engineer", "a sign, in the test table alone", _IMPUTE, _IMPUTE + '\nZ["rate"] = -Z["rate"]'),
    Slip("data_engineer", "a unit, in the test table alone", _IMPUTE, _IMPUTE + '\nZ["load"] = Z["load"] / 1000'),
    Slip("modeler", "labels off by one", "model.fit(X, y)", "model.fit(X[:-1], y[1:])"),
    Slip("modeler", "labels sorted", "model.fit(X, y)", "model.fit(X, y.sort_values())"),
    Slip("modeler", "rows dropped: the first ones alone", "model.fit(X, y)", "model.fit(X[:16], y[:16])"),
    Slip("modeler", "a sign", "model.fit(X, y)", "model.fit(-X, y)"),
    Slip("modeler", "a unit: features scaled in training alone", "model.fit(X, y)", "model.fit(X / 1000, y)"),
    Slip("modeler", "features left out", "model.fit(X, y)", "X[:] = 0\nmodel.fit(X, y)"),
    Slip("analyst", "a wrong join: ids sorted apart", 'test["id"]', 'test["id"].sort_values().to_numpy()'),
    Slip("analyst", "rows dropped: one short", "sub.to_csv", "sub = sub[:-1]\nsub.to_csv"),
    Slip("analyst", "labels shifted by a row", "pred})", "np.roll(pred, 1)})"),
    Slip("analyst", "a sign", "pred})", "-pred})", "regression"),
    Slip("analyst", "a unit", "pred})", "pred / 1000})", "regression"),
    Slip("analyst", "sound predictions overruled", "pred})", "pred[0]})"),
)  # fmt: skip


def table_faults(pipeline: Pipeline, folder: Path, seed: int) -> Iterator[list[PlantedFault]]:
    """For one made-up table after another: two faults of each role, and one of two roles at once."""
    turns = {role.name: role.max_turns for role in pipeline.roles}
    number = 0
    while True:
        rng = generator(seed, "planted faults", "table", number)
        task = make_table(folder / f"table-{number}", f"table-{number}", rng)
        looks = {role: bool(turns.get(role, 1) > 1 and rng.random() < 0.5) for role in _LOOKS}
        yield list(_faults_of(task, looks, number, rng))
        number += 1


def _faults_of(task: Task, looks: Mapping[str, bool], number: int, rng: np.random.Generator) -> Iterator[PlantedFault]:
    programs = _programs(task.category, rng)
    plant = partial(planted, task, _replies(programs, looks))
    chosen: list[Slip] = []
    for role in _LOOKS:
        slips = [slip for slip in SLIPS if slip.role == role and slip.only in ("", task.category)]
        chosen += [slips[(2 * number + one) % len(slips)] for one in range(2)]
    for slip in chosen:
        yield plant(slip.name, _replies(_with(programs, slip), looks), _place(slip, looks))
    first, second = (chosen[2 * role] for role in rng.choice(3, 2, replace=False))
    faulty = _replies(_with(_with(programs, first), second), looks)
    yield plant("two agents, each with a fault", faulty, _place(first, looks), _place(second, looks))


def _with(programs: Mapping[str, str], slip: Slip) -> dict[str, str]:
    assert slip.old in programs[slip.role], (slip, programs[slip.role])
    return {**programs, slip.role: programs[slip.role].replace(slip.old, slip.new)}


def _place(slip: Slip, looks: Mapping[str, bool]) -> Place:
    return slip.role, int(looks[slip.role])


def _replies(programs: Mapping[str, str], looks: Mapping[str, bool]) -> Replies:
    return {
        role: ((fenced(_LOOKS[role]),) if looks[role] else ()) + (fenced(program),)
        for role, program in programs.items()
    }


def _programs(category: str, rng: np.random.Generator) -> dict[str, str]:
    kinds = {
        "classification": ("linear_model", "LogisticRegression", "max_iter=1000"),
        "regression": ("linear_model", "Ridge", "alpha=1.0"),
    }
    module, name, arguments = kinds[category]
    model = f"make_pipeline(StandardScaler(), {name}({arguments}))"
    if rng.random() < 0.5:
        name = {"classification": "ExtraTreesClassifier", "regression": "ExtraTreesRegressor"}[category]
        module, model = "ensemble", f"{name}(n_estimators=50, random_state=0)"
    engineer = f"""import pandas as pd

train, test, regions = (pd.read_csv(name) for name in ("train.csv", "test.csv", "regions.csv"))
train = train.merge(regions, on="region", how="left")
test = test.merge(regions, on="region", how="left")
y = train["target"]
{_DROP}
Z = test.drop(columns=["id", "region"])
{_IMPUTE}
X.to_pickle("X_train.pkl")
y.to_pickle("y_train.pkl")
Z.to_pickle("X_test.pkl")
print("train", X.shape, "test", Z.shape)"""
    modeler = f"""import joblib
import pandas as pd
from sklearn.{module} import {name}
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X, y = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
model = {model}
model.fit(X, y)
joblib.dump(model, "model.pkl")
print("{name}, fitted on", X.shape)"""
    analyst = """import joblib
import numpy as np
import pandas as pd

test, X = pd.read_csv("test.csv"), pd.read_pickle("X_test.pkl")
model = joblib.load("model.pkl")
pred = model.predict(X)
sub = pd.DataFrame({"id": test["id"], "target": pred})
sub.to_csv("submission.csv", index=False)
print(sub.shape)"""
    return {"data_engineer": engineer, "modeler": modeler, "analyst": analyst}


def make_table(folder: Path, name: str, rng: np.random.Generator) -> Task:
    """A task whose target hangs on numbers of its tables and, strongly, on what is known of each row's region."""
    rows = _TRAIN + _TEST
    rates_R = rng.permutation(np.linspace(-2, 2, len(_REGIONS)))
    region_N = rng.integers(len(_REGIONS), size=rows)
    load_N, age_N, depth_N = rng.normal(0, 1, (3, rows))
    signal_N = 1.2 * rates_R[region_N] + 1.5 * load_N - 0.8 * age_N + 0.3 * depth_N + rng.normal(0, 0.4, rows)
    category: Literal["classification", "regression"] = "classification" if rng.random() < 0.5 else "regression"
    target_N = np.where(signal_N > 0, "yes", "no") if category == "classification" else np.round(20 + 5 * signal_N, 2)
    frame = pd.DataFrame(
        {
            "id": rng.choice(np.arange(1000, 1000 + 9 * rows), rows, replace=False),
            "region": np.array(_REGIONS)[region_N],
            "load": np.round(1500 + 400 * load_N, 1),
            "age": np.round(40 + 9 * age_N, 1),
            "depth": np.where(rng.random(rows) < 0.1, np.nan, np.round(depth_N, 3)),
            "target": target_N,
        }
    )
    folder.mkdir(parents=True)
    train, test = frame[:_TRAIN], frame[_TRAIN:]
    tables = {
        "train.csv": train,
        "test.csv": test.drop(columns="target"),
        "regions.csv": pd.DataFrame({"region": _REGIONS, "rate": np.round(rates_R, 3)}),
        "answers.csv": test[["id", "target"]],
    }
    for file, table in tables.items():
        table.to_csv(folder / file, index=False)
    labels = (sorted_labels(map(str, target_N)),) if category == "classification" else ()
    metric = {"classification": "accuracy", "regression": "rmse"}[category]
    truth = TabularTruth(category, metric, "id", ("target",), folder / "answers.csv", labels)
    files = {file: folder / file for file in tables if file != "answers.csv"}
    return Task(name, category, "Predict target. regions.csv says more about each region.", files=files,
                ground_truth=truth)  # fmt: skip
