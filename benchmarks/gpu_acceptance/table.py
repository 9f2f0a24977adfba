"""What the acceptance found, as rows of one Markdown table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "FAILED", "skipped"]


@dataclass(frozen=True)
class Row:
    """One thing that was looked at. expected: what would be right, and empty where nobody knows that yet."""

    stage: str
    what: str
    found: str
    expected: str
    state: State


class Rows:
    """Writes a stage's rows to a file as they become known: a stage that dies later has not lost them."""

    def __init__(self, stage: str, file: Path) -> None:
        self._stage, self._file = stage, file

    def judge(self, what: str, found: str, expected: str, good: bool) -> None:
        self._write(what, found, expected, "ok" if good else "FAILED")

    def tell(self, what: str, found: str) -> None:
        """A figure that is not judged."""
        self._write(what, found, "", "ok")

    def skip(self, what: str, why: str) -> None:
        self._write(what, f"skipped: {why}", "", "skipped")

    def _write(self, what: str, found: str, expected: str, state: State) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Row(self._stage, what, found, expected, state))) + "\n")


def read_rows(file: Path) -> list[Row]:
    """All whole lines; a stage that was killed may have cut off its last."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [Row(**json.loads(line)) for line in lines]


def markdown(machine: Sequence[str], rows: Sequence[Row]) -> str:
    """machine: lines that say where it was measured."""
    head = ["| stage | what | found | expected | |", "|---|---|---|---|---|"]
    body = [
        f"| {' | '.join(map(_cell, (row.stage, row.what, row.found, row.expected or '-', row.state)))} |"
        for row in rows
    ]
    return "\n".join([*(f"- {line}" for line in machine), "", *head, *body])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
