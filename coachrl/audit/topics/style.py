"""Is length or style paid, at equal role, outcome and exit state?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coachrl.audit.stats.style import FEATURES, StyleEffect
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import Estimate

_EQUAL = "at equal role, outcome and exit state"
_DESERVED = "it may be deserved, where such replies differ in quality"
_TOPICS = {"length": ("tokens",), "style": ("code_share", "markdown", "hedging")}
_WEIGHT = 0.5


def style_topics(found: Sequence[StyleEffect]) -> list[TopicFinding]:
    """Over all roles. A preference needs a slope: where ranks rise and no line through the scores does, or a line that
    falls, none is tested, and the sentence says why."""
    return [
        _topic(topic, [e for e in found if e.feature in features and not e.role]) for topic, features in _TOPICS.items()
    ]


def _topic(topic: str, overall: Sequence[StyleEffect]) -> TopicFinding:
    name = FEATURES["tokens"][0] if topic == "length" else "style"
    sloped = [effect for effect in overall if effect.slope is not None]
    effects = [_effect(effect, _WEIGHT / len(sloped)) for effect in sloped]
    why = ""
    if not overall:
        why = f"it, or the score, does not vary {_EQUAL}"
    elif not sloped:
        why = f"no slope: {overall[0].no_slope}"
    return TopicFinding(
        topic,
        effects,
        cleared=f"no preference found for {name} {_EQUAL}",
        unsure=f"too few tasks to say whether it prefers {name} {_EQUAL}",
        unmeasured=why,
    )


def _effect(effect: StyleEffect, weight: float) -> Effect:
    more = "more" if effect.rho.value > 0 else "fewer"
    if effect.feature == "code_share":
        more = "a larger" if effect.rho.value > 0 else "a smaller"
    assert effect.slope is not None
    slope = f"{effect.slope.interval(True)} points for {effect.per}, as far as its 10th and 90th percentiles are apart"
    named = (
        f"prefers {more} {FEATURES[effect.feature][0]} {_EQUAL}: rank correlation "
        f"{effect.rho.interval(True)}, {slope} ({effect.rho.size}); {_DESERVED}"
    )
    what = f"rank correlation with {FEATURES[effect.feature][0]}"
    return Effect(what, named, _tested(effect.rho, effect.slope), "correlation", weight=weight)


def _tested(rho: Estimate, slope: Estimate) -> Estimate:
    """The rank correlation, certain only where a line through the scores goes the same way as surely."""
    if rho.p is None or slope.p is None:
        return replace(rho, p=None)
    return replace(rho, p=max(rho.p, slope.p) if rho.value * slope.value > 0 else 1.0)
