"""What topics of an audit are made of, on a few actions: guesses of unscored work, hand-overs, places, worths."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit_tables import sample, table
from scipy import stats

from coachrl.audit.audit import Audit, _answered, _is_steady, _replayed
from coachrl.audit.data.frame import Scorer
from coachrl.audit.data.sample import Sample
from coachrl.audit.faults.localization import FaultCase, summarize_cases
from coachrl.audit.findings import Counts, Findings
from coachrl.audit.probes.asked import Asked
from coachrl.audit.probes.perturbations import EXCHANGED
from coachrl.audit.probes.replay import ReplayedAction, _fidelities
from coachrl.audit.reference_set import ReferenceSetDrift
from coachrl.audit.stats.drift import Curve
from coachrl.audit.stats.style import _why_no_slope, style_effect, style_effects
from coachrl.audit.topics.effect import Effect, TopicFinding, adjusted
from coachrl.audit.topics.failures import _badness, _company, _halves, _questions, _told
from coachrl.audit.topics.handover import _by_pay, handover_gaming
from coachrl.audit.topics.subjects import subject_gaps, with_topics
from coachrl.audit.topics.turn_order import turn_order, with_places
from coachrl.audit.verdicts import AuditVerdict
from coachrl.coach.clients.cost_estimate import CostEstimate
from coachrl.stats import Estimate


def test_a_half_is_twice_the_rank_inside_of_the_role():
    found = _halves(np.array([3.0, 1.0, 2.0, 7.0, 9.0, 9.0]), np.array([0, 0, 0, 1, 2, 2]))
    assert found == pytest.approx([2, 2 / 3, 4 / 3, 2, 1.5, 1.5])


def test_company_is_the_others_mean_above_their_roles_means():
    """Solvers have a mean of 6, the one critic with a score is at its own; f's critic has none."""
    rows = [{"episode": e, "role": r} for e in "ef" for r in ("critic", "solver")]
    scores = np.array([2.0, 8.0, math.nan, 4.0])
    assert _company(sample(*rows), scores, ("run", "episode")).tolist() == [2.0, 0.0, -2.0, 0.0]
    assert _company(sample(*rows), scores, ("task",)).tolist() == [0.0, -1.0, 0.0, 1.0]


def test_how_much_a_guess_tells_is_the_slope_of_the_true_halves_on_it_where_there_is_a_score():
    scores, roles = np.array([9.0, 5.0, 1.0, math.nan]), np.zeros(4, np.int64)
    halves = np.array([2 / 3, 4 / 3, 2.0])
    assert _told(np.r_[halves, 99.0], scores, roles) == pytest.approx(1.0)
    assert _told(np.r_[2 * halves + 5, -99.0], scores, roles) == pytest.approx(0.5)
    assert _told(np.r_[-halves, 0.0], scores, roles) == pytest.approx(-1.0)
    assert _told(np.ones(4), scores, roles) == 0.0


@pytest.mark.parametrize(("success", "expected"), [(8.0, [-8 / 3, -8 / 3, 8 / 3, 8 / 3]), (0.0, [0.0] * 4)])
def test_what_has_no_score_is_guessed_to_be_as_bad_as_what_failed_beside_it(success, expected):
    """Two successes and a failure of 2 teach what the second failure would have got. Where failures are scored higher
    than successes, nothing is held against them."""
    outcomes, scores = (1.0, 1.0, 0.0, 0.0), np.array([success, success, 2.0, math.nan])
    rows = [{"task": f"t{n}", "episode": f"e{n}", "outcome": outcome} for n, outcome in enumerate(outcomes)]
    assert _badness(sample(*rows), scores) == pytest.approx(expected)


def test_a_crash_speaks_against_an_action_whose_role_ran_code():
    states = [("ok", True), ("error", True), ("ok, cut", True), ("no code", False)]
    rows = [
        {"task": f"t{n}", "episode": f"e{n}", "state": state, "has_code": code}
        for n, (state, code) in enumerate(states)
    ]
    found = _badness(sample(*rows), np.array([6.0, 2.0, 6.0, 6.0]))
    assert found[1] == pytest.approx(3.0) and found[[0, 2, 3]] == pytest.approx([-1.0] * 3)


