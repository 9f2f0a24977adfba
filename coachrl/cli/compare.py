"""`coachrl compare`: runs side by side on the held-out draws that they share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coachrl.cli.console import out, print_table
from coachrl.cli.options import Json

if TYPE_CHECKING:
    from coachrl.report.compare import RunComparison

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders; the first is the baseline")]


def compare_runs(run_folders: RunFolders, as_json: Json = False) -> None:
    """Compare runs on the held-out draws that they share, paired, with 95 % intervals over tasks."""
    from coachrl.report.compare import compare
    from coachrl.runs.folder import Run

    comparisons = compare([Run.open(folder) for folder in run_folders])
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(found) | {"conclusion": found.conclusion} for found in comparisons]))
        return
    for found in comparisons:
        _print_comparison(found)


def _print_comparison(found: RunComparison) -> None:
    from coachrl.text import counted

    table = Table("held out", found.baseline, found.name, "paired difference", box=None)
    for row in found.rows:
        sides = [value.interval() if value is not None else "-" for value in (row.before, row.after)]
        table.add_row(row.name, *sides, row.difference.interval(signed=True) if row.difference is not None else "-")
    print_table(table)
    alone = found.draws - found.shared
    left_out = f"; {alone} that only one of them holds are left out" if alone else ""
    out.print(f"{found.name} against {found.baseline}: {found.conclusion}")
    out.print(f"{counted(found.shared, 'draw')} in both{left_out}; 95% intervals, tasks resampled")
