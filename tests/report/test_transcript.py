"""An episode as text."""

from dataclasses import replace

import pytest
from rich.console import Console

from coachrl.report.transcript import print_episode
from coachrl.testing.actions import make_action
from coachrl.types import CoachScore, Episode, Outcome, Reward


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


def test_each_action_stands_with_its_turn_and_what_the_coach_said():
    actions = tuple(make_action("solver", index=index, turn=index, episode="e") for index in range(4))
    actions = (replace(actions[0], reward=Reward(team=0.5, local=-0.25)), *actions[1:])
    scores = {
        "e/0": CoachScore("e/0", "scored", 0.0, rationale="nothing of use"),
        "e/1": CoachScore("e/1", "abstained", rationale="no view"),
        "e/2": CoachScore("e/2", "failed"),
    }
    console = Console(record=True, quiet=False, width=100)
    print_episode(
        console, Episode("e", "t", "sums", "own", actions, Outcome(True), infra_error="sandbox: gone"), scores
    )
    text = console.export_text()
    assert [text.count(f"solver, turn {turn}\n") for turn in range(6)] == [0, 1, 1, 1, 1, 0]
    assert "  = team 0.50, own -0.25\n  * coach 0.0: nothing of use" in text
    assert "  * coach abstained: no view" in text and "  * coach failed: " in text and text.count("  * ") == 3
    assert text.strip().splitlines()[-1] == "sandbox: gone", "what broke is told in place of an outcome"
