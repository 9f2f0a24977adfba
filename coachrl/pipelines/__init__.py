"""The pipelines that coachrl ships, by name."""

from __future__ import annotations

import inspect

from coachrl.config import PipelineConfig
from coachrl.config.choices import find_class
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, Pipeline, PipelineOptions

SHIPPED = {
    "mathchat": "coachrl.pipelines.math.mathchat:MathChat",
    "dsbench": "coachrl.pipelines.dsbench:DSBench",
    "planpath": "coachrl.pipelines.worlds.planpath:PlanPath",
    "sokoban": "coachrl.pipelines.worlds.sokoban:Sokoban",
    "sudoku": "coachrl.pipelines.worlds.sudoku:SudokuPipeline",
    "math_duo": "coachrl.pipelines.math.math_duo:MathDuo",
    "debate": "coachrl.pipelines.math.debate:Debate",
    "mixture": "coachrl.pipelines.math.mixture:Mixture",
    "code": "coachrl.pipelines.code.code:Code",
    "coop_code": "coachrl.pipelines.code.coop_code:CoopCode",
    "gateway": "coachrl.gateway.pipeline:Gateway",
}
"""In this order: a pipeline of a user's own that names no tasks takes those of the first whose ground truth is like its
own (`defaults.py`)."""


def find_pipeline(name: str) -> type[Pipeline]:
    """The class of the pipeline `name`: a shipped one, or `package.module:Class`, looked for in the current folder too.
    Raises ConfigError, also for what is no pipeline."""
    found = find_class("pipeline", name, SHIPPED, "my_package.my_module:MyPipeline")
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
