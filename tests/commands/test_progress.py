import io

from rich.console import Console

from coachrl.commands.progress import Display, step_line


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


def test_a_terminal_shows_a_phase_and_a_clock_before_any_episode() -> None:
    drawn = io.StringIO()
    with Display(Console(file=drawn, force_terminal=True, width=140)) as display:
        display.on_phase("loading the model", None)
        display._bar.refresh()
        assert "loading the model" in drawn.getvalue() and "0:00:0" in drawn.getvalue()


def test_a_step_says_how_long_the_others_will_take() -> None:
    drawn = io.StringIO()
    with Display(Console(file=drawn, width=200), steps=5) as display:
        for step in (1, 4, 5):
            display.on_metrics({"step": step, "time/step_s": 60.0, "time/rollout_s": 30.0, "tokens/generated": 30.0})
    assert [line.rpartition("| ")[2] for line in drawn.getvalue().splitlines()] == [
        "4 min left",
        "60 s left",
        "60 s (1 tokens/s)",
    ]
