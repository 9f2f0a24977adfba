"""What pydantic found wrong with a configuration, as sentences that say what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from coachrl.config.algorithm import WHOLE_SENTENCE
from coachrl.config.called_elsewhere import behind, meant_by
from coachrl.config.choices import with_colon
from coachrl.config.run import RunConfig
from coachrl.config.section import Section, flat_settings, sections_in
from coachrl.config.tasks import SOURCES, ImportedTasks, sources_with
from coachrl.text import brief, nearest, one_line

_OWN_KEYS = ("policies",)  # sections whose keys are names that the user gives


def place_of(item: Any) -> tuple[str, ...]:
    """The keys that lead to what is wrong. A part with a bracket names a type, or a member of a union, and no key."""
    *parents, last = item["loc"] or ("",)
    keys = [str(part) for part in parents if "[" not in str(part)]
    is_a_key = item["type"] == "extra_forbidden" or "[" not in str(last)  # an unknown key may be anything
    return (*keys, str(last)) if item["loc"] and is_a_key else tuple(keys)


def explain(item: Any) -> str:
    """One of pydantic's errors as a sentence."""
    place = place_of(item)
    dotted = one_line(".".join(place))
    if item["type"] == "extra_forbidden":
        return _explain_unknown(item, dotted)
    if item["type"].startswith("union_tag_") and isinstance(item["input"], dict):
        return _explain_source(item["input"].get("source"))
    if item["type"] in ("model_type", "model_attributes_type") or item["type"].startswith("union_tag_"):
        keys = keys_at(place)
        choice = next((key for key in ("name", "source") if key in keys), None)
        if choice and len(place) == 1 and isinstance(item["input"], str):
            return f"{dotted}: it is a section of keys, not {brief(item['input'])}: set {dotted}.{choice} to that"
        return f"{dotted}: it is a section of keys ({', '.join(keys)}), not {brief(item['input'])}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == WHOLE_SENTENCE:
        return message
    if item["type"] == "string_type" and isinstance(item["input"], (bool, int, float, date)):
        # YAML reads no, on, 7 and 2026-01-31 as something else than text; a word in a word's quotes it leaves alone.
        return f"{dotted}: it must be text (got {brief(item['input'])}); write it as {dotted}='\"…\"'"
    if item["type"] == "string_type" and isinstance(item["input"], dict):
        return f"{dotted}: it is text and no section: write it as {dotted}=VALUE"
    if item["type"] == "tuple_type" and isinstance(item["input"], str):
        given = brief(item["input"])
        return f"{dotted}: it must be a list (got {given}); write it as {dotted}=[{given[1:-1]}]"
    if item["type"] == "string_pattern_mismatch" and item["ctx"]["pattern"] == ":":
        close = with_colon(item["input"], "my_module:my_function")
        return f"{dotted}: it is an import path, as my_module:my_function{close} (got {brief(item['input'])})"
    if item["type"] == "literal_error":
        message += nearest(brief(item["input"]).strip("'"), re.findall(r"'(.*?)'", item["ctx"]["expected"]))
    if not dotted or isinstance(item["input"], dict):  # what is wrong with a whole section is in the message
        return f"{dotted}: {message}" if dotted else message
    return f"{dotted}: {message} (got {brief(item['input'])})"


def _explain_unknown(item: Any, dotted: str) -> str:
    key = str(item["loc"][-1])
    parents = place_of(item)[:-1]
    hints = {leaf: _elsewhere(leaf) for leaf in flat_settings({dotted: item["input"]})}
    if any(hints.values()):
        return "; ".join(f"unknown key '{one_line(leaf)}'{hint}" for leaf, hint in hints.items() if hint)
    if parents != ("tasks",):
        # The very word, in another section or in none, says more than one like it in this section.
        elsewhere = not parents or key in keys_at(()) or _sections_with(key)
        return f"unknown key '{dotted}'{nearest_anywhere(key) if elsewhere else nearest(key, keys_at(parents))}"
    source = str(item["loc"][1]).strip("[]")
    if others := sources_with(key):
        chosen = "a source of your own" if SOURCES[source] is ImportedTasks else f"tasks.source={source}"
        or_else = f"or leave {dotted} out"
        if SOURCES[source] is ImportedTasks and key == "grader":
            or_else = 'or leave it out and name the grader in each task: MathTruth(answer, grader="my_module:same")'
        return f"{chosen} reads no {dotted}, which {_listed(others)}: set tasks.source to it, {or_else}"
    return f"unknown key '{dotted}'{nearest(key, SOURCES[source].model_fields)}"


