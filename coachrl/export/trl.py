"""Data sets for Hugging Face TRL from a saved run: demonstrations, preferences, and a coach's judgements.

    sft            {"prompt": [...], "completion": [...]}          replies that scored well, and corrections
    dpo            {"prompt": [...], "chosen": [...], "rejected": [...]}   a better reply against the agent's own
    reward-model   {"prompt": [...], "completion": [...], "score": 7.5}    what a coach read, said and gave

Messages are those that the agents read: few-shot examples, earlier turns, the prompt. A correction is the reply that
the coach suggested in an action's place (`coach.suggest`); a sibling is another reply to the very same messages.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.errors import ConfigError
from coachrl.export.judgements import judgements
from coachrl.export.preferences import HOW_PAIRS_COME, preferences
from coachrl.export.replies import ExportFilter, Line, said, scored_replies
from coachrl.runs.folder import Run
from coachrl.runs.reading import check_played, team_of
from coachrl.storage.atomic import check_place, drop_left_of, write_aside
from coachrl.storage.jsonl import json_line
from coachrl.text import nearest
from coachrl.types import HIGHEST_SCORE

DEFAULT_MIN_SCORE = 8.0  # of a reply that is learned from


def demonstrations(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """Replies that scored well as they are; in the place of others, what the coach suggested."""
    least = DEFAULT_MIN_SCORE if which.min_score is None else which.min_score
    for item in scored_replies(run, which, left_out):
        if item.score_0_10 >= least and item.ended:
            kind, reply, score = "reply", item.action.text, item.score_0_10
        elif item.correction:
            kind, reply, score = "correction", item.correction, None
        else:
            left_out[f"scored below {least:g}" if item.score_0_10 < least else "cut off"] += 1
            continue
        # What the agent has read holds earlier replies of its own, which need not have scored well.
        asked = {"prompt": item.prompt, "completion": [said(reply)]}
        yield kind, {**asked, **item.columns, "source": kind, "score": score}


FORMATS = {"sft": demonstrations, "dpo": preferences, "reward-model": judgements}


@dataclass(frozen=True)
class Exported:
    """lines: of each kind that were written. left_out: actions, by reason."""

    lines: Mapping[str, int]
    left_out: Mapping[str, int]


def export_run(run: Run, form: str, path: Path, which: ExportFilter) -> Exported:
    """Write `path`, whole. Raises ConfigError for a file that exists, an option that the format does not know, a role
    or a rescore that the run does not have, and where nothing is left to write."""
    _check(run, form, path, which)
    left_out: Counter[str] = Counter()
    lines = _write(path, FORMATS[form](run, which, left_out))
    if not lines:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        hint = HOW_PAIRS_COME if form == "dpo" and left_out["without a better reply"] else ""
        raise ConfigError(f"{run.folder}: nothing to export as {form}: {why or 'no action was scored'}{hint}")
    return Exported(lines, dict(left_out))


def _check(run: Run, form: str, path: Path, which: ExportFilter) -> None:
    check_played(run)
    if form not in FORMATS:
        known = [*FORMATS, "hub"]
        raise ConfigError(f"no format '{form}'{nearest(form, known)} (--format is one of {', '.join(known)})")
    for name, value, forms in (("min-score", which.min_score, ("sft", "dpo")), ("min-gap", which.min_gap, ("dpo",))):
        if value is not None and form not in forms:
            raise ConfigError(f"--{name} is for {' and '.join(forms)}; {form} takes every score")
        if value is not None and not 0 <= value <= HIGHEST_SCORE:
            raise ConfigError(f"--{name} {value:g}: scores lie between 0 and 10")
    names = [role.name for role in team_of(run)]
    for name in which.roles:
        if name not in names:
            raise ConfigError(f"--role: no role '{name}'{nearest(name, names)}; roles: {', '.join(names)}")
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already: name another file, or remove it first")
    check_place(path, "--out ")


def _write(path: Path, records: Iterable[Line]) -> dict[str, int]:
    """Lines of each kind that were written; `path` appears whole, or not at all where there are none."""
    lines = Counter[str]()

    def written() -> Iterator[str]:
        for kind, record in _whole_first(records):
            lines[kind] += 1
            yield json_line(record, half_characters=False)  # `datasets` reads no file that holds one

    pieces = written()
    try:
        if (first := next(pieces, None)) is None:
            drop_left_of(path)
        else:
            write_aside(path, itertools.chain([first], pieces), is_new=True)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from error
    return dict(lines)


def _whole_first(lines: Iterable[Line]) -> Iterator[Line]:
    """`datasets` takes the type of a column from the first ten megabytes, and then refuses another: before lines that
    lack something, as corrections a score, comes one that lacks nothing."""
    left, waiting = iter(lines), list[Line]()
    for kind, record in left:
        if not any(value is None or value == [] for value in record.values()):
            yield kind, record
            break
        waiting.append((kind, record))
    yield from waiting
    yield from left
