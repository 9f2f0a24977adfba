"""People as raters: one action after the other, its coach's score hidden until the person has given one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.coach.base import sees_outcome
from coachrl.errors import ConfigError
from coachrl.report.agents import agent_colors
from coachrl.report.episodes import Shown, read_shown
from coachrl.report.page import environment
from coachrl.runs.folder import Run
from coachrl.runs.labels import Label, add_labels, label_from_record, read_labels
from coachrl.runs.reading import team_of
from coachrl.seeding import generator
from coachrl.types import Action, is_still

_FIELDS = ("action_id", "rater", "score", "remark", "action_digest")  # of a form


@dataclass(frozen=True)
class _Place:
    """Where an action lies."""

    path: Path
    episode_id: str
    role: str
    digest: str


class Rating:
    """The actions of a run's training episodes, to be scored by people. token: what a form must send back, so that no
    page of another site can. blind: the coach's score is shown only to who has given one."""

    def __init__(self, run: Run, token: str, blind: bool = True) -> None:
        self._run, self._token, self._blind = run, token, blind
        self._seen: list[tuple[str, int, int, int]] = []
        self._places: dict[str, _Place] = {}
        self._problems: list[str] = []

    def page(self, rater: str = "", last: str = "", problem: str = "") -> str:
        """The next action that `rater` has not scored. last: the one just scored, whose coach's score is shown now.
        problem: why the last form was refused."""
        places = self._all_places()
        said = [*self._problems]
        own = [label for label in read_labels(self._run, said) if label.rater == rater]
        labels = {label.action_id: label for label in own if not self._is_of_another(label)}
        left = [action_id for action_id in places if action_id not in labels] if rater else []
        shown = _action(places[left[0]], left[0]) if left else None
        before = _action(places[last], last) if last in labels and last in places else None
        context = {
            "name": self._run.folder.name,
            "token": self._token,
            "rater": rater,
            "problem": problem,
            "problems": said,
            "done": len(labels),
            "count": len(places),
            "shown": shown,
            "told": shown is not None and self._sees_outcome(shown[1]),
            "shown_score": shown[0].scores.get(shown[1].id) if shown is not None and not self._blind else None,
            "before": before,
            "given": labels.get(last),
            "colors": agent_colors(self._run, (place.role for place in places.values())),
        }
        return environment().get_template("rate.html.j2").render(context)

    def give(self, fields: Mapping[str, str]) -> Label:
        """Keep a score. Raises ValueError for one that is none, ConfigError where the run cannot be written."""
        label = label_from_record({key: fields.get(key, "") for key in _FIELDS})
        place = self._all_places().get(label.action_id)
        if place is None:
            raise ValueError(f"the run has no action {label.action_id!r}")
        if self._is_of_another(label):
            raise ValueError(f"the run holds another reply under {label.action_id!r} now: that one was not scored")
        add_labels(self._run, [label])
        return label

    def _is_of_another(self, label: Label) -> bool:
        """Whether it was given to a reply that no longer stands under its id."""
        place = self._places.get(label.action_id)
        return place is not None and not is_still(label.action_digest, place.digest)

    def _all_places(self) -> dict[str, _Place]:
        """Every action in the order in which all people are asked, so that they score the same ones first: mixed, and
        read again only where the run has gone on."""
        files = self._run.episode_files("step")
        now = list(map(_state, files))
        if now != self._seen:
            self._problems = []
            found = {
                action.id: _Place(path, shown.episode.id, action.role, action.digest)
                for path in files
                for shown in read_shown(path, self._problems)
                for action in shown.episode.actions
                if action.infra_error is None and not action.is_given_up
            }
            ids = sorted(found)
            order = generator(0, "rating").permutation(len(ids))
            self._places, self._seen = {ids[i]: found[ids[i]] for i in order}, now
        return self._places

    def _sees_outcome(self, action: Action) -> bool:
        """Whether the coach was shown the outcome with this action: a person judges from the same evidence."""
        try:
            return sees_outcome(action.role, team_of(self._run), self._run.config().coach.evidence.ground_truth)
        except ConfigError:
            return False


def _state(path: Path) -> tuple[str, int, int, int]:
    """What tells that an episode file was written anew. A run that is being resumed removes some, and makes them
    again."""
    try:
        found = path.stat()
    except OSError:  # it is gone, or may not be read
        return path.name, 0, 0, 0
    return path.name, found.st_ino, found.st_size, found.st_mtime_ns


def _action(place: _Place, action_id: str) -> tuple[Shown, Action] | None:
    for shown in read_shown(place.path, []):
        if shown.episode.id == place.episode_id:
            return next(((shown, a) for a in shown.episode.actions if a.id == action_id), None)
    return None
