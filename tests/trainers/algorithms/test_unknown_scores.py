"""What is not known of one action says nothing for or against others, and is never counted as 0."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train_samples import advantages, played

TOKENWISE = [
    {"name": name, "returns": kind}
    for name in ("reinforce_pp", "retrospective", "outcome")
    for kind in ("centered_sum", "sum_as_in_the_paper")
]
SUMMED = [*TOKENWISE, *({"name": "magrpo", "returns": kind} for kind in ("centered_sum", "sum_as_in_the_paper"))]
"""Modes whose returns go over several actions."""


def called(mode):
    return "-".join(mode.values())


def without_score(rewards, *action_ids):
    return rewards | dict.fromkeys(action_ids)


def cut_short(samples, action_id, reason="truncated"):
    return [
        replace(s, mask_L=np.zeros_like(s.mask_L), masked_because=reason) if s.action_id == action_id else s
        for s in samples
    ]


def random_rewards(samples, seed):
    values = np.random.default_rng(seed).uniform(0, 10, len(samples))
    return {s.action_id: float(value) for s, value in zip(samples, values, strict=True)}


def three_of_two_turns():
    team = [s for name in "abc" for s in played(name, {"x": 2})]
    return team, {s.action_id: 7.0 for s in team}


@pytest.mark.parametrize("mode", SUMMED, ids=called)
def test_a_failed_call_leaves_the_agents_earlier_action_with_the_credit_of_its_peers(mode):
    team, rewards = three_of_two_turns()
    got, batch = advantages(team, without_score(rewards, "b/x1"), **mode)
    assert got["b/x0"] == pytest.approx(got["a/x0"]) and got["b/x0"] == pytest.approx(got["c/x0"])
    assert not got["b/x1"].any() and batch.masked == {"unscored": 1}
    assert batch.unknown_returns == {"x": 1}


@pytest.mark.parametrize("mode", TOKENWISE, ids=called)
@pytest.mark.parametrize("reason", ["truncated", "infrastructure"])
def test_so_does_a_masked_reply(mode, reason):
    team, rewards = three_of_two_turns()
    got, batch = advantages(cut_short(team, "b/x1", reason), rewards, **mode)
    assert got["b/x0"] == pytest.approx(got["a/x0"]) and not got["b/x1"].any()
    assert batch.masked == {reason: 1} and batch.unknown_returns == {"x": 1}


@pytest.mark.parametrize("mode", TOKENWISE, ids=called)
@pytest.mark.parametrize("reason", ["truncated", "infrastructure"])
@pytest.mark.parametrize("kept", [-50.0, 9.0, 1000.0])
def test_a_masked_action_passes_nothing_of_its_reward_on(mode, reason, kept):
    """The others' second turns earn 0 on average: the batch is what it would be without the masked action."""
    team = [s for name in "abc" for s in played(name, {"x": 2})]
    rewards = {"a/x0": 4.0, "a/x1": kept, "b/x0": 1.0, "b/x1": 2.0, "c/x0": 6.0, "c/x1": -2.0}
    with_it, _ = advantages(cut_short(team, "a/x1", reason), rewards, **mode)
    without_it, _ = advantages([s for s in team if s.action_id != "a/x1"], rewards, **mode)
    assert not with_it.pop("a/x1").any()
    assert with_it == {key: pytest.approx(value) for key, value in without_it.items()}


def test_a_joint_reward_counts_for_a_reply_that_was_cut_short_but_not_for_a_fault():
    # R of the first turns: 1 + 9, 2 + 4, 3 + 2; what a fault measured is replaced by (4 + 2) / 2.
    team = [s for name in "abc" for s in played(name, {"x": 2})]
    rewards = {"a/x0": 1.0, "a/x1": 9.0, "b/x0": 2.0, "b/x1": 4.0, "c/x0": 3.0, "c/x1": 2.0}
    cut, batch = advantages(cut_short(team, "a/x1"), rewards, name="magrpo")
    assert [cut[f"{name}/x0"][0] for name in "abc"] == pytest.approx([3.0, -1.0, -2.0])
    assert [cut[f"{name}/x1"][0] for name in "abc"] == pytest.approx([0.0, -1.0, -3.0])
    assert batch.unknown_returns == {}
    broken, batch = advantages(cut_short(team, "a/x1", "infrastructure"), rewards, name="magrpo")
    assert [broken[f"{name}/x0"][0] for name in "abc"] == pytest.approx([-1.0, 1.0, 0.0])
    assert [broken[f"{name}/x1"][0] for name in "abc"] == pytest.approx([0.0, 1.0, -1.0])
    assert batch.unknown_returns == {"x": 1}


