"""Scores that were given to a saved run's actions again: one folder for each coach, prompt and repeat.

runs/<name>/rescores/<label>/coach.json     who scored, with which prompt and settings
                             scores.jsonl   one score a line: the fields of `coachrl.types.CoachScore`, no more
                             ledger.jsonl   every call, as in the run's own ledger

scores.jsonl is append-only. Where an action has several lines (a failed call that was tried again), the
last one counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coachrl.errors import ConfigError
from coachrl.parsing import read_json
from coachrl.runs.records import checked, read_scores, scores_by_action
from coachrl.storage.atomic import drop_asides, write_aside
from coachrl.storage.jsonl import append_jsonl, drop_torn_line
from coachrl.text import nearest
from coachrl.types import CoachScore

log = logging.getLogger(__name__)

_HASH_CHARS = 8
_NAME_BYTES = 160  # of a coach; its lock and what is written aside have longer names, of 255 bytes at most


@dataclass(frozen=True)
class RescoreMetadata:
    """Contents of coach.json. coach, prompt: as they were named on the command line, prompt None being the pipeline's
    own; prompt_hash: sha256 of its file, empty for rules. repeat: 0, 1, ... for the same coach asked again. created:
    UTC, ISO 8601. settings: what else decides how the coach judges, by configuration key."""

    coach: str
    prompt: str | None
    prompt_hash: str
    repeat: int
    created: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the folder: "<coach>-<start of prompt_hash>", and "-r<repeat>" from the first repeat on."""
        parts = [_folder_name(self.coach), self.prompt_hash[:_HASH_CHARS]]
        return "-".join(part for part in [*parts, f"r{self.repeat}" if self.repeat else ""] if part)


def _folder_name(coach: str) -> str:
    """Letters of any script, digits, dots and underscores stay; a long name, as of an ensemble, ends in a hash."""
    name = re.sub(r"[^\w.]+", "-", coach).strip("-.")
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(coach.encode()).hexdigest()[:_HASH_CHARS]
    return f"{name.encode()[:_NAME_BYTES].decode(errors='ignore')}-{digest}"


@dataclass(frozen=True)
class Rescore:
    """One folder below rescores/, read."""

    folder: Path
    by: RescoreMetadata
    scores: Mapping[str, CoachScore]

    @property
    def label(self) -> str:
        return self.folder.name


def read_rescores(run_folder: Path) -> list[Rescore]:
    """Every rescore of a run, by label. Raises ConfigError naming the file that cannot be read."""
    return [read_rescore(folder) for folder in _folders(run_folder)]


def find_rescore(run_folder: Path, label: str) -> Rescore:
    """The rescore of that label. Raises ConfigError naming those there are."""
    labels = [folder.name for folder in _folders(run_folder)]
    if label not in labels:
        raise ConfigError(
            f"{run_folder} has no rescore '{label}'{nearest(label, labels)}; rescores: {', '.join(labels) or 'none'}"
        )
    return read_rescore(run_folder / "rescores" / label)


def _folders(run_folder: Path) -> list[Path]:
    return [path.parent for path in sorted((run_folder / "rescores").glob("*/coach.json"))]


def read_rescore(folder: Path) -> Rescore:
    """Lines that hold no score are left out, with a warning. Raises ConfigError where coach.json does not say who
    scored."""
    path = folder / "coach.json"
    record = read_json(path, str(path))
    try:
        by = checked(RescoreMetadata, record)
    except ValueError as error:
        raise ConfigError(f"{path}: it does not say who scored: {error}") from error
    problems: list[str] = []
    found = list(read_scores(folder / "scores.jsonl", problems))
    for problem in problems:
        log.warning("%s: %s", folder, problem)
    return Rescore(folder, by, scores_by_action(found))


def existing_rescore(run_folder: Path, by: RescoreMetadata) -> Rescore | None:
    """The rescore by `by`, if it was begun. Raises ConfigError where it was made with other settings."""
    folder = run_folder / "rescores" / by.label
    if not (folder / "coach.json").is_file():
        return None
    found = read_rescore(folder)
    if found.by.coach != by.coach:  # names that differ in signs, or on some file systems in case, have one folder
        raise ConfigError(f"{folder} was scored by {found.by.coach}, this is {by.coach}: give another --repeat")
    was, now = found.by.settings, by.settings
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key):
            raise ConfigError(
                f"{folder} was scored with {key}={was.get(key)}, this is {key}={now.get(key)}: give the same, "
                "or another --repeat"
            )
    return found


def open_rescore(run_folder: Path, by: RescoreMetadata) -> Rescore:
    """The folder for `by`, made or found again and ready to be appended to, with the scores that it holds.

    Raises ConfigError where it was made with other settings, or cannot be written.
    """
    found = existing_rescore(run_folder, by)
    if found is not None:
        drop_torn_line(found.folder / "scores.jsonl")
        return found
    folder = run_folder / "rescores" / by.label
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drop_asides(folder)
        write_aside(folder / "coach.json", json.dumps(dataclasses.asdict(by), indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return read_rescore(folder)


def append_scores(rescore: Rescore, scores: Sequence[CoachScore]) -> None:
    """Whole lines, flushed to disk."""
    append_jsonl(rescore.folder / "scores.jsonl", [dataclasses.asdict(score) for score in scores])
