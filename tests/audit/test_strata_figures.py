"""Differences between strata, and between tasks, at their edges: scores of 0, cells of one level, one task."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audit_tables import sample
from scipy import stats

from coachrl.audit.data.frame import CRITERION
from coachrl.audit.stats import strata
from coachrl.audit.stats.criteria import examine_criteria
from coachrl.audit.stats.strata import contrasts, stratum_means, table3, task_spread, with_bins
from coachrl.audit.stats.within import indicators, slope
from coachrl.audit.topics.criteria import criteria_told_apart
from coachrl.stats import SCORE_CHANGE, estimate, ratio


def scored(**columns: list) -> list[dict]:
    """Rows of tasks and episodes of their own, from columns of equal length."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{"task": f"t{n}", "episode": f"e{n}", **row} for n, row in enumerate(rows)]


def test_a_level_that_is_scored_0_throughout_is_compared_and_one_that_does_not_occur_in_a_cell_is_not():
    """Solvers get 0 against 4; of critics only one category has any, so that they tell nothing of the difference."""
    roles, kinds = ["solver"] * 4 + ["critic"], ["a", "a", "b", "b", "b"]
    rows = scored(role=roles, category=kinds, score=[0.0, 0.0, 3.0, 5.0, 10.0])
    [gap] = contrasts(sample(*rows), "category")
    assert (gap.level, gap.versus, gap.raw.value, gap.raw.n) == ("b", "a", 6.0, 5)
    assert (gap.adjusted.value, gap.adjusted.n) == (4.0, 4)
    [turned] = contrasts(sample(*(row | {"category": "ba"[row["category"] == "b"]} for row in rows)), "category")
    assert (turned.adjusted.value, turned.adjusted.n) == (-4.0, 4)
    [alone] = contrasts(sample(*rows[:2], rows[4]), "category")
    assert (alone.raw.value, alone.adjusted, alone.effect) == (10.0, None, None)


def test_a_gap_that_one_task_of_a_category_carries_has_no_interval():
    """Of twenty hard tasks one has successes, and all twenty easy ones: at equal outcome it alone is compared."""
    rows = [
        {"task": f"{kind}{n}", "episode": f"{kind}{n}.{draw}", "category": kind, "score": score, "outcome": outcome}
        for kind in ("easy", "hard")
        for n in range(20)
        for draw, score in enumerate((5.0 + n % 3, 6.0 + n % 2))
        for outcome in [float(kind == "easy" or n == 0)]
    ]
    [gap] = contrasts(sample(*rows), "category")
    assert (gap.adjusted.n, gap.adjusted.tasks) == (42, 21)
    assert (gap.adjusted.low, gap.adjusted.p) == (None, None) and gap.raw.p is not None
    both = [row | {"outcome": 1.0} if row["task"] in ("hard1", "hard2") else row for row in rows]
    [of_three] = contrasts(sample(*both), "category")
    assert of_three.adjusted.p is not None and of_three.adjusted.tasks == 23


def test_tasks_carry_a_gap_by_the_weight_that_their_rows_have_in_it(monkeypatch):
    """Ten failures of one hard task are held against one of an easy task; successes, ten tasks against ten."""
    rows = [
        {"task": "hard0", "episode": f"hard0.{n}", "category": "hard", "score": 3.0 + n % 2, "outcome": 0.0}
        for n in range(10)
    ]
    rows += [{"task": "easy0", "episode": "easy0", "category": "easy", "score": 4.0, "outcome": 0.0}]
    rows += [
        {"task": f"{kind}{n}", "episode": f"{kind}{n}", "category": kind, "score": 6.0 + n % 3, "outcome": 1.0}
        for kind in ("easy", "hard")
        for n in range(1, 11)
    ]
    carrying = []

    def noted(*given, clusters, **settings):
        carrying.append(clusters)
        return estimate(*given, clusters=clusters, **settings)

    monkeypatch.setattr(strata, "estimate", noted)
    [_] = contrasts(sample(*rows), "category")
    unequal, equal = (
        10 / 11,
        1 / 2,
    )  # a hard task's rows weigh as the share of easy ones: 10 of 1/11, 1 of 1/2; easy ones so too
    expected = (unequal + 10 * equal) ** 2 / (unequal**2 + 10 * equal**2)
    assert carrying == pytest.approx([(10 + 10) ** 2 / (10**2 + 10), expected])


def test_what_is_compared_is_not_held_equal():
    """Roles are compared at equal outcome, outcomes inside of each role, and neither with itself."""
    rows = scored(role=["a", "b"] * 2, outcome=[0.0, 0.0, 1.0, 1.0], score=[1.0, 2.0, 5.0, 8.0])
    [roles] = contrasts(sample(*rows), "role")
    assert roles.adjusted.value == 2.0 and roles.adjusted.n == 4
    inside = contrasts(sample(*rows), "result", within=("role",))
    assert [(one.within, one.level, one.adjusted.value) for one in inside] == [
        (("a",), "success", 4.0),
        (("b",), "success", 6.0),
    ]


