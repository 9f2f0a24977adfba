"""GRPO: golden cases worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from train_samples import advantages, algorithm, grouped, sample

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


def test_groups_by_role_do_not_hold_a_critic_against_a_solver():
    """The solver earns 0 or 1 and the critic 8 or 9: among all of the task the solver's best is below the mean."""
    team = [
        sample(f"{role}{e}{turn}", role=role, episode=str(e), turn=turn, index=turn)
        for role in ("solver", "critic")
        for e in range(2)
        for turn in range(2)
    ]
    rewards = {s.action_id: float((s.role == "critic") * 8 + int(s.episode_id)) for s in team}
    by_task, _ = advantages(team, rewards, name="grpo")
    by_role, batch = advantages(team, rewards, name="grpo", group_by="role")
    assert by_task["solver10"][0] < 0 < by_role["solver10"][0] and by_role["critic00"][0] < 0 < by_task["critic00"][0]
    assert by_role["solver10"] == pytest.approx([0.5 / (np.sqrt(1 / 3) + 1e-6)]) and batch.groups == 2


def test_groups_without_spread_are_skipped_and_counted_where_that_is_asked_for():
    team = [sample(f"{task}{i}", task=task, episode=f"{task}{i}") for task in "pq" for i in range(2)]
    rewards = {"p0": 0.0, "p1": 1.0, "q0": 1.0, "q1": 1.0}
    _, zeros = advantages(team, rewards, name="grpo")
    assert zeros.masked == {} and zeros.groups_without_spread == 1
    _, skipped = advantages(team, rewards, name="grpo", without_spread="skip")
    assert skipped.masked == {"no_spread": 2} and skipped.groups_without_spread == 1
    trained = [s.action_id for s in skipped.samples["a"] if s.mask_L.any()]
    assert trained == ["p0", "p1"]


def test_importance_weights_are_cut_at_the_cap_and_the_ratio_goes_to_the_trainer():
    """The trainer finds the three tokens e^-1, 1 and e^2 times as likely as the sampler did; the cap is 2."""
    given = np.array([-1.0, -1.0, -1.0], dtype=np.float32)
    trainer = np.array([-2.0, -1.0, 1.0], dtype=np.float32)
    one = replace(sample("x", episode="1", length=3), old_logprobs_L=given, trainer_logprobs_L=trainer)
    other = sample("y", episode="2", length=3)
    plain, _ = advantages([one, other], {"x": 1.0, "y": 0.0}, name="grpo")
    got, batch = advantages([one, other], {"x": 1.0, "y": 0.0}, name="grpo", importance_cap=2)
    assert got["x"] == pytest.approx(plain["x"] * [np.exp(-1), 1.0, 2.0])
    assert got["y"] == pytest.approx(plain["y"])
    assert batch.metrics["importance_clipped"] == pytest.approx(1 / 6)
    assert batch.metrics["importance_weight"] == pytest.approx((np.exp(-1) + 1 + 2 + 3) / 6)
    assert batch.metrics["importance_gap"] == pytest.approx((1 + 0 + 2 + 0) / 6)
    [x, _] = batch.samples["a"]
    assert x.old_logprobs_L.tolist() == trainer.tolist()


def test_tokens_that_are_not_trained_on_do_not_count_in_the_figures_of_importance():
    far = np.array([3.0], dtype=np.float32)
    cut = replace(sample("cut", episode="1", masked="truncated"), trainer_logprobs_L=far)
    _, batch = advantages([cut, sample("x", episode="2"), sample("y", episode="3")], {"cut": 1.0, "x": 1.0, "y": 0.0},
                          name="grpo", importance_cap=1)  # fmt: skip
    figures = {name: batch.metrics[f"importance_{name}"] for name in ("clipped", "gap", "weight")}
    assert figures == {"clipped": 0.0, "gap": 0.0, "weight": 1.0}, "a weight that is the cap is not cut"
    _, batch = advantages([cut], {"cut": 1.0}, name="grpo", importance_cap=1)
    assert not batch.metrics, "of no token there is no figure"
    never = np.array([-np.inf], dtype=np.float32)
    got, _ = advantages([replace(cut, old_logprobs_L=never, trainer_logprobs_L=never)], {"cut": 1.0}, name="grpo",
                        importance_cap=1)  # fmt: skip
    assert got["cut"] == 0


def test_importance_weights_need_the_trainers_log_probs():
    assert algorithm("grpo", importance_cap=2).needs_trainer_logprobs and not algorithm("grpo").needs_trainer_logprobs
    bare = [replace(sample(name, episode=name), trainer_logprobs_L=None) for name in "xy"]
    with pytest.raises(ValueError, match="with_trainer_logprobs"):
        algorithm("grpo", importance_cap=2).advantages(grouped(bare), {"x": 1.0, "y": 0.0})


def test_grpo_keeps_no_reference_and_needs_siblings():
    assert not algorithm("grpo").needs_reference
    with pytest.raises(ConfigError, match=r"=grpo compares episodes of one task: set train\.group_size to 2"):
        load_config(None, ["algorithm.name=grpo"])
    assert load_config(None, ["algorithm.name=grpo", "train.group_size=2"]).algorithm.group_by == "task"
