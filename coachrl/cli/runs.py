"""`coachrl runs`: what there is to look at, compare and go on from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import Rows, out, print_json, print_table
from coachrl.cli.options import Json, path_argument

if TYPE_CHECKING:
    from coachrl.report.listing import ListedRun

_DEFAULT = Path("runs")

runs_app = typer.Typer(help="List runs.")


@runs_app.command("list")
def list_runs(
    folder: Annotated[Path, path_argument(help="The folder that holds the runs")] = _DEFAULT, as_json: Json = False
) -> None:
    """Every run of a folder, the newest first: its team, how far it came, and success on held-out tasks."""
    from coachrl.report.listing import listed_runs

    found = listed_runs(folder) if folder != _DEFAULT or folder.exists() else []  # before the first run
    if as_json:
        print_json([asdict(run) for run in found])
        return
    columns = ("run", "begun", "team", "model", "algorithm", "coach", "seed", "steps", "held out", "state")
    table = Rows(*columns)
    for run in found:
        seed = "" if run.seed is None else str(run.seed)
        choices = (run.team, run.model, run.algorithm, run.coach, seed)
        table.add(run.name, run.begun, *choices, _steps(run), _held_out(run), run.state)
    if found:
        print_table(table)
    else:
        hint = " yet: `coachrl train --config quickstart` makes one" if folder == _DEFAULT else ""
        out.print(f"no run in {folder}{hint}")


def _steps(run: ListedRun) -> str:
    return "" if run.steps is None else f"{run.step} of {run.steps}"


def _held_out(run: ListedRun) -> str:
    return " → ".join(f"{success:.2f}" for success in (run.before, run.after) if success is not None)
