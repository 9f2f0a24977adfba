"""`coachrl pipelines`, `configs` and `config`: what can be chosen, and what a setting means."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from coachrl.cli.console import out, print_table
from coachrl.cli.options import ConfigOptions, takes_groups
from coachrl.errors import ConfigError

pipelines_app = typer.Typer(no_args_is_help=True, help="List the pipelines that ship.")
configs_app = typer.Typer(no_args_is_help=True, help="List the configs that ship.")
config_app = typer.Typer(no_args_is_help=True, help="Show what a setting means, and what it comes to.")


@pipelines_app.command("list")
def list_pipelines() -> None:
    """Every shipped pipeline: who acts in it, and which tasks it takes."""
    import inspect

    from coachrl.config import PipelineConfig
    from coachrl.pipelines import SHIPPED, find_pipeline, make_pipeline

    table = Table("name", "roles", "tasks", "about", box=None)
    for name in SHIPPED:
        pipeline = find_pipeline(name)
        about = (inspect.getdoc(inspect.getmodule(pipeline)) or "").partition("\n\n")[0]
        roles = "yours"
        if pipeline.Options.complete():
            roles = ", ".join(role.name for role in make_pipeline(PipelineConfig(name=name)).roles)
        table.add_row(name, roles, ", ".join(pipeline.task_sources), " ".join(about.split()))
    print_table(table)


@configs_app.command("list")
def list_configs() -> None:
    """Every shipped config, for --config NAME."""
    from coachrl.resources import resource

    table = Table("name", "about", box=None)
    for path in sorted(resource("configs").glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        about = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
        table.add_row(path.stem, " ".join(about))
    print_table(table)


@config_app.command("show")
@takes_groups
def show_setting(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A setting or a section, e.g. train.steps or train")],
    options: ConfigOptions,
) -> None:
    """What a setting is in a config, with its default and what it means; of a section, every setting in it."""
    from coachrl.config.explain import described, keys_at
    from coachrl.text import nearest, one_line

    found = described(options.resolve(), key)
    if not found:
        known: tuple[str, ...] = ()
        for name in key.split("."):
            if name not in keys_at(known):
                break
            known = (*known, name)
        near = nearest(name, keys_at(known))
        raise ConfigError(f"no setting '{one_line(key)}'{near}")
    for setting in found:
        out.print(f"{setting.key}={setting.value}   (default {setting.default})\n    {setting.about}")
