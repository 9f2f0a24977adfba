"""The tables that the tasks of dsbench-lite (`dsbench_lite.yaml`) are made from.

Every table comes out of an installed package; nothing is downloaded. As their packages state it:

| set           | package          | source                                                  | licence         |
|---------------|------------------|---------------------------------------------------------|-----------------|
| breast_cancer | scikit-learn     | Wolberg, Mangasarian, Street (1993), UCI                | CC BY 4.0 (UCI) |
| digits        | scikit-learn     | Alpaydin, Kaynak (1998), UCI, its test part             | CC BY 4.0 (UCI) |
| iris          | scikit-learn     | Fisher (1936), UCI                                      | CC BY 4.0 (UCI) |
| wine          | scikit-learn     | Aeberhard, Forina (1991), UCI                           | CC BY 4.0 (UCI) |
| diabetes      | scikit-learn     | Efron, Hastie, Johnstone, Tibshirani (2004)             | none stated     |
| titanic       | bokeh-sampledata | historical passenger list                               | public domain   |
| penguins      | bokeh-sampledata | Gorman, Palmer Station LTER; Horst, Hill, Gorman (2020) | CC0             |
| autompg       | bokeh-sampledata | Donoho, Ramos (1982), StatLib                           | CC0             |
| autompg2      | bokeh-sampledata | US EPA, fueleconomy.gov                                 | public domain   |
| glass         | bokeh-sampledata | Glass identification data                               | public domain   |
| superstore    | bokeh-sampledata | Tableau's sample of sales                               | CC0             |
| gapminder     | bokeh-sampledata | Gapminder.org                                           | CC BY 2.0       |
| lung          | lifelines (MIT)  | Loprinzi et al. (1994), NCCTG                           | none stated     |
| rossi         | lifelines (MIT)  | Rossi, Berk, Lenihan (1980)                             | none stated     |
| gbsg2         | lifelines (MIT)  | Schumacher et al. (1994), German Breast Cancer Study    | none stated     |
| actg175       | lifelines (MIT)  | Hammer et al. (1996), AIDS Clinical Trials Group 175    | none stated     |

scikit-learn itself is BSD-3-Clause and names the origins without licences; the licences of its sets are UCI's own.
No data set is on both sides of the train/held-out split.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml
from pydantic import TypeAdapter
from sklearn import datasets

from coachrl.errors import TaskError
from coachrl.tasks.tabular.layout import TabularTask


@dataclass(frozen=True, kw_only=True)
class LiteTask(TabularTask):
    """A task on one of the sets. without: the columns that are left out."""

    split: Literal["train", "eval"]
    source: str
    without: tuple[str, ...] = ()


def load_set(source: str) -> pd.DataFrame:
    """The table of one set. Raises TaskError with the pip command where its package, or its file there, is missing."""
    try:
        return _SETS[source]()
    except OSError as error:
        raise TaskError(
            f"the data set {source} cannot be read: {error}; pip install --upgrade 'coachrl[tabular]'"
        ) from error


def _from_sklearn(name: str, target: str, named: bool = False) -> pd.DataFrame:
    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = bunch.data.rename(columns=_snake)
    labels = bunch.target.map(dict(enumerate(map(str, bunch.target_names)))) if named else bunch.target
    return frame.assign(**{target: labels})


def _snake(column: object) -> str:
    """ "sepal length (cm)" -> "sepal_length_cm"."""
    return "_".join("".join(letter if letter.isalnum() else " " for letter in str(column).lower()).split())


def _digits() -> pd.DataFrame:
    return _from_sklearn("digits", "digit").astype(int)


def _diabetes() -> pd.DataFrame:
    bunch = datasets.load_diabetes(as_frame=True, scaled=False)
    return bunch.data.assign(progression=bunch.target.astype(int), sex=bunch.data["sex"].map({1: "a", 2: "b"}))


def _bokeh(module: str, attribute: str = "data") -> pd.DataFrame:
    name = "bokeh_sampledata"
    _package(name)
    return getattr(importlib.import_module(f"{name}.{module}"), attribute).copy()


def _superstore() -> pd.DataFrame:
    frame = _bokeh("sample_superstore").rename(columns=_snake)
    return frame.assign(loss=frame["profit"].lt(0).map({True: "yes", False: "no"}))


def _gapminder() -> pd.DataFrame:
    """One row per country and tenth year; only rows that know the life expectancy."""
    years = [str(year) for year in range(1970, 2011, 10)]
    long = [
        _bokeh("gapminder", table)[years].melt(ignore_index=False, var_name="year", value_name=table)
        for table in ("fertility", "population", "life_expectancy")
    ]
    keyed = [table.set_index("year", append=True) for table in long]
    frame = pd.concat(keyed, axis=1).reset_index(names=["country", "year"])
    regions = _bokeh("gapminder", "regions")["Group"].rename("region")
    return frame.merge(regions, left_on="country", right_index=True, how="left").dropna(subset="life_expectancy")


def _lifelines(file: str) -> pd.DataFrame:
    return pd.read_csv(_package("lifelines") / "datasets" / file)


def _package(name: str) -> Path:
    """Folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise TaskError(f"dsbench-lite needs the package {name}: pip install 'coachrl[tabular]'")
    return Path(spec.origin).parent


_SETS: Mapping[str, Callable[[], pd.DataFrame]] = {
    "breast_cancer": lambda: _from_sklearn("breast_cancer", "diagnosis", named=True),
    "digits": _digits,
    "iris": lambda: _from_sklearn("iris", "species", named=True),
    "wine": lambda: _from_sklearn("wine", "cultivar"),
    "diabetes": _diabetes,
    "titanic": lambda: _bokeh("titanic"),
    "penguins": lambda: _bokeh("penguins"),
    "autompg": lambda: _bokeh("autompg", "autompg_clean"),
    "autompg2": lambda: _bokeh("autompg2", "autompg2"),
    "glass": lambda: _bokeh("forensic_glass").round(4),
    "superstore": _superstore,
    "gapminder": _gapminder,
    "lung": lambda: _lifelines("lung.csv"),
    "rossi": lambda: _lifelines("rossi.csv"),
    "gbsg2": lambda: _lifelines("gbsg2.csv"),
    "actg175": lambda: _lifelines("ACTG175.csv"),
}

TASKS = TypeAdapter(tuple[LiteTask, ...]).validate_python(
    yaml.safe_load(Path(__file__).with_name("dsbench_lite.yaml").read_text(encoding="utf-8"))
)
