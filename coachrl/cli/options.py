"""What the verb files of the command line share: the two consoles, and options that several verbs take."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coachrl.text import one_line, printable


class PlainConsole(Console):
    """Prints text as it is: nothing that a model, a task file or a server wrote is markup, an emoji's name, or an order
    to the terminal."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        # Every string comes through here: those that are printed, cells of tables, titles of rules.
        return super().render_str(printable(text), **settings)


out = PlainConsole(soft_wrap=True)
err = PlainConsole(stderr=True, soft_wrap=True)

_PIPE_WIDTH = 10_000
_ERROR_CHARS = 4000


def print_table(table: Table) -> None:
    """As wide as the terminal; in a pipe each row is one line, so that `grep` finds rows."""
    console = out if out.is_terminal else PlainConsole(width=_PIPE_WIDTH)
    console.print(table)


def print_error(error: BaseException) -> None:
    """One line, whatever stands in the message."""
    err.print(f"error: {one_line(str(error), _ERROR_CHARS)}", style="bold red")


class ConsoleHandler(logging.Handler):
    """Log records on stderr, each on a line of its own however narrow the terminal is."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"{record.levelname.lower()}: {self.format(record)}", style="yellow")


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
Coach = Annotated[str | None, typer.Option("--coach", help="rules, gemini-2.5-pro, anthropic/…, …, or my_mod:MyCoach")]
CoachPrompt = Annotated[Path | None, typer.Option("--coach-prompt", help="Coach prompt, a Markdown file")]
CoachBase = Annotated[str | None, typer.Option("--coach-api-base", help="Base URL of an OpenAI-compatible server")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, e.g. runs/latest")]


def parts_given(
    pipeline: str | None = None,
    coach: str | None = None,
    coach_prompt: Path | None = None,
    coach_api_base: str | None = None,
    model: str | None = None,
    backend: str | None = None,
    ray_address: str | None = None,
) -> dict[str, Any]:
    """Configuration key -> value of the flags that say what a run is made of; None where a flag was not given."""
    return {
        "pipeline.name": pipeline,
        "coach.name": coach,
        "coach.prompt": str(coach_prompt) if coach_prompt else None,
        "coach.api_base": coach_api_base,
        "model": model,
        "backend": backend,
        "openrlhf.ray_address": ray_address,
    }


def another_coach(coach: str | None, prompt: Path | None, api_base: str | None) -> dict[str, Any]:
    """What flags change in the coach of a saved run. Another coach does not inherit the address, the ensemble and the
    fallbacks of the run's, and what is no language model inherits no prompt."""
    from coachrl.coach.base import is_language_model

    flags: dict[str, Any] = {}
    if coach is not None:
        flags |= {"coach.name": coach, "coach.api_base": None, "coach.ensemble": [], "coach.fallbacks": []}
    if coach is not None and not is_language_model(coach):
        flags["coach.prompt"] = None
    if prompt is not None:
        flags["coach.prompt"] = str(prompt)
    if api_base is not None:
        flags["coach.api_base"] = api_base
    return flags
