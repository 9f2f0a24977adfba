"""An episode as text."""

import pytest
from rich.console import Console

from coachrl.report.transcript import print_episode
from coachrl.types import Episode, Outcome


@pytest.mark.parametrize(
    "outcome, last_line",
    [
        (Outcome(True), "success"),
        (Outcome(False, reason="wrong: 7, not 8"), "no success: wrong: 7, not 8"),
        (Outcome(False), "no success"),  # a grader of a user's that returns False says no more
    ],
)
def test_the_last_line_says_the_outcome(outcome, last_line):
    console = Console(record=True, quiet=False)
    print_episode(console, Episode("e", "t", "sums", "own", (), outcome), {})
    assert console.export_text().strip().splitlines()[-1] == last_line
