"""An outage is a few lines of the log."""

import logging

import pytest

from coachrl.coach.repeated_warnings import RepeatedWarnings

log = logging.getLogger("coachrl.tests")


def test_the_first_of_a_kind_is_said_then_every_tenfold_and_the_sum_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = RepeatedWarnings(log)
    for number in range(12):
        warnings.warn(f"action {number}", f"coach m: 503 down: request r{number}")
    warnings.sum_up()
    assert caplog.messages == [
        "action 0: coach m: 503 down: request r0",
        "action 9: coach m: 503 down: request r9 (10 of this kind by now; the next line comes at 100)",
        "12 times in all: coach m: 503 down: request r0",
    ]


def test_a_sum_that_was_just_said_is_not_said_again_and_counts_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(log)
    warnings.warn("action 0", "coach m: cut off")
    warnings.sum_up()
    warnings.warn("action 1", "coach m: cut off")
    assert caplog.messages == ["action 0: coach m: cut off", "action 1: coach m: cut off"]
