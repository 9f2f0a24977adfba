"""Two runs' episodes of one task side by side, on one offline page: `coachrl compare A B --html FILE`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from coachrl.report.agents import agent_colors
from coachrl.report.compare import RunComparison, compare_evaluations, last_evaluations, run_names
from coachrl.report.contents import EpisodeFile, draw_key
from coachrl.report.episodes import PAGE_BYTES, Shown, page_bytes
from coachrl.report.page import environment
from coachrl.runs.folder import Run


@dataclass(frozen=True)
class SharedDraw:
    """One draw of one held-out task as every run played it, the baseline first; None where a run lacks it."""

    played: Sequence[Shown | None]

    @property
    def first(self) -> Shown:
        return next(shown for shown in self.played if shown is not None)

    @property
    def differs(self) -> bool:
        return len({shown.result for shown in self.played if shown is not None}) > 1


def compare_page(runs: Sequence[Run]) -> tuple[list[RunComparison], str]:
    """The comparison of `compare`, and its page: figures first, then each shared draw, those that came out differently
    before the others, as many as a page has room for. Raises what `compare` raises."""
    evaluations = last_evaluations(runs)
    found, names = compare_evaluations(runs, evaluations), run_names(runs)
    draws = list(_shared(names, evaluations))
    shown = list(_that_fit(sorted(draws, key=lambda draw: not draw.differs)))
    roles = (a.role for draw in shown for one in draw.played if one is not None for a in one.episode.actions)
    context = {
        "names": names,
        "comparisons": found,
        "draws": shown,
        "count": len(draws),
        "colors": agent_colors(runs[0], roles),
    }
    return found, environment().get_template("compare.html.j2").render(context)


def _shared(names: Sequence[str], evaluations: Sequence[EpisodeFile]) -> Iterator[SharedDraw]:
    """The draws that the baseline and at least one other run hold, in the baseline's order."""
    by_key = [
        {draw_key(e): Shown(name, evaluation.name, e, evaluation.scores) for e in evaluation.valid}
        for name, evaluation in zip(names, evaluations, strict=True)
    ]
    for key in by_key[0]:
        played = [of_run.get(key) for of_run in by_key]
        if any(shown is not None for shown in played[1:]):
            yield SharedDraw(played)


def _that_fit(draws: Iterable[SharedDraw]) -> Iterator[SharedDraw]:
    left = PAGE_BYTES
    for draw in draws:
        size = sum(page_bytes(shown) for shown in draw.played if shown is not None)
        if size <= left:
            left -= size
            yield draw
