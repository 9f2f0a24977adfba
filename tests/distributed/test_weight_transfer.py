"""Trained weights on their way to the engines: which of them go together."""

import torch

from coachrl.trainers.backends.openrlhf.training.adapters import Weight
from coachrl.trainers.backends.openrlhf.training.weight_transfer import make_buckets


def buckets(weights, bucket_bytes):
    return [[weight.name for weight in bucket] for bucket in make_buckets(iter(weights), bucket_bytes)]


def weight(name, numbers, dtype=torch.float32):
    return Weight(name, torch.zeros(numbers, dtype=dtype))


def test_each_bucket_is_filled_before_the_next_begins():
    """Every one of them is a message to all engines."""
    assert buckets([weight(name, 4) for name in "abcdefg"], 32) == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]


def test_a_weight_larger_than_a_bucket_goes_alone_and_types_are_not_mixed():
    assert buckets([weight("a", 4), weight("large", 40), weight("b", 4), weight("c", 4)], 32) == [
        ["a"],
        ["large"],
        ["b", "c"],
    ]
    half = torch.bfloat16
    assert buckets([weight("a", 1), weight("b", 1, half), weight("c", 1, half), weight("d", 1)], 32) == [
        ["a"],
        ["b", "c"],
        ["d"],
    ]
