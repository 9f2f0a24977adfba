"""Does the coach become more lenient, or more severe, while a run trains?

Scores that rise may be earned. What the outcome tells of the team is taken out once (scores at equal task, role,
outcome and exit state), and once again: the outcome shows a team's progress only in part, since it is a yes or no, and
luck has a hand in it. A drift is named where no such share of the progress explains it, and even then the sentence says
what cannot be known without the same actions scored again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from coachrl.audit.data.sample import Floats, Sample
from coachrl.audit.stats.within import first_over_second, one_sided, over_tasks, slope_sums
from coachrl.audit.topics.effect import ALPHA, LEAST, Effect, TopicFinding
from coachrl.stats import SCORE_CHANGE

_CELLS = ("run", "coach", "task", "role")  # of each run and, where another model fell in, of each coach by itself
_CIRCUMSTANCES = (("role", "result", "state"),)
_TIMES_PROGRESS = 2.0
_LENIENCY = partial(
    TopicFinding,
    "leniency",
    cleared="no drift of leniency found, second half of training minus first at equal outcome",
    unsure="too few tasks to say whether the coach drifts",
)
_TO_KNOW = "audit.reference_set=50 has the same actions scored again, which tells a coach that drifts from better work"


def leniency(sample: Sample) -> TopicFinding:
    """Second half of training minus first."""
    if sample.frame["period"].nunique() < 2:
        return _LENIENCY([], unmeasured="scores of one training step only")
    late_N = sample.matches("period", "late")
    sums_TV = slope_sums(sample, late_N, [(sample.scores, _CIRCUMSTANCES), (sample.scores, ())], _CELLS)
    if sums_TV is None:
        return _LENIENCY([], unmeasured="no task was scored by one coach in both halves of training")
    n = len(sample.frame)
    drift = over_tasks(sums_TV, first_over_second, n, limits=SCORE_CHANGE)
    beyond_progress = over_tasks(sums_TV, _progress_counted_again, n, limits=SCORE_CHANGE)
    up = drift.value > 0
    # Both must hold, on the same side: twice the larger of two one-sided p values.
    p = None if drift.p is None else min(1.0, 2 * max(one_sided(one, up) for one in (drift, beyond_progress)))
    words = "more lenient" if up else "more severe"
    named = (
        f"becomes {words}, or work became {'better' if up else 'worse'} in a way that the outcome does not show: "
        f"{drift.interval(True)} points at equal task, role, outcome and exit state, second half of training minus "
        f"first ({drift.size}); {_TO_KNOW}"
    )
    moved = drift.p is not None and drift.p < ALPHA and abs(drift.value) >= LEAST["points"]
    unclear = (
        f"whether the coach becomes {words} cannot be known: scores change by {drift.interval(True)} points at equal "
        f"task, role and outcome, which is no more than the team's own change explains ({drift.size}); {_TO_KNOW}"
    )
    effect = Effect("", named, replace(drift, p=p), fewest=8, unclear=unclear if moved else "")
    return _LENIENCY([effect])


def _progress_counted_again(sums_RV: Floats) -> Floats:
    """The score's change less `_TIMES_PROGRESS` times what circumstances explain of it."""
    plain, equal = first_over_second(sums_RV[:, 2:]), first_over_second(sums_RV[:, :2])
    return np.asarray(plain - _TIMES_PROGRESS * (plain - equal))
