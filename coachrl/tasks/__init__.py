"""Task sets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coachrl.config.sections import TaskConfig
from coachrl.errors import ConfigError, TaskError
from coachrl.seeding import generator
from coachrl.types import Task

DEFAULT_GENERATED = {"train": 512, "heldout": 64}
SOURCE_SETTINGS = ("train", "heldout", "root", "cleaned_prompts", "levels", "size", "walls", "boxes", "blanks")
"""Settings that some sources read and others do not."""


def load_tasks(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks. Raises TaskError where a set is empty or cannot be read, or a task is in both,
    ConfigError where a path that the source needs is not given, or a setting is given that it does not read."""
    for key in SOURCE_SETTINGS:
        if getattr(config, key) != TaskConfig.model_fields[key].default and key not in _READ[config.source]:
            raise ConfigError(f"tasks.source={config.source} reads no tasks.{key}: set another source, or leave it out")
    train, heldout = _LOADERS[config.source](config, seed)
    for name, tasks in (("training", train), ("held-out", heldout)):
        if not tasks:
            raise TaskError(f"the {name} task set of '{config.source}' is empty")
    return train, heldout


def first_that_reads(tasks: Mapping[str, Any], sources: Sequence[str]) -> str:
    """The first of `sources` that reads every setting of `tasks` that only some sources read: tasks.root asks for the
    official DSBench, tasks.train for files. Where none does it is the first of all, which then says so."""
    given = [key for key in SOURCE_SETTINGS if tasks.get(key) is not None]
    return next((source for source in sources if set(given) <= set(_READ[source])), sources[0])


def _word_problems(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.math.word_problems import generate_word_problems

    return (
        generate_word_problems(config.train_count or DEFAULT_GENERATED["train"], config.levels, seed, "train"),
        generate_word_problems(config.heldout_count or DEFAULT_GENERATED["heldout"], config.levels, seed, "heldout"),
    )


def _math(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.math.problems import load_math, without_overlap

    heldout = load_math(_given(config.heldout, "tasks.heldout", "math"), config.heldout_count)
    train = without_overlap(load_math(_given(config.train, "tasks.train", "math")), heldout)
    if config.train_count is None:
        return train, heldout
    # Problem lists are often sorted by year or level: a seeded sample, not the first ones (MAPPA, Sec. 3.1).
    chosen = generator(seed, "tasks").permutation(len(train))[: config.train_count]
    return [train[i] for i in sorted(chosen)], heldout


def _dsbench_lite(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.tabular.dsbench_lite import load_dsbench_lite

    return load_dsbench_lite("train")[: config.train_count], load_dsbench_lite("eval")[: config.heldout_count]


def _dsbench(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.tabular.dsbench import load_dsbench

    root = _given(config.root, "tasks.root", "dsbench")
    lists = (
        (_given(config.train, "tasks.train", "dsbench"), config.train_count),
        (_given(config.heldout, "tasks.heldout", "dsbench"), config.heldout_count),
    )
    train, heldout = (
        load_dsbench(root, path, config.cleaned_prompts, limit=count, skip_unusable=config.skip_unusable)
        for path, count in lists
    )
    shared = {task.id for task in train} & {task.id for task in heldout}
    if shared:
        raise TaskError(f"{len(shared)} training tasks are held-out tasks too: {', '.join(sorted(shared)[:5])}")
    return train, heldout


def _coop_code(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.code.problems import load_coop_code

    return load_coop_code("train")[: config.train_count], load_coop_code("heldout")[: config.heldout_count]


def _humaneval(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.code.problems import load_humaneval

    return load_humaneval("train")[: config.train_count], load_humaneval("heldout")[: config.heldout_count]


def _code(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.code.problems import load_code
    from coachrl.tasks.math.problems import check_disjoint

    train = load_code(_given(config.train, "tasks.train", "code"), config.train_count)
    heldout = load_code(_given(config.heldout, "tasks.heldout", "code"), config.heldout_count)
    check_disjoint(train, heldout)
    return train, heldout


def _planpath(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.worlds.planpath import generate_planpath

    return _both(generate_planpath, config, seed, "size", "walls")


def _sokoban(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.worlds.sokoban import generate_sokoban

    return _both(generate_sokoban, config, seed, "size", "boxes", "walls")


def _sudoku(config: TaskConfig, seed: int) -> tuple[list[Task], list[Task]]:
    from coachrl.tasks.worlds.sudoku import generate_sudoku

    return _both(generate_sudoku, config, seed, "size", "blanks")


def _both(
    generate: Callable[..., list[Task]], config: TaskConfig, seed: int, *keys: str
) -> tuple[list[Task], list[Task]]:
    """Both sets of a generated world, with those of its settings that are given."""
    given = {key: value for key in keys if (value := getattr(config, key)) is not None}
    return (
        generate(config.train_count or DEFAULT_GENERATED["train"], seed, "train", **given),
        generate(config.heldout_count or DEFAULT_GENERATED["heldout"], seed, "heldout", **given),
    )


_LOADERS = {
    "word-problems": _word_problems,
    "math": _math,
    "dsbench-lite": _dsbench_lite,
    "dsbench": _dsbench,
    "coop-code": _coop_code,
    "humaneval": _humaneval,
    "code": _code,
    "planpath": _planpath,
    "sokoban": _sokoban,
    "sudoku": _sudoku,
}

_READ: dict[str, tuple[str, ...]] = {
    "word-problems": ("levels",),
    "math": ("train", "heldout"),
    "dsbench-lite": (),
    "dsbench": ("train", "heldout", "root", "cleaned_prompts"),
    "coop-code": (),
    "humaneval": (),
    "code": ("train", "heldout"),
    "planpath": ("size", "walls"),
    "sokoban": ("size", "boxes", "walls"),
    "sudoku": ("size", "blanks"),
}


def _given(path: Path | None, key: str, source: str) -> Path:
    if path is None:
        raise ConfigError(f"tasks.source={source} needs {key}=PATH")
    return path
