"""Which actions have no score? Calls that fail more on bad, on long or on one role's actions leave those out of
training, and a mean over what is left looks better than it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from coachrl.audit.data.frame import ended_well
from coachrl.audit.data.sample import Floats, Ints, Sample
from coachrl.audit.stats.within import leaning, slope, taken_out
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import SHARE_CHANGE

_FAILURES = partial(
    TopicFinding,
    "failures",
    cleared="failed calls hit all kinds of actions alike",
    unsure="too few failed calls or tasks to say whether they hit some actions more",
)
# How bad an unscored action was is seen in part only; roles are compared inside of tasks, which is the surest.
_WORSE_WEIGHT, _LONGER_WEIGHT, _ROLES_WEIGHT = 5.0, 0.5, 0.3
# What flatters a team is calls that fail on bad work; that they fail on good work is the lesser fear.
_WORSE_FAILING_MORE = 0.9
_LEAST_TOLD = 0.1  # below, a guess says too little of what an action would have been given


def missing_scores(rows: pd.DataFrame) -> TopicFinding:
    """rows: all actions of one rater. An abstention is no failure, and is left out."""
    asked = rows[rows["status"] != "abstained"]
    failed = (asked["status"] == "failed").to_numpy(np.float64)
    if failed.sum() == 0:
        return _FAILURES([], cleared="no score is missing, for any kind of action")
    if failed.all():
        return _FAILURES([], unmeasured="every call failed")
    sample = Sample.of(asked.assign(score=failed), resamples=1)
    effects = [
        effect for one in _questions(sample, asked["score"].to_numpy(np.float64)) if (effect := _effect(sample, one))
    ]
    return _FAILURES(effects, unmeasured="" if effects else "actions do not differ")


@dataclass(frozen=True)
class _Question:
    """Do calls on some actions fail more? which: these; x_N: a number that is higher by 1 for them than for others;
    cells: what is held equal. weight: of its test; failing_more: the share of its error rate for the side of more."""

    which: str
    x_N: Floats
    cells: Sequence[str]
    weight: float
    failing_more: float = 0.5


def _questions(sample: Sample, scores_N: Floats) -> Iterator[_Question]:
    role_N, _ = sample.codes(("role",))
    worse_N = _halves(_badness(sample, scores_N), role_N)
    told = _told(worse_N, scores_N, role_N)
    if told > _LEAST_TOLD:
        worse = "of the worse half (by outcome, exit state and company)"
        yield _Question(worse, told * worse_N, ("role",), _WORSE_WEIGHT, _WORSE_FAILING_MORE)
    longer_N = _halves(sample.values("tokens"), role_N)
    yield _Question("of the longer half", longer_N, ("role",), _LONGER_WEIGHT)
    names = sample.levels("role")
    for name in names:
        yield _Question(f"of {name}", sample.matches("role", name), ("task",), _ROLES_WEIGHT / len(names))


def _effect(sample: Sample, asked: _Question) -> Effect | None:
    """sample: its scores are 1 where a call failed. None where the actions do not differ in what is asked about."""
    found = slope(sample, asked.x_N, sample.scores, asked.cells, limits=SHARE_CHANGE)
    if found is None:
        return None
    what = f"calls on actions {asked.which} fail"
    named = (
        f"{what} {'more' if found.value > 0 else 'less'} often than others: {found.interval(True)} of calls "
        f"({found.size}); what is left is no fair sample"
    )
    return Effect(what, named, replace(found, p=leaning(found, asked.failing_more)), "share", weight=asked.weight)


def _halves(values_N: Floats, role_N: Ints) -> Floats:
    """Twice the rank inside of the role, 0 to 2: on average the upper half is 1 above the lower."""
    found_N = np.empty(len(values_N))
    for role in np.unique(role_N):
        places = np.flatnonzero(role_N == role)
        found_N[places] = 2 * stats.rankdata(values_N[places]) / len(places)
    return found_N


def _told(guessed_N: Floats, scores_N: Floats, role_N: Ints) -> float:
    """By how much the halves by score are apart for one more of the guess, among actions that have a score. So much of
    a difference between the halves shows between the halves that were guessed (regression calibration, Carroll et al.
    2006)."""
    known_N = np.isfinite(scores_N)
    low_N, left_N = _halves(-scores_N[known_N], role_N[known_N]), taken_out(guessed_N[known_N], role_N[known_N])
    return float(left_N @ low_N) / max(float(left_N @ left_N), 1e-9)


def _badness(sample: Sample, scores_N: Floats) -> Floats:
    """How low a score would be expected of an action, by what is known of the unscored ones too: the episode's outcome,
    how its code ended, teammates' scores in the same episode and the scores of the task's other episodes. How much each
    counts is learnt by least squares from the actions with a score, of each role by itself: the outcome says more of
    whoever acted last. Whether a call failed has no part in it, so that failures at random stay at random."""
    frame = sample.frame
    crashed_N = frame["has_code"].to_numpy(bool) & ~ended_well(frame["state"])
    of_episode_N = _company(sample, scores_N, ("run", "episode"))
    signs = (
        sample.matches("result", "failure"),
        crashed_N.astype(np.float64),
        -of_episode_N,
        -_company(sample, scores_N, ("task",)),
    )
    role_N, _ = sample.codes(("role",))
    known_N = np.isfinite(scores_N)
    signs_NK = np.column_stack([taken_out(sign, role_N) for sign in signs])
    found_N = np.zeros(len(frame))
    for role in np.unique(role_N):
        own_N, scored_N = role_N == role, (role_N == role) & known_N
        if not scored_N.any():
            continue
        left_N = scores_N[scored_N].mean() - scores_N[scored_N]
        weights_K, *_ = np.linalg.lstsq(signs_NK[scored_N], left_N, rcond=None)
        found_N[own_N] = signs_NK[own_N] @ np.maximum(weights_K, 0.0)
    return found_N


def _company(sample: Sample, scores_N: Floats, group: Sequence[str]) -> Floats:
    """Mean score of the group's other actions, as far above their roles' means; 0 where none has a score."""
    role_N, _ = sample.codes(("role",))
    known_N = np.isfinite(scores_N)
    left_N = np.zeros(len(scores_N))
    left_N[known_N] = taken_out(scores_N[known_N], role_N[known_N])
    group_N, groups = sample.codes(group)
    others_N = np.bincount(group_N, known_N, groups)[group_N] - known_N
    return np.asarray((np.bincount(group_N, left_N, groups)[group_N] - left_N) / np.maximum(others_N, 1))
