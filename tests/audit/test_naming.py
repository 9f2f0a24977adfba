"""Which effects an audit names, how certain it must be, and what it says of those that it does not."""

from __future__ import annotations

import pytest
from scipy import stats

from coachrl.audit.reference_set import ReferenceSetDrift
from coachrl.audit.stats.calibration import Calibration, Prediction
from coachrl.audit.stats.drift import Curve, Drift
from coachrl.audit.stats.style import StyleEffect
from coachrl.audit.topics.effect import Effect, TopicFinding, adjusted
from coachrl.audit.topics.outcomes import inversion, reward_hacking
from coachrl.audit.topics.style import style_topics
from coachrl.audit.verdicts import reference_set_verdict, topic_verdicts
from coachrl.stats import Estimate


def prediction(of: str, auc: Estimate, category: str = "") -> Prediction:
    return Prediction(of, category, auc, auc, auc, 0.25, 3)


def test_scores_are_inverted_by_a_one_sided_test_against_chance():
    """A category's figure, and one without p, are not tested; the others share half of an error rate's weight."""
    low, high, untested = (Estimate(v, 0.1, 0.9, 9, 20, p=p) for v, p in ((0.3, 0.02), (0.7, 0.02), (0.2, None)))
    made = [prediction("a", low), prediction("b", high), prediction("c", untested), prediction("a", low, "easy")]
    found = inversion(Calibration(made, [], [], []))
    assert [(e.what, e.estimate.p, e.weight) for e in found.effects] == [("a", 0.01, 0.25), ("b", 0.99, 0.25)]
    assert inversion(Calibration([], [], [], [])).unmeasured == "no outcome to compare with"


def test_gaming_needs_a_score_that_rises_and_an_outcome_that_falls():
    rising, falling = Estimate(1.0, 0.5, 1.5, 9, 20, p=0.02), Estimate(-0.2, -0.3, -0.1, 9, 20, p=0.04)

    def p_of(score: Estimate, outcome: Estimate) -> float | None:
        made = Drift({}, score, outcome, "held-out", None, None, [])
        [effect] = reward_hacking(made).effects
        return effect.estimate.p

    assert p_of(rising, falling) == 0.02 and p_of(rising, rising) == 0.99 and p_of(falling, falling) == 0.98
    assert not reward_hacking(Drift({}, rising, None, "", None, None, [])).effects


def test_an_effect_is_named_where_it_is_certain_far_and_of_tasks_enough():
    sure = Effect("", "", Estimate(0.25, 0.1, 0.4, 80, 16), p=0.049)
    assert sure.is_certain
    for other in ({"p": 0.05}, {"p": None}, {"estimate": Estimate(0.24, 0.1, 0.4, 80, 16)}, {"least": 0.3}):
        assert not Effect(**({"what": "", "named": "", "estimate": sure.estimate, "p": 0.049} | other)).is_certain
    assert Effect("", "", Estimate(-0.25, -0.4, -0.1, 80, 16), p=0.049).is_certain
    assert not Effect("", "", Estimate(0.25, 0.1, 0.4, 80, 16), null=0.7, least=0.46, p=0.049).is_certain


def test_parts_are_named_only_where_the_whole_is_not():
    whole, part, large = (
        Effect(name, "", Estimate(value, None, None, 80, 20, p=0.001), part=is_part, p=0.01)
        for name, value, is_part in (("whole", 0.5, False), ("part", 3.0, True), ("large", -0.9, False))
    )
    assert [e.what for e in TopicFinding("t", [whole, part, large], "", "").certain] == ["large", "whole"]
    assert [e.what for e in TopicFinding("t", [part], "", "").certain] == ["part"]
    weak = Effect("weak", "", Estimate(0.5, None, None, 80, 20, p=0.3))
    unknown = Effect("unknown", "", Estimate(0.5, None, None, 80, 20))
    assert TopicFinding("t", [unknown, weak, part], "", "").strongest is weak
    assert TopicFinding("t", [part], "", "").strongest is part


def test_p_values_hold_for_all_coaches_of_an_audit_and_say_what_would_have_been_seen():
    """Weights 3 and 1, p 0.01 and 0.02: 0.01 * 4 / 3, then the second alone."""
    first = Effect("first", "", Estimate(0.5, 0.0, 1.0, 80, 20, p=0.01), weight=3.0)
    second = Effect("second", "", Estimate(0.5, 0.0, 1.0, 80, 20, p=0.02))
    untested = Effect("untested", "", Estimate(0.5, None, None, 80, 20), weight=9.0)
    families = [[TopicFinding("one", [first, untested], "", "")], [TopicFinding("two", [second], "", "")]]
    [[one], [two]] = adjusted(families)
    assert [e.p for e in one.effects] == [pytest.approx(0.04 / 3), None] and two.effects[0].p == pytest.approx(0.02)
    error = 0.5 / stats.t.ppf(0.975, 19)
    seen = [float((stats.t.isf(0.05 * w / 4 / 2, 19) + stats.t.ppf(0.95, 19)) * error) for w in (3, 1)]
    assert [one.effects[0].visible, two.effects[0].visible] == pytest.approx(seen)
    assert one.effects[1].visible is None


