"""Figures of an audit on a handful of unequal actions, each worked by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from audit_tables import RESAMPLES, sample, table
from scipy import stats

from coachrl.audit.data.sample import Sample
from coachrl.audit.report.figures import curve_chart
from coachrl.audit.stats.agreement import agree
from coachrl.audit.stats.calibration import calibrate
from coachrl.audit.stats.criteria import examine_criteria
from coachrl.audit.stats.drift import Curve, drift
from coachrl.audit.stats.strata import StratumMean, contrasts, small_strata, stratum_means, task_spread, with_bins
from coachrl.audit.stats.within import first_over_second, leaning, one_sided, over_tasks, taken_out
from coachrl.audit.topics.category import category_gaps
from coachrl.audit.topics.failures import missing_scores
from coachrl.audit.topics.halo import copying, halo
from coachrl.audit.topics.handover import handovers
from coachrl.audit.topics.leniency import _progress_counted_again, leniency
from coachrl.audit.topics.self_preference import self_preference
from coachrl.audit.topics.turn_order import with_places
from coachrl.stats import SHARE, Estimate


def test_the_middle_step_of_an_odd_number_is_of_the_first_half():
    found = sample(*({"step": step} for step in (2, 5, 9)))
    assert list(found.frame["period"]) == ["early", "early", "late"]
    assert set(sample({"step": 4}, {"step": 4}).frame["period"]) == {"early"}


def test_levels_means_and_tasks_are_those_of_what_is_left():
    found = sample({"task": "x", "score": 1.0}, {"task": "y", "role": "critic", "score": 4.0}, {"task": "y"})
    alone = found.where(found.frame["role"] == "solver")
    assert found.levels("role") == ["critic", "solver"] and alone.levels("role") == ["solver"]
    assert [mean.value for mean in found.means(("role",), found.scores).values()] == [4.0, 3.0]
    assert list(map(list, found.rows_by_task(np.array([0, 0, 1]), 2))) == [[1, 1], [1]]
    assert alone.codes(("role",))[0].tolist() == [0, 0], "numbered anew, and not as in the whole sample"


def test_a_task_without_which_there_is_no_figure_leaves_no_interval_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = over_tasks(np.array([[1.0, 0.0], [3.0, 1.0], [2.0, 0.0]]), first_over_second, 3)
    assert (found.value, found.low, found.p) == (6.0, None, None)


def test_an_error_over_tasks_is_the_jackknifes_and_few_tasks_are_turned_round():
    """Sums 1/1, 3/1 and 8/2 are 12 / 4; without each task in turn 11/3, 3 and 2. They weigh as 16/6 equal ones."""
    found = over_tasks(np.array([[1.0, 1.0], [3.0, 1.0], [8.0, 2.0]]), first_over_second, 7)
    without = np.array([11 / 3, 3.0, 2.0])
    error = math.sqrt(2 / 3 * ((without - without.mean()) ** 2).sum())
    assert (found.value, found.n, found.tasks) == (3.0, 7, 3)
    assert found.high - 3.0 == pytest.approx(error * stats.t.ppf(0.975, 16 / 6 - 1), rel=1e-5)
    assert found.high - 3.0 == pytest.approx(3.0 - found.low)
    # Influences -2/3, 0 and 1, and their shares of the distance, 1/4, 1/4 and 1/2 of 8/3: 0, 2/3 and 7/3.
    assert found.p == 0.5, "of four ways to turn the last two round, two are as far from 0"


def test_of_many_tasks_no_contribution_is_turned_round():
    rng = np.random.default_rng(0)
    sums = np.column_stack([rng.normal(0.1, 1.0, 41), np.ones(41)])
    found = over_tasks(sums, first_over_second, 41)
    assert found.p == pytest.approx(stats.ttest_1samp(sums[:, 0], 0.0).pvalue, rel=1e-6)


def test_a_value_that_is_the_same_in_every_task_has_the_p_of_equal_signs():
    found = over_tasks(np.array([[2.0, 1.0], [4.0, 2.0], [2.0, 1.0], [6.0, 3.0]]), first_over_second, 9)
    assert (found.value, found.low, found.p) == (2.0, None, 0.125)
    assert over_tasks(np.array([[2.0, 1.0]]), first_over_second, 3).p is None


def test_what_is_the_same_at_a_limit_is_tested_against_what_is_asked_and_not_against_0():
    """Three tasks at 0 of shares: a quarter is refused by equal signs, 0 itself is nothing to test."""
    sums = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]])
    found = over_tasks(sums, first_over_second, 4, limits=SHARE, null=0.25)
    assert (found.value, found.low, found.p, found.n, found.tasks, found.of) == (0.0, 0.0, 0.25, 4, 3, "actions")
    assert found.high == pytest.approx(1 - 0.025 ** (6 / 16), rel=1e-5), "they weigh as much as 16/6 equal tasks"
    assert over_tasks(sums, first_over_second, 4, limits=SHARE).p is None
    ones = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert over_tasks(ones, first_over_second, 3, limits=SHARE, null=1.0).p is None
    alone = over_tasks(ones[:1], first_over_second, 3, limits=SHARE, null=0.5)
    assert (alone.low, alone.high, alone.p) == (None, None, None), "one task tells nothing of others"
    halves = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert over_tasks(halves, first_over_second, 6, limits=SHARE, null=0.5).p is None
    assert over_tasks(halves, first_over_second, 6, limits=SHARE, null=0.25).p == 0.5


def test_a_task_apart_is_as_far_from_what_is_asked_as_its_share_of_the_distance():
    """Values 3, 4 and 8 against 2: each contribution holds a third of the distance of 3."""
    sums = np.array([[3.0, 1.0], [4.0, 1.0], [8.0, 1.0]])
    found = over_tasks(sums, first_over_second, 3, null=2.0)
    error = np.array([3.0, 4.0, 8.0]).std(ddof=1) / math.sqrt(3)
    assert found.value == 5.0 and found.high == pytest.approx(5.0 + error * stats.t.ppf(0.975, 2))
    # Halves of deviations, -1, -0.5 and 1.5, about 1 each: 0, 0.5 and 2.5. Turned round, four of eight sums reach 3.
    assert found.p == max(0.5, 2 * stats.t.sf(3.0 / error, 2))


def test_one_side_has_half_of_p_where_the_value_lies_there_and_the_rest_elsewhere():
    above, below = (Estimate(value, None, None, 9, 9, p=0.1) for value in (1.0, -1.0))
    assert [one_sided(above), one_sided(below), one_sided(below, above=False)] == [0.05, 0.95, 0.05]
    assert one_sided(above, null=2.0) == 0.95 and one_sided(Estimate(1.0, None, None, 9, 9)) == 1.0
    assert leaning(above, 0.8) == pytest.approx(0.05 / 0.8) and leaning(below, 0.8) == pytest.approx(0.05 / 0.2)
    assert leaning(Estimate(1.0, None, None, 9, 9), 0.8) is None


def test_what_is_taken_out_is_what_a_regression_on_cells_and_controls_explains():
    cells, controls = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([[1.0], [0], [2], [5], [0], [1], [1]])
    values = np.array([1.0, 4.0, 2.0, 9.0, 3.0, 7.0, 5.0])
    design = np.column_stack([np.eye(2)[cells], controls])
    expected = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    assert taken_out(values, cells, controls) == pytest.approx(expected)
    assert taken_out(values, cells) == pytest.approx(values - np.array([7 / 3] * 3 + [6.0] * 4))


def test_what_controls_that_repeat_each_other_explain_is_taken_out_whole():
    """Each role has one policy, so that the roles' columns say the policies' again: nothing is left of what they make,
    where a pseudo-inverse that takes rounding for a direction leaves some."""
    rng = np.random.default_rng(73)
    role, coach, result = (rng.integers(0, 3, 300) for _ in range(3))
    cells = rng.integers(0, 6, 300) * 3 + role
    of_coach, of_policy = coach * 9 + role * 3 + result, role * 3 + result
    controls = np.column_stack([codes == code for codes in (of_coach, of_policy) for code in np.unique(codes)[1:]])
    assert taken_out((coach == role).astype(float), cells, controls.astype(float)) == pytest.approx(0.0, abs=1e-6)


def test_calibration_of_five_episodes():
    """Successes scored 8 and 10, failures 2, 8 and 5: of six pairs five are in order and one is tied."""
    rows = [("x", 2.0, 0.0), ("x", 8.0, 1.0), ("y", 8.0, 0.0), ("z", 10.0, 1.0), ("z", 5.0, 0.0)]
    found = calibrate(
        sample(*({"episode": f"e{n}", "task": t, "score": s, "outcome": o} for n, (t, s, o) in enumerate(rows)))
    )
    last = found.predictions[0]
    assert (last.of, last.successes, last.auc.n, last.auc.tasks, last.circular) == ("last action", 2, 5, 3, False)
    assert last.auc.value == pytest.approx(5.5 / 6)
    assert last.tau.value == pytest.approx(5 / math.sqrt(9 * 6)), "of ten pairs one score is tied and four outcomes"
    assert last.brier.value == pytest.approx((0.04 + 0.04 + 0.64 + 0.0 + 0.25) / 5)
    assert last.brier_base == pytest.approx(0.24)
    bins = [(part.low, part.high, part.mean_score, part.success.value, part.success.n) for part in found.reliability]
    assert bins == [(2, 3, 2, 0, 1), (5, 6, 5, 0, 1), (8, 9, 8, 0.5, 2), (9, 10, 10, 1, 1)]
    [saturation] = found.saturation
    assert (saturation.modal_score, saturation.modal_share.value) == (8.0, 0.4)
    assert saturation.entropy_bits.value == pytest.approx(0.6 * math.log2(5) + 0.4 * math.log2(2.5))
    assert saturation.tied_groups.value == 0.0 and saturation.tied_groups.n == 2, "y has one action only"


def test_an_episode_is_predicted_by_a_roles_last_action_and_by_measured_outcomes_alone():
    """The critic's first word is 9 in a failure; its last ones are 2 in it and 7 in a success."""
    acts = [("a", "critic", 0, 9.0, 0.0), ("a", "critic", 1, 2.0, 0.0), ("a", "solver", 0, 4.0, 0.0)]
    acts += [("b", "critic", 0, 7.0, 1.0), ("b", "solver", 0, 4.0, 1.0), ("c", "critic", 0, 8.0, math.nan)]
    found = calibrate(
        sample(
            *(
                {"episode": e, "task": e, "role": r, "turn": t, "score": s, "outcome": o, "last": r == "solver"}
                for e, r, t, s, o in acts
            )
        ),
        "last",
    )
    figures = {p.of: (p.auc.value, p.tau.value, p.auc.n, p.circular) for p in found.predictions}
    assert figures["critic"] == (1.0, pytest.approx(1.0), 2, False)
    assert figures["solver"] == figures["last action"] == (0.5, 0.0, 2, True)


