"""Does a coach score as people do? Agreement with people's scores of the same actions, and calibration to them.

Of an action that several people scored, theirs is the mean. With x the coach's scores and y people's, over the actions
that both scored:

    kappa = 1 - mean (x - y)^2 / (var x + var y + (mean x - mean y)^2)

Cohen's weighted kappa with quadratic weights (Cohen 1968, Psychological Bulletin 70): observed over expected squared
difference, for scores of any fineness (it is then Lin's concordance coefficient, 1989). ICC(A,1) is that of absolute
agreement of single scores (McGraw and Wong 1996; ICC(2,1) of Shrout and Fleiss 1979). Intervals resample whole tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from coachrl.audit.data.frame import AuditData
from coachrl.audit.data.sample import Floats, Sample
from coachrl.audit.stats.agreement import coefficients, defined
from coachrl.coach.kinds.calibrated import CalibrationFile, RoleCurve
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.labels import read_labels
from coachrl.stats import CORRELATION, SCORE, SCORE_CHANGE, Estimate, ratio
from coachrl.text import counted

FEWEST_LABELS = 30  # scored actions of a role, and
FEWEST_TASKS = 5  # tasks that they are of, below which no curve is fitted
_FOLDS = 5
_MOST_PERSONS = 6  # of whom each two are compared: a class of 60 would be 1,770 pairs


@dataclass(frozen=True)
class PeopleRow:
    """One role, or all of them where it is empty. shift: the second's score minus the first's, mean; mean_change: the
    mean absolute difference. kappa, icc: None where the scores have no spread to agree on."""

    role: str
    kappa: Estimate | None
    icc: Estimate | None
    shift: Estimate
    mean_change: Estimate


@dataclass(frozen=True)
class PeopleAgreement:
    """Two raters: people together and a coach, or two persons."""

    pipeline: str
    first: str
    second: str
    rows: Sequence[PeopleRow]


@dataclass(frozen=True)
class People:
    """What people say of the coaches of some runs. raters: their names; labels: how many there are, of how many
    actions. coaches: each coach against people; persons: each two persons that scored the same actions."""

    raters: Sequence[str]
    labels: int
    actions: int
    coaches: Sequence[PeopleAgreement]
    persons: Sequence[PeopleAgreement]
    notes: Sequence[str]


def people_agreement(data: AuditData, resamples: int, seed: int) -> People | None:
    """None where no run holds a label."""
    notes: list[str] = []
    labels = _labels(data.runs, notes)
    if labels.empty:
        return None
    coaches: list[PeopleAgreement] = []
    persons: list[PeopleAgreement] = []
    actions = data.actions[["run", "pipeline", "action", "role", "task", "rater", "score"]]
    labels = _still_held(labels, data.actions, notes)
    for pipeline, inside in actions.groupby("pipeline", observed=True):
        named = inside.merge(labels.rename(columns={"rater": "person", "score": "people"}), on=["run", "action"])
        for rater, both in _with_coaches(named[named["score"].notna()]):
            coaches.append(PeopleAgreement(str(pipeline), "people", rater, _rows(both, resamples, seed)))
        for one, other, both in _with_each_other(named, notes):
            persons.append(PeopleAgreement(str(pipeline), one, other, _rows(both, resamples, seed)))
    if not coaches:
        notes.append("people scored no action that a coach scored too: their agreement cannot be measured")
    if unknown := len(labels) - len(labels.merge(actions[["run", "action"]].drop_duplicates())):
        notes.append(f"{counted(unknown, 'score')} of actions that no coach was asked about, or that were not read")
    names = sorted(labels["rater"].unique())
    return People(names, len(labels), len(labels.drop_duplicates(["run", "action"])), coaches, persons, notes)


def _with_coaches(named: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each coach, with people's scores together and its own. named: a row for each label and coach's score."""
    for rater, rows in named.groupby("rater", observed=True):
        both = rows.groupby(["run", "action"], observed=True, as_index=False).agg(
            role=("role", "first"), task=("task", "first"), first=("people", "mean"), second=("score", "first")
        )
        yield str(rater), both


