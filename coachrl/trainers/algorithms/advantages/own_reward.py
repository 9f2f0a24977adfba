"""A reward of the user's own, by import path: `reward.source=my_module:reward`. docs/algorithms.md has an example.

def reward(episode: Episode) -> float:                                     # one for all actions of the episode
def reward(episode: Episode) -> dict[str, float | None]:                   # one for each, by action id
def reward(episode: Episode, scores: dict[str, CoachScore]) -> ...:        # the same, where the coach is asked too
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from coachrl.config.choices import check_plain, import_by_path, user_code
from coachrl.errors import ConfigError
from coachrl.parsing import is_finite
from coachrl.text import brief, nearest, one_line
from coachrl.types import CoachScore, Episode


class OwnReward:
    """Holds what a function of the user's own gives to what every reward must be: a finite number, or none.

    takes_scores: whether it has a second parameter, for the coach's scores by action id; only then is the coach asked.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError where there is no such function, or it takes neither one nor two arguments."""
        self._name = f"reward.source={one_line(path)}"
        self._function: Callable[..., Any] = import_by_path(path, "reward")
        try:
            parameters = list(inspect.signature(self._function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        if len(parameters) not in (1, 2) or any(parameter.kind not in _BY_PLACE for parameter in parameters):
            raise ConfigError(f"{self._name} is no reward: it must be a function of (episode) or of (episode, scores)")
        check_plain(self._function, self._name)
        self.takes_scores = len(parameters) == 2

    def of(self, episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, float | None]:
        """Action id -> reward, for the candidates of tree sampling too; None for an action that the function leaves
        out, which is not trained on. Raises ConfigError where the function fails, or gives what is no reward."""
        known = {action.id: scores[action.id] for action in episode.all_actions if action.id in scores}
        with user_code(f"{self._name} failed on episode {episode.id}", ConfigError):
            lent = copy.deepcopy(episode)
            given = self._function(lent, known) if self.takes_scores else self._function(lent)
        return checked_rewards(given, episode, self._name)


def checked_rewards(given: Any, episode: Episode, what: str) -> dict[str, float | None]:
    """Action id -> reward of each of the episode's actions, from one number for all of them, or a mapping by id; what
    that leaves out has None. what: who gave it. Raises ConfigError for anything else."""
    ids = [action.id for action in episode.all_actions]
    if not isinstance(given, Mapping):
        return dict.fromkeys(ids, _number(given, episode.id, what))
    for key in given:
        if key not in ids:
            raise ConfigError(f"{what}: episode {episode.id} has no action {brief(key)}{nearest(str(key), ids)}")
    return {key: _number(given.get(key), key, what) for key in ids}


def _number(value: Any, of: str, what: str) -> float | None:
    if value is None:
        return None
    if not is_finite(value) or isinstance(value, bool):
        raise ConfigError(f"{what} gave {brief(value)} for {of}: a reward is a finite number, or None")
    return float(value)


_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
