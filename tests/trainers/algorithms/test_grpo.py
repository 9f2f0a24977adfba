"""GRPO: golden cases worked by hand."""

import pytest
from train_samples import advantages, algorithm, sample

from coachrl.config import load_config
from coachrl.errors import ConfigError


def test_grpo_by_turn_uses_the_sample_deviation_of_task_role_and_turn():
    team = [sample(f"t{task}{i}", task=task, episode=f"{task}{i}") for task in "pq" for i in range(3)]
    rewards = {"tp0": 1.0, "tp1": 2.0, "tp2": 3.0, "tq0": 7.0, "tq1": 7.0, "tq2": 7.0}
    got, batch = advantages(team, rewards, name="grpo", group_by="turn")
    assert [got[f"tp{i}"][0] for i in range(3)] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert not any(got[f"tq{i}"].any() for i in range(3))
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (2, 0, 1)


def test_grpo_compares_everything_of_a_task():
    team = [
        sample("x", task="p", episode="1"),
        sample("z", task="p", role="b", episode="1", index=1),
        sample("w", task="p", turn=1, episode="2", index=2),
        sample("y", task="q", episode="3"),
    ]
    got, batch = advantages(team, {"x": 1.0, "z": 2.0, "w": 3.0, "y": 9.0}, name="grpo")
    assert [got[k][0] for k in "xzw"] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)
    assert not got["y"].any() and (batch.groups, batch.groups_of_one) == (2, 1)


def test_grpo_keeps_no_reference_and_needs_siblings():
    assert not algorithm("grpo").needs_reference
    with pytest.raises(ConfigError, match=r"=grpo compares episodes of one task: set train\.group_size to 2"):
        load_config(None, ["algorithm.name=grpo"])
    assert load_config(None, ["algorithm.name=grpo", "train.group_size=2"]).algorithm.group_by == "task"