def test_drift_weighs_roles_by_what_both_halves_hold():
    """Solvers go from 5 to 9 (two actions and one), critics from 1 to 3 (one and three): weights 2/3 and 3/4."""
    halves = {"solver": ([4.0, 6.0], [9.0]), "critic": ([1.0], [2.0, 3.0, 4.0])}
    rows = [
        {"role": role, "step": step, "score": score, "episode": f"{role}{score}", "task": f"t{score}", "outcome": 1.0}
        for role, parts in halves.items()
        for step, scores in zip((1, 2), parts, strict=True)
        for score in scores
    ]
    empty = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])
    found = drift(with_bins(sample(*rows)), empty)
    assert found.score_change.value == pytest.approx((2 / 3 * 4 + 3 / 4 * 2) / (2 / 3 + 3 / 4))
    assert found.length_change.value == 0
    assert [(first, mean.value) for first, mean in found.curves["score"][0].points] == [(1, 1.0), (2, 3.0)]


def test_outcomes_change_by_all_late_episodes_less_all_early_ones():
    """Evaluations at 1, 2 and 3 of one, two and two episodes: 1 of 3 in the first two, 2 of 2 in the last."""
    steps, outcomes = [1, 2, 2, 3, 3], [0.0, 1.0, 0.0, 1.0, 1.0]
    heldout = pd.DataFrame({"run": "r", "step": steps, "task": list("xxyxy"), "outcome": outcomes})
    found = drift(with_bins(sample({}, {"step": 2})), heldout)
    assert (found.outcome_source, found.outcome_change.value) == ("held-out", pytest.approx(2 / 3))
    [curve] = found.curves["outcome"]
    assert [(step, e.value, e.n, e.tasks) for step, e in curve.points] == [(1, 0, 1, 1), (2, 0.5, 2, 2), (3, 1, 2, 2)]


