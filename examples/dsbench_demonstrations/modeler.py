"""Programs of the modeler: from X_train.pkl and y_train.pkl to model.pkl."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .programs import Craft, Fault, Writer, quoted, swapped, unbalanced, without_import, without_line
from .tables import TableTask


@dataclass(frozen=True)
class _Estimator:
    """arguments: alternatives, one of which is taken. scaled: features go through a StandardScaler first."""

    module: str
    classifier: str
    regressor: str
    arguments: tuple[str, ...]
    regressor_arguments: tuple[str, ...] | None = None
    scaled: bool = False


_TREES = tuple(f"n_estimators={count}, random_state=0" for count in (50, 100, 200))
_ESTIMATORS = {
    "linear": _Estimator(
        "linear_model",
        "LogisticRegression",
        "Ridge",
        ("max_iter=1000", "max_iter=1000, C=0.5"),
        tuple(f"alpha={alpha}" for alpha in (0.5, 1.0, 3.0)),
        scaled=True,
    ),
    "forest": _Estimator("ensemble", "RandomForestClassifier", "RandomForestRegressor", _TREES),
    "extra trees": _Estimator("ensemble", "ExtraTreesClassifier", "ExtraTreesRegressor", _TREES),
    "boosting": _Estimator(
        "ensemble",
        "GradientBoostingClassifier",
        "GradientBoostingRegressor",
        ("random_state=0", "max_depth=2, random_state=0"),
    ),
    "histogram boosting": _Estimator(
        "ensemble",
        "HistGradientBoostingClassifier",
        "HistGradientBoostingRegressor",
        ("random_state=0", "max_iter=50, random_state=0"),
    ),
    "neighbors": _Estimator(
        "neighbors",
        "KNeighborsClassifier",
        "KNeighborsRegressor",
        tuple(f"n_neighbors={count}" for count in (5, 7, 9)),
        scaled=True,
    ),
}
_CROSS_VALIDATE = "from sklearn.model_selection import cross_val_score"
_SAVES = (
    'joblib.dump(model, "model.pkl")',
    'pd.to_pickle(model, "model.pkl")',
    'with open("model.pkl", "wb") as f:\n    pickle.dump(model, f)',
)
_OPENERS = {"joblib": "joblib.load", "pd": "pd.read_pickle"}


def _writer(style: str) -> Writer:
    def write(table: TableTask, rng: np.random.Generator) -> str:
        estimator = _ESTIMATORS[style]
        name = estimator.classifier if table.is_classification else estimator.regressor
        arguments = estimator.arguments
        if not table.is_classification and estimator.regressor_arguments is not None:
            arguments = estimator.regressor_arguments
        model = f"{name}({rng.choice(arguments)})"
        imports = [f"from sklearn.{estimator.module} import {name}"]
        if estimator.scaled:
            imports += [
                "from sklearn.pipeline import make_pipeline",
                "from sklearn.preprocessing import StandardScaler",
            ]
            model = f"make_pipeline(StandardScaler(), {model})"
        return _program(model, name, imports, rng)

    return write


def _program(model: str, name: str, imports: list[str], rng: np.random.Generator) -> str:
    save = str(rng.choice(_SAVES))
    library = "joblib" if save.startswith("joblib") and rng.random() < 0.5 else "pd"
    used = {library, save.partition(".")[0] if save[0] != "w" else "pickle"}
    plain = [line for key, line in _IMPORTS.items() if key in used]
    score = f'print("{name}", model.score(X, y))'
    if rng.random() < 0.4:
        imports = [*imports, _CROSS_VALIDATE]
        score = f'print("{name}", cross_val_score(model, X, y, cv=3).mean())'
    lines = [
        *plain,
        *sorted(imports),
        "",
        f'X = {_OPENERS[library]}("X_train.pkl")',
        f'y = {_OPENERS[library]}("y_train.pkl")',
        f"model = {model}",
        "model.fit(X, y)",
        save,
        score,
    ]
    return "\n".join(lines)


_IMPORTS = {"joblib": "import joblib", "pd": "import pandas as pd", "pickle": "import pickle"}
_COUNTERPARTS = {
    name: other
    for estimator in _ESTIMATORS.values()
    for name, other in (
        (estimator.classifier, estimator.regressor),
        (estimator.regressor, estimator.classifier),
    )
}


def _not_saved(code: str, table: TableTask, rng: np.random.Generator) -> str:
    return re.sub(r"\n.*\"model\.pkl\".*(\n    .*)?", "", code)


def _wrong_kind(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """A regressor for text labels, or a classifier for amounts; without arguments that only the right one takes. Not
    for neighbors under cross-validation: they fit any labels, and it only warns of scores that fail."""
    if "KNeighbors" in code and "cross_val_score" in code:
        return code
    for name, other in _COUNTERPARTS.items():
        if name in code:
            code = re.sub(rf"\b{name}\((max_iter|alpha)=[^)]*\)", f"{other}()", code)
            return re.sub(rf"\b{name}\b", other, code)
    return code


def _not_fitted(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The fit left out, and with it the score, which would show it at once."""
    code = "\n".join(line for line in code.split("\n") if "model.fit(" not in line)
    return re.sub(r"print\((\"\w+\"), model\.score.*", r"print(\1)", code)


def _wrong_column(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The target dropped from features that do not hold it."""
    return code.replace("model.fit(X, y)", f"X = X.drop(columns=[{quoted(table.target)}])\nmodel.fit(X, y)")


MODELER = Craft(
    styles={style: _writer(style) for style in _ESTIMATORS},
    plain_style="linear",
    faults={
        "model not saved": Fault("missing", _not_saved),
        "other file name": Fault("missing", swapped("model.pkl", "best_model.pkl", "model.joblib", "clf.pkl")),
        "wrong file": Fault("error", swapped("X_train.pkl", "train.pkl", "X_train.csv", "X.pkl")),
        "wrong target file": Fault("error", swapped("y_train.pkl", "y.pkl", "y_train.csv", "target.pkl")),
        "wrong category": Fault("error", _wrong_kind, lambda t: t.text_labels or not t.is_classification),
        "not fitted": Fault("later", _not_fitted),
        "wrong column": Fault("error", _wrong_column),
        "features left out": Fault("error", without_line("X_train.pkl")),
        "import left out": Fault("error", without_import),
        "syntax": Fault("error", unbalanced),
    },
)
