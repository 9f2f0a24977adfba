"""What a person sees while a run works: a live display on a terminal, plain lines in a pipe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from coachrl.text import dollars, printable
from coachrl.trainers.masking import left_out_in_words
from coachrl.trainers.metrics import coach_usd, lacks_advantage
from coachrl.types import Episode

log = logging.getLogger(__name__)


class Display:
    """A `Callback` (see `coachrl.trainers.loop`). Use it as a context manager. A terminal shows the phase and a clock
    from then on, whatever is waited for."""

    def __init__(self, console: Console, steps: int | None = None) -> None:
        """steps: how many the run has in all, where it trains."""
        self._console = console
        self._steps = steps
        self.coach_queue: Callable[[], int] | None = None
        """How many scores are waited for now; None where there is no coach."""
        self.drawn_tokens: Callable[[Sequence[Episode]], int] = _all_tokens
        """How many tokens of episodes were drawn; a run that goes on has some of them from disk."""
        self.on_unread: Callable[[], None] | None = None
        """Called where nobody reads any more what is printed, in place of ending the program there and then."""
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            _QueueColumn(self),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: Any = None
        self._began = time.monotonic()
        self._succeeded = self._done = self._tokens = 0
        self._prices: list[float | None] = []  # of each step that has ended; None where it is not known

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_phase(self, phase: str, total: int | None) -> None:
        """total: how many episodes it has; None where it has none, as loading a model."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._began, self._succeeded, self._done, self._tokens = time.monotonic(), 0, 0, 0
        self._task = self._bar.add_task(phase, total=total, note="")

    def on_episode(self, episode: Episode) -> None:
        self._done += 1
        self._succeeded += episode.outcome.success
        self._tokens += self.drawn_tokens([episode])
        rate = self._tokens / max(time.monotonic() - self._began, 1e-9)
        note = f"success {self._succeeded}/{self._done}  {rate:.0f} tokens/s{self._spent()}"
        self._bar.update(self._task, advance=1, note=note)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        if "train/success" in metrics:
            self._prices.append(coach_usd(metrics))
        line = step_line(metrics)
        if "time/step_s" in metrics and self._steps is not None and self._steps > metrics["step"]:
            line += f" | {duration((self._steps - metrics['step']) * metrics['time/step_s'])} left"
        try:
            self._console.print(Text(printable(line)), soft_wrap=True)
        except SystemExit:  # of the console, whose pipe is closed
            if self.on_unread is None:
                raise
            log.warning("nobody reads any more what is printed")
            self.on_unread()

    def _spent(self) -> str:
        """What the steps that have ended came to. Of the first one nothing is known while it goes on."""
        known = [price for price in self._prices if price is not None]
        if not self._prices:
            return ""
        return f"  {dollars(sum(known))}" if len(known) == len(self._prices) else "  $?"


def _all_tokens(episodes: Sequence[Episode]) -> int:
    return sum(len(action.response_ids) for episode in episodes for action in episode.all_actions)


def duration(seconds: float) -> str:
    """ "40 s", "7 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _QueueColumn(ProgressColumn):
    """The coach's queue, looked at whenever the display is drawn: it shrinks also where no episode ends."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def render(self, task: Task) -> Text:
        waiting = self._display.coach_queue() if self._display.coach_queue is not None else 0
        return Text(f"coach queue {waiting}" if waiting else "")


def step_line(metrics: Mapping[str, Any]) -> str:
    """One line of text for one line of metrics."""
    parts = [f"step {metrics['step']:>3}"]
    if "train/success" in metrics:
        parts.append(f"success {metrics['train/success']:.2f}")
    for what, prefix, form in (("coach", "coach/score/", ".1f"), ("reward", "train/reward/", ".2f")):
        found = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
        means = [f"{role} {value:{form}}" for role, value in found.items()]
        if means:
            parts.append(f"{what} {', '.join(means)}")
            break  # the coach's scores are the rewards, where it is asked
    if metrics.get("train/trained_actions") == 0:
        parts.append("nothing was trained in this step")
    elif lacks_advantage(metrics):
        parts.append("no update: every advantage is 0")
    parts += left_out_in_words(metrics)
    if metrics.get("coach/failed_fraction"):
        parts.append(f"{metrics['coach/failed_fraction']:.0%} of coach calls failed")
    if "time/step_s" in metrics:
        parts.append(f"{metrics['time/step_s']:.0f} s ({metrics['time/rollout_tokens_per_s']:.0f} tokens/s)")
    if cost := coach_usd(metrics):
        parts.append(f"${cost:.3f}" if cost >= 0.001 else dollars(cost))
    if "eval/success" in metrics:
        parts.append(f"held-out success {metrics['eval/success']:.3f} (n={metrics['eval/episodes']:.0f})")
    return " | ".join(parts)