def test_two_raters_are_compared_on_what_both_scored():
    first, second = [1.0, 5.0, 9.0, 4.0, 7.0], [2.0, 5.0, 6.0, 4.0, math.nan]
    frame = table(
        *(
            {"action": f"a{n}", "task": f"t{n % 2}", "rater": rater, "score": score}
            for rater, scores in (("one", first), ("two", second))
            for n, score in enumerate(scores)
        )
    )
    found = agree(frame, {}, RESAMPLES)
    [pair] = found.pairs
    assert (pair.first, pair.second, pair.shift.n, pair.retest) == ("one", "two", 4, False)
    assert (pair.shift.value, pair.mean_change.value) == (-0.5, 1.0)
    assert pair.spearman == pytest.approx(1.0)
    assert [(e.action, e.first, e.second) for e in pair.examples] == [("a2", 9.0, 6.0), ("a0", 1.0, 2.0)]
    x, y = np.array(first[:4]), np.array(second[:4])
    inside, overall = ((x - y) ** 2).mean() / 2, np.r_[x, y].var(ddof=1)
    assert pair.alpha.value == pytest.approx(1 - inside / overall)
    assert found.icc is None, "two raters are one pair"


def test_what_an_episodes_actions_have_in_common():
    """Of solver 1, 4, 7 and critic 2, 5, 5 the differences from their means have products 6, 0 and 3 and squares 24."""
    scores = {"x": (1.0, 2.0), "y": (4.0, 5.0), "z": (7.0, 5.0)}
    rows = [
        {"episode": e, "task": e, "role": role, "score": score}
        for e, pair in scores.items()
        for role, score in zip(("solver", "critic"), pair, strict=True)
    ]
    found = halo(sample(*rows, {"episode": "alone", "task": "w", "score": 10.0}))
    [effect] = found.effects
    assert effect.estimate.value == pytest.approx(2 * 9 / 24) and (effect.estimate.n, effect.estimate.tasks) == (6, 3)
    assert "in 0% of 3 episodes all scores are equal" in effect.named
    assert halo(sample({}, {"episode": "f"})).unmeasured == "no episode has scores for two roles"


