"""Whether what a checkpoint holds is whole, of plain tensors."""

import math

import pytest

pytest.importorskip("torch")

import torch

from coachrl.trainers.backends.torch.saved_state import count, fits, is_finite

WEIGHTS = [torch.zeros(2, 3), torch.zeros(4)]


def moments(*shapes, step=()):
    return {
        number: {"step": torch.zeros(step), "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.zeros(shape)}
        for number, shape in enumerate(shapes)
    }


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([], True),
        ([0.0, -3e38, 3e38], True),
        ([1.0, math.nan], False),
        ([math.inf, 1.0], False),
        ([1.0, -math.inf], False),
    ],
)
def test_one_number_that_is_not_finite_is_enough(values, finite):
    assert is_finite(torch.tensor(values)) is finite


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_a_number_of_steps_is_a_whole_number_that_is_not_negative(value):
    assert count(0) == 0 and count(7) == 7
    with pytest.raises(ValueError, match=r"where a number of steps is needed"):
        count(value)


@pytest.mark.parametrize(
    ("kept", "belongs"),
    [
        (moments((2, 3), (4,)), True),
        ({}, True),  # before the first step
        (moments((2, 3)), False),
        (moments((2, 3), (4,), (5,)), False),
        (moments((3, 2), (4,)), False),
        (moments((2, 3), (4,), step=(1,)), False),
        ({1: moments((4,))[0], 2: moments((2, 3))[0]}, False),
        ({0: moments((2, 3))[0], 1: {"step": torch.zeros(()), "exp_avg": torch.zeros(4)}}, False),
        ({0: moments((2, 3))[0], 1: {**moments((4,))[0], "max_exp_avg_sq": torch.zeros(4)}}, False),
        ({0: moments((2, 3))[0], 1: None}, False),
        ([], False),
        (None, False),
    ],
)
def test_an_optimizers_state_belongs_to_weights_of_its_shapes(kept, belongs):
    assert fits(kept, WEIGHTS) is belongs
