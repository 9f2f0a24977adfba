"""What a run holds as pandas tables, for notebooks: one row for each episode, action, score or line of metrics."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from coachrl.runs.records import ScoredEpisode, read_episodes, scores_of_rescores, step_of
from coachrl.types import Action, CoachScore

if TYPE_CHECKING:
    import pandas as pd

    from coachrl.runs.folder import Run

# Column -> where its value is found: what is None on the way there leaves it empty.
_PLACE = ("split", "step", "episode", "task")
_EPISODE = {
    "category": "task_category",
    "pipeline": "pipeline",
    "success": "outcome.success",
    "reason": "outcome.reason",
    "infra_error": "infra_error",
}
_ACTION = {
    "action": "action.id",
    "index": "action.index",
    "role": "action.role",
    "policy": "action.policy",
    "turn": "action.turn",
    "candidate": "action.candidate",
    "chosen": "chosen",
    "score": "score.process_0_10",
    "score_status": "score.status",
    "reward": "action.credit.reward",
    "advantage": "action.credit.advantage",
    "left_out": "action.credit.left_out",
    "environment_reward": "action.reward.local",
    "team_reward": "action.reward.team",
    "tokens": "tokens",
    "finish_reason": "action.finish_reason",
    "text": "action.text",
    "code": "action.code",
    "code_state": "action.execution.state",
    "result": "action.result",
}
_SCORE = {
    "model": "model",
    "status": "status",
    "score": "process_0_10",
    "contribution": "contribution",
    "rationale": "rationale",
    "suggestion": "suggestion",
    "tokens_in": "usage.tokens_in",
    "tokens_out": "usage.tokens_out",
    "cost_usd": "usage.cost_usd",
}
_NUMBERS = ("score", "contribution", "cost_usd", "reward", "advantage", "environment_reward", "team_reward")
_METRICS_SHOWN = ("step", "train/success", "eval/success", "coach/failed_fraction", "time/step_s", "cost/usd")


class PlacedEpisode(NamedTuple):
    """A scored episode and where in the run it was played. split: "train" or "eval"."""

    split: str
    step: int
    scored: ScoredEpisode

    @property
    def place(self) -> dict[str, Any]:
        """The columns that every table begins with."""
        episode = self.scored.episode
        return dict(zip(_PLACE, (self.split, self.step, episode.id, episode.task_id), strict=True))


class _Acted(NamedTuple):
    """What a row of actions is made of."""

    action: Action
    chosen: bool
    score: CoachScore | None
    tokens: int


class EpisodeFrames:
    """Tables of some scored episodes. Each is made when it is asked for; keep it in a variable to use it often."""

    def __init__(self, episodes: Iterable[PlacedEpisode]) -> None:
        self._given = episodes

    @property
    def episodes(self) -> pd.DataFrame:
        """A row for each episode. What its environment measured stands in columns `metric/<name>`."""
        rows = []
        for placed in self._placed():
            episode = placed.scored.episode
            measured = {f"metric/{name}": value for name, value in episode.outcome.metrics.items()}
            rows.append(placed.place | _row(_EPISODE, episode) | {"actions": len(episode.actions)} | measured)
        return _frame(rows, (*_PLACE, *_EPISODE, "actions"))

    @property
    def actions(self) -> pd.DataFrame:
        """A row for each action with the score of the run's own coach and what training made of it, NaN where there is
        none. reward, advantage: those it was trained on; left_out: why it was not. environment_reward, team_reward:
        what the pipeline's world paid. chosen: False for candidates of tree sampling that the episode did not go on
        from."""
        rows = []
        for placed in self._placed():
            episode, scores = placed.scored
            rejected = {action.id for action in episode.rejected_candidates}
            for action in episode.all_actions:
                acted = _Acted(action, action.id not in rejected, scores.get(action.id), len(action.response_ids))
                rows.append(placed.place | _row(_ACTION, acted))
        return _frame(rows, (*_PLACE, *_ACTION))

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each score. rater: "run" for the run's own coach, else the label of a rescore."""
        rows = []
        for placed in self._placed():
            episode, scores = placed.scored
            for action in episode.all_actions:
                of = {"action": action.id, "role": action.role}
                for rater, score in self._scores_of(action.id, scores):
                    rows.append(placed.place | of | {"rater": rater} | _row(_SCORE, score))
        return _frame(rows, (*_PLACE, "action", "role", "rater", *_SCORE))

    def _placed(self) -> Iterator[PlacedEpisode]:
        yield from self._given

    def _scores_of(self, action_id: str, own: dict[str, CoachScore]) -> Iterator[tuple[str, CoachScore]]:
        if action_id in own:
            yield "run", own[action_id]


class RunFrames(EpisodeFrames):
    """Tables of a run's folder, read anew each time: a run may be looked at while it trains. What cannot be read is
    left out, with a warning."""

    def __init__(self, run: Run) -> None:
        super().__init__(())
        self._run = run

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each line of metrics.jsonl; docs/reading_a_run.md says what the columns are."""
        return _frame(self._run.metrics(), ("step",))

    @property
    def scores(self) -> pd.DataFrame:
        """See `EpisodeFrames.scores`; those of rescores stand beside the run's own."""
        problems: list[str] = []
        self._rescores = scores_of_rescores(self._run.folder, problems)
        self._warn(problems)
        return super().scores

    def _placed(self) -> Iterator[PlacedEpisode]:
        for path in self._run.episode_files():
            split = "train" if path.stem.startswith("step-") else "eval"
            problems: list[str] = []
            for scored in read_episodes(path, problems):
                yield PlacedEpisode(split, step_of(path), scored)
            self._warn(problems)

    def _scores_of(self, action_id: str, own: dict[str, CoachScore]) -> Iterator[tuple[str, CoachScore]]:
        yield from super()._scores_of(action_id, own)
        for label, scores in self._rescores.items():
            if action_id in scores:
                yield label, scores[action_id]

    def _warn(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self._run.warn(problem)


def summary_html(run: Run) -> str:
    """What a notebook shows of a run: its folder, its newest lines of metrics, and where its report is."""
    lines = [{key: line[key] for key in _METRICS_SHOWN if key in line} for line in run.metrics()]
    table = _frame(lines[-10:], ("step",)).to_html(index=False, na_rep="", float_format="{:.3g}".format)
    report = run.folder / "report.html"
    told = f"<p>report: {html.escape(str(report))}</p>" if report.is_file() else ""
    return (
        f"<p>coachrl run <b>{html.escape(str(run.folder))}</b></p>{table if lines else '<p>no metrics yet</p>'}{told}"
    )


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """`columns` are there in any case, and stand first; what only some rows have follows."""
    import pandas as pd

    further = dict.fromkeys(key for row in rows for key in row if key not in columns)
    frame = pd.DataFrame(rows, columns=[*columns, *further])
    return frame.astype({name: float for name in _NUMBERS if name in columns})  # NaN where there is none


def _row(columns: Mapping[str, str], item: object) -> dict[str, Any]:
    return {column: _found(item, path) for column, path in columns.items()}


def _found(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = None if item is None else getattr(item, name)
    return item