def _with_each_other(named: pd.DataFrame, notes: list[str]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Each two persons who scored the same actions, with the scores of both."""
    once = named.drop_duplicates(["run", "action", "person"])
    busiest = once["person"].value_counts().sort_index().sort_values(ascending=False, kind="stable").index
    if len(busiest) > _MOST_PERSONS:
        notes.append(
            f"of {len(busiest)} people the {_MOST_PERSONS} who scored most actions are compared with each other; "
            "against the coach all count"
        )
    keys = ["run", "action", "role", "task"]
    for one, other in combinations(sorted(busiest[:_MOST_PERSONS]), 2):
        wide = once[once["person"].isin([one, other])].astype(dict.fromkeys(keys, str))
        wide = wide.pivot_table(index=keys, columns="person", values="people").dropna().reset_index()
        if one in wide and other in wide and len(wide):
            yield one, other, wide.rename(columns={one: "first", other: "second"})


def quadratic_kappa(sums_RV: Floats) -> Floats:
    """Weighted kappa from sums of: ones, x, y, x^2 + y^2, x y."""
    n, x, y, squares, products = sums_RV.T
    observed = ratio(squares - 2 * products, n)
    expected = ratio(squares, n) - 2 * ratio(x, n) * ratio(y, n)
    return 1 - ratio(observed, expected)


def fit_calibration(run: Run, data: AuditData) -> CalibrationFile:
    """The curve of each role from the scores of the run's own coach to people's, never falling (isotonic regression).

    Raises ConfigError where a role has too few labels for one.
    """
    if run.config().coach.calibration is not None:
        raise ConfigError(f"{run.folder}: its scores are calibrated already: fit a curve to the coach as it is")
    own = [name for name, scorer in data.scorers.items() if not scorer.label]
    labels = _labels({name: folder for name, folder in data.runs.items() if folder == run.folder}, [])
    labels = _still_held(labels, data.actions, [])
    rows = data.actions[data.actions["rater"].isin(own) & data.actions["score"].notna()]
    people = labels.groupby("action")["score"].mean() if len(labels) else pd.Series(dtype=float)
    rows = rows.assign(people=rows["action"].map(people))
    curves: dict[str, RoleCurve] = {}
    for role in map(str, rows["role"].unique()):
        labelled = rows[(rows["role"] == role) & rows["people"].notna()]
        tasks = labelled["task"].nunique()
        if len(labelled) < FEWEST_LABELS or tasks < FEWEST_TASKS:
            raise ConfigError(
                f"role '{role}' has {counted(len(labelled), 'action')} of {counted(tasks, 'task')} that people scored; "
                f"a curve needs {FEWEST_LABELS} of {FEWEST_TASKS} tasks for every role: score more in "
                f"`coachrl view {quote(str(run.folder))}` at /rate"
            )
        curves[role] = _curve(labelled)
    if not curves:
        raise ConfigError(f"{run.folder} holds no score of its own coach: there is nothing to calibrate")
    prompts = {data.scorers[name].prompt for name in own}
    return CalibrationFile(
        coach=run.config().coach.label,
        prompt_hash=prompts.pop() if len(prompts) == 1 else "",
        raters=tuple(sorted(labels["rater"].unique())),
        roles=curves,
    )


def _curve(labelled: pd.DataFrame) -> RoleCurve:
    given, people = labelled["score"].to_numpy(np.float64), labelled["people"].to_numpy(np.float64)
    tasks = np.asarray(labelled["task"].astype(str))
    curve = IsotonicRegression(y_min=0.0, y_max=10.0, out_of_bounds="clip")
    # Each task's actions are predicted from a curve that was fitted to other tasks.
    elsewhere = cross_val_predict(curve, given, people, groups=tasks, cv=GroupKFold(_FOLDS))
    curve.fit(given, people)
    return RoleCurve(
        given=tuple(map(float, curve.X_thresholds_)),
        people=tuple(float(value) for value in np.clip(curve.y_thresholds_, 0, 10)),
        actions=len(labelled),
        tasks=len(set(tasks)),
        error_as_given=float(np.abs(given - people).mean()),
        error_calibrated=float(np.abs(elsewhere - people).mean()),
    )


def _labels(runs: Mapping[str, Path], notes: list[str]) -> pd.DataFrame:
    rows = []
    for name, folder in runs.items():
        problems: list[str] = []
        rows += [
            (name, one.action_id, one.rater, one.score, one.action_digest) for one in read_labels(Run(folder), problems)
        ]
        notes += [f"run {name}: {problem}" for problem in problems]
    return pd.DataFrame(rows, columns=["run", "action", "rater", "score", "action_digest"])


def _still_held(labels: pd.DataFrame, actions: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Without the labels of replies that no longer stand under their ids."""
    now = actions.drop_duplicates(["run", "action"]).astype({"run": str})[["run", "action", "action_digest"]]
    digests = labels.merge(now, on=["run", "action"], how="left", suffixes=("", "_now"))
    is_other = (digests["action_digest"] != digests["action_digest_now"]) & (digests["action_digest"] != "")
    is_other &= digests["action_digest_now"].notna()
    if is_other.any():
        notes.append(f"{counted(int(is_other.sum()), 'score')} left out, of replies that the run no longer holds")
    return labels[~is_other.to_numpy()].drop(columns="action_digest")


def _rows(both: pd.DataFrame, resamples: int, seed: int) -> list[PeopleRow]:
    """All roles together, then each where there are several."""
    roles = sorted(map(str, both["role"].unique()))
    parts = [("", both), *((role, both[both["role"] == role]) for role in roles if len(roles) > 1)]
    return [_row(role, part, resamples, seed) for role, part in parts]


def _row(role: str, both: pd.DataFrame, resamples: int, seed: int) -> PeopleRow:
    sample = Sample.of_tasks(both["task"], resamples, seed)
    x, y = both["first"].to_numpy(np.float64), both["second"].to_numpy(np.float64)
    icc, _ = coefficients(both, ["first", "second"], sample)
    return PeopleRow(
        role=role,
        kappa=defined(sample.total(quadratic_kappa, x, y, x**2 + y**2, x * y, limits=CORRELATION)),
        icc=icc,
        shift=sample.mean(y - x, limits=SCORE_CHANGE),
        mean_change=sample.mean(np.abs(y - x), limits=SCORE),
    )
