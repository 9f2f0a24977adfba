"""`coachrl train`: a new run, or one that goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import err, out, waiting
from coachrl.cli.options import RunOptions, path_option, takes_groups
from coachrl.errors import ClusterLost, ConfigError, KeyMissing
from coachrl.text import counted

if TYPE_CHECKING:
    from coachrl.config import RunConfig
    from coachrl.runs.folder import Run


@takes_groups
def train(
    options: RunOptions,
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Fixes every random choice")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run's folder")] = None,
    out_folder: Annotated[Path | None, path_option("--out", help="Folder that holds the runs")] = None,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="tensorboard, wandb, mlflow, trackio, or my_mod:MyTracker")
    ] = None,
    resume: Annotated[Path | None, path_option("--resume", help="Continue this run from its last checkpoint")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")] = False,
    restarted: Annotated[int, typer.Option("--restarted", hidden=True)] = 0,
) -> None:
    """Train a team: roll out, let the coach score each action, update every policy."""
    flags = {
        "train.steps": steps,
        "seed": seed,
        "name": name,
        "out": str(out_folder) if out_folder else None,
        "track": track or None,
    }
    if resume is None:
        with _price_for_any_key() if dry_run else contextlib.nullcontext():
            _start(options.resolve(flags), dry_run)
        return
    given = {**options.flags(), **flags, "config": options.config}
    if any(value is not None for value in given.values()):
        raise ConfigError(
            "--resume continues a run as it was configured: give no other flags with it. A finished run, "
            "resumed, says how to train on from its weights"
        )
    _go_on(resume, options.overrides or [], dry_run, restarted)


@contextlib.contextmanager
def _price_for_any_key() -> Iterator[None]:
    """Who looks at the price first has no key yet, and a dry run would not use it."""
    try:
        yield
    except KeyMissing as error:
        raise KeyMissing(f"{error}. For the price alone any text will do: a dry run asks nobody") from error


def _start(config: RunConfig, dry_run: bool) -> None:
    from coachrl.commands.build import check_access
    from coachrl.runs.folder import LOCK, Run

    if not dry_run:  # whose plan looks at the folder last: one that is there hides nothing else that is wrong
        Run.new_folder(config)
    check_access(config)  # before the first line: what is missing is said in its place, and no folder is made
    if dry_run:
        _print_dry_run(config, 0, None)
        return
    run = Run.create(config)
    try:
        with run.locked("training"):
            _train(config, run, resume=False, restarted=0)
    except ConfigError:
        if not (run.folder / LOCK).exists():  # nobody has it: there was no room even for a lock
            run.discard_if_empty()
        raise


def _go_on(folder: Path, overrides: list[str], dry_run: bool, restarted: int) -> None:
    from coachrl.runs.checkpoints import inspect
    from coachrl.runs.folder import Run

    run = Run.open(folder)
    config = run.reconfigure(overrides, keep=False)  # a wrong setting is refused, also where no step is left
    if _is_finished(run):
        if not dry_run:
            kept = run.config().train  # as it was: no setting is changed any more
            with run.locked("training"):  # it may have been killed after its last step, and before it had cleared up
                run.drop_left()
                run.tidy_checkpoints(kept.keep_checkpoints, kept.keep_best)
                for left in run.folder.glob("replies*.jsonl"):
                    left.unlink()
            _finish(run)
        return
    checkpoint = run.checkpoint_to_resume()
    if dry_run:
        _print_dry_run(config, inspect(checkpoint).step if checkpoint is not None else 0, run.folder)
        return
    with run.locked("training"):
        _train(run.reconfigure(overrides), run, resume=True, restarted=restarted)


def _is_finished(run: Run) -> bool:
    """Whether no step is left, nor the evaluation after the last. If so, says how to go on all the same, before
    anything that takes long. Raises CheckpointError where the weights of the last one are damaged."""
    from coachrl.runs import checkpoints
    from coachrl.runs.records import step_name

    steps = run.config().train.steps
    if not run.checkpoints() or run.last_checkpoint().name != step_name(steps) or run.lacks_evaluation(steps):
        return False
    checkpoints.read(run.last_checkpoint(), {})
    policies = sorted(path for path in run.last_checkpoint().iterdir() if path.is_dir())
    weights = " ".join(quote(f"policies.{path.name}.model={path}") for path in policies)
    done = f"{counted(steps, 'step')} of {steps:,}"
    out.print(f"{run.folder} has done {done}: there is nothing to resume. A new run from its weights:")
    out.print(f"  coachrl train --config {quote(str(run.folder / 'config.yaml'))} --name NEW {weights}")
    return True


def _print_dry_run(config: RunConfig, done: int, folder: Path | None) -> None:
    waiting.start("checking what the run would check: tasks, coach, packages, tokenizer")
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.commands.run import dry_run

    for line in run_in_loop(dry_run(config, done, folder)).lines():
        out.print(line)


def _train(config: RunConfig, run: Run, resume: bool, restarted: int) -> None:
    """restarted: how often the run was handed on to a new process. Raises GoesOnElsewhere where it is once more."""
    from coachrl.commands.interrupt import interrupts_acknowledged, what_stays

    stays = partial(what_stays, config, run)
    try:
        with interrupts_acknowledged(stays):
            # First, since what follows imports for seconds.
            out.print(f"run {run.folder}; watch it with: coachrl view {quote(str(run.folder))}")
            waiting.start("starting")
            from coachrl.commands.event_loop import run_in_loop
            from coachrl.commands.run import train_run
        run_in_loop(train_run(config, run, out, resume, restarted), stays)
    except SystemExit:  # of the console
        kept = stays()
        run.discard_if_empty()
        err.print(f"nobody reads any more what is printed; {kept}")
        raise
    except Exception:  # whatever ends it: a folder in which nothing was done is of no use to anybody
        run.discard_if_empty()
        raise
    except KeyboardInterrupt as interrupt:  # it has been acknowledged already
        run.discard_if_empty()
        if (lost := _behind(interrupt)) is not None:
            raise lost from None
        raise typer.Exit(130) from None
    _finish(run)


def _behind(interrupt: KeyboardInterrupt) -> ClusterLost | None:
    """What the watch over a cluster interrupted the run for; None where a person did."""
    error: BaseException | None = interrupt
    while error is not None and not isinstance(error, ClusterLost):
        error = error.__context__
    return error


def _finish(run: Run) -> None:
    from coachrl.commands.interrupt import interrupts_acknowledged, what_stays

    config = run.config()
    with interrupts_acknowledged(lambda: what_stays(config, run)):
        _sum_up(run, config)


def _sum_up(run: Run, config: RunConfig) -> None:
    """Say how the run ended and what can be made of it, and write the report."""
    waiting.start("summing up the run")
    from coachrl.report import headline, write_report
    from coachrl.trainers.algorithms import make_algorithm

    folder = quote(str(run.folder))
    for line in headline(run):  # first: the disk may have no room for the page
        out.print(line)
    waiting.start("writing the report")
    out.print(f"report: {write_report(run)}")
    out.print(f"read its episodes: coachrl view {folder}")
    if make_algorithm(config.algorithm).needs_coach(config.reward):
        out.print(f"ask whether its coach is fair: coachrl audit {folder}")
    out.print(f"set it against another run: coachrl compare {folder} OTHER")
