"""`coachrl eval`: held-out outcomes, without a coach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli.console import err, print_json, print_metrics
from coachrl.cli.options import Json, TeamOptions, WhichCheckpoint, path_option, takes_groups
from coachrl.errors import ConfigError


@takes_groups
def evaluate(
    options: TeamOptions,
    run_folder: Annotated[Path | None, path_option("--run", help="Evaluate a checkpoint of this run")] = None,
    checkpoint: WhichCheckpoint = "last",
    episodes_file: Annotated[
        Path | None,
        path_option("--episodes", help="Write the episodes to this JSONL file; begun again after a kill, go on"),
    ] = None,
    swap_policies: Annotated[
        str | None, typer.Option("--swap-policies", help="a,b: let the roles of two policies play with each other's")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure held-out outcomes of a run's last checkpoint, or of another, or of a config's initial weights. Asks no
    coach. Exits with 1 where every episode broke."""
    from coachrl.commands.configure import check_named, warn_of_sampling
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.commands.run import evaluate_run
    from coachrl.runs.folder import Run

    if run_folder is None:
        if checkpoint != "last":
            raise ConfigError("--checkpoint is one of a run's: name the run with --run, too")
        run, config = None, options.resolve()
    else:
        if any(given is not None for given in (options.config, *options.flags().values())):
            raise ConfigError(
                "--run takes pipeline, model and backend from the run: give only key.sub=value settings with it"
            )
        run = Run.open(run_folder)
        config = run.config(options.overrides or ())
        check_named(config, options.overrides or ())
    warn_of_sampling(options.overrides or ())
    metrics = run_in_loop(evaluate_run(config, run, episodes_file, err, swap_policies, checkpoint))
    if as_json:
        print_json(metrics, indent=2, sort_keys=True)
    else:
        print_metrics(metrics)
    if not metrics["eval/episodes"]:
        raise typer.Exit(1)
