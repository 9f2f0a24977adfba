"""Golden cases worked by hand, and properties, of the credit formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_samples import advantages, sample

from coachrl.trainers.algorithms.advantages import compute_advantages
from coachrl.types import TrainSample


def test_two_one_token_actions_become_plus_and_minus_one():
    got, _ = advantages([sample("x", episode="1"), sample("y", episode="2")], {"x": 8.0, "y": 2.0})
    assert got["x"] == pytest.approx([1.0]) and got["y"] == pytest.approx([-1.0])


def test_mean_and_deviation_are_over_tokens_not_over_actions():
    # G: 8,8,8 and 0 -> mu 6, sigma sqrt(12)
    got, _ = advantages([sample("x", episode="1", length=3), sample("y", episode="2")], {"x": 8.0, "y": 0.0})
    assert got["x"] == pytest.approx([2 / np.sqrt(12)] * 3)
    assert got["y"] == pytest.approx([-6 / np.sqrt(12)])


def test_agent_scope_adds_later_rewards_of_the_same_agent_only():
    team = [
        sample("a0", index=0, turn=0, role="a"),
        sample("b0", index=1, role="b"),
        sample("a1", index=2, turn=1, role="a"),
    ]
    rewards = {"a0": 1.0, "b0": 10.0, "a1": 4.0}
    # G: a0 = 1 + 4 = 5, b0 = 10, a1 = 4 -> mu 19/3
    got, _ = advantages(team, rewards, return_scope="agent")
    values = np.array([5.0, 10.0, 4.0])
    expected = (values - values.mean()) / values.std()
    assert [got[k][0] for k in ("a0", "b0", "a1")] == pytest.approx(expected)
    got, _ = advantages(team, rewards, return_scope="action")
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
        compute_advantages({"a": [bare]}, {"x": 1.0}, kl_beta=0.1)


def test_normalising_per_role_removes_a_constant_between_roles():
    team = [sample(f"{role}{i}", episode=str(i), role=role) for role in "ab" for i in range(3)]
    rewards = {f"a{i}": float(i) for i in range(3)} | {f"b{i}": float(i) + 5 for i in range(3)}
    got, _ = advantages(team, rewards, normalize_over="role")
    for i in range(3):
        assert got[f"a{i}"] == pytest.approx(got[f"b{i}"])


def test_equal_rewards_give_zeros():
    got, _ = advantages([sample("x", episode="1"), sample("y", episode="2")], {"x": 5.0, "y": 5.0})
    assert got["x"] == pytest.approx([0.0]) and got["y"] == pytest.approx([0.0])


def test_unscored_actions_are_masked_counted_and_leave_the_statistics_alone():
    team = [sample("x", episode="1"), sample("y", episode="2"), sample("z", episode="3", length=7)]
    got, credit = advantages(team, {"x": 8.0, "y": 2.0, "z": None})
    assert got["x"] == pytest.approx([1.0])
    assert not got["z"].any() and credit.masked == {"unscored": 1}


def test_grpo_by_turn_uses_the_sample_deviation_of_task_role_and_turn():
    team = [sample(f"t{task}{i}", task=task, episode=f"{task}{i}") for task in "pq" for i in range(3)]
    rewards = {"tp0": 1.0, "tp1": 2.0, "tp2": 3.0, "tq0": 7.0, "tq1": 7.0, "tq2": 7.0}
    got, credit = advantages(team, rewards, mode="grpo", group_by="turn")
    assert [got[f"tp{i}"][0] for i in range(3)] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert not any(got[f"tq{i}"].any() for i in range(3))
    assert (credit.groups, credit.groups_of_one, credit.groups_without_spread) == (2, 0, 1)


def test_grpo_compares_everything_of_a_task():
    team = [
        sample("x", task="p", episode="1"),
        sample("z", task="p", role="b", episode="1", index=1),
        sample("w", task="p", turn=1, episode="2", index=2),
        sample("y", task="q", episode="3"),
    ]
    got, credit = advantages(team, {"x": 1.0, "z": 2.0, "w": 3.0, "y": 9.0}, mode="grpo")
    assert [got[k][0] for k in "xzw"] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert not got["y"].any() and (credit.groups, credit.groups_of_one) == (2, 1)


def test_at_grpo_by_hand():
    # mean 2.5, unbiased deviation sqrt((2.25 + 0.25 + 0.25 + 2.25) / 3)
    team = [sample(f"c{i}", length=2) for i in range(4)]
    got, credit = advantages(team, {f"c{i}": float(i + 1) for i in range(4)}, mode="at_grpo")
    deviation = np.sqrt(5 / 3)
    for i, difference in enumerate((-1.5, -0.5, 0.5, 1.5)):
        assert got[f"c{i}"] == pytest.approx([difference / (deviation + 1e-6)] * 2)
    assert credit.groups == 1 and credit.masked == {}


def test_at_grpo_leaves_out_and_counts_groups_that_teach_nothing():
    team = [sample("alone", episode="1"), *(sample(f"same{i}", episode="2") for i in range(2))]
    team += [sample(f"pair{i}", episode="3") for i in range(2)] + [sample("cut", episode="3", masked="truncated")]
    rewards = {"alone": 5.0, "same0": 1.0, "same1": 1.0, "pair0": 0.0, "pair1": 1.0, "cut": 100.0}
    got, credit = advantages(team, rewards, mode="at_grpo")
    kept = {s.action_id: bool(s.mask_L.any()) for group in credit.samples.values() for s in group}
    assert [name for name, trained in kept.items() if trained] == ["pair0", "pair1"]
    assert got["pair1"] == pytest.approx([0.5 / (np.sqrt(0.5) + 1e-6)])  # the cut reply is not in its group's mean
    assert credit.masked == {"group_of_one": 1, "no_spread": 2, "truncated": 1}
    assert (credit.groups, credit.groups_of_one, credit.groups_without_spread) == (3, 1, 1)


def test_magrpo_by_hand():
    # Joint rewards of two episodes: 1 then 2, and 0 then 0.5. R: 3, 2 and 0.5, 0.5.
    team, rewards = [], {}
    for episode, (first, second) in {"g0": (1.0, 2.0), "g1": (0.0, 0.5)}.items():
        for index, (role, turn) in enumerate([("helper", 0), ("main", 0), ("helper", 1), ("main", 1)]):
            name = f"{episode}{role}{turn}"
            team.append(sample(name, episode=episode, role=role, turn=turn, index=index, length=3))
            rewards[name] = first if turn == 0 else second
    got, credit = advantages(team, rewards, mode="magrpo")
    for role in ("helper", "main"):
        assert got[f"g0{role}0"] == pytest.approx([1.25] * 3) and got[f"g1{role}0"] == pytest.approx([-1.25] * 3)
        assert got[f"g0{role}1"] == pytest.approx([0.75] * 3) and got[f"g1{role}1"] == pytest.approx([-0.75] * 3)
    assert credit.groups == 4


def test_magrpo_compares_a_last_turn_with_those_that_got_there():
    team = [sample("a", episode="1"), sample("b", episode="1", turn=1, index=1), sample("c", episode="2")]
    got, credit = advantages(team, {"a": 1.0, "b": 3.0, "c": 2.0}, mode="magrpo")
    assert got["a"] == pytest.approx([1.0]) and got["c"] == pytest.approx([-1.0]) and not got["b"].any()
    assert credit.groups_of_one == 1


def test_a_cut_reply_of_a_joint_sample_stays_in_sums_and_means():
    team = [sample("a", episode="1", masked="truncated"), sample("c", episode="2")]
    got, _ = advantages(team, {"a": 0.0, "c": 4.0}, mode="magrpo")
    assert got["c"] == pytest.approx([2.0]) and not got["a"].any()


def test_an_action_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        advantages([sample("x"), sample("x")], {"x": 1.0}, mode="at_grpo")


GROUPED = {"at_grpo": {}, "magrpo": {}, "grpo": {"group_by": "turn"}}


@pytest.mark.parametrize("mode", GROUPED)
@given(
    st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("ab"), st.integers(0, 1), st.floats(0, 3)), max_size=24),
    st.floats(-100, 100),
)
def test_groups_never_mix_problems_turns_or_roles(mode, drawn, far):
    """What happens to rewards of one problem, role and turn moves no advantage of another one."""
    team = [
        sample(str(i), task=task, episode=f"{task}{turn if mode == 'at_grpo' else i}", role=role, turn=turn, index=i)
        for i, (task, role, turn, _) in enumerate(drawn)
    ]
    rewards = {str(i): reward for i, (*_, reward) in enumerate(drawn)}
    moved = {s.action_id: far if (s.task_id, s.role, s.turn) == ("p", "a", 0) else rewards[s.action_id] for s in team}
    before, _ = advantages(team, rewards, mode=mode, **GROUPED[mode])
    after, _ = advantages(team, moved, mode=mode, **GROUPED[mode])
    for s in team:
        if (s.task_id, s.role, s.turn) != ("p", "a", 0):
            np.testing.assert_array_equal(before[s.action_id], after[s.action_id])


@pytest.mark.parametrize("mode", [*GROUPED, "task"])
@given(st.lists(st.integers(0, 40), min_size=2, max_size=8), st.randoms(use_true_random=False), st.integers(-9, 9))
def test_permuting_permutes_and_a_constant_changes_nothing(mode, quarters, random, constant):
    options = {"mode": "grpo"} if mode == "task" else {"mode": mode, **GROUPED[mode]}
    values = [quarter / 4 for quarter in quarters]
    team = [sample(str(i), episode="e" if mode == "at_grpo" else str(i)) for i in range(len(values))]
    order = list(range(len(values)))
    random.shuffle(order)
    plain, _ = advantages(team, {str(i): values[i] for i in order}, **options)
    permuted, _ = advantages(team, {str(i): values[order[i]] for i in order}, **options)
    lifted, _ = advantages(team, {str(i): values[i] + constant for i in order}, **options)
    for i in range(len(values)):
        assert permuted[str(i)] == pytest.approx(plain[str(order[i])], abs=1e-6)
        assert lifted[str(i)] == pytest.approx(plain[str(i)], abs=1e-6)
    assert sum(float(value[0]) for value in plain.values()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("mode", [*GROUPED, "task"])
@given(st.floats(-5, 5), st.integers(1, 5))
def test_a_group_with_no_spread_contributes_nothing(mode, value, size):
    options = {"mode": "grpo"} if mode == "task" else {"mode": mode, **GROUPED[mode]}
    team = [sample(str(i), episode="e" if mode == "at_grpo" else str(i)) for i in range(size)]
    got, credit = advantages(team, {str(i): value for i in range(size)}, **options)
    assert not any(advantage.any() for advantage in got.values())
    assert credit.groups_of_one + credit.groups_without_spread == credit.groups == 1


@pytest.mark.parametrize("mode", ["at_grpo", "magrpo", "grpo", "reinforce_pp"])
def test_every_token_of_a_reply_has_credit_its_last_one_too(mode):
    team = [sample("x", length=5, episode="1"), sample("y", length=2, episode="1" if mode == "at_grpo" else "2")]
    got, _ = advantages(team, {"x": 1.0, "y": 0.0}, mode=mode)
    assert got["x"].shape == (5,) and (got["x"] > 0).all() and (got["y"] < 0).all()


rewards_strategy = st.lists(st.floats(0, 10), min_size=2, max_size=8)


@given(rewards_strategy, st.lists(st.integers(1, 6), min_size=8, max_size=8))
def test_batch_normalised_advantages_have_mean_zero_and_deviation_one(values, lengths):
    team = [sample(str(i), episode=str(i), length=lengths[i]) for i in range(len(values))]
    got, _ = advantages(team, {str(i): v for i, v in enumerate(values)})
    tokens = np.concatenate(list(got.values())).astype(np.float64)
    assert tokens.mean() == pytest.approx(0, abs=1e-3)
    if np.std(np.repeat(values, lengths[: len(values)])) > 1e-3:
        assert tokens.std() == pytest.approx(1, abs=1e-3)


@given(rewards_strategy, st.randoms(use_true_random=False))
def test_order_of_samples_changes_nothing(values, random):
    team = [sample(str(i), episode=str(i), length=i + 1) for i in range(len(values))]
    rewards = {str(i): v for i, v in enumerate(values)}
    before, _ = advantages(team, rewards)
    shuffled = list(team)
    random.shuffle(shuffled)
    after, _ = advantages(shuffled, rewards)
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-4, atol=1e-5)


@given(rewards_strategy, st.floats(-5, 5))
def test_a_constant_on_all_rewards_changes_nothing(values, constant):
    team = [sample(str(i), episode=str(i)) for i in range(len(values))]
    if np.std(values) < 1e-2:
        return
    before, _ = advantages(team, {str(i): v for i, v in enumerate(values)})
    after, _ = advantages(team, {str(i): v + constant for i, v in enumerate(values)})
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, atol=1e-3)
