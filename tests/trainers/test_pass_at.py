"""pass@k: unbiased, by task, and only where there are episodes enough."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.trainers.evaluate import evaluation_metrics, pass_at
from coachrl.types import Episode, Outcome


def episodes(*tasks, infra_error=None):
    """tasks: for each task the successes of its episodes, such as "110"."""
    return [
        Episode(f"e{t}.{i}", f"t{t}", "k", "p", (), Outcome(mark == "1"), infra_error=infra_error)
        for t, marks in enumerate(tasks)
        for i, mark in enumerate(marks)
    ]


def test_golden_values():
    """n = 5, c = 2: pass@1 2/5, pass@3 1 - C(3,3)/C(5,3) = 9/10, pass@5 1; the other task never succeeds."""
    assert pass_at(episodes("11000"), (1, 3, 5)) == pytest.approx({1: 0.4, 3: 0.9, 5: 1.0})
    assert pass_at(episodes("11000", "00000"), (1, 3, 5)) == pytest.approx({1: 0.2, 3: 0.45, 5: 0.5})


@given(st.text("01", min_size=2, max_size=7), st.integers(1, 7))
def test_it_is_the_share_of_draws_with_a_success(marks, k):
    draws = [any(mark == "1" for mark in drawn) for drawn in combinations(marks, k)]
    expected = {k: pytest.approx(sum(draws) / len(draws))} if draws else {}
    assert pass_at(episodes(marks), (k,)) == expected


def test_where_it_is_left_out():
    assert pass_at(episodes("1", "0"), (1, 3)) == {}, "one episode each: that is success, no pass@k"
    assert set(pass_at(episodes("1100", "10"), (1, 2, 3))) == {1, 2}, "a task with too few episodes"
    broken = [*episodes("10"), *episodes("11", infra_error="sandbox")]
    assert pass_at(broken, (1, 2, 3)) == {1: 0.5, 2: 1.0}, "broken episodes do not count"


def test_it_is_among_the_metrics_of_an_evaluation():
    metrics = evaluation_metrics([], episodes("1000000000", "0000000000"))
    assert [metrics[f"eval/pass@{k}"] for k in (1, 3, 5, 10)] == pytest.approx([0.05, 0.15, 0.25, 0.5])
