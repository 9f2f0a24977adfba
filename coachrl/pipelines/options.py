"""A pipeline's own parameters: `pipeline.options.<key>`, checked by the pipeline's own model of them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from coachrl.config import PipelineConfig, Section
from coachrl.config.explain import keys_at
from coachrl.errors import ConfigError
from coachrl.text import brief, nearest, one_line


class PipelineOptions(Section):
    """Base of a pipeline's `Options`; by itself the options of a pipeline that has none."""

    @classmethod
    def complete(cls) -> bool:
        """Whether every option has a default, so that the pipeline can be played without any."""
        return not any(field.is_required() for field in cls.model_fields.values())


def read_options(kind: type[PipelineOptions], settings: PipelineConfig, pipeline: str) -> PipelineOptions:
    """`settings.options` as a `kind`. Raises ConfigError that names every wrong option and the nearest known one."""
    try:
        return kind.model_validate(settings.options)
    except ValidationError as error:
        problems = "; ".join(_explain(item, kind, pipeline) for item in error.errors())
        raise ConfigError(f"pipeline.options: {problems}") from None


def _explain(item: Any, kind: type[PipelineOptions], pipeline: str) -> str:
    *parents, leaf = (str(part) for part in item["loc"]) if item["loc"] else ("",)
    dotted = one_line(".".join([*parents, leaf]))
    if item["type"] == "extra_forbidden":
        known = keys_at(parents, kind)
        listed = f"options: {', '.join(known)}" if known else "it takes no options"
        return f"{pipeline} has no option '{dotted}'{nearest(leaf, known)}; {listed}"
    if item["type"] == "missing":
        field = kind.model_fields.get(dotted)
        meaning = f" ({field.description.rstrip('.')})" if field is not None and field.description else ""
        return f"{pipeline} needs the option '{dotted}'{meaning}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{dotted}: {message} (got {brief(item['input'])})" if dotted else message
