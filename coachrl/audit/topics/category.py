"""Are task categories scored alike at equal role and outcome?"""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.audit.stats.strata import MOST_LEVELS, Contrast, StratumMean
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import Estimate

_DESERVED = "it may be deserved, where the work differs in quality: --probe asks again with their names exchanged"
_OVERALL_WEIGHT, _WITHIN_WEIGHT = 6.0, 1.0


def category_gaps(family: Sequence[Contrast], levels: Sequence[StratumMean]) -> TopicFinding:
    """family: the gaps over all roles and inside each. The one over all roles has most of the error rate; those inside
    of roles are named where it is not certain."""
    effects = [
        Effect(
            _what(contrast), _words(contrast, gap), gap, weight=_weight(contrast, family), part=bool(contrast.within)
        )
        for contrast in family
        if (gap := contrast.adjusted) is not None and gap.p is not None
    ]
    return TopicFinding(
        "category",
        effects,
        cleared="no gap found between task categories at equal outcome",
        unsure="too few tasks to say whether task categories are scored alike at equal outcome",
        unmeasured="" if effects else _why_not(family, levels),
    )


def _weight(contrast: Contrast, family: Sequence[Contrast]) -> float:
    alike = sum(bool(other.within) == bool(contrast.within) for other in family)
    return (_WITHIN_WEIGHT if contrast.within else _OVERALL_WEIGHT) / alike


def _what(contrast: Contrast) -> str:
    where = f" for {contrast.within[0]}" if contrast.within else ""
    return f"{contrast.level} minus {contrast.versus}{where}"


def _words(contrast: Contrast, gap: Estimate) -> str:
    """Of two categories the favoured one is named first; of several, the one that stands apart from the others."""
    first, second, how = contrast.level, contrast.versus, "higher" if gap.value > 0 else "lower"
    if gap.value < 0 and not second.startswith("other "):
        first, second, how = second, first, "higher"
    where = f" for {contrast.within[0]}" if contrast.within else ""
    bounds = ""
    if gap.low is not None:
        low, high = sorted(map(abs, gap.bounds))
        bounds = f" [{low:.1f}, {high:.1f}]"
    return (
        f"scores {first} {abs(gap.value):.1f} points {how} than {second}{where}{bounds} at equal outcome "
        f"({gap.size}); {_DESERVED}"
    )


def _why_not(family: Sequence[Contrast], levels: Sequence[StratumMean]) -> str:
    categories = [level for level in levels if level.dimension == "category"]
    if len(categories) < 2:
        return "all tasks are of one category"
    if len(categories) > MOST_LEVELS:
        return f"more categories than {MOST_LEVELS} are not compared"
    if min(level.mean.tasks for level in categories) < 2:
        return "a category has one task only"
    if any(contrast.adjusted is not None for contrast in family):
        return "scores do not differ"
    return "no role and outcome occurs in both categories"
