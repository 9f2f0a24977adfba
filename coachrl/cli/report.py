"""Verbs that look at runs: report, compare, view."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coachrl.cli.options import Json, RunFolder, err, out, print_table

if TYPE_CHECKING:
    from coachrl.report.compare import RunComparison

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders; the first is the baseline")]


def report(run_folder: RunFolder) -> None:
    """Write the run's report.html: one offline page."""
    from coachrl.report import headline, write_report
    from coachrl.report.contents import read_contents
    from coachrl.runs.folder import Run

    run = Run.open(run_folder)
    path = write_report(run)
    for line in headline(run):
        out.print(line)
    for problem in read_contents(run).problems:
        err.print(f"warning: {problem}", style="yellow")
    out.print(f"report: {path}")


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


def view(
    run_folder: RunFolder,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one")] = 0,
) -> None:
    """Serve the run's report with every episode to this machine, until Ctrl-C."""
    from coachrl.report.view import HOST, make_server
    from coachrl.runs.folder import Run

    with make_server(Run.open(run_folder), port) as server:
        out.print(f"http://{HOST}:{server.server_address[1]}/  (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


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
