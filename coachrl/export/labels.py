"""People's scores of a run's actions as a file, and back: JSONL, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coachrl.errors import ConfigError
from coachrl.parsing import csv_rows, parse_json
from coachrl.runs.folder import Run
from coachrl.runs.labels import Label, adding_labels, label_from_record, read_labels
from coachrl.runs.reading import training_episodes
from coachrl.storage.atomic import check_place, write_aside
from coachrl.storage.files import read_text
from coachrl.storage.jsonl import json_line
from coachrl.text import brief, nearest
from coachrl.types import is_still

_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # how one begins
_COLUMNS = tuple(field.name for field in fields(Label))


@dataclass(frozen=True)
class Imported:
    """added: labels of a person who had not scored the action; changed: those that replace the person's earlier score;
    known: lines that the run held already, and that were left out, as were those (older) of which the run holds a score
    that the same person gave later, and those (gone) of a reply that the run no longer holds."""

    added: int
    changed: int
    known: int
    older: int = 0
    gone: int = 0


def export_labels(run: Run, place: Path) -> int:
    """Write the labels that count, as CSV where `place` ends in .csv, else as JSONL. The number of lines. Raises
    ConfigError where the run has none, or `place` exists already."""
    labels = read_labels(run)
    if not labels:
        raise ConfigError(
            f"{run.folder} has no label to export: people give them in `coachrl view`, or `coachrl label import`"
        )
    if os.path.lexists(place):
        raise ConfigError(f"{place} exists already: name a new file")
    check_place(place, "--out ")
    text = _csv(labels) if place.suffix.lower() == ".csv" else "".join(json_line(asdict(one)) for one in labels)
    write_aside(place, text, is_new=True)
    return len(labels)


def import_labels(run: Run, place: Path) -> Imported:
    """Add the labels of a file, all of them or, where a line is wrong, none. Raises ConfigError that names the line."""
    digests = {action.id: action.digest for scored in training_episodes(run) for action in scored.episode.all_actions}
    found, gone = _labels_of(run, place, digests)
    with adding_labels(run) as add:
        held = {label.key: label for label in read_labels(run) if _is_held(label, digests)}
        new, known, older = list[Label](), 0, 0
        for label in found:
            before = held.get(label.key)
            if before is not None and (before.score, before.remark) == (label.score, label.remark):
                known += 1
            # A file that went out, and comes back, knows nothing of what people have changed in the meantime.
            elif before is not None and _moment(before) > _moment(label):
                older += 1
            else:
                new.append(label)
        if new:
            add(new)
    changed = sum(label.key in held for label in new)
    return Imported(len(new) - changed, changed, known, older, gone)


def _is_held(label: Label, digests: Mapping[str, str]) -> bool:
    return is_still(label.action_digest, digests.get(label.action_id))


def _moment(label: Label) -> datetime:
    given = datetime.fromisoformat(label.time)
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _labels_of(run: Run, place: Path, digests: Mapping[str, str]) -> tuple[list[Label], int]:
    """What a file says of the run's actions, and how many labels it has of replies that are gone. Raises
    ConfigError."""
    found: dict[tuple[str, str], tuple[int, Label]] = {}
    gone, of_the_run = 0, False
    for number, record in _records(place):
        where = f"{place}, line {number}"
        try:
            label = label_from_record(record)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        if label.action_id not in digests and not label.action_digest:
            raise ConfigError(f"{where}: {brief(label.action_id)} is no action of a training step of {run.folder.name}")
        of_the_run |= label.action_id in digests
        if not _is_held(label, digests):
            gone += 1
            continue
        if label.key in found:
            first, _ = found[label.key]
            raise ConfigError(f"{where}: {label.rater} scored {label.action_id} in line {first} already: keep one line")
        found[label.key] = number, label
    if not found and not gone:
        raise ConfigError(f"{place} holds no label")
    if not of_the_run:
        raise ConfigError(
            f"{place} holds no label of an action of {run.folder.name}: it is another run's, or of what is gone"
        )
    return [label for _, label in found.values()], gone


def _csv(labels: list[Label]) -> str:
    text = io.StringIO(newline="")
    text.write(",".join(_COLUMNS) + "\n")
    # In quotes, whatever it holds: by itself the writer leaves a carriage return bare, which ends a line for readers.
    table = csv.DictWriter(text, _COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    table.writerows({name: _as_text(value) for name, value in asdict(label).items()} for label in labels)
    # Half a character has no place in a file: a spreadsheet shows the escape that JSON has for it.
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _as_text(value: Any) -> Any:
    """A cell that a spreadsheet would take for a formula, behind the apostrophe that says that it is none."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _as_written(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _records(place: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line number and fields of each label; empty lines hold none."""
    text = read_text(place, str(place))
    if place.suffix.lower() != ".csv":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, parse_json(line, f"{place}, line {number}")
        return
    for number, row in csv_rows(text, str(place)):
        for column in ("action_id", "rater", "score"):
            if column not in row:
                raise ConfigError(
                    f"{place}, line 1: no column {column}{nearest(column, row)}; it has {brief(', '.join(row))}"
                )
        yield number, {name: _as_written(cell) for name, cell in row.items()}
