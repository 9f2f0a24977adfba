"""What pydantic found wrong with a configuration, as sentences that say what would be right."""

from __future__ import annotations

import re
from typing import Any

from coachrl.config.algorithm import FOREIGN_KEY, UNKNOWN_NAME
from coachrl.config.run import RunConfig
from coachrl.config.section import Section, sections_in
from coachrl.config.tasks import SOURCES, ImportedTasks, sources_with
from coachrl.text import brief, nearest, one_line


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
        return f"{dotted}: it is a section of keys ({', '.join(keys_at(place))}), not {brief(item['input'])}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] in (FOREIGN_KEY, UNKNOWN_NAME):
        return message
    if item["type"] == "literal_error":
        message += nearest(brief(item["input"]).strip("'"), re.findall(r"'(.*?)'", item["ctx"]["expected"]))
    if not dotted or isinstance(item["input"], dict):  # what is wrong with a whole section is in the message
        return f"{dotted}: {message}" if dotted else message
    return f"{dotted}: {message} (got {brief(item['input'])})"


def _explain_unknown(item: Any, dotted: str) -> str:
    key = str(item["loc"][-1])
    parents = place_of(item)[:-1]
    if parents != ("tasks",):
        return f"unknown key '{dotted}'{nearest(key, keys_at(parents))}"
    source = str(item["loc"][1]).strip("[]")
    if others := sources_with(key):
        chosen = "a source of your own" if SOURCES[source] is ImportedTasks else f"tasks.source={source}"
        return f"{chosen} reads no {dotted}, which {_listed(others)}: set another source, or leave it out"
    return f"unknown key '{dotted}'{nearest(key, SOURCES[source].model_fields)}"


def _listed(sources: list[str]) -> str:
    *first, last = sources
    return f"only {', '.join(first)} and {last} do" if first else f"only {last} does"


def _explain_source(source: Any) -> str:
    close = nearest(source, SOURCES) if isinstance(source, str) else ""
    return f"tasks.source: it must be one of {', '.join(SOURCES)}{close} (got {brief(source)})"


def keys_at(place: tuple[str, ...]) -> list[str]:
    """The keys of the section at `place`. A dictionary of sections counts as one level."""
    sections: list[type[Section]] = [RunConfig]
    for key in place:
        annotations = [section.model_fields[key].annotation for section in sections if key in section.model_fields]
        sections = [found for annotation in annotations for found in sections_in(annotation)] or sections
    return list(dict.fromkeys(key for section in sections for key in section.model_fields))