def test_of_two_levels_one_is_compared_with_the_other_and_of_three_each_with_the_others():
    rows = scored(category=["a", "b", "c", "c"], score=[1.0, 3.0, 5.0, 9.0])
    assert [(one.level, one.versus) for one in contrasts(sample(*rows[:2]), "category")] == [("b", "a")]
    assert [(one.level, one.versus, one.raw.value) for one in contrasts(sample(*rows), "category")] == [
        ("a", "other categories", pytest.approx(1 - 17 / 3)),
        ("b", "other categories", -2.0),
        ("c", "other categories", 5.0),
    ]
    assert contrasts(sample(*rows[2:]), "category") == []


def test_an_effect_has_its_bounds_in_deviations_too():
    rows = scored(category=list("aaabbb"), score=[1.0, 2.0, 4.0, 5.0, 8.0, 8.0])
    [gap] = contrasts(sample(*rows), "category")
    deviation = math.sqrt((sum((s - 7 / 3) ** 2 for s in (1, 2, 4)) + sum((s - 7) ** 2 for s in (5, 8, 8))) / 4)
    assert gap.adjusted.value == pytest.approx(14 / 3) and gap.adjusted.low < 14 / 3 < gap.adjusted.high
    assert [gap.effect.value, gap.effect.low, gap.effect.high] == pytest.approx(
        [bound / deviation for bound in (gap.adjusted.value, gap.adjusted.low, gap.adjusted.high)]
    )
    steady = scored(category=list("aabb"), score=[2.0, 2.0, 5.0, 5.0])
    assert contrasts(sample(*steady), "category")[0].effect is None, "there is no deviation to count in"


def test_a_difference_is_as_sure_as_the_level_of_fewer_tasks_lets_it_be():
    """Three tasks against five: the interval has two degrees of freedom, and not seven."""
    kinds = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    found = sample(*scored(category=list("aaabbbbb"), score=[2.0, 3.0, 1.0, 5.0, 6.0, 5.0, 4.0, 6.0]))
    [gap] = contrasts(found, "category")
    sums = found.sums(kinds, 2, found.scores)[1:]
    means = ratio(sums[..., 1], sums[..., 0])
    expected = estimate(3.2, means[:, 1] - means[:, 0], 8, 8, limits=SCORE_CHANGE, clusters=3)
    assert (gap.raw.low, gap.raw.high, gap.raw.p) == pytest.approx((expected.low, expected.high, expected.p))


def test_the_gap_by_role_and_time_is_that_of_each_cell():
    rows = scored(
        category=["a", "b"] * 4,
        role=["x", "x", "y", "y"] * 2,
        step=[1] * 4 + [6] * 4,
        score=[1.0, 2.0, 1.0, 4.0, 5.0, 5.0, 7.0, 2.0],
    )
    gaps = {gap.within: gap.raw.value for gap in table3(with_bins(sample(*rows)))}
    assert gaps == {("x", "1"): 1.0, ("x", "6"): 0.0, ("y", "1"): 3.0, ("y", "6"): -5.0}
    assert table3(sample(*rows)) == [], "without parts of training"


def test_levels_stand_in_order_with_their_own_actions_and_tasks():
    rows = scored(category=["b", "a", "b"], score=[2.0, 7.0, 3.0], task=["t", "t", "u"])
    found = [
        (level.name, level.mean.value, level.mean.n, level.mean.tasks)
        for level in stratum_means(sample(*rows), "category")
    ]
    assert found == [("a", 7.0, 1, 1), ("b", 2.5, 2, 2)]


def test_tasks_are_spread_only_where_there_are_two_with_more_than_one_action_and_scores_differ():
    assert task_spread(sample(*scored(task=["t"] * 3, score=[1.0, 2.0, 3.0]))) is None
    assert task_spread(sample(*scored(score=[1.0, 2.0, 3.0]))) is None, "one action for each"
    assert task_spread(sample(*scored(task=["t", "t", "u"], score=[4.0] * 3))) is None
    roles = scored(task=["t", "t", "u", "u"], role=["a", "b"] * 2, score=[2.0, 8.0, 2.0, 8.0])
    assert task_spread(sample(*roles)) is None, "at equal role all are alike"
    assert task_spread(sample(*scored(task=["t", "t", "u"], score=[4.0, 5.0, 6.0]))) is not None


def test_a_share_between_tasks_is_never_below_0():
    """Mean squares 0 between tasks and 8 inside of them: the formula gives -1."""
    spread = task_spread(sample(*scored(task=["t", "t", "u", "u"], score=[3.0, 7.0, 7.0, 3.0])))
    assert spread.share.value == 0.0 and spread.share.n == 4


def test_a_tasks_mean_is_over_its_episodes_with_students_interval():
    """Episodes of 4 and 6, the first of two actions: mean 5 and deviation of the mean 1, on the scale of logits."""
    rows = scored(task=["t", "t", "t", "u", "u"], score=[3.0, 5.0, 6.0, 9.0, 9.0], episode=list("eefgh"))
    low, high = task_spread(sample(*rows)).lowest
    assert (low.name, low.mean.value, low.mean.n, low.mean.tasks, low.mean.of) == ("t", 5.0, 2, 1, "episodes")
    margin = 1.0 * (1 / 5 + 1 / 5) * stats.t.ppf(0.975, 1)
    assert low.mean.high == pytest.approx(10 / (1 + math.exp(-margin))) and low.mean.low == pytest.approx(
        10 - low.mean.high
    )
    assert (high.name, high.mean.value, high.mean.low) == ("u", 9.0, None), "no spread, no interval"


