"""What every algorithm does with a batch."""

import numpy as np
from train_samples import grouped, sample

from coachrl.trainers.algorithms.advantages.batches import with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_task


def test_advantages_are_one_value_for_all_tokens_or_one_for_each_and_0_where_none_is_given():
    batch = grouped([sample(name, length=3) for name in ("all", "each", "none")])
    [all_, each, none] = with_advantages(batch, {"all": 2.0, "each": np.array([1.0, 2.0, 3.0])}).samples["a"]
    assert all_.advantages_L.tolist() == [2, 2, 2] and each.advantages_L.tolist() == [1, 2, 3]
    assert none.advantages_L.tolist() == [0, 0, 0] and none.mask_L.all() and none.advantages_L.dtype == np.float32


def test_what_is_left_out_is_masked_counted_and_without_advantage():
    batch = with_advantages(grouped([sample("x"), sample("y")]), {"x": 1.0, "y": 1.0}, leave_out={"y": "too easy"})
    [x, y] = batch.samples["a"]
    assert x.mask_L.all() and not y.mask_L.any() and not y.advantages_L.any() and batch.masked == {"too easy": 1}


def test_groups_of_one_are_not_counted_among_those_without_spread():
    samples = [sample(name, task=task) for name, task in zip("uvwxy", "ppqqr", strict=True)]
    groups = Groups(samples, {"u": 1.0, "v": 3.0, "w": 2.0, "x": 2.0, "y": 5.0}, of_task)
    batch = with_advantages(grouped(samples), {}, groups=groups)
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (3, 1, 1)
