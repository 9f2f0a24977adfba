"""Choices by name: a shipped class from a table of import paths, or the user's own by `package.module:Class`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from coachrl.errors import ConfigError
from coachrl.text import nearest, one_line


def find_class(kind: str, name: str, shipped: Mapping[str, str], example: str) -> Any:
    """What `name` stands for: a name of the table `shipped`, or an import path `package.module:Class`.

    kind: what the messages call it ("algorithm"). example: an import path that shows the form.
    Raises ConfigError that names the nearest known one.
    """
    module_name, separator, class_name = shipped.get(name, name).partition(":")
    if not separator:
        raise ConfigError(
            f"no {kind} '{one_line(name)}'{nearest(name, shipped)} (shipped: {', '.join(shipped)}; your own: {example})"
        )
    module = _import(kind, name, module_name, shipped)
    found = getattr(module, class_name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(
            f"{kind} '{one_line(name)}': {module_name} has no '{class_name}'{nearest(class_name, classes)}"
        )
    return found


def _import(kind: str, name: str, module_name: str, shipped: Mapping[str, str]) -> ModuleType:
    # A module of the user's own lies where the command is run; the path of an installed command does not hold that.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever a module of the user's own may raise
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            known = [path.partition(":")[0] for path in shipped.values()]
            hint = nearest(module_name, [*known, *(file.stem for file in Path(here).glob("*.py"))])
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"{kind} '{one_line(name)}' cannot be imported: {reason}{hint}") from error
