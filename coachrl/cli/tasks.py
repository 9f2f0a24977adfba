"""`coachrl tasks`: what a configuration's teams are given to do."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from coachrl.cli.console import Rows, out, print_json, print_table
from coachrl.cli.options import ConfigOptions, Json, path_argument, path_option, takes_groups

tasks_app = typer.Typer(help="List task sets, and make tasks of tables.")

_SHOWN_CHARACTERS = 90  # of a prompt
_SHOWN_TASKS = 1000  # of each set: a table of a million rows takes minutes


@tasks_app.command("list")
@takes_groups
def list_tasks(options: ConfigOptions, as_json: Json = False) -> None:
    """List the training and held-out tasks of a config (e.g. tasks.source=dsbench-lite)."""
    from coachrl.tasks import load_tasks

    config = options.resolve()
    train_tasks, heldout_tasks = load_tasks(config)
    sets = {"train": train_tasks, "held-out": heldout_tasks}
    if as_json:
        print_json(
            [
                {"split": split, "id": task.id, "category": task.category, "prompt": task.prompt}
                for split, tasks in sets.items()
                for task in tasks
            ]
        )
        return
    table = Rows("split", "id", "category", "prompt")
    for split, tasks in sets.items():
        for task in tasks[:_SHOWN_TASKS]:
            line = " ".join(task.prompt.split())  # the first line may be a heading that all tasks share
            if len(line) > _SHOWN_CHARACTERS:
                line = f"{line[: _SHOWN_CHARACTERS - 1]}…"
            table.add(split, task.id, task.category, line)
    print_table(table)
    for split, tasks in sets.items():
        if len(tasks) > _SHOWN_TASKS:
            out.print(f"{split}: {_SHOWN_TASKS:,} of {len(tasks):,} tasks shown; --json prints all")


@tasks_app.command("make")
def make(
    folder: Annotated[Path, path_argument(help="Folder with train.csv, and test.csv where there is one")],
    target: Annotated[str, typer.Option("--target", help="The column to predict")],
    root: Annotated[Path, path_option("--out", help="Folder of tasks that this one is added to")] = Path("data"),
    heldout: Annotated[bool, typer.Option("--heldout", help="Hold the task out, rather than train on it.")] = False,
    category: Annotated[str | None, typer.Option("--category", help="classification or regression")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Default: accuracy, or rmse")] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="The column that names each row")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the task; default: the folder's")] = None,
    about: Annotated[Path | None, path_option("--about", help="Text file that says what the table is")] = None,
    test_share: Annotated[
        float, typer.Option("--test-share", min=0.01, max=0.99, help="Share of train.csv that becomes the test table")
    ] = 0.25,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes which rows those are")] = 0,
) -> None:
    """Make a task for the pipeline dsbench of a folder as Kaggle gives them."""
    from coachrl.storage.files import read_text
    from coachrl.tasks.tabular.make import Wanted, make_task

    text = read_text(about, str(about)).strip() if about is not None else None
    wanted = Wanted(target, text, category, metric, id_column, name, test_share, seed)
    task = make_task(folder, root, "heldout" if heldout else "train", wanted)
    truth = task.ground_truth
    out.print(f"{task.id}: {truth.category} of {target} by {truth.metric}, rows named by {truth.id_column}, in {root}")
    missing = [name for name in ("train", "heldout") if not (root / f"{name}.jsonl").exists()]
    if missing:
        flag = " --heldout" if missing == ["heldout"] else ""
        out.print(f"{root} has no {'held-out' if flag else 'training'} task yet: coachrl tasks make FOLDER …{flag}")
    else:
        out.print(f"train on it: coachrl train --pipeline dsbench {quote(f'tasks.root={root}')}")
