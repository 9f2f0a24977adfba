"""Task sets by name, and those of a user's own function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from coachrl.config import RunConfig, TaskSection
from coachrl.config.tasks import (
    CodeTasks,
    CoopCodeTasks,
    DSBenchLiteTasks,
    DSBenchTasks,
    HumanEvalTasks,
    ImportedTasks,
    MathTasks,
    PlanPathTasks,
    SokobanTasks,
    SudokuTasks,
    WordProblemTasks,
)
from coachrl.errors import ConfigError, TaskError
from coachrl.seeding import generator
from coachrl.tasks.code.problems import load_code, load_coop_code, load_humaneval
from coachrl.tasks.imported import find_loader, load_imported
from coachrl.tasks.math.problems import check_disjoint, find_grader, math_tasks, with_grader, without_overlap
from coachrl.tasks.math.word_problems import generate_word_problems
from coachrl.tasks.records import Source, nearest_beside, read_source
from coachrl.tasks.split import Sets, Split, check_apart, divided, warn_of_share
from coachrl.tasks.worlds.planpath import generate_planpath
from coachrl.tasks.worlds.sokoban import generate_sokoban
from coachrl.tasks.worlds.sudoku import generate_sudoku
from coachrl.types import Task

P = TypeVar("P", Path, str)


def load_tasks(config: RunConfig) -> Sets:
    """Training and held-out tasks. Raises TaskError where a set is empty or cannot be read, or a task is in both, and
    ConfigError where a path that the source needs is not given, or the user's function cannot be had."""
    settings = config.tasks
    if isinstance(settings, ImportedTasks):
        train, heldout = load_imported(settings, config)
    else:
        train, heldout = _load(settings, config.seed)
    for name, tasks in (("training", train), ("held-out", heldout)):
        if not tasks:
            raise TaskError(f"the {name} task set of '{settings.source}' is empty")
    return train, heldout


def check_code(settings: TaskSection) -> None:
    """Raises ConfigError where a function of the user's own, which the settings name, cannot be had."""
    if isinstance(settings, ImportedTasks):
        find_loader(settings.source)
    if isinstance(settings, MathTasks) and settings.grader is not None:
        find_grader(settings.grader)


def _load(settings: TaskSection, seed: int) -> Sets:
    """The tasks of a shipped source."""
    match settings:
        case WordProblemTasks():
            return _both(lambda split: generate_word_problems(settings.count(split), settings.levels, seed, split))
        case PlanPathTasks():
            return _both(partial(generate_planpath, settings, seed))
        case SokobanTasks():
            return _both(partial(generate_sokoban, settings, seed))
        case SudokuTasks():
            return _both(partial(generate_sudoku, settings, seed))
        case CoopCodeTasks():
            return _first(settings, _both(load_coop_code))
        case HumanEvalTasks():
            return _first(settings, _both(load_humaneval))
        case DSBenchLiteTasks():
            from coachrl.tasks.tabular.dsbench_lite import load_dsbench_lite  # which imports pandas and scikit-learn

            return _first(settings, (load_dsbench_lite("train"), load_dsbench_lite("eval")))
        case MathTasks():
            return _math(settings, seed)
        case DSBenchTasks():
            return _dsbench(settings)
        case CodeTasks():
            return _code(settings, seed)
    raise TypeError(f"no source of tasks reads {type(settings).__name__}")


def _both(load: Callable[[Split], list[Task]]) -> Sets:
    return load("train"), load("heldout")


def _first(settings: TaskSection, sets: Sets) -> Sets:
    """As many of each as are wanted."""
    train, heldout = sets
    return train[: settings.train_count], heldout[: settings.heldout_count]


def _math(settings: MathTasks, seed: int) -> Sets:
    everything, heldout = _math_lists(settings, _given(settings.train, "tasks.train", settings.source), seed)
    train = without_overlap(everything, heldout)
    if settings.grader is not None:
        train, heldout = (with_grader(tasks, settings.grader) for tasks in (train, heldout))
    if settings.train_count is None:
        return train, heldout
    # Problem lists are often sorted by year or level: a seeded sample, not the first ones (MAPPA, Sec. 3.1).
    chosen = generator(seed, "tasks").permutation(len(train))[: settings.train_count]
    return [train[i] for i in sorted(chosen)], heldout


def _math_lists(settings: MathTasks, given: str, seed: int) -> Sets:
    """Training and held-out problems from one file or data set, or from two, which may hold the same ones."""
    source = read_source(given, settings.subset)
    train = math_tasks(source, source.split(settings.train_split, "tasks.train_split"), settings.fields)
    names_split = settings.heldout_split is not None or source.heldout_name() not in (None, settings.train_split)
    if settings.heldout is None and not names_split:
        return divided(train, settings, seed)
    warn_of_share(settings)
    given_apart = source if settings.heldout is None else read_source(settings.heldout, settings.subset)
    return train, _heldout(given_apart, settings)


def _heldout(source: Source, settings: MathTasks) -> list[Task]:
    """The split that is asked for, or that is named as such, or the only one."""
    name = settings.heldout_split or source.heldout_name()
    if name is None:
        name = next(iter(source.splits)) if len(source.splits) == 1 else "test"
    entries = source.split(name, "tasks.heldout_split")
    return math_tasks(source, entries, settings.fields, settings.heldout_count)


def _dsbench(settings: DSBenchTasks) -> Sets:
    from coachrl.tasks.tabular.dsbench import load_dsbench

    root = _folder(_given(settings.root, "tasks.root", settings.source))
    prompts = settings.cleaned_prompts or _in_root(root, "cleaned_prompts.json")

    def load(path: Path | None, name: str, count: int | None) -> list[Task]:
        listed = _given(path or _in_root(root, f"{name}.jsonl"), f"tasks.{name}", settings.source)
        return load_dsbench(root, listed, prompts, limit=count, skip_unusable=settings.skip_unusable)

    train = load(settings.train, "train", settings.train_count)
    heldout = load(settings.heldout, "heldout", settings.heldout_count)
    check_apart(train, heldout)
    return train, heldout


def _code(settings: CodeTasks, seed: int) -> Sets:
    given = _given(settings.train, "tasks.train", settings.source)
    if settings.heldout is None:
        train, heldout = divided(load_code(given), settings, seed)
        train = train[: settings.train_count]
    else:
        warn_of_share(settings)
        train = load_code(given, settings.train_count)
        heldout = load_code(settings.heldout, settings.heldout_count)
    check_disjoint(train, heldout)
    return train, heldout


_DSBENCH_PATHS = {
    "tasks.root": "the folder that holds data_resplit/ and answers/",
    "tasks.train": "the list of tasks to train on (coachrl tasks make writes one)",
    "tasks.heldout": "the list of tasks to hold out (coachrl tasks make … --heldout writes one)",
}


def _given(path: P | None, key: str, source: str) -> P:
    if path is None:
        what = f", {_DSBENCH_PATHS[key]}" if source == "dsbench" else ""
        raise ConfigError(f"tasks.source={source} needs {key}=PATH{what}")
    return path


def _folder(root: Path) -> Path:
    """Raises TaskError that names the nearest folder where there is none."""
    if not root.is_dir():
        raise TaskError(f"tasks.root: no folder {root}{nearest_beside(root)}")
    return root


def _in_root(root: Path, name: str) -> Path | None:
    """What `coachrl tasks make` writes beside its tables, where it did."""
    return root / name if (root / name).is_file() else None
