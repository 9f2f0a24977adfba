import io

from rich.console import Console

from coachrl.progress import Display


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
