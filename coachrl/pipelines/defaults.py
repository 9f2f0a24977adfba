"""What a run starts from where neither its config nor its flags say otherwise: what its pipeline says.

See `task_sources`, `small_model` and `warm_start` of `coachrl.pipelines.base.Pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coachrl.config.load import RunConfig, laid_over
from coachrl.config.sections import AdvantageConfig, PipelineConfig, TaskConfig, TorchConfig, TrainConfig
from coachrl.errors import ConfigError
from coachrl.pipelines import SHIPPED, find_pipeline
from coachrl.pipelines.base import Pipeline
from coachrl.tasks import first_that_reads

BUNDLED_MODEL: str = RunConfig.model_fields["model"].default
SMALL_RUN = RunConfig(
    pipeline=PipelineConfig(prompt_style="short"),
    advantage=AdvantageConfig(normalize_over="role", mask_truncated=False),  # to learn to stop is part of the spec
    train=TrainConfig(steps=8, tasks_per_step=16, learning_rate=2e-5),
    torch=TorchConfig(micro_batch_tokens=1024),
)
"""Only what is set here counts: steps that two cores can take in minutes, at a rate that moves so small a model."""


def pipeline_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, as a tree of keys, that belong below `given`, which is what the config and the flags say.

    Raises ConfigError where there is no such pipeline. What cannot be read is left for the configuration to refuse."""
    own = _section(given, "pipeline")
    pipeline = find_pipeline(str(own.get("name", PipelineConfig.model_fields["name"].default)))
    tree: dict[str, Any] = {}
    if sources := pipeline.task_sources:
        tree = {"tasks": {"source": first_that_reads(_section(given, "tasks"), sources)}}
    if given.get("model", BUNDLED_MODEL) == BUNDLED_MODEL and pipeline.small_model is not None:
        small = RunConfig(pipeline=pipeline.small_model)
        for settings in (SMALL_RUN, small):
            tree = laid_over(tree, settings.model_dump(mode="json", exclude_unset=True))
    return tree


def check_source(tasks: TaskConfig, pipeline: Pipeline) -> None:
    """Raises ConfigError where the pipeline says that it takes other tasks than `tasks.source`."""
    taken = pipeline.task_sources
    if not taken or tasks.source in taken:
        return
    others = [name for name in SHIPPED if tasks.source in find_pipeline(name).task_sources]
    raise ConfigError(
        f"tasks.source={tasks.source}: pipeline {pipeline.name} takes {', '.join(taken)}; set "
        f"tasks.source={first_that_reads({}, taken)}, or --pipeline {' or '.join(others)}"
    )


def _section(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = tree.get(key)
    return section if isinstance(section, Mapping) else {}
