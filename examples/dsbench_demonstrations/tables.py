"""Seeded synthetic tables for demonstrations: made-up columns of every sort, never the data of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coachrl.tasks.tabular.grading import TabularTruth, sorted_labels
from coachrl.types import Task


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "age amount angle area balance budget charge count crop cycle debt delay demand density depth distance dose "
    "duration energy engine export factor flow force fuel grade growth heat height humidity income index level limit "
    "load margin mass noise output pace payment period phase power pressure price pulse range rank rate ratio rent "
    "salary sales score share size slope speed stock stress supply temp tenure tide time value visits volume wage "
    "weight width wind yield"
)
_QUALIFIERS = _words(
    "adj avg base city cold daily day dry end est final first fixed gross home init inner last low main max mean "
    "min month net new night norm old open outer own past peak prev raw rel side std total unit upper week wet year"
)
_GROUPS = _words(
    "brand category channel class color country department family gender group habitat job material mode model "
    "origin plan region season section segment shape sector site species state status street team type vendor zone"
)
_LEVELS = _words(
    "alpha amber basic blue central coastal delta east fast female fresh gold gray green high inland large late local "
    "low male manual medium mixed mono north old opal plain premium quick red round rural silver slow small solid "
    "south steel tall urban velvet west white wide wooden yellow young"
)
_OUTCOMES = _words(
    "approved bought churned claim class default defect diagnosis failed grade label outcome passed quality response "
    "result returned risk stayed success target verdict won"
)
_ID_WORDS = _words("account batch case client customer entry item key order patient record ref row sample serial unit")
_BINARY_LABELS = (("no", "yes"), ("No", "Yes"), ("bad", "good"), ("left", "stayed"), ("fail", "pass"), ("N", "Y"))
_METRICS = {
    "two classes": ("accuracy", "f1", "roc_auc", "roc_auc"),
    "more classes": ("accuracy", "f1"),
    "positive": ("rmse", "mae", "rmsle"),
    "signed": ("rmse", "mae"),
}


@dataclass(frozen=True)
class TableTask:
    """A synthetic task and what a program must know about it.

    text, gaps: its text columns, its columns with gaps. number_gaps: numbers of train.csv are among the latter.
    text_labels: it is a classification whose labels are no numbers.
    """

    task: Task
    truth: TabularTruth
    target: str
    text: tuple[str, ...]
    gaps: tuple[str, ...]
    number_gaps: bool
    text_labels: bool

    @property
    def is_classification(self) -> bool:
        return self.truth.category == "classification"


def make_table(name: str, folder: Path, rng: np.random.Generator) -> TableTask:
    """Write train.csv, test.csv and the answers of one synthetic task under `folder`.

    Every table with text has a level that test.csv lacks, and every table with gaps has some in either file, so that
    careless preprocessing shows. Ids are never row numbers.
    """
    train_rows, test_rows = int(rng.integers(60, 140)), int(rng.integers(20, 50))
    rows = train_rows + test_rows
    names = _Names(rng)
    id_column, target = names.id_column(), ""
    frame, signal_N = _features(rows, train_rows, names, rng)
    category: Literal["classification", "regression"] = "classification" if rng.random() < 0.5 else "regression"
    if category == "classification":
        target = names.outcome()
        values, metric = _classes(signal_N, rng)
        labels: tuple[tuple[str, ...], ...] = (sorted_labels(str(value) for value in values),)
    else:
        target = names.number()
        values, metric = _amounts(signal_N, rng)
        labels = ()
    frame[target] = values
    frame = frame[[str(column) for column in rng.permutation(frame.columns)]]
    frame.insert(0, id_column, _ids(rows, rng))
    train, test = frame.iloc[:train_rows], frame.iloc[train_rows:]
    folder.mkdir(parents=True)
    train.to_csv(folder / "train.csv", index=False)
    test.drop(columns=target).to_csv(folder / "test.csv", index=False)
    test[[id_column, target]].to_csv(folder / "answers.csv", index=False)
    truth = TabularTruth(category, metric, id_column, (target,), folder / "answers.csv", labels)
    features = frame.drop(columns=[id_column, target])
    return TableTask(
        task=Task(
            id=name,
            category=category,
            prompt=f"Predict {target}.",
            files={file: folder / file for file in ("train.csv", "test.csv")},
            ground_truth=truth,
        ),
        truth=truth,
        target=target,
        text=tuple(features.select_dtypes(exclude="number").columns),
        gaps=tuple(features.columns[features.isna().any()]),
        number_gaps=bool(features.select_dtypes("number").isna().any().any()),
        text_labels=any(not label.isdigit() for column in labels for label in column),
    )


class _Names:
    """Draws column names in one manner for a table, each at most once."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._manner = int(rng.integers(5))

    def id_column(self) -> str:
        word = str(self._rng.choice(_ID_WORDS))
        return self._take(lambda: str(self._rng.choice(["id", "Id", "ID", f"{word}_id", f"{word.title()}Id", word])))

    def number(self) -> str:
        return self._take(lambda: self._written([*self._some(_QUALIFIERS, 0.5), str(self._rng.choice(_NOUNS))]))

    def text(self) -> str:
        return self._take(lambda: self._written([*self._some(_QUALIFIERS, 0.3), str(self._rng.choice(_GROUPS))]))

    def outcome(self) -> str:
        return self._take(lambda: self._written([*self._some(_QUALIFIERS, 0.2), str(self._rng.choice(_OUTCOMES))]))

    def _some(self, words: Sequence[str], chance: float) -> list[str]:
        return [str(self._rng.choice(words))] if self._rng.random() < chance else []

    def _written(self, words: list[str]) -> str:
        if self._rng.random() < 0.1:
            words = [*words, str(self._rng.integers(1, 10))]
        match self._manner:
            case 0 | 1:
                return "_".join(words)
            case 2:
                return "".join(word.title() for word in words)
            case 3:
                return " ".join(words)
            case _:
                return "".join(words).upper()

    def _take(self, draw: Callable[[], str]) -> str:
        name = draw()
        while name.lower() in self._used:
            name = draw()
        self._used.add(name.lower())
        return name


