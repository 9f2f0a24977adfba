"""The pipelines that coachrl ships, by name."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

from coachrl.config import PipelineConfig
from coachrl.config.choices import check_takes, find_class, user_code
from coachrl.config.tasks import SOURCES
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, Pipeline, PipelineOptions
from coachrl.pipelines.team.roles import check_name
from coachrl.text import brief, nearest

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
    _check_declarations(found, f"pipeline '{name}'")
    return found


def _check_declarations(found: type[Pipeline], shown: str) -> None:
    """Raises ConfigError for a declaration that is of another kind than `Pipeline` says. shown: what messages call the
    pipeline."""
    if not _is_class(found.Options, PipelineOptions):
        raise ConfigError(f"{shown}: its Options must be a subclass of PipelineOptions")
    if found.environment is not None and not _is_class(found.environment, Environment):
        raise ConfigError(f"{shown}: its environment must be a subclass of Environment")
    if not found.name:
        raise ConfigError(f"{shown} has no name: set `name` on the class")
    check_name(found.name, f"{shown}: its name")
    if not isinstance(found.ground_truth, type):
        raise ConfigError(f"{shown}: its ground_truth must be one class, such as `str` without quotes")
    if found.small_model is not None and not isinstance(found.small_model, PipelineConfig):
        raise ConfigError(f"{shown}: its small_model must be a PipelineConfig, as in PipelineConfig(max_new_tokens=64)")
    if not inspect.iscoroutinefunction(inspect.unwrap(found.run)):
        raise ConfigError(f"{shown}: its run must be `async def run(self, task, team, workspace)`, and not `yield`")
    check_takes(found.run, ["self", "task", "team", "workspace"], f"{shown}: its run")
    _check_task_sources(found, shown)
    _check_spelling(found, shown)


def _check_spelling(found: type[Pipeline], shown: str) -> None:
    """Raises ConfigError for an attribute that is nearly what a pipeline may declare: nobody would ever read it."""
    own = {
        name
        for parent in found.__mro__
        for name, value in vars(parent).items()
        if name[0] != "_" and not hasattr(Pipeline, name) and not inspect.isroutine(value)
    }
    for name in sorted(own):
        for meant in get_close_matches(name, _DECLARED, n=1, cutoff=0.85):
            raise ConfigError(
                f"{shown}: nothing reads its {name}, did you mean '{meant}'? (call what is your own otherwise)"
            )


_DECLARED = ("ground_truth", "joint_rewards", "needs_workspace", "small_model", "task_sources", "warm_start")


def _is_class(found: Any, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


def _check_task_sources(found: type[Pipeline], shown: str) -> None:
    if not isinstance(found.task_sources, (tuple, list)):
        raise ConfigError(f"{shown}: its task_sources must be a tuple of names, as in ('math',)")
    for source in found.task_sources:
        if source not in SOURCES and ":" not in str(source):
            known = ", ".join(SOURCES)
            raise ConfigError(
                f"{shown}: its task_sources name no task set {brief(source)}{nearest(str(source), SOURCES)} "
                f"(task sets: {known})"
            )


def make_pipeline(settings: PipelineConfig) -> Pipeline:
    """The pipeline named by `settings.name`. Raises ConfigError, also for what is no pipeline, or does not know one of
    `settings.options` or `settings.roles`."""
    found = find_pipeline(settings.name)
    with user_code(f"pipeline '{settings.name}' cannot be made", ConfigError):
        pipeline = found(settings)
    pipeline.check()
    return pipeline
