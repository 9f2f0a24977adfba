"""`coachrl compare`: runs side by side on the held-out draws that they share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coachrl.cli.console import Rows, out, print_json, print_table
from coachrl.cli.options import Json, path_argument, path_option
from coachrl.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coachrl.report.compare import RunComparison
    from coachrl.runs.folder import Run

RunFolders = Annotated[list[Path], path_argument(metavar="RUN RUN…", help="Run folders; the first is the baseline")]


def compare_runs(
    run_folders: RunFolders,
    html: Annotated[
        Path | None, path_option("--html", help="Also write a page with the runs' episodes of each task side by side")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs on the held-out draws that they share, paired, with 95 % intervals over tasks."""
    from coachrl.report.compare import compare
    from coachrl.runs.folder import Run

    runs = [Run.open(folder) for folder in run_folders]
    comparisons = compare(runs) if html is None else _write_page(runs, html)
    if as_json:
        print_json([dataclasses.asdict(found) | {"conclusion": found.conclusion} for found in comparisons])
        return
    for found in comparisons:
        _print_comparison(found)
    if html is not None:
        out.print(f"page: {html}")


def _write_page(runs: Sequence[Run], html: Path) -> list[RunComparison]:
    from coachrl.report.page import write_page
    from coachrl.report.side_by_side import compare_page
    from coachrl.storage.atomic import check_place

    check_place(html)
    comparisons, page = compare_page(runs)
    write_page(html, page)
    return comparisons


def _print_comparison(found: RunComparison) -> None:
    if found.settings:
        out.print(found.settings)
    table = Rows("held out", found.baseline, found.name, "paired difference")
    for row in found.rows:
        sides = [value.interval() if value is not None else "-" for value in (row.before, row.after)]
        table.add(row.name, *sides, row.difference.interval(signed=True) if row.difference is not None else "-")
    print_table(table)
    alone = found.draws - found.shared
    left_out = f"; {alone} that only one of them holds are left out" if alone else ""
    out.print(f"{found.name} against {found.baseline}: {found.conclusion}")
    out.print(f"{counted(found.shared, 'draw')} in both{left_out}; 95% intervals, tasks resampled")
