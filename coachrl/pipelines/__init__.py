"""The pipelines that coachrl ships, by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, Pipeline, PipelineOptions
from coachrl.pipelines.options import options_of, read_options
from coachrl.text import nearest

SHIPPED = {
    "mathchat": "coachrl.pipelines.mathchat:MathChat",
    "dsbench": "coachrl.pipelines.dsbench:DSBench",
    "planpath": "coachrl.pipelines.planpath:PlanPath",
    "sokoban": "coachrl.pipelines.sokoban:Sokoban",
    "sudoku": "coachrl.pipelines.sudoku:SudokuPipeline",
    "math_duo": "coachrl.pipelines.math_duo:MathDuo",
    "debate": "coachrl.pipelines.debate:Debate",
    "mixture": "coachrl.pipelines.mixture:Mixture",
    "code": "coachrl.pipelines.code:Code",
    "coop_code": "coachrl.pipelines.coop_code:CoopCode",
}


def find_pipeline(name: str) -> type[Pipeline]:
    """The class of the pipeline `name`: a shipped one, or `package.module:Class`, looked for in the current folder too.
    Raises ConfigError, also for what is no pipeline."""
    target = SHIPPED.get(name, name)
    module_name, separator, class_name = target.partition(":")
    if not separator:
        raise ConfigError(
            f"no pipeline '{name}'{nearest(name, SHIPPED)}; "
            f"shipped: {', '.join(SHIPPED)}; your own: my_package.my_module:MyPipeline"
        )
    here = str(Path.cwd())
    if here not in sys.path:  # the path of an installed command does not hold it
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever a module of the user's own may raise
        raise ConfigError(f"pipeline '{name}' cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, Pipeline):
        raise ConfigError(f"pipeline '{name}' is no pipeline: it must be a subclass of {Pipeline.__module__}.Pipeline")
    if inspect.isabstract(found):
        raise ConfigError(f"pipeline '{name}' does nothing yet: define `async def run(self, task, team, workspace)`")
    if not issubclass(found.Options, PipelineOptions):
        raise ConfigError(f"pipeline '{name}': its Options must be a subclass of PipelineOptions")
    if found.environment is not None and not issubclass(found.environment, Environment):
        raise ConfigError(f"pipeline '{name}': its environment must be a subclass of Environment")
    if not found.name:
        raise ConfigError(f"pipeline '{name}' has no name: set `name` on the class")
    return found


def make_pipeline(settings: PipelineConfig) -> Pipeline:
    """The pipeline named by `settings.name`. Raises ConfigError, also for what is no pipeline, or does not know one of
    `settings.options` or `settings.roles`."""
    pipeline = find_pipeline(settings.name)(settings)
    pipeline.check()
    return pipeline
