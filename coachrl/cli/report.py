"""`coachrl report`: a run as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coachrl.cli.console import err, out
from coachrl.cli.options import RunFolder, page_in, path_option


def report(
    run_folder: RunFolder,
    html: Annotated[
        Path | None, path_option("--html", help="The page; default: report.html in the run's folder")
    ] = None,
) -> None:
    """Write the run's report.html: one offline page."""
    from coachrl.report import headline, write_report
    from coachrl.report.contents import read_contents
    from coachrl.runs.folder import Run
    from coachrl.storage.atomic import check_place

    run = Run.open(run_folder)
    path = html or page_in(run_folder, "report.html")
    check_place(path)
    write_report(run, path)
    for line in headline(run):
        out.print(line)
    for problem in read_contents(run).problems:
        err.print(f"warning: {problem}", style="yellow")
    out.print(f"report: {path}")
