"""What a run holds as pandas tables, for notebooks: one row for each episode, action, score or line of metrics."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from coachrl.runs.records import ScoredEpisode, read_episodes, scores_of_rescores, step_of
from coachrl.storage.jsonl import readable_jsonl
from coachrl.text import brief, whole_characters
from coachrl.types import Action, CoachScore

if TYPE_CHECKING:
    import pandas as pd

    from coachrl.runs.folder import Run

EPISODES = ("split", "step", "episode", "task", "category", "pipeline", "success", "reason", "infra_error", "actions")
ACTIONS = (
    *("split", "step", "episode", "task", "action", "index", "role", "policy", "turn", "candidate", "chosen"),
    *("score", "score_status", "reward", "advantage", "left_out", "environment_reward", "team_reward"),
    *("tokens", "finish_reason", "text", "code", "code_state", "result"),
)
SCORES = (
    *("split", "step", "episode", "task", "action", "role", "rater", "model", "status", "score", "contribution"),
    *("rationale", "suggestion", "tokens_in", "tokens_out", "cost_usd"),
)
_METRICS_SHOWN = ("step", "train/success", "eval/success", "coach/failed_fraction", "time/step_s", "cost/usd")


class PlacedEpisode(NamedTuple):
    """A scored episode and where in the run it was played. split: "train" or "eval"."""

    split: str
    step: int
    scored: ScoredEpisode


class EpisodeFrames:
    """Tables of some scored episodes. Each is made when it is asked for; keep it in a variable to use it often."""

    def __init__(self, episodes: Iterable[PlacedEpisode]) -> None:
        self._given = episodes

    @property
    def episodes(self) -> pd.DataFrame:
        """A row for each episode. What its environment measured stands in columns `metric/<name>`."""
        rows = []
        for split, step, (episode, _) in self._placed():
            outcome = episode.outcome
            what = (episode.id, episode.task_id, episode.task_category, episode.pipeline)
            row = (split, step, *what, outcome.success, outcome.reason, episode.infra_error, len(episode.actions))
            measured = {f"metric/{name}": value for name, value in outcome.metrics.items()}
            rows.append({**dict(zip(EPISODES, row, strict=True)), **measured})
        return _frame(rows, EPISODES)

    @property
    def actions(self) -> pd.DataFrame:
        """A row for each action with the score of the run's own coach and what training made of it, NaN where there is
        none. reward, advantage: those it was trained on; left_out: why it was not ("given_up": an app left the call
        before there was a reply). environment_reward, team_reward:
        what the pipeline's world paid. chosen: False for candidates of tree sampling that the episode did not go on
        from."""
        rows = []
        for split, step, (episode, scores) in self._placed():
            rejected = {action.id for action in episode.rejected_candidates}
            for action in episode.all_actions:
                place = (split, step, episode.id, episode.task_id)
                own = _action_columns(action, action.id not in rejected, scores.get(action.id))
                rows.append(dict(zip(ACTIONS, (*place, *own), strict=True)))
        return _frame(rows, ACTIONS)

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each score. rater: "run" for the run's own coach, else the label of a rescore."""
        rows = []
        for split, step, (episode, scores) in self._placed():
            for action in episode.all_actions:
                place = (split, step, episode.id, episode.task_id, action.id, action.role)
                for rater, score in self._scores_of(action, scores):
                    rows.append(dict(zip(SCORES, (*place, rater, *_score_columns(score)), strict=True)))
        return _frame(rows, SCORES)

    def _placed(self) -> Iterator[PlacedEpisode]:
        yield from self._given

    def _scores_of(self, action: Action, own: dict[str, CoachScore]) -> Iterator[tuple[str, CoachScore]]:
        if action.id in own:
            yield "run", own[action.id]


class RunFrames(EpisodeFrames):
    """Tables of a run's folder, read anew each time: a run may be looked at while it trains. What cannot be read is
    left out, with a warning."""

    def __init__(self, run: Run) -> None:
        super().__init__(())
        self._run = run

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each line of metrics.jsonl; docs/reading_a_run.md says what the columns are."""
        return _frame(_metrics(self._run), ("step",))

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

    def _scores_of(self, action: Action, own: dict[str, CoachScore]) -> Iterator[tuple[str, CoachScore]]:
        yield from super()._scores_of(action, own)
        for label, scores in self._rescores.items():
            if (score := scores.get(action.id)) is not None and action.is_of(score.action_digest):
                yield label, score

    def _warn(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self._run.warn(problem)


def summary_html(run: Run) -> str:
    """What a notebook shows of a run: its folder, its newest lines of metrics, and where its report is."""
    lines = [{key: line[key] for key in _METRICS_SHOWN if key in line} for line in _metrics(run)]
    table = _frame(lines[-10:], ("step",)).to_html(index=False, na_rep="", float_format="{:.3g}".format)
    report = run.folder / "report.html"
    told = f"<p>report: {html.escape(str(report))}</p>" if report.is_file() else ""
    return (
        f"<p>coachrl run <b>{html.escape(str(run.folder))}</b></p>{table if lines else '<p>no metrics yet</p>'}{told}"
    )


def _metrics(run: Run) -> list[dict[str, Any]]:
    """The lines that can be read; a run that was killed may have left the last one without its end."""
    problems: list[str] = []
    lines = list(readable_jsonl(run.folder / "metrics.jsonl", _fields, problems))
    for problem in problems:
        run.warn(problem)
    return lines


def _fields(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise TypeError(f"it is {brief(record)}")
    return record


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    """`columns` are there in any case, and stand first; what only some rows have follows. A reply that was cut may end
    in half a character, which the text columns of pandas 3 do not take."""
    import pandas as pd

    further = dict.fromkeys(key for row in rows for key in row if key not in columns)
    whole = [
        {key: whole_characters(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]
    return pd.DataFrame(whole, columns=[*columns, *further])


def _action_columns(action: Action, chosen: bool, score: CoachScore | None) -> tuple[Any, ...]:
    paid, credit = action.reward, action.credit
    return (
        action.id,
        action.index,
        action.role,
        action.policy,
        action.turn,
        action.candidate,
        chosen,
        _number(score.process_0_10 if score is not None else None),
        score.status if score is not None else None,
        _number(credit.reward if credit is not None else None),
        _number(credit.advantage if credit is not None else None),
        credit.left_out if credit is not None else "given_up" if action.is_given_up else None,
        _number(paid.local if paid is not None else None),
        _number(paid.team if paid is not None else None),
        len(action.response_ids),
        action.finish_reason,
        action.text,
        action.code,
        action.execution.state if action.execution is not None else None,
        action.result,
    )


def _score_columns(score: CoachScore) -> tuple[Any, ...]:
    return (
        score.model,
        score.status,
        _number(score.process_0_10),
        _number(score.contribution),
        score.rationale,
        score.suggestion,
        score.usage.tokens_in,
        score.usage.tokens_out,
        _number(score.usage.cost_usd),
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
