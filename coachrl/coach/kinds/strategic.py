"""A coach that knows how the run goes, and how it has scored (MAPPA, Sec. 4.4 and App. E.4).

A coach that judges each action alone cannot see that it pays one task category more than another, or that agents polish
what does not yet work. `StrategicCoach` puts rolling statistics of the run before another coach. They change between
steps only, and are made of what the run's files hold: a resumed run's coach is asked what it would have been asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from coachrl.coach.base import Checkable, Coach, CoachRequest
from coachrl.coach.rubric.caps import METRICS
from coachrl.text import counted, one_line
from coachrl.types import CoachScore, Episode

_FLAT = 0.02  # a success rate that moves less than this has no trend
_FLAT_SCORE = 0.2
_CATEGORY_CHARS = 60  # of what a task file calls one: it stands in no fence


@dataclass(frozen=True)
class _Step:
    number: int
    episodes: tuple[Episode, ...]
    scores: Mapping[str, CoachScore]


class StrategicCoach:
    """Asks `coach`, with the statistics of the last `window_steps` steps in `CoachRequest.statistics`.

    reliable_at: success rate of every task category from which on quality comes before reliability.
    """

    def __init__(self, coach: Coach, *, window_steps: int, reliable_at: float = 0.8) -> None:
        self.name, self.memory_steps = coach.name, window_steps
        self._coach, self._reliable_at = coach, reliable_at
        self._steps: deque[_Step] = deque(maxlen=window_steps)
        self._words = statistics_in_words((), reliable_at)

    async def check(self) -> None:
        if isinstance(self._coach, Checkable):
            await self._coach.check()

    def briefed(self, request: CoachRequest) -> CoachRequest:
        return replace(request, statistics=self._words)

    async def score(self, request: CoachRequest) -> CoachScore:
        return await self._coach.score(request if request.statistics else self.briefed(request))

    async def close(self) -> None:
        await self._coach.close()

    def observe(self, step: int, episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> None:
        """Take a finished step into the statistics; episodes that broke for no fault of the agents are left out."""
        valid = tuple(episode for episode in episodes if episode.infra_error is None)
        self._steps.append(_Step(step, valid, dict(scores)))
        self._words = statistics_in_words(self._steps, self._reliable_at)


def statistics_in_words(steps: Iterable[_Step], reliable_at: float) -> str:
    """Success by task category, quality where it is measured, the coach's own mean scores by role and category, what
    goes wrong by role, and what comes first now."""
    steps = [replace(step, episodes=tuple(map(_shown, step.episodes))) for step in steps]
    episodes = [episode for step in steps for episode in step.episodes]
    if not episodes:
        return "No step of this run is finished yet. What comes first now: reliability."
    lines = [f"Steps {steps[0].number} to {steps[-1].number}, {counted(len(episodes), 'episode')}.", "", "Success:"]
    lines += [
        f"- {category}: {_success(steps, category)}{_quality(episodes, category)}" for category in _categories(episodes)
    ]
    lines += ["", "Your mean score (0 to 10):"]
    roles = list(dict.fromkeys(action.role for episode in episodes for action in episode.actions))
    lines += [f"- {role}: {_own_scores(steps, role)}" for role in roles]
    lines += ["", "What goes wrong:", *(f"- {role}: {_failures(episodes, role)}" for role in roles)]
    return "\n".join([*lines, "", f"What comes first now: {_emphasis(episodes, reliable_at)}."])


def _shown(episode: Episode) -> Episode:
    """`episode` with its task category as a label of one short line, whatever words a task file has there, and without
    calls that were given up, which are no replies of anybody's."""
    replies = tuple(action for action in episode.actions if not action.is_given_up)
    return replace(episode, task_category=one_line(episode.task_category, _CATEGORY_CHARS), actions=replies)


def _categories(episodes: Iterable[Episode]) -> list[str]:
    return sorted({episode.task_category for episode in episodes})


def _success(steps: Sequence[_Step], category: str) -> str:
    values = [[float(e.outcome.success) for e in step.episodes if e.task_category == category] for step in steps]
    flat = [value for step in values for value in step]
    return f"{fmean(flat):.0%} of {len(flat)}{_trend(values, _FLAT, lambda value: f'{value:.0%}')}"


def _quality(episodes: Iterable[Episode], category: str) -> str:
    """Means of the metrics by which work is compared across tasks, over what succeeded."""
    valid = [e.outcome.metrics for e in episodes if e.task_category == category and e.outcome.success]
    means = [
        f"{words} {fmean(values):.3g}"
        for name, words in METRICS.items()
        if (values := [metrics[name] for metrics in valid if name in metrics])
    ]
    return f"; of these {', '.join(means)}" if means else ""


def _own_scores(steps: Sequence[_Step], role: str) -> str:
    parts = []
    for category in _categories(episode for step in steps for episode in step.episodes):
        values = [_scores_of(step, role, category) for step in steps]
        flat = [value for step in values for value in step]
        if flat:
            parts.append(f"{category} {fmean(flat):.1f}{_trend(values, _FLAT_SCORE, lambda value: f'{value:.1f}')}")
    return ", ".join(parts) or "no scores"


def _scores_of(step: _Step, role: str, category: str) -> list[float]:
    return [
        score.process_0_10
        for episode in step.episodes
        if episode.task_category == category
        for action in episode.actions
        if action.role == role and (score := step.scores.get(action.id)) is not None and score.process_0_10 is not None
    ]


def _trend(values: Sequence[Sequence[float]], flat: float, shown: Callable[[float], str]) -> str:
    """' (rising: 20 % in the first half of these steps, 40 % in the second)', or nothing where there are too few."""
    half = len(values) // 2
    early, late = ([v for step in part for v in step] for part in (values[:half], values[len(values) - half :]))
    if not early or not late:
        return ""
    before, after = fmean(early), fmean(late)
    word = "steady" if abs(after - before) < flat else "rising" if after > before else "falling"
    return f" ({word}: {shown(before)} in the first half of these steps, {shown(after)} in the second)"


def _failures(episodes: Iterable[Episode], role: str) -> str:
    actions = [action for episode in episodes for action in episode.actions if action.role == role]
    run = [action.execution for action in actions if action.execution is not None]
    parts = [f"{fmean(action.finish_reason == 'length' for action in actions):.0%} of its replies were cut off"]
    if run:
        parts.append(f"{fmean(execution.state != 'ok' for execution in run):.0%} of its programs failed")
    return ", ".join(parts)


def _emphasis(episodes: Sequence[Episode], reliable_at: float) -> str:
    rates = {
        category: fmean(float(e.outcome.success) for e in episodes if e.task_category == category)
        for category in _categories(episodes)
    }
    weak = [f"{category} succeeds in {rate:.0%}" for category, rate in rates.items() if rate < reliable_at]
    if weak:
        return f"reliability ({', '.join(weak)}; the mark is {reliable_at:.0%})"
    return f"quality (every task category succeeds in {reliable_at:.0%} or more)"
