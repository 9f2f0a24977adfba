"""Prompt files: Markdown with a YAML header that declares the fields which the body uses as {{field}}.

    ---
    fields: [problem, draft]
    ---
    Check this draft for {{problem}} ...

Fields are filled in one pass, so braces that come in with a value stay text. A field that is used but not declared, or
declared but not used, is an error when the file is loaded, not when the first agent reaches it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from coachrl.errors import ConfigError
from coachrl.parsing import parse_yaml
from coachrl.storage.files import read_text

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_HEADER = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)


@dataclass(frozen=True)
class Prompt:
    """A loaded template. sha256 covers header and body, and names the prompt in ledgers."""

    name: str
    body: str
    fields: frozenset[str]
    sha256: str
    header: Mapping[str, Any] = field(default_factory=dict)

    def render(self, **values: object) -> str:
        """The body with every place filled. Raises ConfigError on a missing or an unknown field, and on a value that is
        no text, such as a whole task in place of its prompt."""
        missing, unknown = self.fields - values.keys(), values.keys() - self.fields
        wrong = [f"no value for {', '.join(sorted(missing))}"] if missing else []
        wrong += [f"no place for {', '.join(sorted(unknown))}"] if unknown else []
        wrong += [f"{name} is {type(value).__name__}, no text" for name, value in values.items() if _is_no_text(value)]
        if wrong:
            its_fields = ", ".join(sorted(self.fields)) or "none"
            raise ConfigError(f"prompt {self.name}: {'; '.join(wrong)} (its fields: {its_fields})")
        return _PLACE.sub(lambda match: str(values[match.group(1)]), self.body)


def _is_no_text(value: object) -> bool:
    """Whether a model would read how Python calls it: what was not awaited, not called, or not asked for its text."""
    is_record = is_dataclass(value) and type(value).__str__ is object.__str__
    return value is None or is_record or callable(value) or inspect.isawaitable(value)


NO_PROMPT = Prompt(name="none", body="", fields=frozenset(), sha256="")


def parse_prompt(text: str, name: str) -> Prompt:
    """A `Prompt` from the text of its file. Raises ConfigError where header and body disagree."""
    match = _HEADER.match(text.replace("\r\n", "\n"))
    if match is None:
        names = ", ".join(dict.fromkeys(_PLACE.findall(text)))
        raise ConfigError(
            f"prompt {name}: it must begin with a YAML header between two lines of '---' that names the fields which "
            f"stand in the text as {{{{field}}}}, here fields: [{names}]"
        )
    header = parse_yaml(match.group(1), f"the header of prompt {name}") or {}
    fields = header.get("fields", []) if isinstance(header, dict) else None
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise ConfigError(f"prompt {name}: the header must be a mapping whose 'fields' is a list of names")
    body = match.group(2).strip()
    declared, used = frozenset(fields), frozenset(_PLACE.findall(body))
    if declared != used:
        raise ConfigError(
            f"prompt {name}: header declares {sorted(declared)}, body uses {sorted(used)}; they must be the same"
        )
    return Prompt(name, body, declared, hashlib.sha256(text.encode()).hexdigest(), header)


def load_prompt(path: Path) -> Prompt:
    """Read one prompt file. Raises ConfigError where it is missing or malformed."""
    return parse_prompt(read_text(path, f"prompt file {path}"), path.stem)
