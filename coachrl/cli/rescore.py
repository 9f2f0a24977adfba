"""`coachrl rescore`: another coach, or the same again, on a saved run's actions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coachrl.cli.console import Rows, err, out, print_json, print_table
from coachrl.cli.options import CoachOptions, CoachOverrides, Json, RunFolder, takes_groups
from coachrl.text import counted

if TYPE_CHECKING:
    from coachrl.rescore.comparison import Comparison, MeanDifference, ScoreCounts


@takes_groups
def rescore(
    run_folder: RunFolder,
    coach: CoachOptions,
    overrides: CoachOverrides = None,
    failed_only: Annotated[bool, typer.Option("--failed-only", help="Only actions whose last score failed.")] = False,
    sample: Annotated[int | None, typer.Option("--sample", min=1, help="So many actions, drawn at random")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the sample")] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=0, help="Ask the same again: 1, 2, … beside 0")] = 0,
    as_json: Json = False,
) -> None:
    """Score a saved run's actions again, beside the old scores, and compare the two. Rolls nothing out. A rescore that
    was stopped goes on where it was. Exits with 1 where every call failed."""
    from coachrl.commands.build import make_coach_pool
    from coachrl.commands.configure import rescore_config
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.config import warn_of_unread
    from coachrl.rescore.comparison import compare
    from coachrl.rescore.rescoring import ActionFilter, rescore_run, rescored_by
    from coachrl.runs.folder import Run

    run = Run.open(run_folder)
    config = rescore_config(run, overrides or [], coach.of_a_saved_run())
    warn_of_unread(config, overrides or ())
    by, which = rescored_by(config, repeat), ActionFilter(failed_only, sample, seed)
    try:
        with _progress() as progress:
            done = run_in_loop(rescore_run(run, config, by, which, progress, make_coach_pool))
    except KeyboardInterrupt:
        err.print("interrupted; the same command goes on where this one stopped")
        raise typer.Exit(130) from None
    comparison = compare(done.actions, done.rescore.scores if done.rescore is not None else {})
    if as_json:
        where = str(done.rescore.folder) if done.rescore is not None else None
        print_json({"folder": where, "label": by.label, "asked": done.asked, **comparison.record()}, indent=2)
    elif done.asked == 0:
        out.print(f"nothing was asked: {'no failed score is left' if failed_only else 'all were asked about before'}")
    if done.rescore is not None and not as_json:
        _print_comparison(done.rescore.folder, comparison)
    if done.asked and comparison.after.failed and not (comparison.after.scored or comparison.after.abstained):
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Any]:
    """A function of (done, total) that moves a bar on a terminal."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bar:
        task = bar.add_task("actions", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_comparison(folder: Path, comparison: Comparison) -> None:
    out.print(f"run:     {_counts_line(comparison.before)}")
    out.print(f"rescore: {_counts_line(comparison.after)}")
    out.print(f"written to {folder / 'scores.jsonl'}")
    if comparison.after.failed:
        out.print("failed calls are no scores; the same command with --failed-only asks them again")
    if comparison.overall is None:
        out.print("no action has a score in both: nothing to compare")
        return
    assert comparison.near is not None
    out.print(
        f"{counted(comparison.overall.shift.n, 'pair')}: Pearson {_estimate(comparison.pearson)}, "
        f"Spearman {_estimate(comparison.spearman)}, within 1 point {_estimate(comparison.near)}"
    )
    table = Rows("actions", "pairs", "tasks", "run, mean", "rescore, mean", "shift, points [95 %]")
    _add_row(table, "all", comparison.overall)
    for title, shifts in (("role", comparison.by_role), ("category", comparison.by_category)):
        for name, shift in shifts.items():
            _add_row(table, f"{title} {name}", shift)
    print_table(table)


def _add_row(table: Rows, name: str, row: MeanDifference) -> None:
    shift = row.shift
    table.add(
        name, str(shift.n), str(shift.tasks), f"{row.before:.2f}", f"{row.after:.2f}", shift.interval(signed=True)
    )


def _estimate(value: Any) -> str:
    return "undefined (one side is constant)" if value is None else value.interval()


def _counts_line(counts: ScoreCounts) -> str:
    cost = "unknown cost" if counts.cost_usd is None else f"${counts.cost_usd:.4f}"
    return (
        f"{counts.scored} scored, {counts.abstained} abstained, {counts.failed} failed ({counts.failed_fraction:.1%}), "
        f"{counts.unscored} not asked; {counts.tokens} tokens, {cost}"
    )
