"""Two sets of scores side by side, against plain formulas."""

import json
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from coachrl.rescore.comparison import compare
from coachrl.rescore.rescoring import ScoredAction
from coachrl.types import CoachScore, Usage


def scored(action_id, value):
    status = "failed" if value is None else "scored"
    return CoachScore(action_id, status, value, usage=Usage(tokens_in=3, tokens_out=1, cost_usd=0.5))


def make_pairs(rng, count):
    before = rng.uniform(0, 10, count)
    after = np.clip(before + rng.normal(1, 2, count), 0, 10)
    actions = [
        ScoredAction(f"a{i}", f"r{i % 2}", f"t{i % 7}", f"k{i % 3}", scored(f"a{i}", float(before[i])))
        for i in range(count)
    ]
    return before, after, actions, {f"a{i}": scored(f"a{i}", float(after[i])) for i in range(count)}


def test_the_comparison_states_what_plain_formulas_give():
    before, after, actions, scores = make_pairs(np.random.default_rng(0), 60)
    found = compare(actions, scores)
    assert found.pearson.value == pytest.approx(stats.pearsonr(before, after).statistic)
    assert found.spearman.value == pytest.approx(stats.spearmanr(before, after).statistic)
    assert found.near.value == pytest.approx(np.mean(np.abs(after - before) <= 1))
    assert found.overall.shift.value == pytest.approx(np.mean(after - before))
    assert (found.overall.shift.n, found.overall.shift.tasks) == (60, 7)
    assert found.by_role["r1"].before == pytest.approx(before[1::2].mean())
    assert found.by_category["k2"].shift.value == pytest.approx((after - before)[2::3].mean())
    for estimate in (found.pearson, found.spearman, found.near, found.overall.shift):
        assert estimate.low < estimate.value < estimate.high
    assert found.after.cost_usd == 30.0 and found.after.tokens == 240
    json.dumps(found.record(), allow_nan=False)


def test_actions_of_one_task_do_not_count_as_independent():
    """Four tasks, a hundred actions in each that shift together: the interval is that of four observations."""
    shifts = [0.0, 1.0, 2.0, 3.0]
    actions = [ScoredAction(f"{t}.{i}", "r", f"t{t}", "k", scored("", 5.0)) for t in range(4) for i in range(100)]
    scores = {a.action_id: scored(a.action_id, 5.0 + shifts[int(a.task_id[1])]) for a in actions}
    shift = compare(actions, scores).overall.shift
    assert shift.value == pytest.approx(1.5) and shift.high - shift.low > 2


def test_without_pairs_or_spread_nothing_is_made_up():
    action = ScoredAction("a", "r", "t", "k", None)
    nothing = compare([action], {"a": scored("a", 5.0)})
    assert nothing.overall is None and nothing.pearson is None and nothing.before.unscored == 1
    failed = compare([ScoredAction("a", "r", "t", "k", scored("a", None))], {"a": scored("a", 5.0)})
    assert failed.overall is None and failed.before.failed_fraction == 1.0
    flat = [ScoredAction(str(i), "r", f"t{i}", "k", scored(str(i), 5.0)) for i in range(3)]
    constant = compare(flat, {str(i): scored(str(i), float(i)) for i in range(3)})
    assert constant.pearson is None and constant.spearman is None and constant.overall.shift.value == -4.0
    unknown = compare(flat, {"0": CoachScore("0", "scored", 1.0, usage=Usage(cost_usd=None))})
    assert unknown.after.cost_usd is None


def test_the_share_that_failed_is_of_those_that_were_asked_about():
    actions = [ScoredAction(name, "r", "t", "k", scored(name, 5.0)) for name in "abcd"]
    scores = {"a": scored("a", 1.0), "b": scored("b", None), "c": CoachScore("c", "abstained")}
    after = compare(actions, scores).after
    assert (after.scored, after.failed, after.abstained, after.unscored) == (1, 1, 1, 1)
    assert after.failed_fraction == pytest.approx(1 / 3)


def test_a_point_apart_is_near_and_each_group_has_its_own_mean_actions_and_tasks():
    """Moves of 0, 1, -1, 1.25 and -3; of the roles one has three actions of two tasks, the other two of one."""
    given = [
        ("a", "t", 5.0, 5.0),
        ("a", "u", 5.0, 6.0),
        ("a", "u", 5.0, 4.0),
        ("b", "v", 2.0, 3.25),
        ("b", "v", 4.0, 1.0),
    ]
    actions = [ScoredAction(str(n), role, task, "k", scored(str(n), x)) for n, (role, task, x, _) in enumerate(given)]
    found = compare(actions, {str(n): scored(str(n), y) for n, (*_, y) in enumerate(given)})
    assert (found.near.value, found.near.n, found.near.tasks) == (0.6, 5, 3)
    assert list(found.by_role) == ["a", "b"] and list(found.by_category) == ["k"]
    first, second = found.by_role.values()
    assert (first.before, first.after, first.shift.value, first.shift.n, first.shift.tasks) == (5.0, 5.0, 0.0, 3, 2)
    assert (second.before, second.after, second.shift.n, second.shift.tasks) == (3.0, 2.125, 2, 1)
    assert (found.before.tokens, found.after.tokens, found.before.cost_usd) == (20, 20, 2.5)


def test_an_abstention_is_compared_with_nothing_on_either_side():
    silent = CoachScore("a", "abstained")
    for before, after in ((silent, scored("a", 5.0)), (scored("a", 5.0), silent)):
        pair = [ScoredAction("a", "r", "t", "k", before), ScoredAction("b", "r", "t", "k", scored("b", 1.0))]
        found = compare(pair, {"a": after, "b": scored("b", 3.0)})
        assert (found.overall.shift.n, found.overall.shift.value) == (1, 2.0)
        assert found.before.abstained + found.after.abstained == 1


def test_the_share_that_is_near_has_the_interval_of_a_share():
    actions = [ScoredAction(str(n), "r", f"t{n}", "k", scored(str(n), 5.0)) for n in range(4)]
    near = compare(actions, {str(n): scored(str(n), 5.5) for n in range(4)}).near
    assert (near.value, near.low, near.high) == (1.0, pytest.approx(0.025**0.25), 1.0)


def test_groups_are_told_apart_by_their_whole_names_and_a_long_one_costs_its_own_length_alone():
    names = ["x", "x\0", "x\ud83d", "q" * 5_000]
    actions = [ScoredAction(str(n), "r", f"t{n % 9}", names[n % 4], scored(str(n), 5.0)) for n in range(2_000)]
    scores = {str(n): scored(str(n), 5.0 + n % 4) for n in range(2_000)}
    tracemalloc.start()
    try:
        found = compare(actions, scores).by_category
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert [(name, group.shift.value, group.shift.n) for name, group in found.items()] == [
        (name, place, 500) for place, name in enumerate(names)
    ]