def test_three_questions_are_asked_of_failed_calls_each_with_its_weight():
    """Of two roles; the guess of the worse half is scaled by what it tells of the halves by score."""
    rows = [
        {"task": f"t{n}", "episode": f"e{n}", "role": "ab"[n % 2], "outcome": float(n < 4), "tokens": 100 * n}
        for n in range(8)
    ]
    scores = np.array([8.0, 9.0, 7.0, 8.0, 2.0, 1.0, 3.0, math.nan])
    found = sample(*rows)
    worse, longer, *of_roles = _questions(found, scores)
    role_N = np.arange(8) % 2
    guessed = _halves(_badness(found, scores), role_N)
    assert worse.x_N == pytest.approx(_told(guessed, scores, role_N) * guessed)
    assert longer.x_N == pytest.approx(_halves(100.0 * np.arange(8), role_N))
    asked = [(one.which, one.cells, one.weight, one.failing_more) for one in (worse, longer, *of_roles)]
    assert asked == [
        ("of the worse half (by outcome, exit state and company)", ("role",), 5.0, 0.9),
        ("of the longer half", ("role",), 0.5, 0.5),
        ("of a", ("task",), 0.15, 0.5),
        ("of b", ("task",), 0.15, 0.5),
    ]
    assert of_roles[0].x_N.tolist() == [1.0, 0.0] * 4
    told_nothing = list(_questions(found, np.array([5.0] * 7 + [math.nan])))
    assert [one.which for one in told_nothing] == ["of the longer half", "of a", "of b"]


def handed_over(rise: float, failures: tuple[int, ...], own: tuple[str, str] = ("ok", "ok")) -> pd.DataFrame:
    """Ten tasks, each played at two steps: `a` is scored 4 and then higher, `b` after it fails in some late parts."""
    rows = []
    for n in range(10):
        for step in (1, 2):
            late = step == 2
            head = {"task": f"t{n}", "episode": f"{n}.{step}", "step": step, "has_code": True}
            rows.append({**head, "role": "a", "score": 4.0 + rise * late, "state": own[late]})
            rows.append({**head, "role": "b", "state": "error" if late and n in failures else "ok"})
    return table(*rows)


def test_a_role_whose_score_rises_while_the_next_one_fails_more_is_tested_by_the_less_certain_of_both():
    [effect] = handover_gaming(handed_over(1.0, tuple(range(8)))).effects
    assert (effect.estimate.value, effect.estimate.n, effect.estimate.of) == (pytest.approx(0.8), 20, "hand-overs")
    assert (effect.second[0], effect.second[1].value) == ("a's score", pytest.approx(1.0))
    assert (effect.weight, effect.fewest, effect.unit) == (5.0, 8, "share") and effect.estimate.p < 0.01
    assert "fails on 80%, and all are paid alike" in effect.named


@pytest.mark.parametrize(("rise", "failures"), [(0.24, tuple(range(8))), (1.0, ()), (-1.0, tuple(range(8)))])
def test_failures_are_no_game_where_the_score_hardly_rises_and_pay_is_none_where_nothing_fails_more(rise, failures):
    for effect in handover_gaming(handed_over(rise, failures)).effects:
        assert effect.estimate.p is None or effect.estimate.p >= 0.5


def test_what_a_role_gets_for_how_its_own_code_ended_is_no_part_of_the_game():
    """Its code fails early and ends well late: no score at equal state tells the halves apart."""
    found = handover_gaming(handed_over(3.0, tuple(range(8)), own=("error", "ok")))
    assert (found.effects, found.unmeasured) == ([], "no task was played in both halves of training")


def test_hand_overs_need_two_halves_of_training_and_somebody_who_takes_over():
    rows = handed_over(1.0, (1,))
    assert handover_gaming(rows[rows["step"] == 1]).unmeasured == "scores of one training step only"
    assert handover_gaming(rows[rows["role"] == "a"]).unmeasured == "no agent takes over from another"


