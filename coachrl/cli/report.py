"""`coachrl report`: a run as one page."""

from __future__ import annotations

from coachrl.cli.console import err, out
from coachrl.cli.options import RunFolder


def report(run_folder: RunFolder) -> None:
    """Write the run's report.html: one offline page."""
    from coachrl.report import headline, write_report
    from coachrl.report.contents import read_contents
    from coachrl.runs.folder import Run

    run = Run.open(run_folder)
    path = write_report(run)
    for line in headline(run):
        out.print(line)
    for problem in read_contents(run).problems:
        err.print(f"warning: {problem}", style="yellow")
    out.print(f"report: {path}")
