"""`coachrl rollout`: a few scored episodes, shown or printed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from coachrl.cli.console import err, out, print_json
from coachrl.cli.options import Json, RunOptions, takes_groups


@takes_groups
def rollout(
    options: RunOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Episodes")] = 1,
    as_json: Json = False,
) -> None:
    """Play some training tasks with the initial weights, and show each action with the coach's score and reasons."""
    import tempfile
    from pathlib import Path

    from coachrl.commands.event_loop import run_in_loop
    from coachrl.commands.run import rollout_once
    from coachrl.report.transcript import print_episode
    from coachrl.runs.records import episode_line

    config = options.resolve()
    with tempfile.TemporaryDirectory() as folder:
        episodes, scores = run_in_loop(rollout_once(config, count, Path(folder) / "ledger.jsonl", err))
    for episode in episodes:
        if as_json:
            print_json(json.loads(episode_line(episode, scores)))
        else:
            print_episode(out, episode, scores)
