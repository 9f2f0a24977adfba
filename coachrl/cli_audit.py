"""`coachrl audit`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli_options import out
from coachrl.errors import ConfigError

_THRESHOLD_CROSSED = 3


def audit(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN…", help="Run folders, e.g. runs/latest")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="The page; default: audit.html in the first run's folder")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="All figures as JSON; '-' prints them and nothing else")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help="Exit with 3 where this topic has a warning, or crosses a limit: kind=0.5, any"),
    ] = None,
    resamples: Annotated[int, typer.Option("--resamples", min=100, help="Bootstrap resamples of tasks")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes the resamples")] = 0,
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Plant known biases in made-up scores; print power and false accusations"),
    ] = False,
    repeats: Annotated[
        int, typer.Option("--repeats", min=2, help="Made-up runs of each condition of --self-test")
    ] = 20,
) -> None:
    """Ask whether a coach is fair, is right and is being gamed: one page, JSON and plain verdicts from its scores."""
    from coachrl.audit.report import as_html, as_json, audit_runs, lines, write_whole
    from coachrl.audit.verdicts import crossed, parse_threshold

    if self_test:
        _self_test(runs, repeats, seed)
        return
    thresholds = [parse_threshold(text) for text in fail_on or ()]
    if not runs:
        raise ConfigError("name at least one run folder: coachrl audit runs/latest")
    found = audit_runs(runs, resamples, seed)
    page = html or next(iter(found.runs.values())) / "audit.html"
    write_whole(page, as_html(found))
    if json_file == Path("-"):
        typer.echo(as_json(found), nl=False)
    else:
        if json_file is not None:
            write_whole(json_file, as_json(found))
        for line in [*lines(found), f"page: {page}"]:
            out.print(line)
    if reasons := crossed(found.verdicts, thresholds):
        for reason in reasons:
            typer.echo(f"threshold crossed: {reason}", err=True)
        raise typer.Exit(_THRESHOLD_CROSSED)


def _self_test(runs: list[Path] | None, repeats: int, seed: int) -> None:
    from coachrl.audit.selftest import self_test, table_lines

    if runs:
        raise ConfigError("--self-test makes its own scores: name no runs with it")
    header, rule, *_ = table_lines([])
    out.print(f"{header}\n{rule}")
    self_test(repeats, seed=seed, on_result=lambda result: out.print(table_lines([result])[-1]))