def test_the_outcome_explains_the_scores_of_the_role_where_it_explains_least():
    outcomes, solver, critic = [0.0, 1.0, 1.0, 0.0], [2.0, 8.0, 8.0, 2.0], [3.0, 6.0, 9.0, 5.0]
    rows = [
        {"episode": str(n), "task": str(n), "role": role, "score": scores[n], "outcome": outcomes[n]}
        for role, scores in (("solver", solver), ("critic", critic))
        for n in range(4)
    ]
    [effect] = copying(sample(*rows)).effects
    assert effect.estimate.value == pytest.approx(np.corrcoef(outcomes, critic)[0, 1] ** 2) and "critic" in effect.what
    flat = [row | {"score": 5.0} if row["role"] == "critic" else row for row in rows]
    assert copying(sample(*flat)).unmeasured == "outcomes or scores of a role do not differ"


def test_a_place_is_the_number_of_other_agents_parts_before_it():
    """Rows of two episodes stand mixed; a role that goes on has the same place, one that comes back another."""
    acts = [("e", "a"), ("f", "b"), ("e", "a"), ("f", "b"), ("e", "b"), ("f", "a"), ("e", "a")]
    assert list(with_places(table(*({"episode": e, "role": r} for e, r in acts)))["place"]) == [0, 0, 0, 0, 1, 1, 2]


