"""The teams with one planted fault that the package ships, as data: made-up tables and three programs for each team.

`planted_faults.jsonl` is made by `python -m examples.dsbench_demonstrations --planted-faults`. A line is a table
with the cases that are played on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from coachrl.errors import ConfigError
from coachrl.jsonl import read_jsonl
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.types import Task

_DATA = Path(__file__).with_name("planted_faults.jsonl")


@dataclass(frozen=True)
class _Case:
    """sound: role -> its program; faulty: the culprit's other one."""

    culprit: str
    fault: str
    sound: Mapping[str, str]
    faulty: str


@dataclass(frozen=True)
class _Table:
    """files: name -> text, for the workspace; answers stay outside of it."""

    id: str
    category: Literal["classification", "regression"]
    metric: str
    id_column: str
    target: str
    labels: tuple[tuple[str, ...], ...]
    files: Mapping[str, str]
    answers: str
    cases: Sequence[_Case]


@dataclass(frozen=True)
class PlantedFault:
    """One fault on one table. sound, faulty: role -> its program, in the team without the fault and in that with it."""

    task: Task
    culprit: str
    fault: str
    sound: Mapping[str, str]
    faulty: Mapping[str, str]


def fault_names() -> list[str]:
    """What can be planted, in words."""
    return list(dict.fromkeys(case.fault for table in _tables() for case in table.cases))


def write_planted_faults(folder: Path, tables: int) -> list[PlantedFault]:
    """Every fault on `tables` tables of its own, whose files are written to `folder`.

    Raises ConfigError where fewer tables are shipped."""
    found: dict[str, list[tuple[_Table, _Case]]] = {name: [] for name in fault_names()}
    for table in _tables():
        for case in table.cases:
            found[case.fault].append((table, case))
    shipped = min(map(len, found.values()))
    if tables > shipped:
        raise ConfigError(f"--fault-localization {tables}: {shipped} tables are shipped for each planted fault")
    chosen = [pair for pairs in found.values() for pair in pairs[:tables]]
    used = {table.id: table for table, _ in chosen}
    tasks = {name: _write_task(folder / name, table) for name, table in used.items()}
    return [
        PlantedFault(tasks[table.id], case.culprit, case.fault, case.sound, {**case.sound, case.culprit: case.faulty})
        for table, case in chosen
    ]


@cache
def _tables() -> tuple[_Table, ...]:
    adapter = TypeAdapter(_Table)
    return tuple(adapter.validate_python(record) for record in read_jsonl(_DATA))


def _write_task(folder: Path, table: _Table) -> Task:
    folder.mkdir(parents=True)
    for name, text in table.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    answers = folder / "answers.csv"
    answers.write_text(table.answers, encoding="utf-8")
    truth = TabularTruth(table.category, table.metric, table.id_column, (table.target,), answers, table.labels)
    files = {name: folder / name for name in table.files}
    return Task(table.id, table.category, f"Predict {table.target}.", files=files, ground_truth=truth)