def test_the_better_paid_half_is_that_of_late_parts():
    rows = [{"step": 1, "score": 10.0}] + [{"step": 2, "score": score} for score in (8.0, 6.0, 4.0, 2.0)]
    found = _by_pay(sample(*rows), np.array([0.0, 1.0, 1.0, 0.0, 1.0]))
    assert found == "late in training it fails on 100% of the better paid and 50% of the others"
    tied = [rows[0], *({"step": 2, "score": score} for score in (8.0, 8.0, 8.0, 2.0))]
    assert _by_pay(sample(*tied), np.array([0.0, 1.0, 0.0, 0.0, 1.0])).endswith(
        "33% of the better paid and 100% of the others"
    )


def test_what_is_paid_the_median_is_of_the_others():
    rows = [{"step": 1}, *({"step": 2, "score": score} for score in (8.0, 6.0, 6.0, 2.0))]
    assert _by_pay(sample(*rows), np.array([0.0, 1.0, 0.0, 0.0, 1.0])).endswith(
        "100% of the better paid and 33% of the others"
    )


def test_a_place_is_paid_at_equal_task_and_role_and_a_turn_inside_of_its_episode():
    """Two points for each place; one for each turn of an agent that stays where it is."""
    orders = [("e", ("a", "b")), ("f", ("b", "a"))]
    rows = [
        {"task": t, "episode": t + e, "role": role, "score": 3.0 + 2 * place + (t == "u")}
        for t in "tu"
        for e, roles in orders
        for place, role in enumerate(roles)
    ]
    [place] = turn_order(placed(rows)).effects
    assert (place.what, place.estimate.value) == ("points for each later place", pytest.approx(2.0))
    turns = [{"task": t, "episode": t, "turn": n, "score": 5.0 + n + 3 * (t == "u")} for t in "tuv" for n in range(3)]
    [turn] = turn_order(placed(turns)).effects
    assert (turn.what, turn.estimate.value, turn.weight, turn.fewest) == (
        "points for each later turn",
        pytest.approx(1.0),
        0.5,
        8,
    )
    assert turn.named.startswith("pays 1.00 points more (")
    half = [{**row, "score": row["score"] / 2} for row in turns]
    assert turn_order(placed(half)).effects[0].named.startswith("pays 0.50 points more (")
    falling = [{**row, "score": 10 - row["score"]} for row in turns]
    assert turn_order(placed(falling)).effects[0].named.startswith("pays 1.00 points less (")
    assert turn_order(placed(turns[::3])).unmeasured == "every role has one turn, and always the same place"


def placed(rows: list[dict]) -> Sample:
    return Sample.of(with_places(table(*rows)), 20)


def test_tasks_have_topics_where_sixteen_texts_or_more_part_into_several():
    words = {f"t{n}": f"{('apples trees fruit', 'ships harbour sea')[n % 2]} number{n}" for n in range(16)}
    rows = table(*({"task": task, "episode": task} for task in words))
    topics = with_topics(rows, words)["topic"]
    assert topics.nunique() == 2 and len(set(topics[::2])) == len(set(topics[1::2])) == 1
    for fewer in (dict(list(words.items())[1:]), dict.fromkeys(words, "the same"), words | {"t0": words["t1"]}):
        assert "topic" not in with_topics(rows, fewer)
    assert subject_gaps(sample({}), ()).unmeasured == "the tasks' words do not part them into several topics"


def reference(*bounds: tuple[float, float | None, float | None] | None) -> ReferenceSetDrift:
    points = [(n, Estimate(*bound, 40, 20)) for n, bound in enumerate(bounds) if bound is not None]
    return ReferenceSetDrift("r", Curve("r", points) if points else None, [])


def test_a_coach_is_steady_where_its_last_scores_are_surely_within_half_a_point_of_its_first():
    assert _is_steady(reference((3.0, 2.0, 4.0), (0.1, -0.49, 0.49)))
    assert not _is_steady(reference((0.0, -0.1, 0.1), (0.1, -0.5, 0.4)))
    assert not _is_steady(reference((0.1, -0.4, 0.5)))
    assert _is_steady(reference((0.49, None, None))) and not _is_steady(reference((-0.5, None, None)))
    assert not _is_steady(reference())


