"""`coachrl serve`: a trained team as an endpoint."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import err, out
from coachrl.cli.options import Overrides, RunFolder, WhichCheckpoint

if TYPE_CHECKING:
    from coachrl.commands.serve import Served


def serve(
    run_folder: RunFolder,
    overrides: Overrides = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at. Beyond this machine it takes a key: COACHRL_SERVE_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    checkpoint: WhichCheckpoint = "last",
) -> None:
    """Serve the trained team of a run until Ctrl-C: each role is a model, for clients of OpenAI and of Anthropic."""
    from coachrl.commands.serve import serve_run
    from coachrl.runs.folder import Run

    def ready(served: Served) -> None:
        for line in served.lines():
            out.print(line)
        out.print("(Ctrl-C ends it)")

    run = Run.open(run_folder)
    with contextlib.suppress(KeyboardInterrupt):
        serve_run(run, overrides or (), host, port, err.print, ready, checkpoint)
