"""Metrics of one predicted column, by name, through scikit-learn.

A metric that is undefined for its input (AUC where the answers hold one class, RMSLE of a negative number, a percentage
of a range of zero) is NaN here; `coachrl.tasks.tabular.grading` leaves it out or refuses the submission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sk

ALIASES = {"auc": "roc_auc", "qwk": "quadratic_weighted_kappa"}
# Metrics for which a two-class submission may hold scores of the positive class in place of labels.
SCORE_METRICS = frozenset({"roc_auc", "normalized_gini", "log_loss"})
# Metrics for which one label is nearer than another: by their places in the order of the task's labels.
RANKED_METRICS = frozenset({"quadratic_weighted_kappa"})


@dataclass(frozen=True)
class Classified:
    """N true and predicted labels as text.

    labels: all classes of the task, sorted; of two classes the second is the positive one.
    score_N: score of the positive class, two-class tasks only; 0 or 1 where the submission holds labels.
    """

    true_N: NDArray[np.str_]
    predicted_N: NDArray[np.str_]
    labels: tuple[str, ...]
    score_N: NDArray[np.float64] | None = None

    @property
    def is_positive(self) -> NDArray[np.bool_]:
        return np.asarray(self.true_N == self.labels[-1])


@dataclass(frozen=True)
class Regressed:
    """N true and predicted values, all finite."""

    true_N: NDArray[np.float64]
    predicted_N: NDArray[np.float64]


def _accuracy(c: Classified) -> float:
    return float(sk.accuracy_score(c.true_N, c.predicted_N))


def _f1(c: Classified) -> float:
    """F1 of the positive class for two classes, else the macro mean over the classes that occur."""
    if c.score_N is not None:
        return float(sk.f1_score(c.is_positive, c.predicted_N == c.labels[-1], zero_division=0.0))
    return float(sk.f1_score(c.true_N, c.predicted_N, average="macro", zero_division=0.0))


def _roc_auc(c: Classified) -> float:
    """Area under the ROC curve; for more than two classes the macro mean of one class against the rest, from labels."""
    if c.score_N is not None:
        both = 0 < c.is_positive.sum() < len(c.true_N)
        return float(sk.roc_auc_score(c.is_positive, c.score_N)) if both else float("nan")
    classes = [label for label in c.labels if 0 < np.sum(c.true_N == label) < len(c.true_N)]
    if not classes:
        return float("nan")
    truth_NC, predicted_NC = (column_N[:, None] == np.array(classes) for column_N in (c.true_N, c.predicted_N))
    return float(np.mean([sk.roc_auc_score(truth_NC[:, k], predicted_NC[:, k]) for k in range(len(classes))]))


def _log_loss(c: Classified) -> float:
    if c.score_N is None or c.score_N.min() < 0 or c.score_N.max() > 1:
        return float("nan")
    return float(sk.log_loss(c.is_positive, c.score_N, labels=[False, True]))


def _quadratic_kappa(c: Classified) -> float:
    rank = {label: position for position, label in enumerate(c.labels)}
    true_N, predicted_N = ([rank[label] for label in column_N] for column_N in (c.true_N, c.predicted_N))
    return float(sk.cohen_kappa_score(true_N, predicted_N, weights="quadratic", labels=range(len(c.labels))))


def _rmse(r: Regressed) -> float:
    return float(sk.root_mean_squared_error(r.true_N, r.predicted_N))


def _rmsle(r: Regressed) -> float:
    if min(r.true_N.min(), r.predicted_N.min()) < 0:
        return float("nan")
    return float(sk.root_mean_squared_log_error(r.true_N, r.predicted_N))


def _smape(r: Regressed) -> float:
    """Symmetric mean absolute percentage error, 0 to 200; a pair of zeros counts 0."""
    size_N = np.abs(r.true_N) + np.abs(r.predicted_N)
    return float(200 * np.mean(np.abs(r.true_N - r.predicted_N) / np.where(size_N == 0, 1, size_N)))


def _pearson(r: Regressed) -> float:
    return float(np.clip(_standardised(r.true_N) @ _standardised(r.predicted_N), -1, 1))


def _standardised(values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values around 0 and of length 1; NaN where all are one value. Centred before anything is squared: a spread
    that is small beside the mean would be lost in the difference of squares, and the correlation could be anything."""
    if values_N.min() == values_N.max():
        return np.full_like(values_N, np.nan)
    scaled_N = values_N / np.abs(values_N).max()
    centred_N = scaled_N - scaled_N.mean()
    return np.asarray(centred_N / np.linalg.norm(centred_N))


CLASSIFICATION: Mapping[str, Callable[[Classified], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "roc_auc": _roc_auc,
    "f1_micro": _accuracy,  # the same number where each row has one label
    "normalized_gini": lambda c: 2 * _roc_auc(c) - 1,
    "log_loss": _log_loss,
    "quadratic_weighted_kappa": _quadratic_kappa,
}
REGRESSION: Mapping[str, Callable[[Regressed], float]] = {
    "rmse": _rmse,
    "mae": lambda r: float(sk.mean_absolute_error(r.true_N, r.predicted_N)),
    "rmsle": _rmsle,
    "mcrmse": _rmse,  # columns are averaged in `tabular`
    "medae": lambda r: float(sk.median_absolute_error(r.true_N, r.predicted_N)),
    "r2": lambda r: float(sk.r2_score(r.true_N, r.predicted_N)),
    "smape": _smape,
    "pearson": _pearson,
}
DEFAULT_METRIC = {"classification": "accuracy", "regression": "rmse"}
METRICS: Mapping[str, tuple[str, ...]] = {"classification": tuple(CLASSIFICATION), "regression": tuple(REGRESSION)}


def classification_metrics(column: Classified, declared: str) -> dict[str, float]:
    """accuracy, f1, roc_auc, and the declared metric where it is another one."""
    names = dict.fromkeys(("accuracy", "f1", "roc_auc", declared))
    return {name: CLASSIFICATION[name](column) for name in names}


def regression_metrics(column: Regressed, declared: str) -> dict[str, float]:
    """rmse, mae, rmsle and the declared metric; rmse and mae also in % of the range (as MAPPA's Table 2) and of the
    interquartile range of the true values."""
    spread = {
        "range": float(np.ptp(column.true_N)),
        "iqr": float(np.subtract(*np.percentile(column.true_N, [75, 25]))),
    }
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        values = {name: REGRESSION[name](column) for name in dict.fromkeys(("rmse", "mae", "rmsle", declared))}
        for error in ("rmse", "mae"):
            for of, size in spread.items():
                values[f"{error}_pct_{of}"] = 100 * values[error] / size if size else float("nan")
    return values
