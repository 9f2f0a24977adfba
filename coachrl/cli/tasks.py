"""`coachrl tasks`: what a configuration's teams are given to do."""

from __future__ import annotations

import json

import typer
from rich.table import Table

from coachrl.cli.console import print_table
from coachrl.cli.options import ConfigOptions, Json, takes_groups

tasks_app = typer.Typer(no_args_is_help=True, help="Look at task sets.")

_SHOWN_CHARACTERS = 90  # of a prompt's first line


@tasks_app.command("list")
@takes_groups
def list_tasks(options: ConfigOptions, as_json: Json = False) -> None:
    """List the training and held-out tasks of a config (e.g. tasks.source=dsbench-lite)."""
    from coachrl.tasks import load_tasks

    config = options.resolve()
    train_tasks, heldout_tasks = load_tasks(config)
    rows = [("train", task) for task in train_tasks] + [("held-out", task) for task in heldout_tasks]
    if as_json:
        typer.echo(
            json.dumps([{"split": split, "id": t.id, "category": t.category, "prompt": t.prompt} for split, t in rows])
        )
        return
    table = Table("split", "id", "category", "prompt", box=None)
    for split, task in rows:
        line = next(iter(task.prompt.splitlines()), "")
        if len(line) > _SHOWN_CHARACTERS:
            line = f"{line[: _SHOWN_CHARACTERS - 1]}…"
        table.add_row(split, task.id, task.category, line)
    print_table(table)