def test_a_coachs_own_family_is_paid_what_is_left_beside_coach_and_policy():
    """gpt pays gpt 8 and qwen 5, qwen pays gpt 6 and qwen 7: (8 - 5 - 6 + 7) / 2 more for one's own."""
    paid = {("gpt", "gpt"): 8.0, ("gpt", "qwen"): 5.0, ("qwen", "gpt"): 6.0, ("qwen", "qwen"): 7.0}
    rows = [
        {"task": t, "episode": f"{t}{p}", "action": f"{t}{p}", "coach": f"{c}-4", "rater": c, "score": s, "policy": p}
        for t in ("x", "y", "z")
        for (c, p), s in paid.items()
    ]
    frame = table(*({key: value for key, value in row.items() if key != "policy"} for row in rows))
    frame["policy"] = pd.Categorical([row["policy"] for row in rows])
    [effect] = self_preference(frame).effects
    assert effect.estimate.value == pytest.approx(2.0)


def test_families_are_told_in_their_own_order_and_not_in_that_of_their_models():
    frame = table({"coach": "Qwen/Qwen2.5-7B"}, {"coach": "openai/gpt-4o", "rater": "other"})
    found = self_preference(frame.assign(policy=pd.Categorical(["claude-3"] * 2)))
    assert found.unmeasured.startswith("coaches are of gpt, qwen, policies of claude")


def test_a_rise_that_the_outcome_explains_is_no_leniency():
    """Early 3 for failures and 7 for successes, late the same: what changes is how many succeed."""
    rows = [
        {"task": t, "episode": f"{t}{step}{n}", "step": step, "score": 3 + 4 * o, "outcome": o}
        for t in ("x", "y", "z")
        for step, outcomes in ((1, (0.0, 0.0, 1.0)), (2, (0.0, 1.0, 1.0)))
        for n, o in enumerate(outcomes)
    ]
    [effect] = leniency(sample(*rows)).effects
    assert effect.estimate.value == pytest.approx(0.0, abs=1e-9)
    shifted = [row | {"score": row["score"] + (row["step"] == 2) * 1.5} for row in rows]
    [effect] = leniency(sample(*shifted)).effects
    assert effect.estimate.value == pytest.approx(1.5) and "more lenient" in effect.named


def test_an_abstention_is_no_failed_call():
    rows = [{"status": "abstained", "score": math.nan}, {"status": "failed", "score": math.nan}]
    assert missing_scores(table(*rows)).unmeasured == "every call failed"
    assert missing_scores(table(rows[0], {})).cleared == "no score is missing, for any kind of action"


def test_how_much_more_calls_of_a_role_fail_is_a_difference_of_shares_inside_of_tasks():
    """In each task one of two solvers' calls fails and one of four critics': 0.25 more."""
    rows = [
        {"task": t, "episode": f"{t}{n}", "role": role, "status": "scored" if n else "failed", "score": 5.0}
        for t in ("x", "y", "z")
        for role, count in (("solver", 2), ("critic", 4))
        for n in range(count)
    ]
    rows = [row | {"score": math.nan} if row["status"] == "failed" else row for row in rows]
    effects = {effect.what: effect for effect in missing_scores(table(*rows)).effects}
    solver, critic = (effects[f"calls on actions of {role} fail"] for role in ("solver", "critic"))
    assert (solver.estimate.value, critic.estimate.value) == pytest.approx((0.25, -0.25))
    assert solver.weight == critic.weight == pytest.approx(0.15) and solver.unit == "share"


