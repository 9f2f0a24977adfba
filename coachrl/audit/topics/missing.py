"""Which actions have no score? Calls that fail more on bad, on long or on one role's actions leave those out of
training, and a mean over what is left looks better than it is."""

from __future__ import annotations

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.within import Floats, slope
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import SHARE_CHANGE

_CLEARED = "failed calls hit all kinds of actions alike"
_UNSURE = "too few failed calls or tasks to say whether they hit some actions more"
_WEIGHT = 2.0


def missing_scores(rows: pd.DataFrame) -> TopicFinding:
    """rows: all actions of one rater. An abstention is no failure, and is left out."""
    asked = rows[rows["status"] != "abstained"]
    failed = (asked["status"] == "failed").to_numpy(np.float64)
    if failed.sum() == 0:
        return TopicFinding("failures", [], "no call failed", _UNSURE, "")
    if failed.all():
        return TopicFinding("failures", [], _CLEARED, _UNSURE, "every call failed")
    sample = Sample.of(asked.assign(score=failed), resamples=1)
    hit = [
        (f"calls on actions {words}", slope(sample, x_N, sample.scores, cells, controls, SHARE_CHANGE))
        for words, x_N, cells, controls in _questions(sample, asked["score"].to_numpy(np.float64))
    ]
    measured = [(what, found) for what, found in hit if found is not None]
    effects = [
        Effect(
            f"{what} fail",
            f"{what} fail {'more' if found.value > 0 else 'less'} often than others: {found.interval(True)} of calls "
            f"({found.size}); what is left is no fair sample",
            found,
            "share",
            weight=_WEIGHT / len(measured),
        )
        for what, found in measured
    ]
    return TopicFinding("failures", effects, _CLEARED, _UNSURE, "" if effects else "actions do not differ")


def _questions(sample: Sample, scores_N: Floats):  # type: ignore[no-untyped-def]
    """(which actions, 1 for each of them, what is held equal)."""
    frame = sample.frame
    yield "of failed episodes", (frame["result"] == "failure").to_numpy(np.float64), ("task", "role"), ()
    crashed = frame["has_code"].to_numpy(bool) & ~frame["state"].astype(str).str.startswith("ok").to_numpy(bool)
    yield "whose code failed", crashed.astype(np.float64), ("task", "role"), ()
    median_N = frame["tokens"].groupby(frame["role"], observed=True).transform("median")
    yield "longer than their role's median", (frame["tokens"] > median_N).to_numpy(np.float64), ("task", "role"), ()
    yield "in badly scored company", _bad_company(sample, scores_N), ("task", "role"), ()
    if len(names := sample.levels("role")) > 1:
        for name in names:
            yield f"of {name}", (frame["role"] == name).to_numpy(np.float64), ("task",), (("result",),)


def _bad_company(sample: Sample, scores_N: Floats) -> Floats:
    """1 where the other actions of the episode were scored lower, on average, than such company mostly is."""
    role_N, roles = sample.codes(("role",))
    known_N = np.isfinite(scores_N)
    means = np.bincount(role_N[known_N], scores_N[known_N], roles) / np.maximum(
        np.bincount(role_N[known_N], minlength=roles), 1
    )
    left_N = np.where(known_N, scores_N - means[role_N], 0.0)
    episode_N, episodes = sample.codes(("run", "episode"))
    others_N = np.bincount(episode_N, known_N, episodes)[episode_N] - known_N
    company_N = (np.bincount(episode_N, left_N, episodes)[episode_N] - left_N) / np.maximum(others_N, 1)
    return ((others_N > 0) & (company_N < np.median(company_N))).astype(np.float64)
