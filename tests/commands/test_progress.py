import io

import pytest
from rich.console import Console

from coachrl.commands.progress import Display, duration, step_line
from coachrl.testing.actions import make_action
from coachrl.types import Episode, Outcome


def test_a_step_that_moves_no_weights_says_so():
    step = {"step": 1, "train/success": 0.0, "train/trained_actions": 16.0}
    assert step_line(step) == "step   1 | success 0.00 | no update: every advantage is 0"
    for moved in ("train/loss/solver", "train/skipped/solver"):
        assert "no update" not in step_line({**step, moved: 1.0})
    assert "no update" not in step_line({"step": 0, "eval/success": 0.5, "eval/episodes": 4})


def test_the_live_display_shows_how_many_scores_are_waited_for() -> None:
    drawn = io.StringIO()
    waiting = 7
    with Display(Console(file=drawn, force_terminal=True, width=140)) as display:
        display.coach_queue = lambda: waiting
        display.on_phase("step 1/2", 4)
        display._bar.refresh()
        assert "coach queue 7" in drawn.getvalue()
        waiting = 0
        display._bar.refresh()  # waits for a drawing that its own thread may have begun with the 7
        drawn.truncate(0)
        display._bar.refresh()
        assert "coach queue" not in drawn.getvalue()


def test_a_line_holds_the_rewards_of_each_role_also_where_no_coach_is_asked() -> None:
    rewards = {"train/reward/tool": 0.125, "train/reward/planner": 1.5}
    assert step_line({"step": 1, **rewards}) == "step   1 | reward tool 0.12, planner 1.50"
    assert step_line({"step": 1, "coach/score/tool": 7.0, **rewards}) == "step   1 | coach tool 7.0"


def test_actions_that_are_left_out_are_told_with_the_setting_that_decides_it() -> None:
    masked = {"train/masked/truncated": 2.0, "train/masked/unscored": 1.0, "train/masked/sandbox: broke": 1.0}
    line = step_line({"step": 1, **masked})
    assert "2 actions left out: cut at max_new_tokens of their role or pipeline; train.mask_truncated=false" in line
    assert (
        "1 action left out: no score of the coach (coach.max_failed_fraction says how many may fail), or None of"
        in line
    )
    assert line.endswith("1 action left out: sandbox: broke")


def test_a_steps_dollars_are_those_of_the_reference_set_too() -> None:
    metrics = {"step": 1, "cost/usd": 0.25, "cost/reference_set/calls": 10.0}
    assert step_line({**metrics, "cost/reference_set/usd": 0.5}).endswith("| $0.750")
    assert "$" not in step_line(metrics), "one price is not known"


def test_a_terminal_shows_a_phase_and_a_clock_before_any_episode() -> None:
    drawn = io.StringIO()
    with Display(Console(file=drawn, force_terminal=True, width=140)) as display:
        display.on_phase("loading the model", None)
        display._bar.refresh()
        assert "loading the model" in drawn.getvalue() and "0:00:0" in drawn.getvalue()
    assert not display._bar.live.is_started


def test_the_speed_of_a_step_is_of_what_was_drawn() -> None:
    step = {"step": 1, "time/step_s": 20.0, "time/rollout_tokens_per_s": 149.6}
    assert step_line(step).endswith("20 s (150 tokens/s)")
    drawn = io.StringIO()
    with Display(Console(file=drawn, force_terminal=True, width=140)) as display:
        display.drawn_tokens = lambda episodes: 0
        display.on_phase("step 1/2", 1)
        display.on_episode(Episode("e", "t", "", "ask", (make_action(response_ids=(2,) * 9),), Outcome(True)))
        display._bar.refresh()
        assert " 0 tokens/s" in drawn.getvalue()


def test_a_step_says_how_long_the_others_will_take() -> None:
    drawn = io.StringIO()
    with Display(Console(file=drawn, width=20), steps=5) as display:
        for step in (1, 4, 5):
            display.on_metrics({"step": step, "time/step_s": 60.0, "time/rollout_tokens_per_s": 1.0})
    assert [line.rpartition("| ")[2] for line in drawn.getvalue().splitlines()] == [
        "4 min left",
        "60 s left",
        "60 s (1 tokens/s)",
    ]


def test_a_line_of_metrics_holds_all_that_a_step_came_to() -> None:
    metrics = {
        "step": 12, "train/success": 0.25, "coach/score/a": 6.25, "coach/failed_fraction": 0.05, "time/step_s": 20.0,
        "time/rollout_tokens_per_s": 150.0, "cost/usd": 0.0125, "eval/success": 0.5, "eval/episodes": 8,
    }  # fmt: skip
    assert step_line(metrics) == (
        "step  12 | success 0.25 | coach a 6.2 | 5% of coach calls failed | 20 s (150 tokens/s) | $0.013 | "
        "held-out success 0.500 (n=8)"
    )
    nothing = {"coach/failed_fraction": 0.0, "cost/usd": 0.0, "train/trained_actions": 0}
    assert step_line({"step": 3, **nothing}) == "step   3 | nothing was trained in this step"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(40, "40 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (12600, "3.5 h")],
)
def test_a_duration_is_said_in_the_unit_that_people_would_use(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_phase_counts_its_own_episodes_and_the_run_what_it_has_spent(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("coachrl.commands.progress.time.monotonic", lambda: now[0])
    display = Display(Console(file=io.StringIO()), steps=9)

    def shown(*successes: bool) -> tuple[str, float]:
        display.on_phase("step", 4)
        now[0] += 2.0
        for success in successes:
            taken, other = (make_action(index=i, response_ids=(1,) * 5) for i in range(2))
            display.on_episode(Episode("e", "t", "k", "p", (taken,), Outcome(success), rejected_candidates=(other,)))
        [task] = display._bar.tasks
        return task.fields["note"], task.completed

    assert shown(True, False, False) == ("success 1/3  15 tokens/s", 3)
    display.on_metrics({"step": 1, "train/success": 0.3, "cost/usd": 0.5})
    display.on_metrics({"step": 1, "eval/success": 0.3, "eval/episodes": 2})  # asks no coach
    assert shown(True) == ("success 1/1  5 tokens/s  $0.50", 1)
    display.on_metrics({"step": 2, "train/success": 0.3, "cost/usd": 0.25})
    assert shown(True) == ("success 1/1  5 tokens/s  $0.75", 1)
    for price in ({}, {"cost/usd": 1.0}):  # what one step cost is not known, so the sum is not
        display.on_metrics({"step": 3, "train/success": 0.3, **price})
        assert shown(True) == ("success 1/1  5 tokens/s  $?", 1)