def test_only_actions_that_are_trained_on_are_counted():
    team = played("a", {"x": 3, "y": 3}) + played("b", {"x": 3, "y": 3})
    rewards = without_score({s.action_id: 5.0 for s in team}, "a/x1", "a/x2", "b/y0")
    for kind in ("centered_sum", "sum_as_in_the_paper"):
        _, batch = advantages(team, rewards, returns=kind)
        assert batch.unknown_returns == {"x": 1} and batch.masked == {"unscored": 3}
    _, batch = advantages(team, rewards, returns="own")
    assert batch.unknown_returns == {}


turns_of_a_team = st.dictionaries(st.sampled_from("xyz"), st.integers(1, 4), min_size=1)


@pytest.mark.parametrize("mode", SUMMED, ids=called)
@settings(max_examples=20)
@given(turns_of_a_team, st.integers(2, 6), st.booleans(), st.data())
def test_peers_with_equal_scores_stay_equal_whichever_calls_fail(mode, turns, episodes, shared, data):
    policies = dict.fromkeys(turns, "shared") if shared else None
    team = [s for e in range(episodes) for s in played(str(e), turns, policies=policies)]
    level = {place: data.draw(st.integers(0, 10)) for place in {(s.role, s.turn) for s in team}}
    rewards = {s.action_id: float(level[s.role, s.turn]) for s in team}
    lost = data.draw(st.sets(st.sampled_from(sorted(rewards))))
    got, _ = advantages(team, without_score(rewards, *lost), **mode)
    for role, turn in level:
        peers = [got[s.action_id][0] for s in team if (s.role, s.turn) == (role, turn) and s.action_id not in lost]
        assert peers == pytest.approx([peers[0]] * len(peers) if peers else [], abs=1e-3)


@pytest.mark.parametrize("normalize_over", ["batch", "role_turn"])
@pytest.mark.parametrize("mode", SUMMED, ids=called)
def test_which_call_fails_pushes_the_agents_earlier_actions_neither_up_nor_down(mode, normalize_over):
    """Every call of a batch fails once. The mean push on the earlier actions of its agent, in deviations, is 0.

    In magrpo it is so exactly (to float32); elsewhere each failure takes one of n = 60 actions of a role and turn out
    of mean and deviation, which moves both by about 1/n of what any one action can be away from the mean: 3 / 60.
    Counted as 0 in place of the mean, a score costs its own size: 5 points, about one deviation.
    """
    lengths = np.random.default_rng(3).integers(1, 9, 60)
    team = [s for e in range(60) for s in played(str(e), {"x": 3, "y": 2}, length=lengths[e])]
    rewards = random_rewards(team, seed=11)
    joint = mode["name"] == "magrpo"
    options = mode | ({} if joint else {"normalize_over": normalize_over})
    before, _ = advantages(team, rewards, **options)
    scale = float(np.std([value[0] for value in before.values()]))
    pushes = []
    for lost in (s for s in team if s.turn > 0):
        after, _ = advantages(team, without_score(rewards, lost.action_id), **options)
        earlier = [f"{lost.episode_id}/{lost.role}{turn}" for turn in range(lost.turn)]
        pushes += [float(after[key][0] - before[key][0]) / scale for key in earlier]
    assert np.mean(pushes) == pytest.approx(0, abs=1e-5 if joint else 3 / 60)
    assert np.max(np.abs(pushes)) > 0.1


@pytest.mark.parametrize("returns", ["own", "centered_sum", "sum_as_in_the_paper"])
@pytest.mark.parametrize("odd", [-np.inf, np.nan])
def test_odd_log_probs_of_an_action_without_a_score_are_nobodys_penalty(returns, odd):
    options = {"name": "reinforce_pp", "kl_beta": 0.1, "returns": returns}
    team = [s for e in "abc" for s in played(e, {"x": 2}, length=2)]
    rewards = without_score(random_rewards(team, seed=2), "a/x1")
    broken = [
        replace(s, old_logprobs_L=np.full_like(s.old_logprobs_L, odd)) if s.action_id == "a/x1" else s for s in team
    ]
    expected, _ = advantages(team, rewards, **options)
    got, _ = advantages(broken, rewards, **options)
    for action_id, value in expected.items():
        np.testing.assert_array_equal(got[action_id], value)
