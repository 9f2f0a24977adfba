"""Classes and functions of the user's own, by import path: "my_package.my_module:MyClass"."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coachrl.config.load import nearest
from coachrl.errors import ConfigError


def import_by_path(path: str, what: str) -> Any:
    """What the import path names; the current folder is looked into as well. what: the word for it in messages.

    Raises ConfigError, which names the nearest module or the nearest name in it where there is none of that name."""
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # the path of an installed command does not hold it
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing != module_name and not module_name.startswith(f"{missing}."):  # the module's own import is wrong
            raise ConfigError(f"{what} '{path}' cannot be imported: {error}") from error
        raise ConfigError(
            f"{what} '{path}': no module '{missing}'{nearest(missing, _modules_beside(missing))}"
        ) from error
    except Exception as error:  # the boundary to a module of the user's own, which may raise anything
        raise ConfigError(f"{what} '{path}' cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{what} '{path}': module '{module_name}' has no '{name}'{nearest(name, vars(module))}")
    return getattr(module, name)


def _modules_beside(module_name: str) -> Iterable[str]:
    """Full names of the modules in the package that should hold `module_name`."""
    package, dot, _ = module_name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if dot else None
    return [f"{package}{dot}{found.name}" for found in pkgutil.iter_modules(folders)]