def _features(
    rows: int, train_rows: int, names: _Names, rng: np.random.Generator
) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """Feature columns with gaps, and the signal that the target is made of."""
    columns: dict[str, object] = {}
    signal_N = rng.normal(0, 0.5, rows)
    for _ in range(int(rng.integers(2, 9))):
        values_N = rng.normal(0, 1, rows)
        signal_N = signal_N + rng.normal() * values_N
        columns[names.number()] = _scaled(values_N, rng)
    for position in range(int(rng.choice(4, p=[0.2, 0.3, 0.3, 0.2]))):
        levels = rng.choice(_LEVELS, size=int(rng.integers(3, 7)), replace=False).astype(object)
        codes_N = rng.integers(len(levels), size=rows)
        if position == 0:  # one level that only train.csv has
            codes_N[train_rows:] = rng.integers(len(levels) - 1, size=rows - train_rows)
            codes_N[0] = len(levels) - 1
        signal_N = signal_N + rng.normal(0, 1, len(levels))[codes_N]
        columns[names.text()] = levels[codes_N]
    frame = pd.DataFrame(columns)
    if rng.random() < 0.5:
        numbers = frame.select_dtypes("number").columns
        with_gaps = [str(rng.choice(numbers)), *(str(c) for c in frame.columns if rng.random() < 0.2)]
        for column in dict.fromkeys(with_gaps):
            hidden_N = rng.random(rows) < rng.uniform(0.03, 0.2)
            hidden_N[[1, train_rows]] = True
            frame[column] = frame[column].mask(hidden_N)
    return frame, signal_N


def _scaled(values_N: NDArray[np.float64], rng: np.random.Generator) -> NDArray[Any]:
    match int(rng.integers(3)):
        case 0:
            return np.round(values_N * rng.uniform(0.5, 20) + rng.uniform(-5, 100), int(rng.integers(1, 4)))
        case 1:
            return np.round(values_N * rng.uniform(5, 50) + rng.uniform(100, 300)).astype(np.int64)
        case _:
            return np.round(np.exp(values_N * 0.7 + rng.uniform(0, 4)), 2)


def _classes(signal_N: NDArray[np.float64], rng: np.random.Generator) -> tuple[NDArray[Any], str]:
    """Labels by quantiles of the signal (as text or as whole numbers), and a metric."""
    classes = int(rng.choice([2, 2, 3, 4]))
    shares = np.cumsum(rng.dirichlet(np.full(classes, 8.0)))[:-1]
    codes_N = np.searchsorted(np.quantile(signal_N, shares), signal_N)
    if rng.random() < 0.5:
        labels: list[object] = list(range(classes)) if rng.random() < 0.7 else list(range(1, classes + 1))
    elif classes == 2 and rng.random() < 0.7:
        labels = list(_BINARY_LABELS[int(rng.integers(len(_BINARY_LABELS)))])
    else:
        labels = [str(word) for word in rng.choice(_LEVELS, size=classes, replace=False)]
    metrics = _METRICS["two classes" if classes == 2 else "more classes"]
    return np.array(labels, dtype=object)[codes_N], str(rng.choice(metrics))


def _amounts(signal_N: NDArray[np.float64], rng: np.random.Generator) -> tuple[NDArray[Any], str]:
    """A positive or a signed amount, skewed or not, never all whole numbers; and a metric."""
    if rng.random() < 0.6:
        amounts_N = np.exp(0.5 * signal_N + rng.uniform(0, 6))
        return np.round(amounts_N + 0.01, 2), str(rng.choice(_METRICS["positive"]))
    return np.round(signal_N * rng.uniform(1, 40) + rng.uniform(-20, 20), 2), str(rng.choice(_METRICS["signed"]))


def _ids(rows: int, rng: np.random.Generator) -> NDArray[np.object_]:
    numbers_N = rng.choice(np.arange(1000, 1000 + 5 * rows), size=rows, replace=False)
    if rng.random() < 0.7:
        return np.array(numbers_N, dtype=object)
    letter = str(rng.choice(list("ABCKNRSTX")))
    return np.array([f"{letter}{number}" for number in numbers_N], dtype=object)
