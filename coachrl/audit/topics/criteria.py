"""Does a coach tell its criteria apart, or give all of them one impression's score (halo)?"""

from __future__ import annotations

from dataclasses import replace

from coachrl.audit.stats.criteria import ALIKE, Criteria
from coachrl.audit.stats.within import one_sided
from coachrl.audit.topics.effect import Effect, TopicFinding

_CLEARED = "its criteria get scores of their own"
_UNSURE = "too few tasks to say whether its criteria get scores of their own"


def criteria_told_apart(found: Criteria | None) -> list[TopicFinding]:
    """Nothing where there are no two criteria. All pairs have to go together: the claim has the largest p of any."""
    if found is None or not found.pairs:
        return []
    known = [(pair, pair.rho) for pair in found.pairs if pair.rho is not None]
    if not known:
        return [TopicFinding("criteria", [], _CLEARED, _UNSURE, "no two of them vary")]
    pair, least = min(known, key=lambda one: one[1].value)
    what = f"rank correlation of {pair.first} and {pair.second}, which go together least, at equal role"
    named = (
        f"gives its {len(found.each)} criteria one score: even {pair.first} and {pair.second}, which go together "
        f"least, have a rank correlation of {least.interval()} at equal role ({least.size}); they say no more than the "
        "total"
    )
    p = max(one_sided(rho, null=ALIKE) for _, rho in known)
    tested = replace(least, p=None if least.p is None else p)
    effect = Effect(what, named, tested, "correlation", least=0.0, null=ALIKE, weight=0.5)
    return [TopicFinding("criteria", [effect], _CLEARED, _UNSURE)]