def test_what_was_scored_again_the_same_clears_a_coach_of_leniency_alone():
    lenient = AuditVerdict("leniency", "warning", "p", "r", "becomes lenient; ask again", 1.0)
    cleared = _replayed(lenient)
    assert (cleared.grade, cleared.value) == ("note", 1.0)
    assert cleared.text.startswith("becomes lenient; the same actions scored again get the same")
    for other in (replace(lenient, grade="note"), replace(lenient, topic="length")):
        assert _replayed(other) is other


def test_a_gap_is_answered_for_the_coach_that_was_asked_under_exchanged_names():
    gap = AuditVerdict("category", "warning", "p", "judge", "scores sums higher; may be deserved", 1.0)
    asked = Asked("judge", "p", CostEstimate((1, 1), (1, 1), (1, 1), (0.0, 0.0)), [], None)
    steady = AuditVerdict("probe", "ok", "p", "judge", f"{EXCHANGED} sum does not move it", 0.0)
    cleared = _answered(gap, asked, [steady])
    assert (cleared.grade, cleared.text.partition(";")[0]) == ("note", "scores sums higher")
    for other in (replace(gap, rater="own"), replace(gap, grade="unknown"), replace(gap, topic="topic")):
        assert _answered(other, asked, [steady]) is other
    moved = replace(steady, grade="unknown", text=f"too few actions to say whether {EXCHANGED} product moves it")
    for said in ([], [steady, moved], [replace(steady, text="padding does not move it")]):
        assert _answered(gap, asked, said) is gap


def test_verdicts_stand_with_their_rater_and_pipeline_or_apart():
    counts, scorer = Counts(1, 1, 0, 0, 1, 1, 1), Scorer("", "m", "")
    own = Findings("p", "m", scorer, counts, None, [], {}, [], None, [], None, None, [])
    other = replace(own, pipeline="q")
    made = [AuditVerdict("x", "ok", p, r, "") for p, r in (("p", "m"), ("q", "m"), ("p", "n"), ("", "run"))]
    audit = Audit({"run": Path()}, 9, [own, other], [], made)
    assert audit.pipelines == ["p", "q"]
    assert (audit.verdicts_of(own), audit.verdicts_of(other), audit.other_verdicts) == (made[:1], made[1:2], made[2:])


def case(culprits: list[str], scores: dict[str, float | None], sound: dict[str, float | None], task: str, crashed=()):
    return FaultCase(task, culprits, "x", scores, sound, crashed)


def test_figures_of_planted_faults_share_ties_out_and_count_every_pair():
    """In the first case the culprit ties for the lowest score and loses 4 of 8; in the second it loses less."""
    first = case(["a, turn 1"], {"a, turn 1": 4.0, "b, turn 1": 4.0}, {"a, turn 1": 8.0, "b, turn 1": 5.0}, "t")
    second = case(
        ["b, turn 1"],
        {"a, turn 1": 2.0, "b, turn 1": 7.0, "b, turn 2": 7.0},
        {"a, turn 1": 9.0, "b, turn 1": 8.0, "b, turn 2": 8.0},
        "u",
        crashed=["b, turn 1", "a, turn 1"],
    )
    unscored = case(["a, turn 1"], {"a, turn 1": None}, {"a, turn 1": 5.0}, "v")
    found = summarize_cases([first, second, unscored], 20)
    assert (found.accuracy.value, found.accuracy.n, found.accuracy.of) == (0.25, 2, "cases")
    assert found.against_sound.value == 0.5 and found.by_fault["a: x"].value == 1 and found.by_fault["b: x"].value == 0
    assert found.ordered.value == pytest.approx((1.0 + (0 + 0.5) / 2) / 2)
    assert (found.culprit_loss.value, found.innocent_loss.value) == ((4 + 1) / 2, (1 + (7 + 1) / 2) / 2)
    assert {name: estimate.value for name, estimate in found.blind.items()} == {
        "the same score for all": pytest.approx((1 / 2 + 1 / 3) / 2),
        "always the first action": 0.5,
        "always the last action": 0.0,
        "the first whose code fails": 0.25,
    }
    assert found.notes == ["1 of 3 planted faults have an action without a score"]