def gap_rows(gaps: dict[str, float]) -> list[dict]:
    """Two tasks of each of two categories, by each role; regression is scored higher by what its role gives."""
    return [
        {"episode": f"{t}{n}", "task": t, "role": role, "category": kind, "score": 4 + n + gap * (kind == "regression")}
        for role, gap in gaps.items()
        for t, kind in (("w", "classification"), ("x", "classification"), ("y", "regression"), ("z", "regression"))
        for n in range(2 + (t == "z"))
    ]


def test_a_gap_between_categories_shares_the_error_rate_between_the_whole_and_its_parts():
    found = sample(*gap_rows({"solver": 2.0, "critic": 1.0}))
    family = [*contrasts(found, "category"), *contrasts(found, "category", within=("role",))]
    topic = category_gaps(family, [])
    assert [(e.what, e.weight, e.part) for e in topic.effects] == [
        ("regression minus classification", 6.0, False),
        ("regression minus classification for critic", 0.5, True),
        ("regression minus classification for solver", 0.5, True),
    ]
    assert [contrast.within for contrast in family] == [(), ("critic",), ("solver",)]
    assert topic.effects[2].named.startswith("scores regression 2.3 points higher than classification for solver")
    levels = [
        StratumMean("category", name, Estimate(5.0, None, None, 9, tasks)) for name, tasks in (("a", 1), ("b", 3))
    ]
    assert category_gaps([], levels).unmeasured == "a category has one task only"
    assert category_gaps([], levels[:1]).unmeasured == "all tasks are of one category"


def test_an_effect_is_its_gap_in_deviations_around_the_mean_of_each_level():
    """Scores 2 and 4 against 5, 6 and 10: a gap of 4, and a variance of (2 + 14) / 3 inside of levels."""
    kinds = {"a": (2.0, 4.0), "b": (5.0, 6.0, 10.0)}
    rows = [
        {"task": f"{k}{n}", "episode": f"{k}{n}", "category": k, "score": s}
        for k in kinds
        for n, s in enumerate(kinds[k])
    ]
    [gap] = contrasts(sample(*rows), "category")
    assert (gap.raw.value, gap.adjusted.value, gap.raw.n) == (4.0, 4.0, 5)
    assert gap.effect.value == pytest.approx(4 / math.sqrt(16 / 3))


def test_more_levels_than_twelve_are_not_compared_and_one_task_is_said():
    rows = [{"task": f"t{n}", "episode": f"e{n}", "category": f"k{n:02d}", "score": n % 7} for n in range(13)]
    assert contrasts(sample(*rows), "category") == [] and len(contrasts(sample(*rows[:12]), "category")) == 12
    levels = stratum_means(sample(*rows), "category")
    assert category_gaps([], levels).unmeasured == "more categories than 12 are not compared"
    assert small_strata(sample(*gap_rows({"solver": 1.0}), rows[0]), "category") == [
        "category 'k00' has one task only (n = 1 actions): its mean has no interval, and no difference from it can be "
        "tested"
    ]


def test_parts_of_training_hold_equally_many_steps_and_are_called_by_their_first():
    found = with_bins(sample(*({"step": step} for step in (3, 4, 5, 6, 7, 8, 9, 12, 20))))
    assert list(found.frame["bin"]) == [3, 3, 5, 6, 7, 8, 9, 12, 20]


def test_the_tasks_at_both_ends_are_those_at_equal_role():
    """The critic is scored 4 lower throughout; of four tasks the lowest and the highest are named in their order."""
    means = {"w": 5.0, "x": 3.0, "y": 9.0, "z": 7.0}
    rows = [
        {"task": t, "episode": f"{t}{n}", "role": role, "score": mean + n - 4 * (role == "critic") * (mean > 4)}
        for t, mean in means.items()
        for role in ("solver", "critic")
        for n in range(2)
        if (t, role) != ("x", "critic")
    ]
    spread = task_spread(sample(*rows))
    assert [level.name for level in spread.lowest] == ["x", "w", "z"]
    assert [level.name for level in spread.highest] == ["w", "z", "y"]
    assert spread.highest[-1].mean.value == 7.5 and spread.highest[-1].mean.n == 2, "of episodes, both roles together"


