"""A checkpoint that another number of trainers wrote: weights, moments and the order of samples are back."""

import numpy as np
import pytest
from drawing import draw, fresh

SAME = 0.01  # mean |log-prob| of bfloat16's rounding
LORA = {"lora_rank": 4, "lora_alpha": 8}


def trainer_logprobs(backend, samples):
    [found] = backend.with_trainer_logprobs({"solver": samples}).values()
    return np.concatenate([sample.trainer_logprobs_L for sample in found])


@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "zero_stage", "adapter"),
    [
        (2, 1, 2, {}),
        pytest.param(3, 2, 3, LORA, marks=pytest.mark.thorough),
        pytest.param(1, 2, 3, {}, marks=pytest.mark.thorough),
        pytest.param(2, 3, 2, LORA, marks=pytest.mark.thorough),
    ],
)
def test_another_number_of_trainers_goes_on_as_the_first_would(
    start, tmp_path, saved_by, loaded_by, zero_stage, adapter
):
    settings = {"zero_stage": zero_stage, "micro_batch_tokens": 64, **adapter}
    first = start("solver", gpus=saved_by, **settings)
    samples = fresh(first, "solver", 7)
    for number in range(3):  # so that the moments tell one step from another
        first.update({"solver": fresh(first, "solver", 7, number)})
        first.sync_weights()
    folder = tmp_path / "step-000003"
    folder.mkdir()
    first.save(folder)
    kept = trainer_logprobs(first, samples)
    expected = first.update({"solver": samples})
    moved = trainer_logprobs(first, samples) - kept
    first.close()

    # What the first one held is given back a moment after its end.
    second = start("solver", gpus=loaded_by, wait_for_gpus=True, **settings)
    second.load(folder)
    assert draw(second, "solver", 1)[1][0].weights_version == 3
    assert np.abs(trainer_logprobs(second, samples) - kept).mean() < SAME / 5
    got = second.update({"solver": samples})
    for stats in (expected, got):
        stats.pop("padding/solver")  # micro-batches without a sample: one rank needs none
    assert got == pytest.approx(expected, rel=0.02, abs=0.002)
    again = trainer_logprobs(second, samples) - kept
    assert np.corrcoef(again, moved)[0, 1] > 0.99
    assert np.linalg.norm(again) == pytest.approx(np.linalg.norm(moved), rel=0.05)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name}
    second.close()
