"""How much memory training takes in this process, by hand: bytes of each weight."""

import pytest

from coachrl.config import TorchConfig
from coachrl.trainers.backends.torch import footprint

COUNTS = (10, 30)  # weights of two policies


@pytest.mark.parametrize(
    ("settings", "offload", "taken"),
    [
        ({}, False, 4 * 40 + 8 * 40 + 4 * 30),  # weights, moments of both, gradients of the larger one
        ({}, True, 4 * 40 + 8 * 30 + 4 * 30),  # moments of the one that trains
        ({"precision": "float32"}, False, (4 + 4) * 40 + 8 * 40),  # while they generate: copies, and no gradients
        ({"precision": "float32"}, True, 4 * 40 + 8 * 30 + 4 * 30),
        ({"lora_rank": 4}, False, (4 + 2) * 40),
        ({"lora_rank": 4, "precision": "float32"}, False, (4 + 4) * 40),
        ({"lora_rank": 4, "share_base": True}, False, 0),
    ],
)
def test_the_most_that_policies_take_at_once(settings, offload, taken):
    assert footprint.trained_bytes(TorchConfig(**settings), COUNTS, offload) == taken


def test_nothing_is_trained_for_nothing():
    assert footprint.trained_bytes(TorchConfig(), (), offload=False) == 0


@pytest.mark.parametrize(
    ("settings", "machine_mb", "offloads"),
    [
        ({}, 32, False),  # 16 MB of 32 are the half
        ({}, 31, True),
        ({"device": "cpu"}, 31, True),
        ({"device": "cuda"}, 31, False),
        ({"offload_optimizer": True}, 1000, True),
        ({"offload_optimizer": False}, 1, False),
    ],
)
def test_an_optimizer_goes_into_files_where_training_takes_more_than_half_of_the_memory(
    monkeypatch, settings, machine_mb, offloads
):
    monkeypatch.setattr(footprint, "machine_mb", lambda: machine_mb)
    assert footprint.offloads_optimizer(TorchConfig(**settings), [2**20]) is offloads
