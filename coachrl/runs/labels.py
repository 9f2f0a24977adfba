"""What people say of a run's actions: `labels.jsonl` in the run's folder, to which lines are only ever added.

A line is one person's score of one action. Where a person scored an action twice, the later line counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import alone_with, json_line, own_file, readable_jsonl, writable_file, write_lines
from coachrl.text import brief, nearest, one_line

LABELS = "labels.jsonl"
_LONGEST_NAME = 60
_LONGEST_REMARK = 4000
_FIELDS = ("action_id", "rater", "score", "remark", "time", "action_digest")


@dataclass(frozen=True)
class Label:
    """score: 0 to 10, as a coach's. rater: the person's name. time: UTC, ISO 8601. action_digest: `Action.digest` of
    what was scored; empty where that is not known."""

    action_id: str
    rater: str
    score: float
    remark: str = ""
    time: str = ""
    action_digest: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.rater, self.action_id


def label_from_record(record: Mapping[str, Any]) -> Label:
    """A label from its fields, as JSON, a form or a table has them. Raises ValueError that says what is wrong, and what
    would be right."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{brief(record)} is no label: it needs {', '.join(_FIELDS[:3])}")
    for key in record:
        if key not in _FIELDS:
            raise ValueError(f"it has {brief(key)}, which is no field{nearest(str(key), _FIELDS)}")
    for key in _FIELDS[:3]:
        if record.get(key) in (None, ""):
            raise ValueError(f"it has no {key}")
    words = {key: record.get(key) or "" for key in _FIELDS if key != "score"}
    for key, word in words.items():
        if not isinstance(word, str):
            raise ValueError(f"{key} is {brief(word)}, not text")
    rater = " ".join(words["rater"].split())
    if not rater or len(rater) > _LONGEST_NAME or not rater.isprintable():
        raise ValueError(f"rater is {brief(words['rater'])}, not a name of 1 to {_LONGEST_NAME} printable characters")
    if len(words["remark"]) > _LONGEST_REMARK:
        raise ValueError(f"remark has {len(words['remark']):,} characters; {_LONGEST_REMARK:,} are kept")
    time = words["time"] or datetime.now(UTC).isoformat(timespec="seconds")
    said = words["remark"], _time(time), words["action_digest"]
    return Label(words["action_id"], rater, _score(record["score"]), *said)


def _score(given: Any) -> float:
    try:
        readable = isinstance(given, (int, float)) or (isinstance(given, str) and "_" not in given)  # "1_0" is no 10
        score = float(given) if readable and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        score = math.nan
    if not 0 <= score <= 10:
        raise ValueError(f"score is {brief(given)}, not a number from 0 to 10")
    return score


def _time(given: str) -> str:
    try:
        datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"time is {brief(given)}, not a date and time as in 2026-01-31T12:00:00+00:00") from None
    return given


def read_labels(run: Run, problems: list[str] | None = None) -> list[Label]:
    """What counts: of each person and action the last label, in the order of the file. problems: gets a sentence for
    lines that hold none; without it, that is a warning."""
    said: list[str] = [] if problems is None else problems
    latest: dict[tuple[str, str], Label] = {}
    for label in readable_jsonl(run.folder / LABELS, label_from_record, said):
        latest[label.key] = label
    for problem in said if problems is None else ():
        run.warn(problem)
    return list(latest.values())


def add_labels(run: Run, labels: Sequence[Label]) -> None:
    """Append whole lines, all of them or none, whoever else appends meanwhile. Raises ConfigError where the run's
    folder cannot be written."""
    with adding_labels(run) as add:
        add(labels)


@contextmanager
def adding_labels(run: Run) -> Iterator[Callable[[Sequence[Label]], None]]:
    """What appends labels; nobody else does while the block runs. Raises ConfigError as `add_labels` does."""
    path = run.folder / LABELS
    try:
        with _alone_with(path):  # else of two at once one would copy what the other has just added to
            own_file(path)
        with _alone_with(path) as descriptor:
            yield lambda labels: _append(descriptor, labels)
    except OSError as error:
        raise ConfigError(
            f"{one_line(str(path))} cannot be written: {error.strerror}; a score is kept in the run's folder, so copy "
            "the run to where you may write"
        ) from error


@contextmanager
def _alone_with(path: Path) -> Iterator[int]:
    """The file, made where there is none, with its own lock; a file system without locks still appends each write
    whole."""
    descriptor = os.open(writable_file(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        with alone_with(descriptor):
            yield descriptor
    finally:
        os.close(descriptor)


def _append(descriptor: int, labels: Sequence[Label]) -> None:
    before = os.fstat(descriptor).st_size
    try:
        write_lines(descriptor, "".join(json_line(asdict(label)) for label in labels).encode())
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, before)
        raise