def worth(n: int, score: float, worth: float, role: str = "a", category: str = "k") -> ReplayedAction:
    return ReplayedAction(str(n), f"t{n}", role, 0, category, "m", score, worth, 10)


def test_fidelity_is_by_role_turn_and_category_where_there_are_several_and_of_eight_actions_at_least():
    up = [worth(n, float(n), 10.0**n) for n in range(8)]
    down = [worth(n, float(n), -float(n), "b", "l") for n in range(8, 15)]
    found = list(_fidelities([*up, *down], 20, 0))
    assert [(one.of, one.actions, one.rho and one.rho.value) for one in found[1:]] == [
        ("role a", 8, 1.0),
        ("role b", 7, None),
        ("category k", 8, 1.0),
        ("category l", 7, None),
    ]
    assert (found[0].of, found[0].actions, found[0].rho.n, found[0].rho.tasks) == ("all", 15, 15, 15)
    [alone] = _fidelities(up, 20, 0)
    assert alone.rho.value == pytest.approx(1.0), "of ranks, and not of worths"
    [nothing] = _fidelities([], 20, 0)
    assert (nothing.of, nothing.actions, nothing.rho) == ("all", 0, None)


def effect(estimate: Estimate, **more) -> Effect:
    return Effect("x", "named", estimate, **({"p": 0.9} | more))


@pytest.mark.parametrize(
    ("unit", "visible", "is_visible", "rules_out"),
    [
        ("points", 1.0, True, True),
        ("points", 1.1, True, False),
        ("points", 10.0, True, False),
        ("points", 10.1, False, False),
        ("share", 0.25, True, True),
        ("share", 0.26, True, False),
        ("share", 1.1, False, False),
        ("correlation", 0.4, True, True),
        ("correlation", 0.5, True, False),
        ("correlation", 1.1, False, False),
    ],
)
def test_what_a_run_would_have_shown_is_on_the_scale_of_the_effect(unit, visible, is_visible, rules_out):
    found = effect(Estimate(0.0, -1.0, 1.0, 80, 16), unit=unit, visible=visible)
    assert (found.is_visible, found.rules_out) == (is_visible, rules_out)
    assert ("it would have been seen" in found.visible_words) == is_visible
    few = replace(found, estimate=Estimate(0.0, -1.0, 1.0, 80, 15))
    assert not few.is_visible and not few.rules_out
    unknown = replace(found, visible=None)
    assert not unknown.rules_out and unknown.visible_words.endswith("cannot be said")


def test_what_surely_lies_below_its_null_is_ruled_out_and_says_what_would_have_been_seen_where_anything_would():
    low = effect(Estimate(0.3, 0.1, 0.6, 80, 16), unit="correlation", null=0.7, visible=0.95)
    assert low.is_ruled_out and low.rules_out and low.visible_words == "from 0.95 on it would have been seen"
    assert not replace(low, estimate=Estimate(0.3, 0.1, 0.7, 80, 16)).is_ruled_out
    assert not replace(low, estimate=Estimate(0.3, 0.1, 0.6, 80, 15)).is_ruled_out
    assert not replace(low, null=0.0, estimate=Estimate(-0.3, -0.6, -0.1, 80, 16)).is_ruled_out


def test_the_smallest_visible_effect_adds_its_power_to_what_its_test_needs_from_the_null_on():
    """An error of 0.1 with 15 degrees of freedom, the whole error rate of 5 %, and a null of 0.5."""
    margin = 0.1 * stats.t.ppf(0.975, 15)
    tested = effect(Estimate(0.5, 0.5 - margin, 0.5 + margin, 80, 16, p=0.5), unit="correlation", null=0.5, least=0.0)
    [[topic]] = adjusted([[TopicFinding("t", [tested], "", "")]])
    power = 0.1 * stats.t.ppf(0.95, 15)
    assert topic.effects[0].visible == pytest.approx(0.5 + margin + power)
    [[topic]] = adjusted([[TopicFinding("t", [replace(tested, least=0.4)], "", "")]])
    assert topic.effects[0].visible == pytest.approx(0.5 + 0.4 + power), "less than 0.4 is never named"
    [[topic]] = adjusted(
        [[TopicFinding("t", [replace(tested, estimate=Estimate(0.5, 0.1, 0.9, 80, 1, p=0.5))], "", "")]]
    )
    assert topic.effects[0].visible is None, "one task has no interval"


