"""`coachrl view`: a run's report and episodes in a browser."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from coachrl.cli.console import out
from coachrl.cli.options import RunFolder


def view(
    run_folder: RunFolder,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one")] = 0,
    show_scores: Annotated[
        bool, typer.Option("--show-scores", help="Show people the coach's score before they give theirs at /rate")
    ] = False,
) -> None:
    """Serve the run's report with every episode to this machine, and take people's scores of actions, until Ctrl-C."""
    from coachrl.report.view import HOST, make_server
    from coachrl.runs.folder import Run

    with make_server(Run.open(run_folder), port, blind=not show_scores) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        out.print(f"{address}  (Ctrl-C ends it)")
        out.print(f"{address}rate  to score its actions yourself")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
