"""Do an episode's actions get scores of their own? A coach may give all of them one score (halo), or hand the outcome
on to each: then no agent learns what was its own doing. Both are facts about scores, whatever was deserved."""

from __future__ import annotations

from functools import partial

import numpy as np

from coachrl.audit.data.sample import Floats, Sample
from coachrl.audit.stats.within import by_task, first_over_second, over_tasks, taken_out
from coachrl.audit.topics.effect import TopicFinding, surely_above
from coachrl.stats import CORRELATION, SHARE, Estimate, ratio

HALO = 0.7  # share of what tells scores apart, at equal role and outcome, that an episode's actions have in common
COPIED = 0.64  # share of the variance of a role's scores that the outcome explains: a correlation of 0.8
_EQUAL = 1e-9
_HALO = partial(
    TopicFinding,
    "halo",
    cleared="actions of an episode get scores of their own",
    unsure="too few tasks to say whether actions of an episode get scores of their own",
)
_COPYING = partial(
    TopicFinding,
    "copying",
    cleared="scores say more than the outcome does",
    unsure="too few tasks to say whether scores say more than the outcome does",
)


def halo(sample: Sample) -> TopicFinding:
    """The intraclass correlation of an episode's actions, at equal role and outcome."""
    roles = sample.frame.groupby(["run", "episode"], observed=True)["role"].transform("nunique")
    several = sample.where(roles > 1)
    if several.frame.empty:
        return _HALO([], unmeasured="no episode has scores for two roles")
    cells_N, _ = several.codes(("role", "result"))
    left_N = taken_out(several.scores, cells_N)
    if np.allclose(left_N, 0):
        return _HALO([], unmeasured="scores do not differ at equal role and outcome")
    episode_N, episodes = several.codes(("run", "episode"))
    count_E = np.bincount(episode_N, minlength=episodes)
    sum_E, squares_E = np.bincount(episode_N, left_N), np.bincount(episode_N, left_N**2)
    shared_E = (sum_E**2 - squares_E) / np.maximum(count_E - 1, 1)
    sums_TV = by_task(several, shared_E[episode_N] / count_E[episode_N], left_N**2)
    share = over_tasks(sums_TV, first_over_second, len(left_N), limits=CORRELATION, null=HALO)
    scores = several.frame.groupby(["run", "episode"], observed=True)["score"]
    equal = float((scores.max() - scores.min() <= _EQUAL).mean())
    what = "share of the spread of scores that an episode's actions have in common, at equal role and outcome,"
    named = (
        f"gives the actions of an episode one score: {share.value:.0%} of what tells scores apart at equal role and "
        f"outcome is common to all of them ({share.interval()}, {share.size}); in {equal:.0%} of {episodes:,} episodes "
        "all scores are equal: no agent learns what was its own doing"
    )
    return _HALO([surely_above(what, named, share, [share], HALO)])


def copying(sample: Sample) -> TopicFinding:
    """How much of the variance of scores the outcome explains, of the role where it explains least. A role that acts in
    successes or in failures alone cannot tell, and is left out."""
    measured = sample.where(sample.frame["outcome"].notna())
    can_tell = {role: part for role, part in measured.by("role").items() if part.frame["outcome"].nunique() > 1}
    by_role = {role: _explained(part) for role, part in can_tell.items()}
    found = {role: estimate for role, estimate in by_role.items() if estimate is not None}
    if not found or len(found) < len(by_role):
        return _COPYING([], unmeasured="outcomes or scores of a role do not differ")
    least_role, least = min(found.items(), key=lambda item: item[1].value)
    what = f"share of the variance of {least_role}'s scores that the outcome explains"
    named = (
        f"copies the outcome, or most of it, to every action: it explains {least.value:.0%} of the variance of each "
        f"role's scores or more ({least_role}: {least.interval()}, {least.size}); only the rest says more than it does"
    )
    return _COPYING([surely_above(what, named, least, found.values(), COPIED)])


def _explained(sample: Sample) -> Estimate | None:
    """Squared correlation of score and outcome."""
    x_N, y_N = sample.values("outcome"), sample.scores
    if np.ptp(y_N) <= _EQUAL:
        return None
    sums_TV = by_task(sample, np.ones(len(x_N)), x_N, y_N, x_N * x_N, y_N * y_N, x_N * y_N)
    return over_tasks(sums_TV, _squared_correlation, len(x_N), limits=SHARE, null=COPIED, weight=0)


def _squared_correlation(sums_RV: Floats) -> Floats:
    n, x, y, xx, yy, xy = sums_RV.T
    return ratio((n * xy - x * y) ** 2, (n * xx - x * x) * (n * yy - y * y))
