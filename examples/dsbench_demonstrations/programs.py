"""What a demonstrated program is: code in one of several styles, sound or spoiled by one named fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .tables import TableTask

# How a first program ends: it runs and saves all; it breaks; it runs and saves too little; or it runs and saves all,
# and the team fails nevertheless, when a later agent breaks on it or when the submission is graded.
Effect = Literal["works", "error", "missing", "later"]
Writer = Callable[[TableTask, np.random.Generator], str]


@dataclass(frozen=True)
class Fault:
    """A realistic slip. spoil edits a sound program; where it changes nothing, the fault does not apply to it."""

    effect: Effect
    spoil: Callable[[str, TableTask, np.random.Generator], str]
    needs: Callable[[TableTask], bool] = lambda table: True
    styles: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Craft:
    """How one role's programs are written and how they go wrong.

    plain_style: the one that takes whatever upstream may have left in the data worst.
    """

    styles: Mapping[str, Writer]
    faults: Mapping[str, Fault]
    usable: Callable[[str, TableTask], bool] = lambda style, table: True
    plain_style: str = ""


@dataclass(frozen=True)
class Program:
    """One program. sound is the same program without its fault (equal to `code` where there is none)."""

    code: str
    style: str
    fault: str | None
    effect: Effect
    sound: str


def write_program(craft: Craft, table: TableTask, faulty: bool, rng: np.random.Generator) -> Program:
    """A program in a random style; where `faulty`, with one of the faults that apply to it."""
    styles = [name for name in craft.styles if craft.usable(name, table)]
    style = str(rng.choice(styles))
    sound = craft.styles[style](table, rng)
    if not faulty:
        return Program(sound, style, None, "works", sound)
    names = list(craft.faults)
    for name in (str(name) for name in rng.permutation(names)):
        fault = craft.faults[name]
        if fault.needs(table) and (fault.styles is None or style in fault.styles):
            code = fault.spoil(sound, table, rng)
            if code != sound:
                return Program(code, style, name, fault.effect, sound)
    raise AssertionError(f"no fault applies to style {style}")


def plain_program(craft: Craft, table: TableTask, rng: np.random.Generator) -> Program:
    """A sound program in the craft's least forgiving style, for agents after a fault that has not shown yet."""
    code = craft.styles[craft.plain_style](table, rng)
    return Program(code, craft.plain_style, None, "works", code)


def quoted(name: str) -> str:
    """A column name as a Python string."""
    return json.dumps(name, ensure_ascii=False)


def without_line(part: str) -> Callable[[str, TableTask, np.random.Generator], str]:
    """A spoiler that leaves out every line which holds `part`."""

    def spoil(code: str, table: TableTask, rng: np.random.Generator) -> str:
        return "\n".join(line for line in code.split("\n") if part not in line)

    return spoil


def swapped(old: str, *new: str) -> Callable[[str, TableTask, np.random.Generator], str]:
    """A spoiler that writes one of `new` in place of every `old`."""

    def spoil(code: str, table: TableTask, rng: np.random.Generator) -> str:
        return code.replace(old, str(rng.choice(new)))

    return spoil


def misspelt(name: str, rng: np.random.Generator) -> str:
    """A column name as it is easily mistaken, never equal to `name`."""
    variants = [name.lower(), name.upper(), name.title(), name.replace("_", " "), name.replace(" ", "_"), f"{name}s"]
    return str(rng.choice([variant for variant in dict.fromkeys(variants) if variant != name]))


def unbalanced(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The code with the last closing bracket of one line left out: it does not parse."""
    lines = code.split("\n")
    ends = [index for index, line in enumerate(lines) if line.endswith(")")]
    index = int(rng.choice(ends))
    lines[index] = lines[index][:-1]
    return "\n".join(lines)


def without_import(code: str, table: TableTask, rng: np.random.Generator) -> str:
    """The code without one of the imports that it uses from scikit-learn or joblib."""
    lines = code.split("\n")
    imports = [index for index, line in enumerate(lines) if re.match(r"from sklearn|import joblib", line)]
    if not imports:
        return code
    del lines[int(rng.choice(imports))]
    return "\n".join(lines)
