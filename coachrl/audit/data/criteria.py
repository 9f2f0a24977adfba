"""What actions got under each criterion of a coach prompt, as a table, and how far the criteria go together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from coachrl.runs.folder import Run
from coachrl.runs.records import scores_of_rescores
from coachrl.runs.saved import training_episodes
from coachrl.types import CoachScore

COLUMNS = ("run", "rater", "action", "criterion", "weight", "score")


def criteria_table(folders: Sequence[Path]) -> pd.DataFrame:
    """A row for each action, rater and criterion, in `COLUMNS`. rater: the label of a rescore, empty for the run's own
    coach. Scores without criteria have no row. Raises ConfigError where a folder is no run."""
    rows = [
        (run.folder.name, rater, score.action_id, one.name, one.weight, one.score_0_10)
        for run in map(Run.open, folders)
        for rater, score in _scores(run)
        for one in score.criteria
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def agreement_of_criteria(table: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of each two criteria over the actions that have both. Near 1 everywhere, a coach gives one
    impression under several names (halo): its criteria say no more than its total."""
    wide = table.pivot_table(index=["run", "rater", "action"], columns="criterion", values="score")
    return wide.corr(method="spearman")


def _scores(run: Run) -> list[tuple[str, CoachScore]]:
    problems: list[str] = []
    own = [("", score) for scored in training_episodes(run) for score in scored.scores.values()]
    again = [
        (label, score)
        for label, scores in scores_of_rescores(run.folder, problems).items()
        for score in scores.values()
    ]
    for problem in problems:
        run.warn(problem)
    return own + again