def _elsewhere(dotted: str) -> str:
    """What is said behind a key that another trainer has, or that stands in a section of another's; empty where it is
    known in neither way. There a word such as `shuffle` may mean anything; `zero_stage` means what it does here."""
    meant = meant_by(dotted, RunConfig.model_fields)
    section, _, key = dotted.rpartition(".")
    is_elsewhere = bool(section) and section.partition(".")[0] not in keys_at(())
    return nearest_anywhere(key) if not meant and is_elsewhere and "_" in key and _sections_with(key) else behind(meant)


def nearest_anywhere(key: str) -> str:
    """As `nearest`, for a key without its section: `steps` is train.steps."""
    within = [f"{name}.{key}" for name in _sections_with(key)]
    if within and key not in keys_at(()):
        return f", did you mean {' or '.join(map(repr, within))}?"
    return nearest(key, keys_at(()))


def setting_called(word: str) -> str:
    """The setting that a word names with its section or without, or by which another trainer has it, or a sentence in
    its place (`meant_by`); empty where it names none, or several."""
    *parents, key = word.split(".")
    if parents and key in keys_at(parents) and parents[0] in keys_at(()):
        return word
    within = [f"{name}.{word}" for name in _sections_with(word)]
    return meant_by(word, RunConfig.model_fields) or (within[0] if len(within) == 1 else "")


def _sections_with(key: str) -> list[str]:
    sections = [name for name, field in RunConfig.model_fields.items() if list(sections_in(field.annotation))]
    return [name for name in sections if name not in _OWN_KEYS and key in keys_at((name,))]


def _listed(sources: list[str]) -> str:
    *first, last = sources
    return f"only {', '.join(first)} and {last} do" if first else f"only {last} does"


def _explain_source(source: Any) -> str:
    said = f"tasks.source: it must be one of {', '.join(SOURCES)}"
    if not isinstance(source, str):
        return f"{said} (got {brief(source)})"
    shipped = [name for name in SOURCES if ":" not in name]
    close = with_colon(source, "my_module:load") or nearest(source, shipped)
    if "/" in source or not close:
        return f"{said} (got {brief(source)}); problems of your own are tasks.source=math tasks.train=FILE_OR_FOLDER"
    return f"{said}{close} (got {brief(source)})"


def keys_at(place: Iterable[str], root: type[BaseModel] = RunConfig) -> list[str]:
    """The keys of the section at `place` below `root`. A dictionary of sections counts as one level."""
    sections = [root]
    for key in place:
        annotations = [section.model_fields[key].annotation for section in sections if key in section.model_fields]
        sections = [found for annotation in annotations for found in sections_in(annotation)] or sections
    return list(dict.fromkeys(key for section in sections for key in section.model_fields))


@dataclass(frozen=True)
class Setting:
    """One setting of a configuration. value and default as they would stand in JSON."""

    key: str
    value: str
    default: str
    about: str


def described(config: RunConfig, key: str) -> list[Setting]:
    """The setting `key`, or all settings of the section `key`; none where there is nothing of that name."""
    section: Any = config
    *parents, last = key.split(".")
    for name in parents:
        section = section.get(name) if isinstance(section, dict) else getattr(section, name, None)
    if not isinstance(section, Section) or last not in type(section).model_fields:
        return []
    return list(_settings(section, ".".join([*parents, ""]), [last]))


def annotated(config: RunConfig, sources: Mapping[str, str]) -> str:
    """The whole configuration as YAML that `load_config` reads back. sources: dotted key -> where its value comes from,
    which stands beside it as a comment; a key without one has its default."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    lines = text.splitlines()
    for key, line in _lines_of(yaml.compose(text, yaml.SafeLoader)):
        if key in sources:
            lines[line] += f"  # {sources[key]}"
    return "\n".join(lines)


def _lines_of(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The dotted key of each leaf and the line on which a comment can follow it: the last one of a text, which may have
    several, and the key's own of a list."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        yield from _lines_of(value, f"{prefix}{key.value}.")
        last = value.end_mark if isinstance(value, yaml.ScalarNode) else key.end_mark
        yield f"{prefix}{key.value}", last.line


def _settings(section: Section, prefix: str, names: Iterable[str]) -> Iterator[Setting]:
    plain = section.model_dump(mode="json")
    for name in names:
        value, field = getattr(section, name), type(section).model_fields[name]
        if isinstance(value, Section):
            yield from _settings(value, f"{prefix}{name}.", type(value).model_fields)
            continue
        default = to_jsonable_python(None if field.is_required() else field.get_default(call_default_factory=True))
        shown, usual = (json.dumps(given, ensure_ascii=False) for given in (plain[name], default))
        yield Setting(f"{prefix}{name}", shown, usual, field.description or "")
