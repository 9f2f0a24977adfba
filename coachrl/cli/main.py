"""The command line: verbs only. Each parses, calls and prints."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coachrl import __version__
from coachrl.cli import data as cli_data
from coachrl.cli.audit import audit
from coachrl.cli.checkpoints import checkpoints_app
from coachrl.cli.coaches import coaches_app
from coachrl.cli.doctor import doctor
from coachrl.cli.options import (
    Backend,
    Coach,
    CoachBase,
    CoachPrompt,
    ConfigOption,
    ConsoleHandler,
    Json,
    Model,
    Overrides,
    Pipeline,
    RayAddress,
    err,
    out,
    parts_given,
    print_error,
    print_table,
)
from coachrl.cli.report import compare_runs, report, view
from coachrl.config import RunConfig, SftConfig, find_config, load_config, make_section
from coachrl.errors import CoachrlError, ConfigError
from coachrl.pipelines.defaults import BUNDLED_MODEL, pipeline_defaults

if TYPE_CHECKING:
    from coachrl.runs.folder import Run

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Train teams of language-model agents with process rewards from a coach.",
)
tasks_app = typer.Typer(no_args_is_help=True, help="Look at task sets.")

_SFT = SftConfig()


def _resolve(
    config: str | None, overrides: list[str] | None, flags: Mapping[str, Any] = MappingProxyType({})
) -> RunConfig:
    path = find_config(config) if config is not None else None
    given = {key: value for key, value in flags.items() if value is not None}
    return load_config(path, overrides or (), given, pipeline_defaults)


@app.command()
def train(
    overrides: Overrides = None,
    config: ConfigOption = None,
    pipeline: Pipeline = None,
    coach: Coach = None,
    coach_prompt: CoachPrompt = None,
    coach_api_base: CoachBase = None,
    model: Model = None,
    backend: Backend = None,
    ray_address: RayAddress = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Fixes every random choice")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run's folder")] = None,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Folder that holds the runs")] = None,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="Copy metrics to tensorboard, wandb, mlflow or trackio")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Continue this run from its last checkpoint")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")] = False,
) -> None:
    """Train a team: roll out, let the coach score each action, update every policy."""
    from coachrl.commands.run import plan_run
    from coachrl.runs.checkpoints import inspect
    from coachrl.runs.folder import Run

    flags = parts_given(pipeline, coach, coach_prompt, coach_api_base, model, backend, ray_address) | {
        "train.steps": steps,
        "seed": seed,
        "name": name,
        "out": str(out_folder) if out_folder else None,
        "track": track or None,
    }
    if resume is not None:
        if config is not None or any(value is not None for value in flags.values()):
            raise ConfigError("--resume continues a run as it was configured: give no other flags with it")
        run = Run.open(resume)
        if not dry_run:
            with run.locked("training"):
                _run_training(run.reconfigure(overrides or ()), run, resume=True)
            return
        resolved = run.reconfigure(overrides or (), keep=False)
        done = inspect(run.last_checkpoint()).step if run.checkpoints() or not resolved.train.keep_checkpoints else 0
    else:
        resolved, done = _resolve(config, overrides, flags), 0
    if dry_run:
        if resume is None:
            Run.new_folder(resolved)
        for line in asyncio.run(plan_run(resolved, done)).lines():
            out.print(line)
        return
    run = Run.create(resolved)
    with run.locked("training"):
        _run_training(resolved, run, resume=False)


def _run_training(config: RunConfig, run: Run, resume: bool) -> None:
    from coachrl.commands.run import train_run
    from coachrl.report import headline, write_report

    try:
        asyncio.run(train_run(config, run, out, resume))
    except Exception:
        run.discard_if_empty()
        raise
    except KeyboardInterrupt:
        run.discard_if_empty()
        how = f"continue with: coachrl train --resume {run.folder}"
        if not config.train.keep_checkpoints:
            how = "no checkpoint is kept, so it cannot be continued"
        elif not run.folder.exists():
            how = "nothing had been trained yet"
        err.print(f"interrupted; {how}")
        raise typer.Exit(130) from None
    report = write_report(run)
    for line in headline(run):
        out.print(line)
    out.print(f"report: {report}")


@app.command(name="eval")
def evaluate(
    overrides: Overrides = None,
    run_folder: Annotated[Path | None, typer.Option("--run", help="Evaluate this run's last checkpoint")] = None,
    config: ConfigOption = None,
    pipeline: Pipeline = None,
    model: Model = None,
    backend: Backend = None,
    ray_address: RayAddress = None,
    episodes_file: Annotated[
        Path | None, typer.Option("--episodes", help="Write the episodes to this JSONL file")
    ] = None,
    swap_policies: Annotated[
        str | None, typer.Option("--swap-policies", help="a,b: let the roles of two policies play with each other's")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure held-out outcomes of a run's last checkpoint, or of a config's initial weights. Asks no coach."""
    from coachrl.commands.run import evaluate_run
    from coachrl.runs.folder import Run

    checkpoint = None
    if run_folder is not None:
        if any(given is not None for given in (config, pipeline, model, backend, ray_address)):
            raise ConfigError(
                "--run takes pipeline, model and backend from the run: give only key.sub=value settings with it"
            )
        run = Run.open(run_folder)
        resolved = run.config(overrides or ())
        checkpoint = run.last_checkpoint()
    else:
        flags = parts_given(pipeline, model=model, backend=backend, ray_address=ray_address)
        resolved = _resolve(config, overrides, flags)
    metrics = asyncio.run(evaluate_run(resolved, checkpoint, episodes_file, err, swap_policies))
    if as_json:
        typer.echo(json.dumps(metrics, indent=2, sort_keys=True))
    else:
        print_table(_metrics_table(metrics))