def test_progress_is_taken_out_twice():
    """Scores change by 6 / 3 in all and by 1 / 4 at equal circumstances: circumstances explain 1.75 of it."""
    assert _progress_counted_again(np.array([[1.0, 4.0, 6.0, 3.0]])).tolist() == [2.0 - 2 * 1.75]


def test_a_part_is_handed_over_with_its_mean_score_to_who_comes_next():
    """Rows of three episodes stand mixed. Critics run code, and fail by its state; a solver fails with its episode."""
    rows = [
        {"episode": "e", "role": "solver", "score": 4.0},
        {"episode": "f", "role": "solver", "score": 8.0},
        {"episode": "e", "role": "solver", "score": math.nan},
        {"episode": "e", "role": "solver", "score": 7.0},
        {"episode": "g", "role": "critic", "score": 3.0, "state": "ok", "has_code": True, "outcome": 0.0},
        {"episode": "f", "role": "critic", "state": "ok, cut", "has_code": True, "outcome": 0.0},
        {"episode": "e", "role": "critic", "state": "error", "has_code": True},
        {"episode": "g", "role": "solver", "score": 7.0, "outcome": 0.0},
    ]
    found = handovers(table(*rows))
    assert list(found["score"]) == [5.5, 8.0, 3.0] and list(found["role"]) == ["solver", "solver", "critic"]
    assert list(found["next_role"]) == ["critic", "critic", "solver"] and list(found["failed"]) == [1.0, 0.0, 1.0]


def test_criteria_are_held_against_each_other_at_equal_role():
    """Inside of each role the ranks of both run against each other, though one role has more of both."""
    plain = table(*({"task": f"t{n}", "role": role} for role in ("solver", "critic") for n in range(2)))
    table_of = plain.assign(**{"criterion:a": [3.0, 4.0, 8.0, 9.0], "criterion:b": [3.0, 2.0, 8.0, 7.0]})
    found = examine_criteria(Sample.of(table_of, RESAMPLES))
    [pair] = found.pairs
    assert (pair.first, pair.second, pair.rho.n) == ("a", "b", 4) and pair.rho.value == pytest.approx(-1.0)
    assert [one.mean.value for one in found.each] == [6.0, 5.0]
    same = table_of.assign(**{"criterion:b": [3.0, 3.0, 8.0, 8.0]})
    assert examine_criteria(Sample.of(same, RESAMPLES)).pairs[0].rho is None, "at equal role it does not vary"
    apart = table_of.assign(**{"criterion:b": [np.nan, 2.0, np.nan, 7.0], "criterion:a": [3.0, np.nan, 8.0, np.nan]})
    assert examine_criteria(Sample.of(apart, RESAMPLES)).pairs[0].rho is None, "no action has both"
    unscored = table_of.assign(**{"criterion:b": np.nan})
    assert [one.name for one in examine_criteria(Sample.of(unscored, RESAMPLES)).each] == ["a"]


def test_a_length_of_two_tasks_a_step_leaves_a_chart_on_which_its_curve_can_be_seen():
    points = [(1, Estimate(20.0, 3.0, 600_000.0, 2, 2)), (2, Estimate(40.0, 30.0, 50.0, 2, 2))]
    chart = curve_chart("Response length", [Curve("solver", points)], "tokens")
    assert chart.series[0].intervals == {1.0: (3.0, 400.0), 2.0: (30.0, 50.0)} and chart.y_range[1] < 500
    assert "intervals are cut at 10 times the largest value" in chart.count
    whole = curve_chart("Coach score", [Curve("solver", [(1, Estimate(0.1, 0.0, 9.0, 2, 2))])], "points")
    assert whole.series[0].intervals == {1.0: (0.0, 9.0)} and "cut" not in whole.count
