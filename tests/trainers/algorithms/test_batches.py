"""What every algorithm does with a batch."""

import numpy as np
import pytest
from train_samples import advantages, grouped, sample

from coachrl.trainers.algorithms.advantages.batches import known_rewards, mask_unscored, with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_task


def test_an_action_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        advantages([sample("x"), sample("x")], {"x": 1.0}, name="at_grpo")


def test_an_action_without_an_entry_among_the_rewards_is_refused():
    with pytest.raises(KeyError):
        advantages([sample("x")], {}, "grpo")


def test_a_masked_action_keeps_its_first_reason_and_has_no_known_reward():
    rewards = {"x": None, "y": None, "z": 2.0}
    batch = mask_unscored(grouped([sample("x", masked="truncated"), sample("y"), sample("z")]), rewards)
    assert [s.masked_because for s in batch["a"]] == ["truncated", "unscored", None]
    assert known_rewards(batch["a"], rewards) == {"z": 2.0}


def test_advantages_are_one_value_for_all_tokens_or_one_for_each_and_0_where_none_is_given():
    batch = grouped([sample(name, length=3) for name in ("all", "each", "none")])
    [all_, each, none] = with_advantages(batch, {"all": 2.0, "each": np.array([1.0, 2.0, 3.0])}).samples["a"]
    assert all_.advantages_L.tolist() == [2, 2, 2] and each.advantages_L.tolist() == [1, 2, 3]
    assert none.advantages_L.tolist() == [0, 0, 0] and none.mask_L.all() and none.advantages_L.dtype == np.float32


def test_what_is_left_out_is_masked_counted_and_without_advantage():
    batch = with_advantages(grouped([sample("x"), sample("y")]), {"x": 1.0, "y": 1.0}, leave_out={"y": "too easy"})
    [x, y] = batch.samples["a"]
    assert x.mask_L.all() and not y.mask_L.any() and not y.advantages_L.any() and batch.masked == {"too easy": 1}


def test_the_reward_of_a_masked_action_is_not_known_but_what_a_cut_reply_came_to_may_be():
    team = [sample("cut", masked="truncated"), sample("broken", masked="infrastructure"), sample("whole")]
    rewards = {"cut": 9.0, "broken": 5.0, "whole": 2.0}
    assert known_rewards(team, rewards) == {"whole": 2.0}
    assert known_rewards(team, rewards, cut_short=True) == {"cut": 9.0, "whole": 2.0}


def test_groups_of_one_are_not_counted_among_those_without_spread():
    samples = [sample(name, task=task) for name, task in zip("uvwxy", "ppqqr", strict=True)]
    groups = Groups(samples, {"u": 1.0, "v": 3.0, "w": 2.0, "x": 2.0, "y": 5.0}, of_task)
    batch = with_advantages(grouped(samples), {}, groups=groups)
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (3, 1, 1)
