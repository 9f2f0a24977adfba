"""MAGRPO: golden cases worked by hand."""

import pytest
from train_samples import advantages, algorithm, sample

from coachrl.config import load_config
from coachrl.errors import ConfigError


def test_magrpo_by_hand():
    # Joint rewards of two episodes: 1 then 2, and 0 then 0.5. R: 3, 2 and 0.5, 0.5.
    team, rewards = [], {}
    for episode, (first, second) in {"g0": (1.0, 2.0), "g1": (0.0, 0.5)}.items():
        for index, (role, turn) in enumerate([("helper", 0), ("main", 0), ("helper", 1), ("main", 1)]):
            name = f"{episode}{role}{turn}"
            team.append(sample(name, episode=episode, role=role, turn=turn, index=index, length=3))
            rewards[name] = first if turn == 0 else second
    got, batch = advantages(team, rewards, name="magrpo")
    for role in ("helper", "main"):
        assert got[f"g0{role}0"] == pytest.approx([1.25] * 3) and got[f"g1{role}0"] == pytest.approx([-1.25] * 3)
        assert got[f"g0{role}1"] == pytest.approx([0.75] * 3) and got[f"g1{role}1"] == pytest.approx([-0.75] * 3)
    assert batch.groups == 4


def test_magrpo_compares_a_last_turn_with_those_that_got_there():
    team = [sample("a", episode="1"), sample("b", episode="1", turn=1, index=1), sample("c", episode="2")]
    rewards = {"a": 1.0, "b": 3.0, "c": 2.0}
    got, batch = advantages(team, rewards, name="magrpo")
    assert got["a"] == pytest.approx([-0.5]) and got["c"] == pytest.approx([0.5]) and not got["b"].any()
    as_written, _ = advantages(team, rewards, name="magrpo", returns="sum_as_in_the_paper")  # R: 4, 3 and 2
    assert as_written["a"] == pytest.approx([1.0]) and as_written["c"] == pytest.approx([-1.0])
    assert batch.groups_of_one == 1


def test_a_cut_reply_of_a_joint_sample_stays_in_sums_and_means():
    team = [sample("a", episode="1", masked="truncated"), sample("c", episode="2")]
    got, _ = advantages(team, {"a": 0.0, "c": 4.0}, name="magrpo")
    assert got["c"] == pytest.approx([2.0]) and not got["a"].any()


def test_magrpo_has_its_own_loss_and_takes_no_data_of_older_weights():
    assert algorithm("magrpo").loss == "policy_gradient" and algorithm("grpo").loss == "ppo"
    distributed = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true", "train.group_size=2"]
    load_config(None, [*distributed, "algorithm.name=grpo"])
    with pytest.raises(ConfigError, match="=magrpo has no correction for that"):
        load_config(None, [*distributed, "algorithm.name=magrpo"])


def test_roles_that_share_a_policy_are_compared_apart():
    """Two roles on one policy: each is held against its own role in the other episode, and no role's rewards enter the
    other's sums."""
    team = [
        sample(f"{episode}{role}", episode=episode, role=role, index=index)
        for episode in "12"
        for index, role in enumerate(("helper", "main"))
    ]
    rewards = {"1helper": 1.0, "2helper": 3.0, "1main": 10.0, "2main": 4.0}
    for returns in ("centered_sum", "sum_as_in_the_paper"):
        got, batch = advantages(team, rewards, name="magrpo", returns=returns)
        assert {key: float(value[0]) for key, value in got.items()} == pytest.approx(
            {"1helper": -1.0, "2helper": 1.0, "1main": 3.0, "2main": -3.0}
        )
        assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (2, 0, 0)
