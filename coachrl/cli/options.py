"""Options that several verbs take, each declared once, in groups that a verb takes as one parameter.

    @takes_groups
    def evaluate(run: RunOptions, as_json: Json = False) -> None: ...

The command line shows the fields of `RunOptions` in the place of `run`. All verbs' files are imported whenever
`coachrl` is called, so nothing that takes long to import (configuration, NumPy, models) stands at their head or here.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from coachrl.cli import completion
from coachrl.errors import ConfigError
from coachrl.storage.files import at_home

if TYPE_CHECKING:
    from coachrl.config import RunConfig


def path(given: str | Path) -> Path:
    """Of every path that a command takes: few shells make the one in `--out=~/x` whole. An empty one, as of a shell's
    variable that is not set, would be the current folder."""
    if given == "":
        raise typer.BadParameter("the path is empty")
    return at_home(given)


path_option = functools.partial(typer.Option, parser=path)
path_argument = functools.partial(typer.Argument, parser=path)

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        help="YAML file, or the name of a shipped one such as quickstart.",
        autocompletion=completion.configs,
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key.sub=value, e.g. train.steps=4")]
Coach = Annotated[str | None, typer.Option("--coach", help="rules, gemini-2.5-pro, anthropic/…, …, or my_mod:MyCoach")]
CoachPrompt = Annotated[Path | None, path_option("--coach-prompt", help="Coach prompt, a Markdown file")]
CoachBase = Annotated[str | None, typer.Option("--coach-api-base", help="Base URL of an OpenAI-compatible server")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RunFolder = Annotated[Path, path_argument(metavar="RUN", help="Run folder, e.g. runs/latest")]
WhichCheckpoint = Annotated[
    str, typer.Option("--checkpoint", help="last, best (by held-out success), or the number of a step")
]
CoachOverrides = Annotated[
    list[str] | None, typer.Argument(help="Coach settings as coach.key=value, e.g. coach.temperature=0.7")
]


def page_in(run_folder: Path, name: str) -> Path:
    """Where a run's page of this name stands. Raises ConfigError where it cannot be written, before anything is
    counted."""
    from coachrl.runs.folder import Run

    place = Run.open(run_folder).folder
    if not os.access(place, os.W_OK | os.X_OK):
        reason = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise ConfigError(f"{place} cannot be written ({os.strerror(reason)}): name a place for the page with --html")
    return place / name


def those_given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that somebody gave."""
    return {key: value for key, value in flags.items() if value is not None}


@dataclass(frozen=True)
class ConfigOptions:
    """Where settings come from: a file, and single ones on top of it."""

    overrides: Overrides = None
    config: ConfigOption = None

    def flags(self) -> dict[str, Any]:
        """Configuration key -> value, of the options that stand for a setting; None where one was not given."""
        return {}

    def resolve(self, flags: Mapping[str, Any] | None = None) -> RunConfig:
        """The configuration that all of this comes to. flags: further options of the verb, as `flags()` has them.
        Raises ConfigError."""
        from coachrl.commands.configure import run_config

        return run_config(self.config, self.overrides or (), those_given(self.flags() | dict(flags or {})))


@dataclass(frozen=True)
class CoachOptions:
    """Who scores."""

    coach: Coach = None
    coach_prompt: CoachPrompt = None
    coach_api_base: CoachBase = None

    @property
    def given(self) -> bool:
        return any(value is not None for value in (self.coach, self.coach_prompt, self.coach_api_base))

    def of_a_saved_run(self) -> dict[str, Any]:
        """What these change in the coach of a saved run."""
        from coachrl.commands.configure import coach_flags

        return coach_flags(self.coach, self.coach_prompt, self.coach_api_base)


@dataclass(frozen=True)
class TeamOptions(ConfigOptions):
    """Who plays what, and on which machine."""

    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            help="A shipped one, such as mathchat, or my_pkg.my_mod:MyPipeline",
            autocompletion=completion.pipelines,
        ),
    ] = None
    model: Annotated[
        str | None, typer.Option("--model", help="Hugging Face folder or name, smollm2-135m, or tiny-random")
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            help="torch, vllm for one GPU, or openrlhf for GPU nodes",
            autocompletion=completion.backends,
        ),
    ] = None
    ray_address: Annotated[str | None, typer.Option("--ray-address", help="host:port of a running Ray cluster")] = None

    def flags(self) -> dict[str, Any]:
        return {
            "pipeline.name": self.pipeline,
            "model": self.model,
            "backend": self.backend,
            "openrlhf.ray_address": self.ray_address,
        }


@dataclass(frozen=True)
class RunOptions(CoachOptions, TeamOptions):
    """All that a run is made of."""

    def flags(self) -> dict[str, Any]:
        return super().flags() | {
            "coach.name": self.coach,
            "coach.prompt": str(self.coach_prompt) if self.coach_prompt else None,
            "coach.api_base": self.coach_api_base,
        }


def takes_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the fields of each option group as parameters of their own, in the place of the group."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, tuple[type, list[str]]] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            shown.append(parameter.replace(annotation=kind))
            continue
        assert isinstance(kind, type)
        fields = dataclasses.fields(kind)
        groups[name] = (kind, [field.name for field in fields])
        field_hints = get_type_hints(kind, include_extras=True)
        shown += [
            parameter.replace(name=field.name, default=field.default, annotation=field_hints[field.name])
            for field in fields
        ]

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        for name, (kind, fields) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        verb(**given)

    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called
