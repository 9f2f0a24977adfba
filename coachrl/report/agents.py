"""Which color an agent has: the same one on every page of a run, whatever of the run a page shows."""

from __future__ import annotations

from collections.abc import Iterable

from coachrl.errors import ConfigError
from coachrl.report.charts import COLORS
from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes


def agent_colors(run: Run, others: Iterable[str] = ()) -> dict[str, int]:
    """Agent -> number of its color, in the order of the team as the run kept it, else of its first episode. others:
    agents that a page shows, and that may not be among these."""
    return {name: place % COLORS for place, name in enumerate(dict.fromkeys([*_team(run), *others]))}


def _team(run: Run) -> list[str]:
    try:
        roles = run.roles()
    except ConfigError:  # the report says of no file but its own that it cannot be read
        roles = None
    if roles is not None:
        return [role.name for role in roles]
    for path in run.episode_files():
        for scored in read_episodes(path, []):
            return [action.role for action in scored.episode.actions]
    return []
