"""`coachrl checkpoints`: what a run could be resumed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import out, print_json
from coachrl.cli.options import Json, RunFolder
from coachrl.errors import ConfigError

if TYPE_CHECKING:
    from coachrl.runs.folder import Run

checkpoints_app = typer.Typer(help="List and remove a run's checkpoints.")


@checkpoints_app.command("list")
def list_checkpoints(run_folder: RunFolder, as_json: Json = False) -> None:
    """Every checkpoint of a run, oldest first: its step, its size, whether it is whole, and its success on held-out
    tasks, where it was evaluated."""
    from coachrl.runs.checkpoints import best_step, inspect, listed
    from coachrl.runs.folder import Run
    from coachrl.runs.lost import read_steps

    run = Run.open(run_folder)
    looked_at = [inspect(path, contents=True) for path in listed(run.folder / "checkpoints")]
    found = [checkpoint for checkpoint in looked_at if checkpoint.folder.is_dir()]  # others were removed meanwhile
    steps = read_steps(run, [])
    success = {step: metrics["eval/success"] for step, metrics in steps.items() if "eval/success" in metrics}
    best = best_step(steps)
    if as_json:
        records = [
            {
                "step": c.step,
                "folder": str(c.folder),
                "bytes": c.size_bytes,
                "problem": c.problem,
                "heldout_success": success.get(c.step),
                "best": c.step == best,
            }
            for c in found
        ]
        print_json(records)
        return
    for c in found:
        measured = f"  held-out success {success[c.step]:.3f}" if c.step in success else ""
        if c.step == best:
            measured += ", the best evaluation"
        out.print(f"{c.folder.name}  {c.size_bytes / 2**20:9.1f} MiB  {c.problem or 'whole'}{measured}")
    if not found:
        out.print("no checkpoint")


@checkpoints_app.command("prune")
def prune_checkpoints(
    run_folder: RunFolder,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Newest whole checkpoints that stay.")] = 1,
) -> None:
    """Remove checkpoints that cannot be loaded, and all but the newest of the others. With train.keep_best the best one
    stays, too, unless --keep is 0."""
    from coachrl.runs.checkpoints import prune
    from coachrl.runs.folder import Run
    from coachrl.runs.lost import read_steps

    run = Run.open(run_folder)
    with run.locked("pruning its checkpoints"):
        steps = read_steps(run, []) if _keeps_best(run) else {}
        removed = prune(run.folder / "checkpoints", keep, steps)
    for checkpoint in removed:
        out.print(f"removed {checkpoint.folder.name}" + (f": it {checkpoint.problem}" if checkpoint.problem else ""))
    if not removed:
        out.print("nothing to remove")


def _keeps_best(run: Run) -> bool:
    """Where nobody can say, it does: what is removed is gone."""
    try:
        return run.config().train.keep_best
    except ConfigError:
        return True
