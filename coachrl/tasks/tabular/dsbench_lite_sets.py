"""The tasks of dsbench-lite: which columns of which real data set, what to predict, and by which metric.

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
from sklearn import datasets

from coachrl.errors import TaskError


@dataclass(frozen=True)
class LiteTask:
    """One task: a set with columns left out. about: what a row is and what is asked, for the prompt."""

    name: str
    split: Literal["train", "eval"]
    category: Literal["classification", "regression"]
    metric: str
    source: str
    target: str
    about: str
    id_column: str = "id"
    without: tuple[str, ...] = ()


def load_set(source: str) -> pd.DataFrame:
    """The table of one set. Raises TaskError with the pip command where its package is not installed."""
    return _SETS[source]()


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

# Later measurements and outcomes of the AIDS trial, which a prediction at 20 weeks may not use.
_ACTG_LATER = ("Unnamed: 0", "pidnum", "zprior", "offtrt", "cd496", "r", "cd820", "days")

# The categories alternate, so that the first n tasks of a split hold both.
TASKS = (
    LiteTask(
        name="titanic-survival",
        split="train",
        category="classification",
        metric="accuracy",
        source="titanic",
        target="survived",
        id_column="passenger_id",
        about="Each row is a passenger of the Titanic. Predict who survived (1) or not (0). Many ages are missing.",
    ),
    LiteTask(
        name="diabetes-progression",
        split="train",
        category="regression",
        metric="rmse",
        source="diabetes",
        target="progression",
        about="Each row is a diabetes patient. Predict the progression of the disease one year later.",
    ),
    LiteTask(
        name="iris-species",
        split="train",
        category="classification",
        metric="accuracy",
        source="iris",
        target="species",
        about="Each row is an iris flower, measured in centimetres. Predict its species.",
    ),
    LiteTask(
        name="autompg-mpg",
        split="train",
        category="regression",
        metric="rmse",
        source="autompg",
        target="mpg",
        id_column="car_id",
        about="Each row is a car of the years 1970 to 1982. Predict its fuel economy in miles per gallon.",
    ),
    LiteTask(
        name="wine-cultivar",
        split="train",
        category="classification",
        metric="f1",
        source="wine",
        target="cultivar",
        about="Each row is the chemical analysis of a wine. Predict which of three grape cultivars it was made of.",
    ),
    LiteTask(
        name="epa-highway",
        split="train",
        category="regression",
        metric="mae",
        source="autompg2",
        target="hwy",
        about="Each row is a car of 1999 or 2008. Predict its highway miles per gallon.",
        without=("Unnamed: 0", "cty"),
    ),
    LiteTask(
        name="digits-digit",
        split="train",
        category="classification",
        metric="accuracy",
        source="digits",
        target="digit",
        about="Each row is a handwritten digit as 8 by 8 pixels of brightness 0 to 16. Predict the digit, 0 to 9.",
    ),
    LiteTask(
        name="superstore-sales",
        split="train",
        category="regression",
        metric="rmsle",
        source="superstore",
        target="sales",
        id_column="order_id",
        about="Each row is a line of an order in a shop. Predict its sales in dollars; a few are very large.",
        without=("country", "postal_code", "city", "profit", "loss"),
    ),
    LiteTask(
        name="glass-type",
        split="train",
        category="classification",
        metric="f1",
        source="glass",
        target="type",
        id_column="sample_id",
        about="Each row is a piece of glass: refractive index and shares of oxides. Predict its type; some are rare.",
    ),
    LiteTask(
        name="glass-refraction",
        split="train",
        category="regression",
        metric="mae",
        source="glass",
        target="RI",
        id_column="sample_id",
        about="Each row is a piece of glass: its type and its share of oxides. Predict its refractive index, RI.",
    ),
    LiteTask(
        name="rossi-arrest",
        split="train",
        category="classification",
        metric="roc_auc",
        source="rossi",
        target="arrest",
        about="Each row is a person released from prison. Predict who was arrested within a year (1) or not (0).",
        without=("week", "race"),
    ),
    LiteTask(
        name="lung-karnofsky",
        split="train",
        category="regression",
        metric="mae",
        source="lung",
        target="ph.karno",
        id_column="patient_id",
        about="Each row is a lung cancer patient. Predict the physician's Karnofsky score. Some values are missing.",
        without=("time", "status"),
    ),
    LiteTask(
        name="superstore-loss",
        split="train",
        category="classification",
        metric="f1",
        source="superstore",
        target="loss",
        id_column="order_id",
        about="Each row is a line of an order in a shop. Predict whether it was sold at a loss; most were not.",
        without=("country", "postal_code", "city", "profit"),
    ),
    LiteTask(
        name="gbsg2-estrogen",
        split="train",
        category="regression",
        metric="rmsle",
        source="gbsg2",
        target="estrec",
        id_column="patient_id",
        about="Each row is a breast cancer patient. Predict the estrogen receptor level; it is very skewed.",
        without=("time", "cens"),
    ),
    LiteTask(
        name="breast-cancer-diagnosis",
        split="eval",
        category="classification",
        metric="roc_auc",
        source="breast_cancer",
        target="diagnosis",
        id_column="patient_id",
        about="Each row is a breast mass: measures of its cell nuclei. Predict whether it is malignant or benign.",
    ),
    LiteTask(
        name="penguins-mass",
        split="eval",
        category="regression",
        metric="mae",
        source="penguins",
        target="body_mass_g",
        about="Each row is a penguin. Predict its body mass in grams. Some values are missing.",
    ),
    LiteTask(
        name="penguins-species",
        split="eval",
        category="classification",
        metric="accuracy",
        source="penguins",
        target="species",
        about="Each row is a penguin. Predict its species. Some values are missing.",
        without=("island",),
    ),
    LiteTask(
        name="actg175-cd4",
        split="eval",
        category="regression",
        metric="rmse",
        source="actg175",
        target="cd420",
        id_column="patient_id",
        about="Each row is a patient of an HIV trial. Predict the CD4 count after 20 weeks (cd40 is that at start).",
        without=(*_ACTG_LATER, "cens"),
    ),
    LiteTask(
        name="actg175-event",
        split="eval",
        category="classification",
        metric="f1",
        source="actg175",
        target="cens",
        id_column="patient_id",
        about="Each row is a patient of an HIV trial. Predict who got worse or died (1); most did not (0).",
        without=_ACTG_LATER,
    ),
    LiteTask(
        name="gapminder-life",
        split="eval",
        category="regression",
        metric="rmse",
        source="gapminder",
        target="life_expectancy",
        about="Each row is a country in one year. Predict the life expectancy at birth in years.",
    ),
)
