"""Which actions are left out of an update, and why."""

import pytest
from train_samples import advantages, grouped, sample

from coachrl.trainers.algorithms.advantages.batches import without_few, without_frozen
from coachrl.trainers.masking import known_rewards, mask_unscored


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
    assert [s.mask_L.tolist() for s in batch["a"]] == [[0], [0], [1]]
    assert known_rewards(batch["a"], rewards) == {"z": 2.0}


def test_the_reward_of_a_masked_action_is_not_known_but_what_a_cut_reply_came_to_may_be():
    team = [sample("cut", masked="truncated"), sample("broken", masked="infrastructure"), sample("whole")]
    rewards = {"cut": 9.0, "broken": 5.0, "whole": 2.0}
    assert known_rewards(team, rewards) == {"whole": 2.0}
    assert known_rewards(team, rewards, cut_short=True) == {"cut": 9.0, "whole": 2.0}


def test_what_a_frozen_policy_wrote_is_left_out_as_such_and_stays_in_the_means():
    team = [sample("a1"), sample("a2", masked="truncated"), sample("b1", role="b"), sample("b2", role="b")]
    before, batch = advantages(team, {"a1": 8.0, "a2": 3.0, "b1": 2.0, "b2": 5.0})
    left = without_frozen(batch, {"a"})
    assert left.masked == {"frozen": 2}
    assert [(s.masked_because, s.mask_L.tolist(), s.advantages_L.tolist()) for s in left.samples["a"]] == [
        ("frozen", [0], [0])
    ] * 2
    assert [s.advantages_L for s in left.samples["b"]] == [before["b1"], before["b2"]] and before["b2"] == 0


def test_a_policy_with_too_few_actions_to_train_on_is_left_out_and_others_keep_their_advantages():
    team = [sample("a1"), sample("a2"), sample("a3", masked="truncated")]
    team += [sample(name, role="b") for name in ("b1", "b2", "b3")]
    team += [sample(f"c{number}", role="c") for number in range(5)]  # two of them weigh
    team += [sample(f"d{number}", role="d") for number in range(2)]  # none
    rewards = {"a1": 1.0, "a2": 5.0, "a3": 2.0, "b1": 9.0, "b2": 3.0, "b3": 4.0}
    rewards |= {"c0": 1.0, "c1": 7.0, "c2": 4.0, "c3": 4.0, "c4": 4.0, "d0": 2.0, "d1": 2.0}
    before, batch = advantages(team, rewards, normalize_over="role")
    assert without_few(batch, 1) is without_few(batch, 2) is batch
    few = without_few(batch, 3)
    assert few.masked == {"few": 7, "truncated": 1}
    assert [(s.masked_because, s.mask_L.tolist()) for s in few.samples["a"]] == [
        ("few", [0]),
        ("few", [0]),
        ("truncated", [0]),
    ]
    assert [s.advantages_L for s in few.samples["b"]] == [before[name] for name in ("b1", "b2", "b3")]
