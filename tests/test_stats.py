"""Intervals: what they cover, where they end, and that they do not depend on the order of the data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coachrl.stats import (
    CORRELATION,
    POSITIVE,
    SCORE,
    SHARE,
    UNLIMITED,
    Estimate,
    Limits,
    Resampler,
    correlation,
    equal_clusters,
    estimate,
    estimate_mean,
    exact_interval,
    holm,
    interval,
    mean_of,
    paired_difference,
    ratio,
)


@pytest.mark.parametrize("at_once", [7, 3])  # of 7 resamples, each of 8 bytes for each of 5 tasks
def test_resampled_sums_are_those_of_drawn_tasks(at_once, monkeypatch):
    monkeypatch.setattr("coachrl.stats._CHUNK_BYTES", at_once * 8 * 5)
    rng = np.random.default_rng(1)
    tasks, cells, values = rng.integers(0, 5, 40), rng.integers(0, 3, 40), rng.normal(size=40)
    found = Resampler(5, resamples=7, seed=3).sums(tasks, cells, (values,), 3)
    draws = np.random.default_rng(3)
    for row in found[1:]:
        drawn = draws.integers(0, 5, 5)
        expected = np.zeros((3, 2))
        for task in drawn:
            for index in np.flatnonzero(tasks == task):
                expected[cells[index]] += (1.0, values[index])
        np.testing.assert_allclose(row, expected, atol=1e-9)
    np.testing.assert_allclose(found[0, :, 0], np.bincount(cells, minlength=3))


def test_draws_over_as_many_tasks_are_made_once_where_they_are_small():
    small, again, other, large, larger = (Resampler(*of)._drawn_TR for of in [(5,), (5,), (6,), (2000,), (2000,)])
    assert small is again is not other and large is not larger and (large == larger).all()


def test_an_interval_needs_two_tasks_and_some_spread():
    assert estimate(1.0, np.array([1.0, 2.0, 3.0]), 5, 1).low is None
    assert estimate(1.0, np.ones(100), 5, 9).low is None
    assert estimate(1.0, np.full(100, np.nan), 5, 9).low is None
    found = estimate(1.0, np.random.default_rng(0).normal(1, 0.1, 1000), 5, 9)
    assert found.low == pytest.approx(1 - 0.1 * np.sqrt(9 / 8) * 2.306, rel=0.1)
    assert str(found).endswith("(n = 5 actions, 9 tasks)")


@pytest.mark.parametrize(
    ("value", "limits"), [(9.8, SCORE), (0.1, SCORE), (0.97, SHARE), (-0.9, CORRELATION), (3.0, POSITIVE)]
)
def test_an_interval_stays_inside_of_what_a_figure_can_be(value, limits):
    found = estimate(value, np.random.default_rng(0).normal(value, 1.0, 1000), 30, 3, limits=limits)
    assert limits[0] <= found.low < value < found.high <= limits[1]


@pytest.mark.parametrize(
    ("value", "limits", "free", "back"),
    [
        (4.0, POSITIVE, np.log, np.exp),
        (0.8, SHARE, lambda v: np.log(v / (1 - v)), lambda f: 1 / (1 + np.exp(-f))),
        (-0.5, CORRELATION, np.arctanh, np.tanh),
        (7.0, SCORE, lambda v: np.log(v / (10 - v)), lambda f: 10 / (1 + np.exp(-f))),
        (7.0, UNLIMITED, lambda v: v, lambda f: f),
    ],
)
def test_an_interval_is_students_on_the_scale_without_limits(value: float, limits: Limits, free, back) -> None:
    """On it the error is multiplied by the scale's slope: 2.5706 is Student's t of five degrees of freedom."""
    error, step = 0.02, 1e-6
    slope = (free(value + step) - free(value - step)) / (2 * step)
    expected = [back(free(value) + side * error * slope * 2.5706) for side in (-1, 1)]
    assert interval(value, error, 5, limits) == pytest.approx(expected, rel=1e-4)


def test_p_is_that_of_the_distance_from_the_null_on_that_scale() -> None:
    """Resamples of deviation 0.1 and 9 tasks: the logit of 0.8 is 1.386 from that of 0.5, where its slope is 6.25."""
    found = estimate(0.8, np.array([0.7, 0.8, 0.9]), 40, 9, limits=SHARE, null=0.5)
    assert found.p == pytest.approx(2 * stats.t.sf(np.log(4) / (0.1 * np.sqrt(9 / 8) * 6.25), 8))
    of_fewer = estimate(0.8, np.array([0.7, 0.8, 0.9]), 40, 9, limits=SHARE, null=0.5, clusters=3)
    assert of_fewer.p == pytest.approx(2 * stats.t.sf(np.log(4) / (0.1 * np.sqrt(3 / 2) * 6.25), 2))
    assert (of_fewer.n, of_fewer.tasks) == (40, 9)
    from_a_fifth = estimate(0.8, np.array([0.7, 0.8, 0.9]), 40, 9, limits=SHARE, null=0.2)
    assert from_a_fifth.p == pytest.approx(2 * stats.t.sf(np.log(16) / (0.1 * np.sqrt(9 / 8) * 6.25), 8))
    assert estimate(3.0, np.array([2.0, 3.0, 4.0]), 40, 9, limits=POSITIVE).p is None  # nothing lies on its other side


def test_an_estimate_is_off_zero_where_its_whole_interval_is() -> None:
    below, touching = Estimate(-0.5, -0.8, -0.2, 9, 3), Estimate(-0.5, -1.0, 0.0, 9, 3)
    assert below.bounds == (-0.8, -0.2) and (below.is_off_zero, touching.is_off_zero) == (True, False)
    assert Estimate(-0.5, None, None, 9, 1).bounds == (-0.5, -0.5) and Estimate(-0.5, None, None, 9, 1).is_off_zero
    assert Estimate(0.5, 0.2, 0.8, 9, 3).is_off_zero and not Estimate(0.5, 0.0, 1.0, 9, 3).is_off_zero


def test_resamples_that_give_no_figure_are_left_out_where_they_are_the_fewer() -> None:
    known = [1.0, 2.0, 3.0]
    whole, partly = (estimate(2.0, np.array([*known, *lost]), 9, 5) for lost in ([], [np.nan, np.nan]))
    assert (partly.low, partly.high, partly.p) == (whole.low, whole.high, whole.p) and whole.low is not None
    assert estimate(2.0, np.array([*known, *[np.nan] * 3]), 9, 5).low is None
    steady = estimate(2.0, np.array([2.0] * 5), 9, 5)
    assert (steady.low, steady.p) == (None, 1 / 16)
    assert (
        estimate(2.0, np.array([2.0, 2.0, 2.0, np.nan]), 9, 5).p is None and estimate(0.0, np.zeros(5), 9, 5).p is None
    )


def test_the_top_of_a_scale_has_an_interval_over_its_whole_width() -> None:
    found = estimate(10.0, np.full(9, 10.0), 40, 4, limits=SCORE, null=5.0)
    assert (found.low, found.high) == pytest.approx((10 * 0.025**0.25, 10.0)) and found.p == pytest.approx(0.125)
    assert estimate(10.0, np.full(9, 10.0), 40, 3, limits=SCORE, null=2.5).p == pytest.approx(2 / 4**3)
    assert estimate(10.0, np.full(9, 10.0), 40, 3, limits=SCORE).p is None
    assert estimate(10.0, np.full(9, 10.0), 40, 1, limits=SCORE).low is None


def test_a_correlation_at_its_limit_has_no_interval_though_resamples_depart_from_it() -> None:
    found = estimate(1.0, np.array([0.9, 1.0, 0.95]), 9, 5, limits=CORRELATION)
    assert (found.low, found.high, found.p) == (None, None, None)


def test_a_correlation_of_unequal_tasks_far_from_0() -> None:
    x, y = np.array([1.0, 2.0, 4.0, 4.0, 7.0, 3.0]), np.array([2.0, 1.0, 5.0, 3.0, 9.0, 8.0])
    tasks = np.array([0, 0, 0, 1, 1, 2])
    near = correlation(x, y, tasks, Resampler(3, 50))
    far = correlation(x + 1e8, y - 1e8, tasks, Resampler(3, 50))
    assert near.value == pytest.approx(np.corrcoef(x, y)[0, 1]) and (near.n, near.tasks) == (6, 3)
    assert (far.value, far.low, far.high) == pytest.approx((near.value, near.low, near.high), rel=1e-6)
    drawn, boot = np.random.default_rng(0), []
    for _ in range(50):
        rows = np.concatenate([np.flatnonzero(tasks == task) for task in drawn.integers(0, 3, 3)])
        with np.errstate(invalid="ignore"):
            boot.append(np.corrcoef(x[rows], y[rows])[0, 1] if np.ptp(x[rows]) and np.ptp(y[rows]) else np.nan)
    by_hand = estimate(near.value, np.array(boot), 6, 3, limits=CORRELATION, clusters=36 / 14)  # Kish, of 3, 2 and 1
    assert (near.low, near.high) == pytest.approx((by_hand.low, by_hand.high))
    assert correlation(x, np.ones(6), tasks, Resampler(3, 50)) is None


def test_a_mean_is_over_observations_and_not_over_clusters() -> None:
    found = estimate_mean({("a", "0"): 1.0, ("a", "1"): 1.0, ("a", "2"): 1.0, ("b", "0"): 0.0})
    assert (found.value, found.n, found.tasks, found.of) == (0.75, 4, 2, "episodes")


def test_an_exact_interval_of_three_in_ten_is_clopper_and_pearsons() -> None:
    assert exact_interval(3, 10) == pytest.approx((0.0667, 0.6525), abs=1e-4)


def test_a_ratio_of_nothing_is_no_number() -> None:
    assert ratio(np.array([3.0, 1.0, 0.0]), np.array([2.0, 0.0, 4.0])).tolist() == pytest.approx(
        [1.5, np.nan, 0.0], nan_ok=True
    )


def test_far_from_its_limits_an_interval_is_that_of_student():
    boot = np.random.default_rng(0).normal(5.0, 0.1, 1000)
    inside, free = estimate(5.0, boot, 30, 9, limits=SCORE), estimate(5.0, boot, 30, 9)
    assert (inside.low, inside.high) == pytest.approx((free.low, free.high), abs=0.01)
    assert estimate(0.3, boot - 4.7, 9, 9, limits=CORRELATION).p == pytest.approx(
        estimate(0.3, boot - 4.7, 9, 9).p, abs=0.01
    )


def test_a_mean_at_its_limit_has_the_exact_interval_of_as_many_tasks():
    for value, ends in ((1.0, (0.025 ** (1 / 14), 1.0)), (0.0, (0.0, 1 - 0.025 ** (1 / 14)))):
        found = estimate(value, np.full(100, value), 84, 14, limits=SHARE)
        assert (found.low, found.high) == pytest.approx(ends)
    assert estimate(1.0, np.ones(100), 84, 14, limits=SHARE, null=0.5, clusters=2).p == pytest.approx(0.5)
    assert estimate(1.0, np.ones(100), 84, 14, limits=CORRELATION).low is None


@pytest.mark.parametrize(("tasks", "low"), [(5, -0.044), (6, 0.081), (20, 0.663)])
def test_a_gain_of_every_task_has_the_interval_of_the_sign_test(tasks: int, low: float) -> None:
    before = {(str(task), "0"): 0.0 for task in range(tasks)}
    found = paired_difference(before, dict.fromkeys(before, 1.0), SHARE)
    assert found is not None and found.value == found.high == 1 and found.p == 2 * 0.5**tasks
    assert found.low == pytest.approx(low, abs=0.001)
    assert found.is_off_zero == (found.p < 0.05)


def test_intervals_of_few_tasks_near_the_top_hold_the_truth():
    rng, held, truth = np.random.default_rng(0), 0, 10 * 0.94
    for seed in range(300):
        tasks = np.repeat(np.arange(10), 8)
        scores = 10 * rng.beta(9.4, 0.6, size=10)[tasks]
        counts, sums = Resampler(10, 200, seed).sums(tasks, np.zeros(80, int), (scores,), 1)[1:, 0].T
        found = estimate(scores.mean(), sums / counts, 80, 10, limits=SCORE)
        held += found.low <= truth <= found.high
    assert held / 300 > 0.9


@settings(max_examples=30)
@given(
    st.dictionaries(st.tuples(st.sampled_from("abcdef"), st.sampled_from("01")), st.floats(0, 10, width=32), min_size=1)
)
def test_an_interval_lies_within_its_limits_and_does_not_depend_on_order(values: dict[tuple[str, str], float]) -> None:
    found = estimate_mean(values, SCORE)
    assert found == estimate_mean(dict(reversed(values.items())), SCORE)
    if found.low is not None and found.high is not None:
        assert 0 <= found.low <= found.value <= found.high <= 10


@pytest.mark.parametrize("tasks", [6, 40])
def test_an_interval_covers_the_truth_about_as_often_as_it_says(tasks: int) -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(100):
        skill_T = rng.beta(2, 2, size=tasks)  # tasks differ: two draws of one are not independent
        values = {(str(t), str(d)): float(rng.random() < skill_T[t]) for t in range(tasks) for d in range(4)}
        found = estimate_mean(values, SHARE)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.92 <= covered / 100 <= 0.99


def test_a_mean_of_unequal_tasks_has_as_many_as_equal_ones_would_make_up() -> None:
    """One task of eight draws and twelve of one: 20^2 / (64 + 12) of equal weight."""
    rng = np.random.default_rng(0)
    tasks = ["0"] * 8 + [str(task) for task in range(1, 13)]
    found = estimate_mean({(task, str(n)): float(rng.random()) for n, task in enumerate(tasks)})
    assert found.clusters == pytest.approx(400 / 76) and found.freedom == pytest.approx(324 / 76)
    ones = estimate_mean({(task, str(n)): 1.0 for n, task in enumerate(tasks)}, SHARE)
    assert ones.low == pytest.approx(0.025 ** (76 / 400))
    alone = estimate_mean({("0", str(n)): 1.0 for n in range(9)}, SHARE)
    assert (alone.low, alone.p) == (None, None)


def test_a_task_that_outweighs_all_others_gives_a_value_without_limits_no_interval() -> None:
    """20 and 1 draws count as 1.1 equal tasks: Student's t would be a million millions wide."""
    rng = np.random.default_rng(0)
    drawn = {(str(n // 20), str(n)): float(rng.random()) for n in range(21)}
    for limits in (UNLIMITED, POSITIVE):
        assert (estimate_mean(drawn, limits).low, estimate_mean(drawn, limits).high) == (None, None)
    assert estimate_mean(drawn, SHARE).low == pytest.approx(0, abs=0.01)
    more = {(str(n // 4), str(n)): float(rng.random()) for n in range(5)}
    assert estimate(0.5, np.array([0.4, 0.5, 0.6]), 9, 3, clusters=1.5).low is not None
    assert estimate_mean(more).low is None and estimate_mean({**more, ("2", "5"): 0.5}).low is not None


def test_a_share_without_spread_gets_the_exact_interval() -> None:
    zeros = {(str(t), "0"): 0.0 for t in range(64)}
    none, all_of_them = estimate_mean(zeros, SHARE), estimate_mean(dict.fromkeys(zeros, 1.0), SHARE)
    assert (none.low, none.high) == pytest.approx((0.0, 0.0560), abs=1e-4)
    assert (all_of_them.low, all_of_them.high) == pytest.approx((0.9440, 1.0), abs=1e-4)
    assert estimate_mean(zeros).low is None
    assert exact_interval(0, 64) == pytest.approx((none.low, none.high))


def test_a_gain_of_three_seeds_has_the_interval_of_three_observations() -> None:
    """However many tasks each seed was evaluated on: 4.303 is Student's t of two degrees of freedom."""
    before = {(seed, str(task)): 0.0 for seed in "123" for task in range(100)}
    after = {(seed, task): float(int(task) < 20 + 10 * int(seed)) for seed, task in before}
    found = paired_difference(before, after)
    assert found is not None and found.tasks == 3 and found.value == pytest.approx(0.4)
    assert found.high is not None and found.high - 0.4 == pytest.approx(4.303 * 0.1 / np.sqrt(3), rel=0.05)


def test_pairing_uses_the_draws_that_both_hold() -> None:
    before = {("a", "0"): 0.0, ("b", "0"): 0.0, ("c", "0"): 1.0}
    after = {("b", "0"): 1.0, ("c", "0"): 1.0, ("d", "0"): 1.0}
    difference = paired_difference(before, after, SHARE)
    assert difference is not None and (difference.value, difference.tasks) == (0.5, 2)
    assert difference.low is not None and -1 <= difference.low < 0  # a difference of shares may be negative
    assert paired_difference({("a", "0"): 0.0}, {("b", "0"): 1.0}) is None


def test_no_observation_gives_no_estimate() -> None:
    with pytest.raises(ValueError, match="at least one observation"):
        estimate_mean({})


def test_what_rounds_to_zero_has_no_minus() -> None:
    assert Estimate(-0.001, -0.004, 0.25, 9, 3).interval() == "0.00 [0.00, 0.25]"
    assert Estimate(-0.001, -0.02, -0.003, 9, 3).interval(signed=True) == "+0.00 [-0.02, +0.00]"
    assert Estimate(0.5, None, None, 1, 1, "episodes").size == "n = 1 episode, 1 task"


def test_holm():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([None]) == [None] and holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_weighted_holm_is_the_closed_test_of_weighted_bonferroni():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, w = rng.random(4) ** 3, rng.random(4) + 0.1
        subsets = [s for size in (1, 2, 3, 4) for s in combinations(range(4), size)]
        least = {s: min(1.0, min(p[i] * sum(w[j] for j in s) / w[i] for i in s)) for s in subsets}
        assert holm(list(p), list(w)) == pytest.approx([max(least[s] for s in subsets if i in s) for i in range(4)])


def test_clusters_of_unequal_weight_count_as_fewer_of_equal_weight():
    assert [equal_clusters(np.array(weights)) for weights in ([2.0] * 5, [7.0], [3.0, 1.0], [1.0, 0.0], [0.0])] == [
        5.0,
        1.0,
        1.6,
        1.0,
        0.0,
    ]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_mean_of_finite_numbers_is_between_them(values):
    found, most = mean_of(values), max(map(abs, values))
    assert np.isfinite(found) and abs(found) <= most * (1 + 1e-9)
    if most < 1e300:
        assert found == np.mean(values)
