"""Writes docs/configuration.md from the settings themselves: `python scripts/configuration_page.py`.

A test fails while the page differs from what this prints.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from coachrl.config import RunConfig, Section
from coachrl.config.section import is_resumable, sections_in
from coachrl.config.tasks import SOURCES, TaskSection

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

<!-- Made by scripts/configuration_page.py from coachrl/config: change the settings there, not here. -->

Every setting of a run, with its default and what it means. A YAML file (`coachrl train -c my.yaml`) holds only what
differs from the defaults, and `key.sub=value` on the command line overrides both. What counts, from the least to the
most: the defaults below, what the pipeline says, the file, the command line. An unknown key is an error that names the
nearest known one. So is a setting that belongs to one choice alone and is named on the command line without that, such
as `openrlhf.gpus` without `backend=openrlhf`; in a file, which may serve two backends, it may stand, and where compared
runs differ in their algorithm or coach it is told and not refused. `coachrl train --dry-run` says what a configuration
would do, and what in it comes to nothing; a run keeps all of its settings in its folder's `config.yaml`.

With the bundled model, which is the default, or with `tiny-random`, the pipeline says more: 8 steps of 16 tasks at a
learning rate of 2e-5 in place of 100 steps at 1e-6, replies of a length that so small a model can fill, the short
prompts where it has them, and cut replies are trained on. `coachrl config show --pipeline NAME` shows
each value and where it comes from.

A setting marked with ↻ may change when a run is resumed (`coachrl train --resume runs/x coach.budget_usd=20`); all
others shape what a run learns, and stay.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_section("The run itself", RunConfig, ""), *_sections()])


def _sections() -> Iterator[str]:
    """Each section of `RunConfig` in its order, and the sections within it."""
    for name, field in RunConfig.model_fields.items():
        if name == "tasks":
            yield from _tasks()
            continue
        yield from _nested(name, field)


def _nested(place: str, field: FieldInfo) -> Iterator[str]:
    """The section, or sections, that a field holds, and those within them."""
    sections = list(sections_in(field.annotation))
    place += {dict: ".<name>", tuple: "[]"}.get(get_origin(field.annotation), "")
    for section in sections:
        chosen = _choice(section) if len(sections) > 1 else ""
        yield from _section(f"`{place}{chosen}`", section, f"{place}.", level=3 if place.startswith("tasks.") else 2)
        for name, inner in section.model_fields.items():
            yield from _nested(f"{place}.{name}", inner)


def _choice(section: type[Section]) -> str:
    """What chooses this member of a union, such as ".name=grpo"."""
    fixed = ((name, get_args(field.annotation)) for name, field in section.model_fields.items())
    return next((f".{name}={values[0]}" for name, values in fixed if len(values) == 1), "")


def _tasks() -> Iterator[str]:
    """The sources of tasks, each with the keys that it alone has."""
    yield "## `tasks`\n"
    yield "Where the tasks come from. `tasks.source` says which; by default the pipeline does. Each source has keys of"
    yield "its own, and a key of another one is refused.\n"
    yield f"{_one_line(TaskSection)}\n"
    for name, section in SOURCES.items():
        yield from _section(f"`tasks.source={name}`", section, "tasks.", level=3)
        for key, field in section.model_fields.items():
            yield from _nested(f"tasks.{key}", field)


def _section(title: str, section: type[Section], prefix: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield f"{_one_line(section)}\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in section.model_fields.items():
        if prefix == "" and any(sections_in(field.annotation)):
            continue
        within = list(sections_in(field.annotation))
        is_section = within and isinstance(field.annotation, type)
        default = "" if is_section else _default(field.get_default(call_default_factory=True))
        meaning = field.description or ("See below." if within else "")
        mark = " ↻" if is_resumable(field) else ""
        kind = _kind(field.annotation, _bounds(field.metadata))
        yield f"| `{prefix}{name}`{mark} | {kind} | {default} | {_cell(meaning)} |"
    yield ""


def _one_line(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())


def _default(value: Any) -> str:
    """The default as it would stand in YAML."""
    if value is PydanticUndefined:
        return "none: it must be given"
    if isinstance(value, Path):
        value = str(value)
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _bounds(metadata: Iterable[Any]) -> str:
    """What a number must keep to: " ≥ 1"."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    held = [
        f" {sign} {getattr(each, name):,}" for each in metadata for name, sign in signs.items() if hasattr(each, name)
    ]
    return " and".join(held)


def _kind(annotation: Any, bounds: str = "") -> str:
    """What a value may be, in words. bounds: of the numbers among it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return ", ".join(_kind(part, bounds) for part in parts)
    if origin is tuple:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    if hasattr(annotation, "__metadata__"):
        return _kind(parts[0], _bounds(annotation.__metadata__))
    return _WORDS[annotation] + (bounds if annotation in (int, float) else "")


_WORDS = {
    bool: "`true`, `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    type(None): "`null`",
    Any: "anything",
}


def _cell(text: str) -> str:
    """Text for a table, in which neither a bar nor the name of a place is markup."""
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
