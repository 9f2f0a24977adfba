"""AT-GRPO: golden cases worked by hand."""

import numpy as np
import pytest
from train_samples import advantages, sample


def test_at_grpo_by_hand():
    # mean 2.5, unbiased deviation sqrt((2.25 + 0.25 + 0.25 + 2.25) / 3)
    team = [sample(f"c{i}", length=2) for i in range(4)]
    got, batch = advantages(team, {f"c{i}": float(i + 1) for i in range(4)}, name="at_grpo")
    deviation = np.sqrt(5 / 3)
    for i, difference in enumerate((-1.5, -0.5, 0.5, 1.5)):
        assert got[f"c{i}"] == pytest.approx([difference / (deviation + 1e-6)] * 2)
    assert batch.groups == 1 and batch.masked == {}


def test_at_grpo_leaves_out_and_counts_groups_that_teach_nothing():
    team = [sample("alone", episode="1"), *(sample(f"same{i}", episode="2") for i in range(2))]
    team += [sample(f"pair{i}", episode="3") for i in range(2)] + [sample("cut", episode="3", masked="truncated")]
    rewards = {"alone": 5.0, "same0": 1.0, "same1": 1.0, "pair0": 0.0, "pair1": 1.0, "cut": 100.0}
    got, batch = advantages(team, rewards, name="at_grpo")
    kept = {s.action_id: bool(s.mask_L.any()) for group in batch.samples.values() for s in group}
    assert [name for name, trained in kept.items() if trained] == ["pair0", "pair1"]
    assert got["pair1"] == pytest.approx([0.5 / (np.sqrt(0.5) + 1e-6)])  # the cut reply is not in its group's mean
    assert batch.masked == {"group_of_one": 1, "no_spread": 2, "truncated": 1}
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (3, 1, 1)