def styled(scores: list[float], tokens: list[int], **more) -> pd.DataFrame:
    return table(
        *(
            {"task": f"t{n}", "episode": f"e{n}", "score": score, "tokens": count}
            | {name: values[n] for name, values in more.items()}
            for n, (score, count) in enumerate(zip(scores, tokens, strict=True))
        )
    )


def test_a_preference_is_the_correlation_of_ranks_inside_of_cells_and_its_slope_that_of_a_line():
    """Ranks 1 to 5 against 1, 2, 3, 5, 4; a line through all of them rises by the covariance over the variance."""
    scores, tokens = [1.0, 2.0, 3.0, 9.0, 8.0], [10, 20, 30, 40, 90]
    found = style_effect(Sample.of(styled(scores, tokens), 50), "tokens", "")
    assert found.rho.value == pytest.approx(0.9) and (found.rho.n, found.rho.tasks) == (5, 5)
    span = np.percentile(tokens, 90) - np.percentile(tokens, 10)
    assert found.span == pytest.approx(span)
    assert found.slope.value == pytest.approx(span * np.polyfit(tokens, scores, 1)[0])


def test_cells_of_one_action_and_cells_alike_tell_nothing_of_a_preference():
    alone = styled([1.0, 2.0, 9.0], [10, 20, 90], role=["a", "a", "b"])
    assert style_effect(Sample.of(alone, 50), "tokens", "").rho.n == 2
    assert style_effect(Sample.of(styled([5.0, 5.0, 5.0], [1, 2, 3]), 50), "tokens", "") is None
    assert [(one.role, one.feature) for one in style_effects(Sample.of(styled([1.0, 2.0, 4.0], [1, 2, 9]), 50))] == [
        ("", "tokens")
    ], "one role is all roles"
    both = styled([1.0, 2.0, 4.0, 5.0], [1, 2, 9, 7], role=["a", "a", "b", "b"])
    assert [one.role for one in style_effects(Sample.of(both, 50))] == ["", "a", "b"]


@pytest.mark.parametrize(
    ("slope", "span", "why"),
    [
        (Estimate(1.0, 0.5, 1.5, 9, 9, p=0.1), 0.0, "too few replies differ in it"),
        (Estimate(10.01, 9.0, 11.0, 9, 9, p=0.1), 5.0, "a straight line would leave the scale of 0 to 10"),
        (Estimate(math.nan, None, None, 9, 3), 5.0, "a straight line would leave the scale of 0 to 10"),
        (Estimate(-10.1, -11.0, -9.0, 9, 9, p=0.1), 5.0, "a straight line would leave the scale of 0 to 10"),
        (Estimate(1.0, None, None, 9, 9), 5.0, "it has no interval"),
        (Estimate(1.0, None, None, 9, 9, p=0.1), 5.0, ""),
        (Estimate(-10.0, -11.0, -9.0, 9, 9), 0.01, ""),
        (Estimate(10.0, 9.0, 10.0, 9, 3, p=0.1), 5.0, ""),
    ],
)
def test_a_slope_that_cannot_be_stated_says_why(slope, span, why):
    assert _why_no_slope(slope, span) == why


def test_roles_share_out_the_weight_of_one_question():
    """`b` hands on to `a` as `a` does to `b`: two effects, each of half the weight."""
    rows = [
        {"task": f"t{n}", "episode": f"{n}.{step}", "step": step, "has_code": True, "role": role, "score": 4.0 + step}
        for n in range(4)
        for step in (1, 2)
        for role in ("a", "b", "a")
    ]
    found = handover_gaming(table(*(row | {"state": "ok"} for row in rows)))
    assert [effect.weight for effect in found.effects] == [2.5, 2.5]
