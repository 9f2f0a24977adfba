"""What a run starts from where neither its config nor its flags say otherwise: what its pipeline says.

See `task_sources`, `small_model` and `warm_start` of `coachrl.pipelines.base.Pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coachrl.config import PipelineConfig, RunConfig, TaskConfig
from coachrl.config.algorithm import DEFAULT, own_keys
from coachrl.config.tasks import ImportedTasks, first_that_reads
from coachrl.errors import ConfigError
from coachrl.pipelines import SHIPPED, find_pipeline
from coachrl.pipelines.base import Pipeline

BUNDLED_MODEL: str = RunConfig.model_fields["model"].default
SMALL_MODELS = (BUNDLED_MODEL, "tiny-random")
"""The models that get the settings of a small run: the bundled one, and the one that parts are tried with."""
SMALL_RUN: dict[str, Any] = {
    "algorithm": {"normalize_over": "role"},  # for algorithms that have that key
    # To learn to stop is part of the task, so that cut replies are trained on.
    "train": {"steps": 8, "tasks_per_step": 16, "learning_rate": 2e-5, "mask_truncated": False},
}
"""Steps that two cores can take in minutes, at a rate that moves so small a model."""

SMALL_TEAM = PipelineConfig(max_new_tokens=256)
"""For a pipeline that does not say how the bundled model plays it: thousands of tokens a reply would take it hours."""


def pipeline_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, as a tree of keys, that belong below `given`, which is what the config and the flags say.

    Raises ConfigError where there is no such pipeline. What cannot be read is left for the configuration to refuse."""
    own = _section(given, "pipeline")
    pipeline = find_pipeline(str(own.get("name", PipelineConfig.model_fields["name"].default)))
    tree: dict[str, Any] = {}
    if sources := pipeline.task_sources or _usual_sources(pipeline):
        tree = {"tasks": {"source": first_that_reads(_section(given, "tasks"), sources)}}
    if given.get("model", BUNDLED_MODEL) in SMALL_MODELS:
        known = own_keys(str(_section(given, "algorithm").get("name", DEFAULT)))
        algorithm = {key: value for key, value in SMALL_RUN["algorithm"].items() if key in known}
        # Shipped prompts have a short style; those of a pipeline that says nothing of small models may have none.
        style = {"prompt_style": "short"} if pipeline.small_model is not None else {}
        small = (pipeline.small_model or SMALL_TEAM).model_dump(mode="json", exclude_unset=True)
        if "max_new_tokens" in own:  # which is for all roles, but for those that are given one of their own
            for role in small.get("roles", {}).values():
                role.pop("max_new_tokens", None)
        tree |= {**SMALL_RUN, "algorithm": algorithm, "pipeline": style | small}
    return tree


def _usual_sources(pipeline: type[Pipeline]) -> tuple[str, ...]:
    """What a pipeline that names no sources of its own plays without being told: what the shipped one does that its
    tasks' ground truth is of, else the default pipeline."""
    shipped = (find_pipeline(name) for name in SHIPPED)
    alike = (other for other in shipped if other.task_sources and issubclass(other.ground_truth, pipeline.ground_truth))
    return next(alike, Pipeline).task_sources


def check_source(tasks: TaskConfig, pipeline: Pipeline) -> None:
    """Raises ConfigError where the pipeline says that it takes other tasks than `tasks.source`. What a source of the
    user's own gives is not known yet, and is left for the pipeline to refuse."""
    taken = pipeline.task_sources
    if not taken or tasks.source in taken or isinstance(tasks, ImportedTasks):
        return
    others = [name for name in SHIPPED if tasks.source in find_pipeline(name).task_sources]
    raise ConfigError(
        f"tasks.source={tasks.source}: pipeline {pipeline.name} takes {', '.join(taken)}; set "
        f"tasks.source={taken[0]}, or --pipeline {' or '.join(others)}"
    )


def _section(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = tree.get(key)
    return section if isinstance(section, Mapping) else {}
