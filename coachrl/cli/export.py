"""`coachrl export`: a saved run as training data for Hugging Face TRL, or its models for the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli.console import out, print_json
from coachrl.cli.options import Json, RunFolder, WhichCheckpoint, path_option
from coachrl.errors import ConfigError
from coachrl.text import counted


def export(
    run_folder: RunFolder,
    form: Annotated[str, typer.Option("--format", help="sft, dpo, reward-model or hub")],
    out_file: Annotated[Path, path_option("--out", help="JSONL file to write, hub: a folder; it must not exist")],
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Of replies to learn from: sft (default 8), chosen ones of dpo")
    ] = None,
    min_gap: Annotated[
        float | None, typer.Option("--min-gap", help="dpo: points between chosen and rejected (default 1)")
    ] = None,
    role: Annotated[list[str] | None, typer.Option("--role", help="Only this agent's actions; may be repeated")] = None,
    rescore: Annotated[
        str | None, typer.Option("--rescore", help="Label of a rescore to take scores and suggestions from")
    ] = None,
    push_to: Annotated[
        str | None, typer.Option("--push", help="hub: upload to NAME/REPO too, private; HF_TOKEN has the token")
    ] = None,
    checkpoint: WhichCheckpoint = "last",
    as_json: Json = False,
) -> None:
    """Write a data set for Hugging Face TRL from a saved run: demonstrations, preference pairs, or a coach's
    judgements; or its models with a card each, for the Hugging Face hub."""
    from coachrl.export.replies import ExportFilter
    from coachrl.export.trl import export_run
    from coachrl.runs.folder import Run

    if form == "hub":
        if any(option is not None for option in (min_score, min_gap, role, rescore)):
            raise ConfigError("--format hub takes whole models: leave out --min-score, --min-gap, --role, --rescore")
        _export_models(run_folder, out_file, push_to, checkpoint, as_json)
        return
    if push_to is not None:
        raise ConfigError(f"--push is for --format hub; {form} writes a file")
    if checkpoint != "last":
        raise ConfigError(f"--checkpoint is for --format hub; {form} takes what was said, and no weights")
    which = ExportFilter(tuple(role or ()), rescore, min_score, min_gap)
    done = export_run(Run.open(run_folder), form, out_file, which)
    if as_json:
        print_json({"file": str(out_file), "lines": done.lines, "left_out": done.left_out}, indent=2)
        return
    kinds = ", ".join(counted(count, kind) for kind, count in done.lines.items())
    out.print(f"{counted(sum(done.lines.values()), 'line')} to {out_file}: {kinds}")
    if done.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in done.left_out.items())
        out.print(f"left out: {reasons}")


def _export_models(run_folder: Path, folder: Path, repo: str | None, checkpoint: str, as_json: bool) -> None:
    from coachrl.export.hub import check_push, export_hub, push
    from coachrl.runs.folder import Run

    if repo is not None:
        check_push(repo)
    folders = export_hub(Run.open(run_folder), folder, checkpoint)
    addresses = push(folders, repo) if repo is not None else []
    if as_json:
        print_json({"folders": [str(place) for place in folders], "addresses": addresses}, indent=2)
        return
    for place in [*map(str, folders), *addresses]:
        out.print(place)
