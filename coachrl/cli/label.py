"""`coachrl label`: people's scores of a run's actions, out of it and into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli.console import out
from coachrl.cli.options import RunFolder, path_argument, path_option
from coachrl.text import counted

label_app = typer.Typer(help="Export or import the scores that people gave a run's actions.")


@label_app.command("export")
def export(
    run_folder: RunFolder,
    out_file: Annotated[Path, path_option("--out", help="File to write: CSV where it ends in .csv, else JSONL")],
) -> None:
    """Write what people said of the run's actions: of each person and action the last score."""
    from coachrl.export.labels import export_labels
    from coachrl.runs.folder import Run

    out.print(f"{counted(export_labels(Run.open(run_folder), out_file), 'label')} to {out_file}")


@label_app.command("import")
def import_file(
    run_folder: RunFolder,
    file: Annotated[Path, path_argument(metavar="FILE", help="CSV or JSONL: action_id, rater, score, remark, time")],
) -> None:
    """Add people's scores from a file: every line, or none where one is wrong. A later score of a person stays."""
    from coachrl.export.labels import import_labels
    from coachrl.runs.folder import Run

    done = import_labels(Run.open(run_folder), file)
    out.print(
        f"{counted(done.added, 'label')} added, {done.changed} in place of the same person's earlier score, "
        f"{done.known} known already"
        + (f", {done.older} older than the run's" if done.older else "")
        + (f", {done.gone} left out, of replies that the run no longer holds" if done.gone else "")
    )