@app.command()
def rollout(
    overrides: Overrides = None,
    config: ConfigOption = None,
    pipeline: Pipeline = None,
    coach: Coach = None,
    coach_prompt: CoachPrompt = None,
    coach_api_base: CoachBase = None,
    model: Model = None,
    backend: Backend = None,
    ray_address: RayAddress = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Episodes")] = 1,
    as_json: Json = False,
) -> None:
    """Play some training tasks with the initial weights, and show each action with the coach's score and reasons."""
    from coachrl.commands.run import rollout_once
    from coachrl.report.transcript import print_episode

    flags = parts_given(pipeline, coach, coach_prompt, coach_api_base, model, backend, ray_address)
    resolved = _resolve(config, overrides, flags)
    with tempfile.TemporaryDirectory() as folder:
        episodes, scores = asyncio.run(rollout_once(resolved, count, Path(folder) / "ledger.jsonl", err))
    if as_json:
        from coachrl.runs.records import episode_line

        for episode in episodes:
            # In ASCII: as JSON's own escapes, what agents wrote reaches a terminal as text and a program whole.
            typer.echo(json.dumps(json.loads(episode_line(episode, scores))))
        return
    for episode in episodes:
        print_episode(out, episode, scores)


@tasks_app.command("list")
def tasks_list(overrides: Overrides = None, config: ConfigOption = None, as_json: Json = False) -> None:
    """List the training and held-out tasks of a config (e.g. tasks.source=dsbench-lite)."""
    from coachrl.tasks import load_tasks

    resolved = _resolve(config, overrides)
    train_tasks, heldout_tasks = load_tasks(resolved)
    rows = [("train", task) for task in train_tasks] + [("held-out", task) for task in heldout_tasks]
    if as_json:
        typer.echo(
            json.dumps([{"split": split, "id": t.id, "category": t.category, "prompt": t.prompt} for split, t in rows])
        )
        return
    table = Table("split", "id", "category", "prompt", box=None)
    for split, task in rows:
        first_line = next(iter(task.prompt.splitlines()), "")
        table.add_row(split, task.id, task.category, first_line if len(first_line) <= 90 else first_line[:89] + "…")
    print_table(table)


@app.command()
def sft(
    data: Annotated[Path, typer.Option("--data", help='JSONL; each line {"messages": [{"role": …, "content": …}, …]}')],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder of the trained model, in Hugging Face form")],
    model: Annotated[str, typer.Option("--model", help="Model to start from")] = BUNDLED_MODEL,
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = _SFT.epochs,
    learning_rate: Annotated[float, typer.Option("--learning-rate")] = _SFT.learning_rate,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = _SFT.batch_size,
    max_length: Annotated[int, typer.Option("--max-length", min=8, help="Tokens; longer lines are refused")] = (
        _SFT.max_length
    ),
    seed: Annotated[int, typer.Option("--seed")] = _SFT.seed,
) -> None:
    """Supervised warm start on demonstrations, for models that cannot start a pipeline from nothing."""
    try:
        from coachrl.trainers.backends.torch.sft import run_sft
    except ImportError as error:
        raise ConfigError(f"coachrl sft needs {error.name}: pip install 'coachrl[quickstart]'") from error

    settings = make_section(
        SftConfig,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
    )
    stats = run_sft(data, model, out_folder, settings, lambda line: out.print(line))
    print_table(_metrics_table(stats))


# In the order in which `--help` shows them: what makes runs, what looks at them, what goes on from them.
app.command()(report)
app.command()(view)
app.command("compare")(compare_runs)
app.command()(audit)
app.command()(cli_data.rescore)
app.command()(cli_data.export)
app.command()(doctor)
app.add_typer(tasks_app, name="tasks")
app.add_typer(coaches_app, name="coaches")
app.add_typer(checkpoints_app, name="checkpoints")


def _metrics_table(metrics: dict[str, Any]) -> Table:
    table = Table("metric", "value", box=None)
    for key, value in sorted(metrics.items()):
        table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    return table


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show informational log records.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    handler = ConsoleHandler()
    logger = logging.getLogger("coachrl")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    handler.setLevel(logging.INFO if verbose else logging.WARNING)


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed, 2 wrong usage or configuration, 3 an audit threshold."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        app()
    except CoachrlError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a folder that may not be written; a path that no file system takes
        print_error(error)
        sys.exit(2 if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 1)


if __name__ == "__main__":
    main()
