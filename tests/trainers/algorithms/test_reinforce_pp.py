"""REINFORCE++: golden cases worked by hand, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_samples import advantages, algorithm, sample

from coachrl.types import TrainSample


def test_two_one_token_actions_become_plus_and_minus_one():
    got, _ = advantages([sample("x", episode="1"), sample("y", episode="2")], {"x": 8.0, "y": 2.0})
    assert got["x"] == pytest.approx([1.0]) and got["y"] == pytest.approx([-1.0])


def test_mean_and_deviation_are_over_tokens_not_over_actions():
    # G: 8,8,8 and 0 -> mu 6, sigma sqrt(12)
    got, _ = advantages([sample("x", episode="1", length=3), sample("y", episode="2")], {"x": 8.0, "y": 0.0})
    assert got["x"] == pytest.approx([2 / np.sqrt(12)] * 3)
    assert got["y"] == pytest.approx([-6 / np.sqrt(12)])


def test_rewards_that_are_equal_leave_no_remainder():
    """A remainder of rounding would have its step taken: with the optimizer's momentum, far beyond what it is worth."""
    team = [sample(str(number), episode=str(number), length=1 + number % 5) for number in range(13)]
    got, _ = advantages(team, {s.action_id: 7.3 for s in team})
    assert not any(value.any() for value in got.values())


def test_agent_scope_adds_later_rewards_of_the_same_agent_only():
    team = [
        sample("a0", index=0, turn=0, role="a"),
        sample("b0", index=1, role="b"),
        sample("a1", index=2, turn=1, role="a"),
    ]
    rewards = {"a0": 1.0, "b0": 10.0, "a1": 4.0}
    # G: a0 = 1 + 4 = 5, b0 = 10, a1 = 4 -> mu 19/3
    got, _ = advantages(team, rewards, returns="sum_as_in_the_paper")
    values = np.array([5.0, 10.0, 4.0])
    expected = (values - values.mean()) / values.std()
    assert [got[k][0] for k in ("a0", "b0", "a1")] == pytest.approx(expected)
    got, _ = advantages(team, rewards, returns="own")
    values = np.array([1.0, 10.0, 4.0])
    assert [got[k][0] for k in ("a0", "b0", "a1")] == pytest.approx((values - values.mean()) / values.std())


def test_kl_penalty_is_paid_token_by_token_and_summed_to_go():
    # k_t = 0.5, beta = 1: rho = (-0.5, -0.5 + 3); G = (2, 2.5); other action G = 0
    got, _ = advantages(
        [sample("x", episode="1", length=2, gap=0.5), sample("y", episode="2")], {"x": 3.0, "y": 0.0}, kl_beta=1.0
    )
    values = np.array([2.0, 2.5, 0.0])
    expected = (values - values.mean()) / values.std()
    assert got["x"] == pytest.approx(expected[:2], abs=1e-6) and got["y"] == pytest.approx(expected[2:], abs=1e-6)


def test_kl_without_reference_is_refused():
    bare = sample("x")
    bare = TrainSample(**{**bare.__dict__, "ref_logprobs_L": None})
    with pytest.raises(ValueError, match="with_reference"):
        algorithm(kl_beta=0.1).advantages({"a": [bare]}, {"x": 1.0})


def test_a_reference_is_needed_for_a_penalty_alone():
    assert algorithm(kl_beta=0.1).needs_reference and not algorithm(kl_beta=0.0).needs_reference


def test_normalising_per_role_removes_a_constant_between_roles():
    team = [sample(f"{role}{i}", episode=str(i), role=role) for role in "ab" for i in range(3)]
    rewards = {f"a{i}": float(i) for i in range(3)} | {f"b{i}": float(i) + 5 for i in range(3)}
    got, _ = advantages(team, rewards, normalize_over="role")
    for i in range(3):
        assert got[f"a{i}"] == pytest.approx(got[f"b{i}"])


@pytest.mark.parametrize(
    ("over", "parts"),
    [
        ("batch", [["a0", "b0", "c0", "a1"]]),
        ("policy", [["a0", "b0", "a1"], ["c0"]]),
        ("role", [["a0", "a1"], ["b0"], ["c0"]]),
        ("role_turn", [["a0"], ["a1"], ["b0"], ["c0"]]),
    ],
)
def test_tokens_share_mean_and_deviation_with_those_of_their_part_alone(over, parts):
    """Each action is one of two episodes, in the second of which its rewards are others, and lengths are unequal."""
    shape = {"a0": ("a", 0, "one", 1), "b0": ("b", 0, "one", 2), "c0": ("c", 0, "two", 3), "a1": ("a", 1, "one", 4)}
    values = {"a0": (0.0, 3.0), "b0": (1.0, 8.0), "c0": (5.0, 6.0), "a1": (2.0, 10.0)}
    team, rewards = [], {}
    for name, (role, turn, policy, length) in shape.items():
        for e in (0, 1):
            key = f"{name}/{e}"
            team.append(sample(key, episode=str(e), role=role, turn=turn, policy=policy, length=length + e))
            rewards[key] = values[name][e]
    got, _ = advantages(team, rewards, normalize_over=over)
    for part in parts:
        keys = [f"{name}/{e}" for name in part for e in (0, 1)]
        tokens = np.concatenate([np.full(shape[key[:2]][3] + int(key[3]), rewards[key]) for key in keys])
        for key in keys:
            assert got[key][0] == pytest.approx((rewards[key] - tokens.mean()) / tokens.std())


def test_a_spread_below_the_floor_is_divided_by_the_floor():
    got, _ = advantages([sample("x", episode="1"), sample("y", episode="2")], {"x": 2e-5, "y": 0.0})
    assert got["x"] == pytest.approx([0.1]) and got["y"] == pytest.approx([-0.1])  # 1e-5 over the root of 1e-8


def test_equal_rewards_give_zeros():
    got, _ = advantages([sample("x", episode="1"), sample("y", episode="2")], {"x": 5.0, "y": 5.0})
    assert got["x"] == pytest.approx([0.0]) and got["y"] == pytest.approx([0.0])


def test_unscored_actions_are_masked_counted_and_leave_the_statistics_alone():
    team = [sample("x", episode="1"), sample("y", episode="2"), sample("z", episode="3", length=7)]
    got, batch = advantages(team, {"x": 8.0, "y": 2.0, "z": None})
    assert got["x"] == pytest.approx([1.0])
    assert not got["z"].any() and batch.masked == {"unscored": 1}


rewards_strategy = st.lists(st.floats(0, 10), min_size=2, max_size=8)


@given(rewards_strategy, st.lists(st.integers(1, 6), min_size=8, max_size=8))
def test_batch_normalised_advantages_have_mean_zero_and_deviation_one(values, lengths):
    team = [sample(str(i), episode=str(i), length=lengths[i]) for i in range(len(values))]
    got, _ = advantages(team, {str(i): v for i, v in enumerate(values)})
    tokens = np.concatenate(list(got.values())).astype(np.float64)
    assert tokens.mean() == pytest.approx(0, abs=1e-3)
    if np.std(np.repeat(values, lengths[: len(values)])) > 1e-3:
        assert tokens.std() == pytest.approx(1, abs=1e-3)


@given(rewards_strategy, st.floats(-5, 5))
def test_a_constant_on_all_rewards_changes_nothing(values, constant):
    team = [sample(str(i), episode=str(i)) for i in range(len(values))]
    if np.std(values) < 1e-2:
        return
    before, _ = advantages(team, {str(i): v for i, v in enumerate(values)})
    after, _ = advantages(team, {str(i): v + constant for i, v in enumerate(values)})
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, atol=1e-3)
