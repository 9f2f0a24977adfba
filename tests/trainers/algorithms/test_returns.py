"""The pure functions under the credit formulas, and what must hold of every batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train_samples import played, sample

from coachrl.trainers.algorithms.advantages.groups import Places
from coachrl.trainers.algorithms.advantages.returns import (
    Agents,
    centered_joint_returns,
    joint_returns,
    token_returns,
)
from coachrl.trainers.algorithms.advantages.tokens import Tokens


def test_the_worth_of_later_actions_is_summed_by_agent_and_not_by_policy():
    team = played("e", {"x": 2, "y": 2}, policies={"x": "shared", "y": "shared"}) + played("f", {"x": 2})
    worths = {"e/x0": 1.0, "e/y0": 10.0, "e/x1": 100.0, "e/y1": 1000.0, "f/x0": 7.0, "f/x1": 8.0}
    later = Agents(team).later(np.array([worths[s.action_id] for s in team]))
    assert dict(zip(worths, later, strict=True)) == {
        "e/x0": 100.0,
        "e/y0": 1000.0,
        "e/x1": 0.0,
        "e/y1": 0.0,
        "f/x0": 8.0,
        "f/x1": 0.0,
    }


def test_what_is_unknown_is_worth_the_mean_of_its_role_and_turn():
    team = [s for name in "abc" for s in played(name, {"x": 3, "y": 1})]
    rewards = {"a/x0": 1.0, "a/x1": 2.0, "b/x1": 6.0, "b/x0": 3.0, "c/x0": 8.0, "a/y0": 5.0}
    known = np.array([s.action_id in rewards for s in team])
    given = np.array([rewards.get(s.action_id, 99.0) for s in team])
    of_role = Places([s.role for s in team]).means(given, known)
    means = Places([(s.role, s.turn) for s in team]).means(given, known, of_role)
    worths = {s.action_id: mean for s, mean in zip(team, means, strict=True)}
    assert worths["c/x1"] == 4.0, "the mean of a's and b's second turns"
    assert [worths[f"{name}/x2"] for name in "abc"] == [4.0] * 3, "no third turn is known: the mean of the role"
    assert [worths[f"{name}/y0"] for name in "bc"] == [5.0] * 2


def test_an_unknown_joint_reward_is_worth_the_mean_among_its_own_tasks_episodes():
    team = played("a", {"x": 2}) + played("b", {"x": 2}) + played("far", {"x": 2}, task="another")
    rewards = {"a/x0": 1.0, "a/x1": 2.0, "b/x0": 4.0, "b/x1": None, "far/x0": 90.0, "far/x1": 90.0}
    returns = joint_returns(team, rewards)
    assert returns.by_action == {"a/x0": 3.0, "a/x1": 2.0, "b/x0": 6.0, "far/x0": 180.0, "far/x1": 90.0}
    assert returns.unknown == {"x": 1}


def test_where_no_reward_of_a_turn_is_known_the_mean_of_the_role_is_that_of_its_own_task():
    team = played("a", {"x": 2}) + played("b", {"x": 2}) + played("far", {"x": 2}, task="another")
    rewards = {"a/x0": 1.0, "a/x1": None, "b/x0": 5.0, "b/x1": None, "far/x0": 90.0, "far/x1": 90.0}
    assert joint_returns(team, rewards).by_action == {"a/x0": 4.0, "b/x0": 8.0, "far/x0": 180.0, "far/x1": 90.0}


def test_a_cut_reply_is_no_action_that_is_trained_on_a_return_of_unknown_parts():
    cut, unknown = sample("cut", masked="truncated"), sample("unknown", turn=1, index=1, masked="unscored")
    trained = [sample("first", episode="f"), sample("second", episode="f", turn=1, index=1, masked="unscored")]
    rewards = {"cut": 1.0, "unknown": None, "first": 1.0, "second": None}
    assert joint_returns([cut, unknown], rewards).unknown == {}
    assert joint_returns([cut, unknown, *trained], rewards).unknown == {"a": 1}


def test_a_role_without_any_score_lends_nothing_to_the_others():
    team = [s for name in "ab" for s in played(name, {"x": 2, "mute": 2})]
    rewards = {s.action_id: None if s.role == "mute" else 5.0 for s in team}
    returns = token_returns(team, rewards, "sum_as_in_the_paper", 0.0)
    firsts = first_tokens(team, returns)
    assert [firsts[f"{name}/x{turn}"] for name in "ab" for turn in (0, 1)] == [10.0, 5.0] * 2
    assert returns.unknown == {}


def test_a_role_lends_nothing_to_another_one_of_its_policy():
    """x's second turns are all unknown: worth x's mean of 2, whatever y has there or elsewhere by the same weights."""
    policies = {"x": "shared", "y": "shared"}
    team = [s for name in "ab" for s in played(name, {"x": 2, "y": 2}, policies=policies)]
    rewards = {"a/x0": 1.0, "b/x0": 3.0, "a/x1": None, "b/x1": None}
    rewards |= {s.action_id: 9.0 for s in team if s.role == "y"}
    returns = token_returns(team, rewards, "sum_as_in_the_paper", 0.0)
    firsts = first_tokens(team, returns)
    assert {key: firsts[key] for key in ("a/x0", "b/x0", "a/y0", "b/y1")} == {
        "a/x0": 3.0,
        "b/x0": 5.0,
        "a/y0": 18.0,
        "b/y1": 9.0,
    }
    assert (returns.unknown, returns.baselines) == ({"x": 2}, {})


def test_a_centered_sum_says_what_it_was_held_against():
    """At the first turn 1, 3 and 8: each against the mean of the other two. No second turn of c is known."""
    team = [s for name in "abc" for s in played(name, {"x": 2})]
    rewards = {"a/x0": 1.0, "b/x0": 3.0, "c/x0": 8.0, "a/x1": 2.0, "b/x1": 6.0, "c/x1": None}
    returns = token_returns(team, rewards, "centered_sum", 0.0)
    assert returns.baselines == {"x/0": 4.0, "x/1": 4.0}
    assert first_tokens(team, returns) == pytest.approx(
        {"a/x0": -4.5 - 4.0, "a/x1": -4.0, "b/x0": -1.5 + 4.0, "b/x1": 4.0, "c/x0": 6.0, "c/x1": 0.0}
    )
    assert returns.unknown == {"x": 1}


def test_a_penalty_needs_the_reference_of_every_sample():
    team = [sample("a"), replace(sample("b", episode="f"), ref_logprobs_L=None)]
    rewards = {"a": 1.0, "b": 1.0}
    with pytest.raises(ValueError, match="kl_beta > 0 needs reference log-probs"):
        token_returns(team, rewards, "own", kl_beta=0.1)
    assert token_returns(team, rewards, "own", kl_beta=0.0).values_T.tolist() == [1.0, 1.0]


def test_an_unknown_action_costs_the_mean_penalty_of_its_peers_too():
    # Each known second turn is worth 4 - 0.5 * 2 tokens = 3.
    team = [
        sample(f"{episode}{turn}", episode=episode, turn=turn, index=turn, length=2, gap=0.5)
        for episode in "abc"
        for turn in (0, 1)
    ]
    rewards = {"a0": 1.0, "a1": 4.0, "b0": 1.0, "b1": 4.0, "c0": 1.0, "c1": None}
    returns = token_returns(team, rewards, "sum_as_in_the_paper", kl_beta=1.0)
    first_turns = Tokens(team).split(returns.values_T)[::2]
    assert [part.tolist() for part in first_turns] == [pytest.approx([3.0, 3.5])] * 3


def test_a_masked_actions_own_tokens_have_no_part_of_their_own_not_even_the_penalty():
    cut = sample("cut", length=2, gap=0.5, masked="truncated")
    whole = sample("whole", turn=1, index=1, length=2, gap=0.5)
    returns = token_returns([cut, whole], {"cut": 3.0, "whole": 4.0}, "sum_as_in_the_paper", kl_beta=1.0)
    assert returns.values_T.tolist() == pytest.approx([3.0, 3.0, 3.0, 3.5])


takings = st.lists(st.dictionaries(st.sampled_from("xy"), st.integers(1, 4), min_size=1), min_size=2, max_size=6)


KINDS = {
    "sum_as_in_the_paper": lambda team, given: first_tokens(team, token_returns(team, given, "sum_as_in_the_paper", 0)),
    "centered_sum": lambda team, given: first_tokens(team, token_returns(team, given, "centered_sum", 0)),
    "joint": lambda team, given: joint_returns(team, given).by_action,
    "joint, centered": lambda team, given: centered_joint_returns(team, given).by_action,
}


def first_tokens(team, returns):
    parts = Tokens(team).split(returns.values_T)
    return {s.action_id: part[0] for s, part in zip(team, parts, strict=True)}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(takings, st.data())
def test_one_failure_after_the_other_the_errors_of_the_guess_sum_to_zero(kind, turns, data):
    """Over all calls of a role and turn, each failing once, the returns of the others keep their mean at every turn,
    and those of another role, or of a later turn, do not move. Exact to rounding: 1e-9 of sums of tens."""
    team = [s for number, taken in enumerate(turns) for s in played(str(number), taken)]
    rewards = {s.action_id: data.draw(st.floats(-10, 10)) for s in team}
    whole = KINDS[kind](team, rewards)
    for role, turn in {(s.role, s.turn) for s in team}:
        cell = [s for s in team if (s.role, s.turn) == (role, turn)]
        if len(cell) < 2:  # the guess of the paper's sum is then the mean of the role
            continue
        moved = dict.fromkeys(range(turn + 1), 0.0)
        for lost in cell:
            after = KINDS[kind](team, rewards | {lost.action_id: None})
            for s in team:
                if s.role != role or s.turn > turn:
                    assert after[s.action_id] == whole[s.action_id]
                elif s is not lost:
                    moved[s.turn] += after[s.action_id] - whole[s.action_id]
        assert list(moved.values()) == pytest.approx([0.0] * (turn + 1), abs=1e-9)


def test_the_teams_reward_for_a_reply_that_was_cut_short_is_known():
    """The environment measured it; only what broke for no fault of the agents is not known."""
    cut = replace(sample("a/0", episode="a", masked="truncated"), index=0)
    broken = replace(sample("b/0", episode="b", masked="infrastructure"), index=0)
    returns = joint_returns([cut, broken], {"a/0": 4.0, "b/0": 8.0})
    assert returns.by_action == {"a/0": 4.0}
