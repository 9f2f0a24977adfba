"""Other trainers' scores as a run folder, so that what reads one (audit, report, view) reads them too.

    trl         completions that GRPOTrainer logs (`log_completions`): Parquet, or the same columns as JSON lines, as
                `coachrl.audit.trl.audited` writes them
    verifiers   traces.jsonl of verifiers and prime-rl, and results.jsonl of their earlier editions
    art         trajectories of ART: its Parquet tables, or one group a line
    jsonl       anything else: one scored reply a line, its columns named where fields have other names

A folder of such files is one run. A reply is one action of one episode. Columns are named as `field=column`; a dot goes
into a nested object.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from coachrl.audit.data.foreign import Source, files_of, rows_of, spoken, task_of
from coachrl.config import dump_config, parse_config
from coachrl.errors import ConfigError
from coachrl.parsing import is_number
from coachrl.runs.reading import IMPORTED
from coachrl.runs.records import episode_line, step_name
from coachrl.storage.atomic import folder_aside, write_aside
from coachrl.text import brief, estimated_tokens, extract_code, nearest, one_line
from coachrl.types import Action, CoachScore, Episode, Outcome

log = logging.getLogger(__name__)

FIELDS = ("score", "text", "prompt", "task", "category", "role", "outcome", "step", "tokens")
"""What a reply may have; score and text are needed."""
COLUMNS: Mapping[Source, Mapping[str, str]] = {
    "trl": {"text": "completion", "prompt": "prompt", "step": "step"},
    "verifiers": {
        "score": "reward",
        "text": "completion",
        "prompt": "prompt",
        "task": "example_id",
        "role": "role",
        "step": "step",
    },
    "art": {
        "score": "reward",
        "text": "messages_and_choices",
        "prompt": "messages_and_choices",
        "task": "group",
        "step": "step",
    },
    "jsonl": {},
}
"""What each source calls them, where it has them."""
_NEEDED = ("score", "text")
_MOST_STEPS = 10**9
_MOST_TOKENS = 10**6  # of one reply; each takes room in the run folder
_NAMED_IN_TRL = ("task", "category", "role", "outcome", "tokens")
_AS_NAMED: Mapping[str, Sequence[str]] = {"trl": _NAMED_IN_TRL, "jsonl": FIELDS}
"""Columns that are taken, under their own names, where they are there."""
NO_REWARDS_OF_TRL = frozenset({"mode", "step", "prompt", "completion", "advantage", *_NAMED_IN_TRL})
"""Columns that hold something else than a reward."""
_IMPORTED = "imported from "  # and the trainer: the pipeline of such episodes
_UNMEASURED = "the file names no outcome"
_EDITION = 3  # of what is made of a file: a folder that an earlier one made is not taken for it


@dataclass(frozen=True)
class ImportSettings:
    """columns: field -> column, over the source's own. low, high: the scores that become 0 and 10."""

    source: Source
    columns: Mapping[str, str]
    low: float = 0.0
    high: float = 1.0

    @property
    def rescaled(self) -> str:
        """What is to be known of every score that is shown: a 3 of 1:5 is a 5 of 0 to 10."""
        return "" if (self.low, self.high) == (0, 10) else f", {self.low:g}:{self.high:g} as 0 to 10"


def import_settings(source: str, columns: Sequence[str], scale: str) -> ImportSettings:
    """The settings as they stand on a command line: "score=reward", "0:1". Raises ConfigError."""
    if source not in COLUMNS:
        raise ConfigError(f"--from {source}: no such source{nearest(source, COLUMNS)}; write {', '.join(COLUMNS)}")
    named = {}
    for column in columns:
        field, _, name = column.partition("=")
        if field not in FIELDS or not name:
            raise ConfigError(f"--column {column}: write field=column; fields: {', '.join(FIELDS)}")
        named[field] = name
    try:
        low, high = (float(part) for part in scale.split(":"))
    except ValueError:
        raise ConfigError(f"--scale {scale}: write the lowest and the highest score, as 0:1") from None
    if not (math.isfinite(low) and math.isfinite(high - low) and low < high):
        raise ConfigError(f"--scale {scale}: the lowest score stands first, as in 0:1")
    return ImportSettings(source, named, low, high)  # type: ignore[arg-type]