def style(feature: str, rho: float, slope: Estimate | None, role: str = "", p: float | None = 0.01) -> StyleEffect:
    return StyleEffect(feature, role, Estimate(rho, None, None, 80, 20, p=p), slope, "more", 1.0, "it has no interval")


def test_a_preference_is_as_certain_as_the_less_certain_of_ranks_and_line():
    up, down, untested = (Estimate(v, None, None, 80, 20, p=p) for v, p in ((0.5, 0.2), (-0.5, 0.001), (0.5, None)))
    found = [style("tokens", 0.3, up), style("tokens", 0.3, up, role="solver")]
    found += [style("markdown", 0.3, down), style("hedging", 0.3, untested), style("code_share", 0.3, None)]
    length, others = style_topics(found)
    assert [(e.estimate.p, e.weight) for e in length.effects] == [(0.2, 0.5)]
    assert [(e.estimate.p, e.weight) for e in others.effects] == [(1.0, 0.25), (None, 0.25)]
    length, others = style_topics([style("tokens", 0.3, None)])
    assert length.unmeasured == "no slope: it has no interval" and others.unmeasured.startswith(
        "it, or the score, does"
    )


def said_of(effect: Effect) -> tuple[str, str, float | None]:
    [verdict] = topic_verdicts(TopicFinding("leniency", [effect], "no drift", "too few"), "p", "coach")
    return verdict.grade, verdict.text, verdict.value


def test_what_is_said_of_an_effect_is_no_more_than_the_run_would_have_shown():
    estimate = Estimate(0.125, -0.25, 0.5, 80, 20, p=0.5)
    figure, seen = "x +0.12 [-0.25, +0.50] (n = 80 actions, 20 tasks)", "points on it would have been seen"
    unseen = Effect("x", "drifts", estimate, p=0.9, visible=1.0)
    assert said_of(unseen) == ("ok", f"no drift: {figure}; from 1 {seen}", 0.125)
    larger = Effect("x", "drifts", estimate, p=0.9, visible=1.25)
    assert said_of(larger) == ("unknown", f"too few: {figure}; from 1.2 {seen}", 0.125)
    few = Effect("x", "drifts", Estimate(0.125, -0.25, 0.5, 80, 15, p=0.5), p=0.9, visible=1.0)
    assert (
        said_of(few)[0] == "unknown" and said_of(few)[1].startswith("too few, 16 are needed: x") and not said_of(few)[2]
    )
    unclear = Effect("x", "drifts", estimate, p=0.9, visible=1.0, unclear="cannot be known")
    assert said_of(unclear) == ("note", "cannot be known", 0.125)
    certain = Effect("x", "drifts", Estimate(-0.5, -0.75, -0.25, 80, 20, p=0.001), p=0.01, unclear="cannot be known")
    assert said_of(certain) == ("warning", "drifts", 0.5)


@pytest.mark.parametrize(
    ("value", "low", "high", "tasks", "grade"),
    [
        (0.25, 0.1, 0.4, 3, "warning"),
        (0.24, 0.1, 0.4, 3, "ok"),
        (0.25, -0.1, 0.6, 3, "ok"),
        (-0.5, -0.9, -0.1, 3, "warning"),
        (-0.5, -0.9, 0.0, 3, "ok"),
        (0.1, -2.9, 3.1, 3, "unknown"),
        (0.0, None, None, 16, "ok"),
        (0.0, None, None, 3, "unknown"),
        (0.5, None, None, 3, "warning"),
        (0.5, None, None, 1, "unknown"),
    ],
)
def test_a_frozen_set_drifts_where_its_last_scores_are_surely_and_far_enough_from_its_first(
    value, low, high, tasks, grade
):
    points = [(1, Estimate(0.0, None, None, 9, tasks)), (4, Estimate(value, low, high, 9, tasks))]
    found = reference_set_verdict(ReferenceSetDrift("run", Curve("run", points), []))
    assert found.grade == grade and "at step 4 against step 1" in found.text
    if grade == "unknown" and low is not None:
        assert found.text.endswith("; from 5 points on it would have been seen")
