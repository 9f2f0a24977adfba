"""`coachrl checkpoints`: what a run could be resumed from."""

from __future__ import annotations

from typing import Annotated

import typer

from coachrl.cli.console import out, print_json
from coachrl.cli.options import Json, RunFolder

checkpoints_app = typer.Typer(help="List and remove a run's checkpoints.")


@checkpoints_app.command("list")
def list_checkpoints(run_folder: RunFolder, as_json: Json = False) -> None:
    """Every checkpoint of a run, oldest first: its step, its size, and whether it is whole."""
    from coachrl.runs.checkpoints import inspect, listed
    from coachrl.runs.folder import Run

    looked_at = [inspect(path, contents=True) for path in listed(Run.open(run_folder).folder / "checkpoints")]
    found = [checkpoint for checkpoint in looked_at if checkpoint.folder.is_dir()]  # others were removed meanwhile
    if as_json:
        records = [
            {"step": c.step, "folder": str(c.folder), "bytes": c.size_bytes, "problem": c.problem} for c in found
        ]
        print_json(records)
        return
    for checkpoint in found:
        out.print(
            f"{checkpoint.folder.name}  {checkpoint.size_bytes / 2**20:9.1f} MiB  {checkpoint.problem or 'whole'}"
        )
    if not found:
        out.print("no checkpoint")


@checkpoints_app.command("prune")
def prune_checkpoints(
    run_folder: RunFolder,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Newest whole checkpoints that stay.")] = 1,
) -> None:
    """Remove checkpoints that cannot be loaded, and all but the newest of the others."""
    from coachrl.runs.checkpoints import prune
    from coachrl.runs.folder import Run

    run = Run.open(run_folder)
    with run.locked("pruning its checkpoints"):
        removed = prune(run.folder / "checkpoints", keep)
    for checkpoint in removed:
        out.print(f"removed {checkpoint.folder.name}" + (f": it {checkpoint.problem}" if checkpoint.problem else ""))
    if not removed:
        out.print("nothing to remove")
