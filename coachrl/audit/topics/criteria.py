"""Does a coach tell its criteria apart, or give all of them one impression's score (halo)?"""

from __future__ import annotations

from functools import partial

from coachrl.audit.stats.criteria import ALIKE, Criteria
from coachrl.audit.topics.effect import TopicFinding, surely_above

_CRITERIA = partial(
    TopicFinding,
    "criteria",
    cleared="its criteria get scores of their own",
    unsure="too few tasks to say whether its criteria get scores of their own",
)


def criteria_told_apart(found: Criteria | None) -> list[TopicFinding]:
    """Nothing where there are no two criteria."""
    if found is None or not found.pairs:
        return []
    known = [(pair, pair.rho) for pair in found.pairs if pair.rho is not None]
    if not known:
        return [_CRITERIA([], unmeasured="no two of them vary")]
    pair, least = min(known, key=lambda one: one[1].value)
    what = f"rank correlation of {pair.first} and {pair.second}, which go together least, at equal role"
    named = (
        f"gives its {len(found.each)} criteria one score: even {pair.first} and {pair.second}, which go together "
        f"least, have a rank correlation of {least.interval()} at equal role ({least.size}); they say no more than the "
        "total"
    )
    return [_CRITERIA([surely_above(what, named, least, (rho for _, rho in known), ALIKE)])]
