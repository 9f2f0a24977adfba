"""`coachrl pipelines`, `configs` and `config`: what can be chosen, and what a setting means."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import Rows, out, print_table
from coachrl.cli.options import RunOptions, takes_groups, those_given
from coachrl.errors import ConfigError
from coachrl.resources import resource
from coachrl.text import nearest, one_line

if TYPE_CHECKING:
    from coachrl.config import RunConfig

pipelines_app = typer.Typer(help="List the pipelines that ship.")
configs_app = typer.Typer(help="List the configs that ship.")
config_app = typer.Typer(help="Show what a setting means, and what it comes to.")


@pipelines_app.command("list")
def list_pipelines() -> None:
    """Every shipped pipeline: who acts in it, and which tasks it takes."""

    from coachrl.config import PipelineConfig
    from coachrl.pipelines import SHIPPED, find_pipeline, make_pipeline

    table = Rows("name", "roles", "tasks", "about")
    for name in SHIPPED:
        pipeline = find_pipeline(name)
        about = (inspect.getdoc(inspect.getmodule(pipeline)) or "").partition("\n\n")[0]
        roles = "yours"
        if pipeline.Options.complete():
            roles = ", ".join(role.name for role in make_pipeline(PipelineConfig(name=name)).roles)
        table.add(name, roles, ", ".join(pipeline.task_sources), " ".join(about.split()))
    print_table(table)


@configs_app.command("list")
def list_configs() -> None:
    """Every shipped config, for --config NAME."""

    table = Rows("name", "about")
    for path in sorted(resource("configs").glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        about = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
        table.add(path.stem, " ".join(about))
    print_table(table)


@dataclass(frozen=True)
class ShownOptions(RunOptions):
    """What `train` takes, and which settings to explain."""

    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY or KEY=VALUE",
            help="What to explain, e.g. train.steps or train; and settings as for train, e.g. train.steps=4",
        ),
    ] = None


@config_app.command("show")
@takes_groups
def show_settings(options: ShownOptions) -> None:
    """The whole configuration that `train` would run with, as YAML that --config takes, with where each value comes
    from that is no default. Of the settings and sections that are named: value, default and what they mean."""
    from coachrl.commands.configure import setting_sources
    from coachrl.config.explain import annotated

    words = options.overrides or []
    options = replace(options, overrides=[word for word in words if "=" in word])
    config = options.resolve()
    keys = [word for word in words if "=" not in word]
    for key in keys:
        _explain(config, key)
    if not keys:
        out.print(
            annotated(config, setting_sources(options.config, options.overrides or (), those_given(options.flags())))
        )


def _explain(config: RunConfig, key: str) -> None:
    from coachrl.config.called_elsewhere import behind, meant_by
    from coachrl.config.explain import described, keys_at, nearest_anywhere

    found = described(config, key)
    if not found:
        known: tuple[str, ...] = ()
        for name in key.split("."):
            if name not in keys_at(known):
                break
            known = (*known, name)
        beside = (".".join((*known, other)) for other in keys_at(known))
        full = [other for other in beside if described(config, other)]
        close = nearest(key, full) if known else nearest_anywhere(key)
        raise ConfigError(f"no setting '{one_line(key)}'{behind(meant_by(key, keys_at(()))) or close}")
    for setting in found:
        out.print(f"{setting.key}={setting.value}   (default {setting.default})\n    {setting.about}")
