"""What every algorithm does with a batch."""

import math

import numpy as np
import pytest
from train_samples import grouped, sample

from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.batches import with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_task


def test_advantages_are_one_value_for_all_tokens_or_one_for_each_and_0_where_none_is_given():
    batch = grouped([sample(name, length=3) for name in ("all", "each", "none")])
    [all_, each, none] = with_advantages(batch, {"all": 2.0, "each": np.array([1.0, 2.0, 3.0])}).samples["a"]
    assert all_.advantages_L.tolist() == [2, 2, 2] and each.advantages_L.tolist() == [1, 2, 3]
    assert none.advantages_L.tolist() == [0, 0, 0] and none.mask_L.all() and none.advantages_L.dtype == np.float32


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        (
            {"x": np.zeros(2)},
            r"the advantage of action x is an array of \(2,\): it must .* each of its 3 tokens",
        ),
        ({"x": "good"}, "the advantage of action x is 'good': it must be one number"),
        ({"x": None}, "the advantage of action x is no finite number"),
        ({"x": 1.0, "z": 2.0}, "given for 'z', which is no action of the step"),
        ({"y": math.nan}, "the advantage of action y is no finite number"),
        ({"x": 1.0, "y": np.array([0.0, 1.0, math.inf])}, "the advantage of action y is no finite number"),
        (np.zeros(4), r"advantages have the shape \(4,\), and the samples 6 tokens in all"),
    ],
)
def test_advantages_that_cannot_be_trained_on_are_refused_by_their_action(advantages, said):
    with pytest.raises(ConfigError, match=said):
        with_advantages(grouped([sample("x", length=3), sample("y", length=3)]), advantages)


def test_what_is_left_out_is_masked_counted_and_without_advantage():
    batch = with_advantages(grouped([sample("x"), sample("y")]), {"x": 1.0, "y": 1.0}, leave_out={"y": "too easy"})
    [x, y] = batch.samples["a"]
    assert x.mask_L.all() and not y.mask_L.any() and not y.advantages_L.any() and batch.masked == {"too easy": 1}


def test_groups_of_one_are_not_counted_among_those_without_spread():
    samples = [sample(name, task=task) for name, task in zip("uvwxy", "ppqqr", strict=True)]
    groups = Groups(samples, {"u": 1.0, "v": 3.0, "w": 2.0, "x": 2.0, "y": 5.0}, of_task)
    batch = with_advantages(grouped(samples), {}, groups=groups)
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (3, 1, 1)
