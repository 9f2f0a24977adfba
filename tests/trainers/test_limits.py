"""What ends a run that does not learn."""

import pytest

from coachrl.config import load_config
from coachrl.trainers.limits import too_much_failed

NOTHING_FAILED = {"train/faulty_fraction": 0.0, "train/overflowed_fraction": 0.0}


@pytest.fixture(scope="module")
def config():
    return load_config(None, ["coach.max_failed_fraction=0.2", "train.max_faulty_fraction=0.5"])


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"coach/failed_fraction": 0.25}, "25% of the coach's calls failed (coach.max_failed_fraction is 20%)"),
        ({"train/faulty_fraction": 0.75}, "75% of the episodes broke (train.max_faulty_fraction is 50%)"),
        ({"train/out_of_memory/a": 0.1, "train/out_of_memory/b": 0.75}, "75% of a policy's samples did not fit"),
        ({"train/overflowed_fraction": 0.75}, "in 75% of the episodes a prompt did not fit the model's context"),
    ],
)
def test_more_failures_than_are_allowed_are_said_in_words(config, metrics, words):
    assert too_much_failed(NOTHING_FAILED | metrics, config).startswith(words)


def test_why_the_last_call_failed_is_said(config):
    said = too_much_failed(NOTHING_FAILED | {"coach/failed_fraction": 1.0}, config, "coach mine:f gave\n11")
    assert (
        said
        == "100% of the coach's calls failed, the last with: coach mine:f gave 11 (coach.max_failed_fraction is 20%)"
    )


def test_as_many_failures_as_are_allowed_are_bearable(config):
    allowed = {"coach/failed_fraction": 0.2, "train/out_of_memory/a": 0.5}
    assert too_much_failed(dict.fromkeys(NOTHING_FAILED, 0.5) | allowed, config) is None
    assert too_much_failed(NOTHING_FAILED, config) is None  # a run without a coach has no share of its calls
