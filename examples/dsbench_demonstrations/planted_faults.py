"""Teams of the DSBench pipeline with one planted fault, as data: what `coachrl audit --fault-localization` plays.

Whose fault it is that the team fails is known, because it was planted. Each stands beside the same team without it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from coachrl.seeding import generator

from .demonstrations import CRAFTS
from .programs import plain_program
from .tables import TableTask, make_table

TABLES_A_FAULT = 16
_MOST_TABLES = 200  # that are made to find enough on which every fault applies

# (role, name of the fault in its craft, in words).
FAULTS = (
    ("data_engineer", "no X_test.pkl", "an artifact is left out: X_test.pkl"),
    ("data_engineer", "target kept", "columns are wrong: the target stays among the features"),
    ("data_engineer", "encoder fitted twice", "columns are wrong: train and test are encoded apart"),
    ("modeler", "not fitted", "the model is saved unfitted"),
    ("modeler", "model not saved", "an artifact is left out: model.pkl"),
)


def write_planted_faults(path: Path, tables: int = TABLES_A_FAULT, seed: int = 0) -> None:
    """A line for each made-up table with the cases that are played on it, until every fault has `tables` of them."""
    missing = dict.fromkeys(range(len(FAULTS)), tables)
    lines = []
    with tempfile.TemporaryDirectory(prefix="coachrl-faults-") as folder:
        for number in range(_MOST_TABLES):
            rng = generator(seed, "planted-faults", number)
            table = make_table(f"table-{number}", Path(folder) / str(number), rng)
            cases = {index: planted(table, index, rng) for index, left in missing.items() if left > 0}
            kept = {index: case for index, case in cases.items() if case is not None}
            for index in kept:
                missing[index] -= 1
            if kept:
                lines.append(json.dumps(_table_record(table) | {"cases": list(kept.values())}, ensure_ascii=False))
    if any(missing.values()):
        raise SystemExit(f"{_MOST_TABLES} tables were not enough: {missing}")
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def planted(table: TableTask, index: int, rng: np.random.Generator) -> dict[str, Any] | None:
    """The sound team's programs and the culprit's faulty one; None where the fault does not apply to the table."""
    culprit, name, what = FAULTS[index]
    craft = CRAFTS[culprit]
    fault = craft.faults[name]
    sound = {role: plain_program(of_role, table, rng).code for role, of_role in CRAFTS.items()}
    style = craft.plain_style
    if fault.styles is not None:  # the fault fits some ways of writing only
        style = fault.styles[0]
        if craft.usable(style, table):
            sound[culprit] = craft.styles[style](table, rng)
    if not fault.needs(table) or not craft.usable(style, table):
        return None
    faulty = fault.spoil(sound[culprit], table, rng)
    return {"culprit": culprit, "fault": what, "sound": sound, "faulty": faulty} if faulty != sound[culprit] else None


def _table_record(table: TableTask) -> dict[str, Any]:
    files = {name: path.read_text(encoding="utf-8") for name, path in table.task.files.items()}
    return {
        "id": table.task.id,
        "category": table.truth.category,
        "metric": table.truth.metric,
        "id_column": table.truth.id_column,
        "target": table.target,
        "labels": [list(column) for column in table.truth.labels],
        "files": files,
        "answers": table.truth.answer_csv.read_text(encoding="utf-8"),
    }
