"""Retrospective credit: from process scores and contributions to rewards and advantages, worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.config import RewardConfig
from coachrl.testing.actions import make_action
from coachrl.trainers.algorithms.retrospective import (
    Retrospective,
    RetrospectiveCreditConfig,
    consistent,
    contributions,
    outcome_worth,
)
from coachrl.trainers.samples import to_samples
from coachrl.types import GIVEN_UP, CoachScore, Episode, Outcome


def episode(name: str, count: int, success: bool = True, **metrics: float) -> Episode:
    actions = tuple(make_action(f"r{i}", episode=name, index=i) for i in range(count))
    return Episode(name, "t", "k", "p", actions, Outcome(success, metrics))


def scored(episode_: Episode, *pairs: tuple[float | None, float | None]) -> dict[str, CoachScore]:
    """Scores of an episode's actions from (process score, contribution)."""
    return {
        a.id: CoachScore(a.id, "failed" if p is None else "scored", p, contribution=c)
        for a, (p, c) in zip(episode_.actions, pairs, strict=True)
    }


def rewards(episode_, scores, **keys):
    algorithm = Retrospective(RetrospectiveCreditConfig(**keys))
    return list(algorithm.rewards(episode_, scores, RewardConfig()).values())


def test_a_reward_is_alpha_times_process_plus_beta_times_contribution():
    lost = episode("e", 3, success=False)
    scores = scored(lost, (8, -8), (6, 0), (7, -2))
    assert rewards(lost, scores) == [0, 6, 5]
    assert rewards(lost, scores, alpha=0.5, beta=2) == [-12, 3, -0.5]


def test_contributions_are_rescaled_to_the_outcomes_worth():
    # All blame: -4 and -1 of a failure, worth -10, become -8 and -2. The one without a share keeps none.
    lost = episode("e", 3, success=False)
    assert rewards(lost, scored(lost, (8, -4), (6, 0), (7, -1)), consistency="normalize") == [0, 6, 5]
    # Praise and blame in a success: 6 - 2 = 4, 6 short of 10, shared out as 6 : 2 of 8.
    won = episode("e", 2)
    got = contributions(won, scored(won, (5, 6), (5, -2)), "normalize")
    assert list(got.values()) == [10.5, -0.5]


def test_a_missing_contribution_masks_the_action_and_normalized_the_whole_episode():
    won = episode("e", 3)
    scores = scored(won, (8, 5), (6, None), (7, 2))
    assert rewards(won, scores) == [13, None, 9]
    assert rewards(won, scores, consistency="normalize") == [None, None, None]
    assert rewards(won, {}) == [None, None, None]


def test_a_call_that_its_app_left_costs_its_episode_no_credit():
    won = episode("e", 3)
    left = make_action("r1", episode="e", index=1, response_ids=(), result=GIVEN_UP)
    answered = replace(won, actions=(won.actions[0], won.actions[2]))
    scores = scored(answered, (8, 6), (6, -2))
    won = replace(won, actions=(won.actions[0], left, won.actions[2]))
    assert rewards(won, scores, consistency="normalize") == [18.5, None, 5.5]


def test_a_failed_process_score_masks_its_action_but_its_contribution_still_counts():
    won = episode("e", 2)
    assert rewards(won, scored(won, (None, 5), (6, 5)), consistency="normalize") == [None, 11]


def test_nothing_attributed_cannot_be_made_to_sum_to_something():
    won = episode("e", 2)
    assert rewards(won, scored(won, (8, 0), (6, 0)), consistency="normalize") == [None, None]
    assert consistent([0.0, 0.0], 0.0) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("outcome", "worth"),
    [
        (Outcome(False), -10),
        (Outcome(False, {"roc_auc": 0.9}), -10),
        (Outcome(True), 10),
        (Outcome(True, {"roc_auc": 0.9}), 8),
        (Outcome(True, {"roc_auc": 0.3}), 0),
        (Outcome(True, {"rmse_pct_range": 10.0}), 8),
        (Outcome(True, {"rmse_pct_range": 70.0}), 0),
    ],
)
def test_what_an_outcome_is_worth(outcome, worth):
    assert outcome_worth(outcome) == pytest.approx(worth)


def test_advantages_are_those_of_reinforce_pp_on_these_rewards():
    lost, won = episode("a", 2, success=False), episode("b", 2)
    scores = scored(lost, (8, -8), (6, -2)) | scored(won, (4, 3), (6, None))
    algorithm = Retrospective(RetrospectiveCreditConfig(kl_beta=0))
    given_rewards = {
        key: value for played in (lost, won) for key, value in algorithm.rewards(played, scores, RewardConfig()).items()
    }
    batch = algorithm.advantages(to_samples([lost, won]), given_rewards)
    got = {s.action_id: s.advantages_L for group in batch.samples.values() for s in group}
    values = np.array([0.0, 4.0, 7.0])  # 8 - 8, 6 - 2, 4 + 3
    expected = (values - values.mean()) / values.std()
    assert [got[key][0] for key in ("a/0", "a/1", "b/0")] == pytest.approx(expected)
    assert not got["b/1"].any() and batch.masked == {"unscored": 1}


shares = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=1, max_size=8)


@given(shares, st.floats(-10, 10))
def test_consistent_contributions_sum_to_the_worth(values, worth):
    scaled = consistent(values, worth)
    if not any(values):
        assert scaled == (values if worth == 0 else None)
        return
    assert math.fsum(scaled) == pytest.approx(worth, abs=1e-6)
    assert all(after == 0 for before, after in zip(values, scaled, strict=True) if before == 0)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.floats(0.01, 10), st.sampled_from([1, -1]))
def test_shares_of_one_sign_keep_their_proportions(values, worth, sign):
    scaled = consistent([sign * value for value in values], sign * worth)
    assert scaled == pytest.approx([sign * value * worth / sum(values) for value in values])


@given(shares, st.floats(-10, 10))
def test_the_order_of_contributions_is_kept_among_those_of_one_sign(values, worth):
    scaled = consistent([abs(value) for value in values], worth)
    if scaled is not None:
        order = np.argsort([abs(value) for value in values], kind="stable")
        ranked = np.array(scaled)[order]
        assert (np.diff(ranked) * (1 if worth >= 0 else -1) >= -1e-9).all()


@given(shares, st.floats(0.1, 3), st.floats(0.1, 3))
def test_rewards_are_linear_in_alpha_and_beta(values, alpha, beta):
    played = episode("e", len(values))
    scores = scored(played, *((5.0, value) for value in values))
    got = rewards(played, scores, alpha=alpha, beta=beta)
    assert got == pytest.approx([alpha * 5 + beta * value for value in values])