def import_scores(file: Path, settings: ImportSettings, out: Path) -> Path:
    """The run folder below `out` that holds what `file` does, or all files of a folder; one that was made of the same
    before, with the same settings, is taken as it is. Raises ConfigError that names the line and the column where
    something is not as it should be."""
    files = files_of(file)
    rows = [(one, row) for one in files for row in rows_of(one, settings.source)]
    if not rows:
        raise ConfigError(f"{file} holds no scored reply")
    digest = hashlib.sha256(f"{_EDITION} {settings}".encode())
    for one in files:
        digest.update(f"\0{one.name}\0".encode("utf-8", "surrogateescape"))  # steps may be named in it
        with one.open("rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
    folder = out / f"imported-{settings.source}-{digest.hexdigest()[:12]}"
    columns = _columns(settings, [row for _, row in rows], files[0])
    if folder.is_dir():
        return folder
    steps: dict[int, list[tuple[int, _Reply]]] = {}
    for number, (one, row) in enumerate(rows, start=1):
        reply = _Reply(row, columns, f"{one}, reply {number}")
        steps.setdefault(reply.step, []).append((number, reply))
    _write(folder, steps, settings)
    return folder


def _columns(settings: ImportSettings, rows: Sequence[Mapping[str, Any]], file: Path) -> dict[str, str]:
    """Field -> column. Raises ConfigError where one that is needed is not named, or one that is named is in no row."""
    row = _all_columns(rows)
    usual = {name: column for name, column in COLUMNS[settings.source].items() if column in row or name in _NEEDED}
    columns = {name: name for name in _AS_NAMED.get(settings.source, ()) if name in row}
    columns |= {**usual, **settings.columns}
    if settings.source == "trl" and "score" not in columns:
        rewards = [name for name in row if name not in NO_REWARDS_OF_TRL and not isinstance(row[name], str)]
        if len(rewards) != 1:
            raise ConfigError(f"{file}: which reward is audited? --column score=NAME, of: {', '.join(rewards)}")
        columns["score"] = rewards[0]
    if lacking := [f"--column {field}=NAME" for field in _NEEDED if field not in columns]:
        verb = "is" if len(lacking) == 1 else "are"
        raise ConfigError(f"{file}: {' and '.join(lacking)} {verb} needed, of: {', '.join(map(str, row))}")
    for field, column in columns.items():
        if all(_value(row, column) is _ABSENT for row in rows):
            raise ConfigError(f"{file}: no column '{column}' for {field}{nearest(column, map(str, row))}")
    if not {"task", "prompt"} & columns.keys():
        left = ", ".join(str(name) for name in row if name not in columns.values()) or "none"
        log.warning(
            "%s: no task is named, so all replies count as one and little can be told of them; --column task=NAME or "
            "--column prompt=NAME says which are of one task, other columns: %s",
            file,
            left,
        )
    return columns


def _all_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each column that any row has, in order, with the first value that is one: rows need not have the same columns."""
    found: dict[str, Any] = {}
    for row in rows:
        found |= {name: value for name, value in row.items() if found.get(name) is None}
    return found


_ABSENT = object()


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            return _ABSENT
        value = value[part]
    return value


class _Reply:
    """One row, read by its columns. place: what an error calls it."""

    def __init__(self, row: Mapping[str, Any], columns: Mapping[str, str], place: str) -> None:
        self._row, self._columns, self.place = row, columns, place
        if _value(row, columns["text"]) is _ABSENT:
            raise ConfigError(f"{place}: no column '{columns['text']}' for text")
        self.prompt = spoken(self.value("prompt"), own=False)
        self.text = spoken(self.value("text"), own=True)

    def value(self, field: str) -> Any:
        """The field's value, None where it has none."""
        found = _value(self._row, self._columns[field]) if field in self._columns else None
        return None if found is _ABSENT or (isinstance(found, float) and math.isnan(found)) else found

    @property
    def step(self) -> int:
        return self._whole("step", 1, _MOST_STEPS)

    @property
    def tokens(self) -> int:
        return self._whole("tokens", estimated_tokens(self.text), _MOST_TOKENS)

    def _whole(self, field: str, otherwise: int, most: int) -> int:
        value = self.value(field)
        if value is None:
            return otherwise
        if not is_number(value) or not 0 <= value <= most or value % 1:
            raise ConfigError(f"{self.place}: {field} is a whole number up to {most:,}, not {brief(value)}")
        return int(value)

    @property
    def task(self) -> str:
        """Its name, else that of its prompt: replies to one prompt are of one task."""
        task = self.value("task")
        return task_of(self.prompt) if task is None else _name(task)

    def named(self, field: str, otherwise: str) -> str:
        """A name that may be a number, 0 too."""
        value = self.value(field)
        return otherwise if value is None or value == "" else _name(value)

    def score_0_10(self, low: float, high: float) -> float | None:
        """None where the row has none."""
        value = self.value("score")
        if value is None:
            return None
        if not is_number(value):
            raise ConfigError(f"{self.place}: the score is no number but {brief(value)}")
        if not low <= value <= high:
            raise ConfigError(
                f"{self.place}: the score {brief(value)} is outside {low:g}:{high:g}; say --scale LOW:HIGH"
            )
        return 10 * ((value - low) / (high - low))

    @property
    def outcome(self) -> bool | None:
        value = self.value("outcome")
        if value is None:
            return None
        if value not in (0, 1):
            raise ConfigError(f"{self.place}: an outcome is true or false, or 0 or 1, not {brief(value)}")
        return bool(value)


def _name(value: Any) -> str:
    """The value as a name that a terminal can show on one line; two that differ keep names that do."""
    text = str(value)
    shown = one_line(text)
    return text if shown == text else f"{shown} {task_of(text)}"


def _line(reply: _Reply, number: int, settings: ImportSettings) -> str:
    """The reply as an episode of one action, with its score."""
    episode_id, role = f"reply-{number:07d}", reply.named("role", "agent")
    action = Action(
        id=f"{episode_id}/0",
        episode_id=episode_id,
        index=0,
        role=role,
        policy=role,
        turn=0,
        prompt_ids=(),
        response_ids=(0,) * reply.tokens,
        logprobs=(),
        finish_reason="stop",
        weights_version=0,
        prompt_text=reply.prompt,
        text=reply.text,
        code=extract_code(reply.text),
    )
    outcome = reply.outcome
    episode = Episode(
        id=episode_id,
        task_id=reply.task,
        task_category=reply.named("category", "all"),
        pipeline=f"{_IMPORTED}{settings.source}{settings.rescaled}",
        actions=(action,),
        outcome=Outcome(bool(outcome)),
        infra_error=_UNMEASURED if outcome is None else None,
    )
    value = reply.score_0_10(settings.low, settings.high)
    status: Literal["scored", "failed"] = "failed" if value is None else "scored"
    return episode_line(episode, {action.id: CoachScore(action.id, status, value, model=settings.source)})


def is_imported(pipeline: str) -> bool:
    """Whether episodes of this pipeline are another trainer's, of whose judge nothing but scores is known."""
    return pipeline.startswith(_IMPORTED)


def _write(folder: Path, steps: Mapping[int, Sequence[tuple[int, _Reply]]], settings: ImportSettings) -> None:
    """All or nothing. An episode is made when its line is written: its made-up tokens take more room than its text."""
    # Whether the judge saw outcomes is not known, so no agreement with them counts as its own merit.
    config = parse_config({"name": folder.name, "coach": {"evidence": {"ground_truth": "all"}}}, "")
    try:
        with folder_aside(folder) as aside:
            (aside / "episodes").mkdir()
            (aside / "config.yaml").write_text(dump_config(config), encoding="utf-8")
            (aside / IMPORTED).write_text(json.dumps(asdict(settings)) + "\n", encoding="utf-8")
            for step, numbered in sorted(steps.items()):
                lines = (_line(reply, number, settings) for number, reply in numbered)
                write_aside(aside / "episodes" / f"{step_name(step)}.jsonl", lines)
    except OSError as error:
        if folder.is_dir():  # another process has just made the same
            return
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from error
