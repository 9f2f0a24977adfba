"""What the verb files of the command line share: the two consoles, and options that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console(soft_wrap=True, markup=False, highlight=False)
err = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)

ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", help="YAML file, or the name of a shipped one such as quickstart.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key.sub=value, e.g. train.steps=4")]
Pipeline = Annotated[
    str | None, typer.Option("--pipeline", help="A shipped one, such as mathchat, or my_pkg.my_mod:MyPipeline")
]
Model = Annotated[str | None, typer.Option("--model", help="Hugging Face folder or name, or smollm2-135m")]
Backend = Annotated[
    str | None, typer.Option("--backend", help="torch, or openrlhf for GPU nodes (Ray, vLLM, DeepSpeed)")
]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="host:port of a running Ray cluster")]
Coach = Annotated[str | None, typer.Option("--coach", help="rules, gemini-2.5-pro, anthropic/…, openai/…, …")]
CoachPrompt = Annotated[Path | None, typer.Option("--coach-prompt", help="Coach prompt, a Markdown file")]
CoachBase = Annotated[str | None, typer.Option("--coach-api-base", help="Base URL of an OpenAI-compatible server")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, e.g. runs/latest")]
