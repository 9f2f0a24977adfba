"""Run folders as one table: a row for each action and each coach that scored it. Every analysis is a function on it.

A run's own scores are in `episodes/step-*.jsonl`; scores made later are in `rescores/<label>/scores.jsonl`, beside a
`coach.json` that says who made them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coachrl.audit.data.foreign import task_of
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.parsing import read_json
from coachrl.runs.folder import Run
from coachrl.runs.lost import lost_episodes, lost_steps, newest_step, read_steps
from coachrl.runs.records import ScoredEpisode, read_each_once, scores_of_rescores, step_of
from coachrl.text import prose_in
from coachrl.types import Action, CoachScore, Episode, is_still

# Columns of the table. score: 0 to 10, NaN unless status is "scored". outcome: the episode's success as 0.0 or 1.0,
# NaN where it was not measured. state: how the code ended, "no code" where none ran, with "cut" where the reply hit its
# limit. last: the episode's last action.
_OF_ACTION = ("run", "pipeline", "step", "episode", "task", "category", "action", "role", "turn", "last")
_OF_SCORE = ("rater", "coach", "prompt", "status", "score")
_OF_REPLY = ("outcome", "tokens", "code_share", "markdown", "hedging", "has_code", "state")
COLUMNS = (*_OF_ACTION, *_OF_SCORE, *_OF_REPLY)
_FURTHER = ("policy", "action_digest")
CRITERION = "criterion:"
"""Of the columns that the table also has where a coach scores by criteria: 0 to 10, NaN where an action has none."""
_CATEGORIES = ("run", "pipeline", "task", "category", "role", "rater", "coach", "prompt", "status", "state")
_MARKDOWN = re.compile(r"^[^\S\n]*(?:#{1,6} |[-*+] |\d+\. |>|\|)|\*\*[^*\n]+\*\*", re.MULTILINE)
_HEDGES = re.compile(
    r"\b(?:maybe|perhaps|might|could be|probably|possibly|likely|i think|i believe|it seems|seems|appears|not sure|"
    r"unsure|unclear|approximately|roughly)\b",
    re.IGNORECASE,
)
_EVIDENCE = "coach.evidence."
_PROVIDER = re.compile(r"[^\s,/]+/(?=[^\s,])")


@dataclass(frozen=True)
class Scorer:
    """Who made a set of scores. label: the rescore's, empty for the run's own. outcome_to: whose actions it was shown
    the measured outcome with, as `coach.evidence.ground_truth` says: "last" (the last agent's), "all", or "none".
    evidence: what else it was shown, by configuration key, as words; empty where that is not known."""

    label: str
    coach: str
    prompt: str
    repeat: int = 0
    outcome_to: str = "none"
    evidence: Mapping[str, str] = field(default_factory=dict, hash=False)

    def is_same_coach(self, other: Scorer) -> bool:
        """Whether it is one coach with one prompt and the same evidence, under whatever name."""
        return self.is_same_model(other) and not self.differences(other)

    def is_same_model(self, other: Scorer) -> bool:
        return (plain_name(self.coach), self.prompt) == (plain_name(other.coach), other.prompt)

    def differences(self, other: Scorer) -> list[str]:
        """The settings of what it was shown that differ. Where only one of the two states one, nothing is known."""
        known = {key for key, said in self.evidence.items() if said != other.evidence.get(key, said)}
        return sorted(known | ({f"{_EVIDENCE}ground_truth"} if self.outcome_to != other.outcome_to else set()))

    @property
    def name(self) -> str:
        return self.label or self.coach or "coach"


@dataclass(frozen=True)
class AuditData:
    """What was read. actions: `COLUMNS`. heldout: run, pipeline, step, task, category, outcome of each evaluated
    episode.

    The table also has `policy`, the model that played the role, and `action_digest`; it may have columns of
    `CRITERION`. scorers: rater name -> who it is. notes: one sentence for each thing that could not be read or used.
    texts: task id -> what the first agent was asked.
    """

    actions: pd.DataFrame
    heldout: pd.DataFrame
    scorers: Mapping[str, Scorer]
    notes: Sequence[str]
    runs: Mapping[str, Path]
    texts: Mapping[str, str] = field(default_factory=dict)


def read_audit_data(folders: Sequence[Path], steps: Container[int] | None = None) -> AuditData:
    """The table of all runs together; of training, only `steps` where they are given.

    Raises ConfigError where a folder is no run, or is given twice."""
    runs = [Run.open(folder) for folder in folders]
    names = [run.folder.name for run in runs]
    if twice := sorted({str(run.folder) for run in runs if [r.folder for r in runs].count(run.folder) > 1}):
        raise ConfigError(f"run {twice[0]} is given twice: its scores would count double")
    labels = [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs, strict=True)]
    found = _Found()
    for label, run in zip(labels, runs, strict=True):
        _RunReader(label, run, steps, found).read()
    return AuditData(
        actions=found.table(),
        heldout=pd.DataFrame(found.heldout, columns=["run", "pipeline", "step", "task", "category", "outcome"]),
        scorers=found.scorers,
        notes=found.notes,
        runs={label: run.folder for label, run in zip(labels, runs, strict=True)},
        texts=found.texts,
    )


def make_frame(rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """The table from rows in the order of `COLUMNS`."""
    return typed(pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(COLUMNS)))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the table's dtypes: names as categories, so that a million rows stay small."""
    numbers = dict.fromkeys(("score", "outcome", "code_share", "markdown", "hedging"), "float64")
    counts = dict.fromkeys(("step", "turn", "tokens"), "int32")
    flags = dict.fromkeys(("last", "has_code"), "bool")
    return frame.astype({**numbers, **counts, **flags, **dict.fromkeys(_CATEGORIES, "category")})


def category(codes: NDArray[np.integer], names: Sequence[str]) -> pd.Categorical:
    """A column of `names`, by their numbers."""
    return pd.Categorical.from_codes(codes.tolist(), categories=pd.Index(list(names)))


def ended_well(states: pd.Series) -> NDArray[np.bool_]:
    """Whether code ran without an error, by the column `state`."""
    return states.str.startswith("ok", na=False).to_numpy(bool)


def plain_name(coach: str) -> str:
    """Models without their providers: 'gemini-2.5-pro' of 'gemini/gemini-2.5-pro' and of 'models/gemini-2.5-pro'."""
    return _PROVIDER.sub("", coach).lower()


def style_of(text: str, code: str | None) -> tuple[float, float, float]:
    """(share of the reply that is code, Markdown marks per 1000 characters, hedging words per 100 words).

    Marks and words are counted outside of code."""
    prose = prose_in(text)
    words = len(prose.split())
    return (
        min(1.0, len(code) / len(text)) if code and text else 0.0,
        1000 * len(_MARKDOWN.findall(prose)) / len(prose) if prose else 0.0,
        100 * len(_HEDGES.findall(prose)) / words if words else 0.0,
    )


@dataclass
class _Found:
    """What was read of all runs. scores: each with the place of its action among `actions`; criteria: of each score,
    by name; problems: of each task id, as it was read first."""

    actions: list[tuple[Any, ...]] = field(default_factory=list)
    scores: list[tuple[Any, ...]] = field(default_factory=list)
    criteria: list[Mapping[str, float]] = field(default_factory=list)
    heldout: list[tuple[Any, ...]] = field(default_factory=list)
    scorers: dict[str, Scorer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def task(self, episode: Episode) -> str:
        """The task's name: its id, with a hash of the problem where another one was read under that id before. A run
        that did not keep its problems has the same."""
        problem = episode.task_prompt
        is_first = not problem or self.problems.setdefault(episode.task_id, problem) == problem
        return episode.task_id if is_first else f"{episode.task_id} {task_of(problem)}"

    def table(self) -> pd.DataFrame:
        scores = pd.DataFrame.from_records(self.scores, columns=["place", *_OF_SCORE])
        actions = pd.DataFrame.from_records(self.actions, columns=[*_OF_ACTION, *_OF_REPLY, *_FURTHER])
        frame = actions.loc[scores.pop("place")].reset_index(drop=True).join(scores)
        frame = typed(frame[[*COLUMNS, *_FURTHER]]).astype({"policy": "category"})
        names = sorted({name for one in self.criteria for name in one})
        return frame.assign(**{CRITERION + name: [one.get(name, math.nan) for one in self.criteria] for name in names})

    def register(self, scorer: Scorer) -> str:
        """The name under which the scorer's rows go: equal scorers of several runs share one."""
        for name, known in self.scorers.items():
            if known == scorer:
                return name
        name = scorer.name
        if name in self.scorers:
            what = f"{scorer.coach}, prompt {scorer.prompt[:7] or 'none'}, repeat {scorer.repeat}"
            name = f"{name} ({what}, outcome shown: {scorer.outcome_to})"
        self.scorers[name] = scorer
        return name


class _RunReader:
    """Reads one run. What cannot be read becomes a note."""

    def __init__(self, name: str, run: Run, steps: Container[int] | None, found: _Found) -> None:
        self._name, self._run, self._steps, self._found = name, run, steps, found
        self._ended: dict[str, int] = {}  # file -> how many of its episodes did
        self._config = _config_of(run, found.notes)
        # Where the settings cannot be read, no agreement with the outcome counts as the coach's own merit.
        self._outcome_to = self._config.coach.evidence.ground_truth if self._config is not None else "all"

    def read(self) -> None:
        """Its actions, each once; the run's own scores of them, then each rescore's; and what it held out."""
        places: dict[str, int] = {}
        digests: dict[str, str] = {}
        own: list[tuple[int, CoachScore]] = []
        newest = newest_step(self._run)
        metrics = read_steps(self._run, [])  # of a live run before its episodes, which are there first
        for step, scored in self._episodes("step"):
            for action, row in self._rows_of(step, scored.episode):
                place = places[action.id] = len(self._found.actions)
                digests[action.id] = action.digest
                self._found.actions.append(row)
                if (score := scored.scores.get(action.id)) is not None:
                    own.append((place, score))
        self._add_heldout()
        if self._steps is None:
            told = [note.removeprefix(f"run {self._name}: ") for note in self._found.notes]
            self._note([*lost_steps(metrics, newest), *lost_episodes(metrics, self._ended, told, ("eval", "step"))])
        if not places:
            self._note([f"no training episodes in {self._run.folder / 'episodes'}"])
            return
        scores_before = len(self._found.scores)
        main = _main_scorer([score for _, score in own], self._outcome_to)
        self._add_scores(own, replace(main, evidence=_evidence_of(self._config)))
        for scorer, scores in self._rescores():
            known = [
                (places[key], score)
                for key, score in scores.items()
                if key in places and is_still(score.action_digest, digests[key])
            ]
            if missing := len(scores) - len(known):
                what = "scores of actions that were not read, or that have other replies now"
                self._note([f"rescore {scorer.label}: {missing} {what}"])
            self._add_scores(known, scorer)
        if len(self._found.scores) == scores_before:
            self._note([f"none of its {len(places)} actions has a coach score: nothing to audit"])

    def _add_heldout(self) -> None:
        for step, (episode, _) in self._episodes("eval"):
            if episode.infra_error is None:
                about = (self._name, episode.pipeline, step, self._found.task(episode), episode.task_category)
                self._found.heldout.append((*about, float(episode.outcome.success)))

    def _episodes(self, kind: Literal["step", "eval"]) -> Iterator[tuple[int, ScoredEpisode]]:
        """The episodes of `episodes/<kind>-*.jsonl`, each with its step, and each once."""
        seen: set[str] = set()
        for path in self._run.episode_files(kind):
            step = step_of(path)
            if kind == "step" and self._steps is not None and step not in self._steps:
                continue
            problems: list[str] = []
            self._ended[path.name] = 0
            for scored in read_each_once(path, seen, problems):
                self._ended[path.name] += scored.episode.infra_error is None
                yield step, scored
            self._note(problems)

    def _note(self, problems: Iterable[str]) -> None:
        self._found.notes += [f"run {self._name}: {problem}" for problem in problems]

    def _rows_of(self, step: int, episode: Episode) -> Iterator[tuple[Action, tuple[Any, ...]]]:
        """Each action with what the table has of it beside its scores."""
        task = self._found.task(episode)
        about = (self._name, episode.pipeline, step, episode.id, task, episode.task_category)
        outcome = float(episode.outcome.success) if episode.infra_error is None else math.nan
        last = max((action.index for action in episode.actions), default=-1)
        if episode.actions:
            self._found.texts.setdefault(task, episode.actions[0].prompt_text)
        rejected = {action.id for action in episode.rejected_candidates}
        for action in (*episode.actions, *episode.rejected_candidates):
            is_followed = action.id not in rejected  # of the others, though scored, no outcome followed
            yield (
                action,
                (
                    *(*about, action.id, action.role, action.turn, is_followed and action.index == last),
                    outcome if is_followed else math.nan,
                    len(action.response_ids),
                    *style_of(action.text, action.code),
                    action.code is not None,
                    _state_of(action),
                    self._model_of(action.policy),
                    action.digest,
                ),
            )

    def _model_of(self, policy: str) -> str:
        return self._config.initial_model(policy) if self._config is not None else ""

    def _rescores(self) -> Iterator[tuple[Scorer, dict[str, CoachScore]]]:
        problems: list[str] = []
        for label, scores in scores_of_rescores(self._run.folder, problems).items():
            coach = self._run.folder / "rescores" / label / "coach.json"
            yield _rescorer(coach, label, list(scores.values()), self._outcome_to), scores
        self._note(problems)

    def _add_scores(self, pairs: Sequence[tuple[int, CoachScore]], scorer: Scorer) -> None:
        """pairs: the place of an action, and its score."""
        if not pairs:
            return
        rater, unreadable = self._found.register(scorer), 0
        for place, score in pairs:
            status = str(score.status)
            value = _score(score.process_0_10) if status == "scored" else math.nan
            if status == "scored" and math.isnan(value):
                status, unreadable = "failed", unreadable + 1
            coach, prompt = score.model or scorer.coach, score.prompt_hash or scorer.prompt
            self._found.scores.append((place, rater, coach, prompt, status, value))
            self._found.criteria.append({one.name: _score(one.score_0_10) for one in score.criteria})
        if unreadable:
            self._note(
                [
                    f"{unreadable} of {len(pairs)} scores of {rater} are not numbers from 0 to 10; "
                    "they count as failed calls"
                ]
            )


def _state_of(action: Action) -> str:
    state = str(action.execution.state) if action.execution is not None else "no code"
    return f"{state}, cut" if action.finish_reason == "length" else state


def _score(value: float | None) -> float:
    """The score as a number from 0 to 10, else NaN."""
    return value if value is not None and 0 <= value <= 10 else math.nan


def _config_of(run: Run, notes: list[str]) -> RunConfig | None:
    try:
        return run.config()
    except ConfigError as error:
        notes.append(f"{error}: the coach may have been shown every outcome")
        return None


def _evidence_of(config: RunConfig | None) -> dict[str, str]:
    shown = {} if config is None else config.coach.evidence.model_dump(mode="json")
    return {f"{_EVIDENCE}{key}": str(value) for key, value in shown.items()}


def _main_scorer(scores: Sequence[CoachScore], outcome_to: str) -> Scorer:
    """The coach and prompt that most of a run's own scores name. Failed calls name no prompt."""
    coaches = [score.model for score in scores]
    prompts = [score.prompt_hash for score in scores if score.prompt_hash]
    return Scorer("", _most_common(coaches), _most_common(prompts), outcome_to=outcome_to)


def _rescorer(path: Path, label: str, scores: Sequence[CoachScore], run_outcome_to: str) -> Scorer:
    """outcome_to: as its settings say, else the run's: a rescore shows what the run showed."""
    found = replace(_main_scorer(scores, run_outcome_to), label=label)
    try:
        about = read_json(path, str(path))
        repeat = about.get("repeat") or 0
        coach, prompt = str(about.get("coach") or found.coach), str(about.get("prompt_hash") or found.prompt)
        settings = about.get("settings", {})
        outcome_to = str(settings.get("coach.evidence.ground_truth", run_outcome_to))
        evidence = {key: str(value) for key, value in settings.items() if key.startswith(_EVIDENCE)}
        return Scorer(label, coach, prompt, int(repeat), outcome_to, evidence)
    except (ConfigError, ValueError, AttributeError, TypeError):
        return found


def _most_common(words: Sequence[str]) -> str:
    return max(sorted(set(words)), key=words.count) if words else ""
