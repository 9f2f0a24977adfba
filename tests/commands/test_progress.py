import io

from rich.console import Console

from coachrl.commands.progress import Display, step_line


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