def test_controls_are_ones_for_each_combination_but_the_most_frequent():
    rows = scored(role=["b", "a", "b", "c", "b", "c"], score=[1.0] * 6)
    found = indicators(sample(*rows), ("role",))
    assert found.T.tolist() == [[0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0]], "c before a, which is rarer"
    assert indicators(sample(*rows), ("role",), most=1).T.tolist() == [[0, 0, 0, 1, 0, 1]]
    assert indicators(sample(*rows[:1]), ("role",)).shape == (1, 0)


def test_a_slope_is_taken_inside_of_cells_at_equal_controls():
    """Scores rise by 2 for each turn and by 5 for a critic; tasks lie 3 apart, and one has later turns."""
    turns, roles = [0, 1, 2, 1, 3, 2], ["solver", "critic", "solver", "critic", "solver", "solver"]
    tasks = ["t", "t", "t", "u", "u", "u"]
    scores = [2.0 * n + 5 * (r == "critic") - 3 * (t == "u") for n, r, t in zip(turns, roles, tasks, strict=True)]
    found = sample(*scored(task=tasks, turn=turns, role=roles, score=scores))
    x = np.array(turns, float)
    assert slope(found, x, found.scores, ("task",), (("role",),)).value == pytest.approx(2.0)
    assert slope(found, x, found.scores, ("task",)).value != pytest.approx(2.0, abs=0.1)
    assert slope(found, found.matches("task", "t"), found.scores, ("task",)) is None, "nothing is left of it"


def with_criteria(**criteria: list[float]):
    """A sample of as many tasks as there are scores, half of them failures, with a column for each criterion."""
    count = len(next(iter(criteria.values())))
    made = sample(*scored(score=[5.0] * count, outcome=[float(n % 2) for n in range(count)]))
    for name, values in criteria.items():
        made.frame[CRITERION + name] = values
    return made


def test_criteria_have_figures_of_their_own_over_the_actions_that_have_them():
    nothing = [math.nan] * 4
    found = examine_criteria(with_criteria(right=[1.0, 5.0, 3.0, 7.0], clear=[8.0, math.nan, 6.0, 4.0], lost=nothing))
    assert [(one.name, one.mean.value, one.mean.n) for one in found.each] == [("right", 4.0, 4), ("clear", 6.0, 3)]
    assert [one.outcome[0].raw.value for one in found.each] == [4.0, -3.0]
    [pair] = found.pairs
    assert (pair.first, pair.second, pair.rho.n) == ("right", "clear", 3)
    assert examine_criteria(with_criteria(lost=nothing)) is None
    assert examine_criteria(with_criteria(one=[1.0, 2.0, 3.0, 4.0], flat=[5.0] * 4)).pairs[0].rho is None
    apart = examine_criteria(with_criteria(one=[1.0, 2.0, math.nan, math.nan], two=[math.nan, math.nan, 1.0, 2.0]))
    assert apart.pairs[0].rho is None
    [unmeasured] = criteria_told_apart(apart)
    assert unmeasured.unmeasured == "no two of them vary" and criteria_told_apart(None) == []


def test_criteria_are_alike_by_their_ranks_and_the_two_that_are_least_alike_are_named():
    """Ranks 1 to 5 against 1, 2, 3, 5, 4: the sum of products of deviations is 9 of 10."""
    found = examine_criteria(
        with_criteria(a=[1.0, 2.0, 3.0, 4.0, 9.0], b=[0.0, 2.0, 3.0, 9.0, 8.0], c=[1.0, 4.0, 5.0, 8.0, 9.0])
    )
    assert {(p.first, p.second): round(p.rho.value, 9) for p in found.pairs} == {
        ("a", "b"): 0.9,
        ("a", "c"): 1.0,
        ("b", "c"): 0.9,
    }
    [topic] = criteria_told_apart(found)
    [effect] = topic.effects
    assert (effect.estimate.value, effect.null, effect.least, effect.weight) == (pytest.approx(0.9), 0.9, 0.0, 0.5)
    assert "its 3 criteria one score: even a and b" in effect.named


def test_a_single_degree_of_freedom_is_one():
    """Scores of 2 and 4 against 7: the two deviate by 1 each from their mean, of which one is free."""
    [gap] = contrasts(sample(*scored(category=["a", "a", "b"], score=[2.0, 4.0, 7.0])), "category")
    assert gap.adjusted.value == 4.0 and gap.effect.value == pytest.approx(4.0 / math.sqrt(2.0))
    [alone] = contrasts(sample(*scored(category=["a", "b"], score=[2.0, 7.0])), "category")
    assert (alone.adjusted.value, alone.effect) == (5.0, None)
