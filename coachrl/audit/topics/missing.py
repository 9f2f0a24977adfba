"""Which actions have no score? Calls that fail more on bad, on long or on one role's actions leave those out of
training, and a mean over what is left looks better than it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.within import Floats, slope, taken_out
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import SHARE_CHANGE

_CLEARED = "failed calls hit all kinds of actions alike"
_UNSURE = "too few failed calls or tasks to say whether they hit some actions more"
_WORSE = "of the worse half (by outcome, exit state and company)"
_WORSE_WEIGHT, _OTHER_WEIGHT = 3.0, 1.0  # how bad an unscored action was is seen in part only


def missing_scores(rows: pd.DataFrame) -> TopicFinding:
    """rows: all actions of one rater. An abstention is no failure, and is left out."""
    asked = rows[rows["status"] != "abstained"]
    failed = (asked["status"] == "failed").to_numpy(np.float64)
    if failed.sum() == 0:
        return TopicFinding("failures", [], "no score is missing, for any kind of action", _UNSURE, "")
    if failed.all():
        return TopicFinding("failures", [], _CLEARED, _UNSURE, "every call failed")
    sample = Sample.of(asked.assign(score=failed), resamples=1)
    hit = [
        (f"calls on actions {words}", slope(sample, x_N, sample.scores, cells, limits=SHARE_CHANGE))
        for words, x_N, cells in _questions(sample, asked["score"].to_numpy(np.float64))
    ]
    measured = [(what, found) for what, found in hit if found is not None]
    effects = [
        Effect(
            f"{what} fail",
            f"{what} fail {'more' if found.value > 0 else 'less'} often than others: {found.interval(True)} of calls "
            f"({found.size}); what is left is no fair sample",
            found,
            "share",
            weight=_WORSE_WEIGHT if what.endswith(_WORSE) else _OTHER_WEIGHT / len(measured),
        )
        for what, found in measured
    ]
    return TopicFinding("failures", effects, _CLEARED, _UNSURE, "" if effects else "actions do not differ")


def _questions(sample: Sample, scores_N: Floats) -> Iterator[tuple[str, Floats, Sequence[str]]]:
    """(which half of the actions, a number that is higher by 1 for it than for the other, what is held equal)."""
    frame = sample.frame
    role_N, _ = sample.codes(("role",))
    yield (
        _WORSE,
        _halves(_badness(sample, scores_N), role_N),
        ("role",),
    )
    yield "of the longer half", _halves(frame["tokens"].to_numpy(np.float64), role_N), ("role",)
    if len(names := sample.levels("role")) > 1:
        for name in names:
            yield f"of {name}", sample.matches("role", name), ("task",)


def _halves(values_N: Floats, role_N: NDArray[np.int64]) -> Floats:
    """Twice the rank inside of the role, 0 to 2: on average the upper half is 1 above the lower."""
    found_N = np.empty(len(values_N))
    for role in np.unique(role_N):
        places = np.flatnonzero(role_N == role)
        found_N[places] = 2 * stats.rankdata(values_N[places]) / len(places)
    return found_N


def _badness(sample: Sample, scores_N: Floats) -> Floats:
    """How low a score would be expected of an action, by what is known of the unscored ones too: the episode's outcome,
    how its code ended, teammates' scores in the same episode and the scores of the task's other episodes. How much each
    counts is learnt by least squares from the actions with a score, inside of roles. Whether a call failed has no part
    in it, so that failures at random stay at random."""
    frame = sample.frame
    sound = np.array([str(state).startswith("ok") for state in frame["state"].cat.categories])
    crashed_N = frame["has_code"].to_numpy(bool) & ~sound[frame["state"].cat.codes]
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
    weights_K, *_ = np.linalg.lstsq(signs_NK[known_N], -taken_out(scores_N[known_N], role_N[known_N]), rcond=None)
    return np.asarray(signs_NK @ np.maximum(weights_K, 0.0))


def _company(sample: Sample, scores_N: Floats, group: Sequence[str]) -> Floats:
    """Mean score of the group's other actions, as far above their roles' means; 0 where none has a score."""
    role_N, roles = sample.codes(("role",))
    known_N = np.isfinite(scores_N)
    counts = np.maximum(np.bincount(role_N[known_N], minlength=roles), 1)
    means = np.bincount(role_N[known_N], scores_N[known_N], roles) / counts
    left_N = np.where(known_N, scores_N - means[role_N], 0.0)
    group_N, groups = sample.codes(group)
    others_N = np.bincount(group_N, known_N, groups)[group_N] - known_N
    return np.asarray((np.bincount(group_N, left_N, groups)[group_N] - left_N) / np.maximum(others_N, 1))
