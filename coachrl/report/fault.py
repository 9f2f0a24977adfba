"""Who was at fault in an episode that failed, as its coach saw it: the action with the lowest contribution or score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coachrl.report.charts import number
from coachrl.types import Action, CoachScore, Episode


@dataclass(frozen=True)
class Fault:
    """culprits: the actions that the coach values least: several where it values them alike, none where it valued none.
    words: what that rests on. why: the coach's reasons, where there is one culprit. margin: points between the
    culprit and the next action; 0 for several."""

    culprits: Sequence[Action]
    words: str
    why: str = ""
    margin: float = 0.0

    @property
    def culprit(self) -> Action | None:
        return self.culprits[0] if len(self.culprits) == 1 else None


def find_fault(episode: Episode, scores: Mapping[str, CoachScore]) -> Fault:
    """Contributions of a retrospective pass say it where there are some, else scores. It is the coach's word on each
    action, not a measured cause, and `Fault.words` says which of the two it is."""
    given = {action.id: scores[action.id] for action in episode.actions if action.id in scores}
    contributions = {key: score.contribution for key, score in given.items() if score.contribution is not None}
    values = contributions or {key: s.process_0_10 for key, s in given.items() if s.process_0_10 is not None}
    if not values:
        return Fault((), "No action has a score of the coach's, so nobody is named.")
    lowest = min(values.values())
    culprits = [action for action in episode.actions if values.get(action.id) == lowest]
    what = _in_words(lowest, walked_back=bool(contributions))
    if len(culprits) > 1:
        alike = f"The coach gave {len(culprits)} of {len(values)} actions the lowest {what}, so it names no single one."
        return Fault(culprits, alike)
    above = [value for value in values.values() if value != lowest]
    if not above:
        return Fault(culprits, f"Only this action has a {what}.", given[culprits[0].id].rationale)
    next_lowest = min(above)
    words = f"Lowest {what}; the next lowest is {number(next_lowest)}, of {len(values)} actions."
    return Fault(culprits, words, given[culprits[0].id].rationale, next_lowest - lowest)


def _in_words(value: float, walked_back: bool) -> str:
    if walked_back:
        return f"contribution by the coach that walked back from the outcome: {number(value)} (-10 to 10)"
    return f"score: {number(value)} of 10"
