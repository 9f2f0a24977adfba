"""Which installed packages agents may import, and where their files lie."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from coachrl.errors import ConfigError

DEFAULT_PACKAGES = ("numpy", "pandas", "scipy", "scikit-learn", "sympy")
# Imported before the first execution, where their distribution is allowed.
PRELOAD = {
    "numpy": ("numpy", "numpy.random", "numpy.linalg"),
    "pandas": ("pandas",),
    "scipy": ("scipy", "scipy.stats", "scipy.sparse"),
    "scikit-learn": tuple(
        f"sklearn.{name}"
        for name in (
            "compose", "ensemble", "impute", "linear_model", "metrics", "model_selection", "neighbors",
            "pipeline", "preprocessing", "tree",
        )
    ),
    "sympy": ("sympy",),
}  # fmt: skip
# A package's folders that hold tables are emptied inside: benchmark tasks are made of such data, labels included.
_TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".arff", ".arff.gz", ".data", ".rda", ".parquet", ".feather", ".json.gz")

_TEST_DATA = "/tests/data/"  # tables in any form: scipy's have iris, in the order of its labels


@dataclass(frozen=True)
class Packages:
    """entries: top-level name (numpy, numpy.libs, six.py, ...) -> path on the host. hidden: folders, relative to where
    the entries are put, that must be empty inside. preload: modules to import beforehand."""

    entries: dict[str, Path]
    hidden: tuple[str, ...]
    preload: tuple[str, ...]


@functools.cache  # it goes through thousands of files
def resolve(names: tuple[str, ...] | None) -> Packages:
    """The allow-list `names` with all that they require. None: those of DEFAULT_PACKAGES that are installed.

    Raises ConfigError for a named distribution that is not installed.
    """
    wanted = [name for name in DEFAULT_PACKAGES if _find(name)] if names is None else list(names)
    for name in wanted:
        if _find(name) is None:
            raise ConfigError(
                f"sandbox package {name!r} is not installed here: pip install {name}, or take it off the list"
            )
    entries: dict[str, Path] = {}
    hidden: dict[str, Path] = {}
    for distribution in _with_requirements(wanted):
        for file in distribution.files or ():
            top = file.parts[0]
            if top in ("..", "__pycache__"):
                continue
            if top not in entries:
                entries[top] = Path(str(distribution.locate_file(top))).resolve()
            if (file.name.endswith(_TABLE_SUFFIXES) and len(file.parts) > 1) or _TEST_DATA in file.as_posix():
                hidden[str(file.parent)] = Path(str(distribution.locate_file(file.parent)))
    preload = tuple(module for name in wanted for module in PRELOAD.get(name, ()))
    there = [name for name, folder in hidden.items() if folder.is_dir()]  # some images leave tests out
    return Packages(dict(sorted(entries.items())), _outermost(there), preload)


def _find(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _with_requirements(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    queue = list(names)
    while queue:
        name = queue.pop().lower().replace("_", "-")
        distribution = None if name in found else _find(name)
        if distribution is None:
            continue
        found[name] = distribution
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return list(found.values())


def _outermost(folders: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for folder in sorted(folders):
        if not any(folder.startswith(f"{outer}/") for outer in kept):
            kept.append(folder)
    return tuple(kept)
