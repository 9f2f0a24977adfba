"""coachrl from Python: what the command line does, as functions that return what it would print. docs/python.md.

Every function goes through `coachrl.commands`, as the command line does, prints nothing unless asked to, and may be
called where an event loop runs already, as in a notebook. What is wrong with a call is a `CoachrlError` of one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from coachrl.audit.audit import Audit, audit_runs
from coachrl.cli.console import PlainConsole
from coachrl.commands.build import make_coach_pool
from coachrl.commands.configure import check_named, coach_flags, rescore_config, run_config, warn_of_sampling
from coachrl.commands.event_loop import run_in_loop
from coachrl.commands.run import evaluate_run, rollout_once, train_run
from coachrl.config import RunConfig, Section, warn_of_unread
from coachrl.errors import ConfigError
from coachrl.report import write_report
from coachrl.rescore.comparison import Comparison, compare
from coachrl.rescore.rescoring import ActionFilter, rescore_run, rescored_by
from coachrl.runs.chosen import LAST
from coachrl.runs.folder import Run
from coachrl.runs.frames import EpisodeFrames, PlacedEpisode
from coachrl.runs.records import ScoredEpisode
from coachrl.storage.files import named_path
from coachrl.text import brief, counted
from coachrl.types import CoachScore, Episode

# tqdm, which loads models for us, misses its widgets in a notebook without ipywidgets; nothing is lost by that.
warnings.filterwarnings("ignore", message="IProgress not found")

T = TypeVar("T")
Config = str | Path | Mapping[str, Any] | RunConfig | None
"""The name of a shipped configuration, a YAML file, a tree of settings, or a whole configuration."""

_CHOOSES = {"pipeline": "name", "coach": "name", "algorithm": "name", "tasks": "source", "reward": "source"}
"""Section -> the key that is meant where a word stands in the section's place: `coach="rules"`."""
_MAY_BE_LEFT_OUT = frozenset(RunConfig.model_fields) - _CHOOSES.keys()
"""As a keyword None is no value, as of an argument of the caller's that was not given. Within a section it is null."""
_MOST_RESAMPLES = 100_000  # as on the command line


@dataclass(frozen=True)
class Rollout:
    """Episodes that were played, and what the coach said of their actions, by action id."""

    episodes: tuple[Episode, ...]
    scores: Mapping[str, CoachScore]

    def __repr__(self) -> str:
        succeeded = sum(episode.outcome.success for episode in self.episodes)
        episodes, scores = counted(len(self.episodes), "episode"), counted(len(self.scores), "score")
        return f"Rollout({episodes}, {succeeded} succeeded, {scores})"

    @property
    def frames(self) -> EpisodeFrames:
        """Tables of episodes, actions and scores."""
        scores = dict(self.scores)
        return EpisodeFrames([PlacedEpisode("train", 0, ScoredEpisode(each, scores)) for each in self.episodes])


@dataclass(frozen=True)
class Rescoring:
    """What a rescore came to. asked: how many actions the coach was asked about now. comparison: its scores beside the
    run's own. folder: where they are, None where the coach was never asked."""

    asked: int
    comparison: Comparison
    folder: Path | None
    scores: Mapping[str, CoachScore] = field(repr=False)


def configure(config: Config = None, **settings: Any) -> RunConfig:
    """The configuration that `train(config, **settings)` would run with.

    config: what to begin with. settings: what differs, by section (`train={"steps": 1}`), by dotted key
    (`**{"train.steps": 1}`), or by the name alone (`coach="rules"`, `tasks="math"`); a class or a function of your own
    stands for its import path. None within a section, or of a dotted key, is the file's null. Raises ConfigError that
    names the nearest key.
    """
    if isinstance(config, RunConfig):
        if not settings:
            return config
        config = config.model_dump(mode="json", exclude_unset=True)
    elif isinstance(config, Run):
        raise ConfigError(
            "config is a run: train(resume=run) goes on with it, and run.config() is what it was made with"
        )
    elif isinstance(config, Mapping):
        return run_config(None, (), _flags(config) | _flags(settings), named=_flags(settings))
    elif not (config is None or isinstance(config, str | Path)):
        raise ConfigError(
            f"config is {brief(config)}: give the name of a shipped one, a YAML file, a dictionary of settings or a "
            "RunConfig"
        )
    return run_config(str(config) if isinstance(config, Path) else config, (), _flags(settings))


def train(
    config: Config = None, *, resume: Run | str | Path | None = None, quiet: bool = False, **settings: Any
) -> Run:
    """Train a team, and return its run. The folder holds what `coachrl train` would write, the report too.

    config, settings: see `configure`. resume: a run to continue from its last checkpoint; only settings of how the
    coach is called may be given with it. quiet: do not print the line of each step.

    Raises CoachrlError; a run that fails before its first line of metrics leaves no folder.
    """
    # Lines stay whole: a notebook and a pipe have no width of their own, and Rich would take them for 80 columns wide.
    console = PlainConsole(file=sys.stdout, quiet=quiet, force_terminal=False, soft_wrap=True)
    if resume is not None:
        if config is not None:
            raise ConfigError("resume continues a run as it was configured: give no config with it")
        run = Run.open(_opened(resume).folder)  # another thread may train by the same object, whose lock would be ours
        with run.locked("training"):  # before its configuration is written
            changed = run.reconfigure([f"{key}={_written(key, value)}" for key, value in _flags(settings).items()])
            _finish(train_run(changed, run, console, resume=True))
    else:
        resolved = configure(config, **settings)
        run = Run.create(resolved)
        _finish(train_run(resolved, run, console, resume=False))
    write_report(run)
    return Run.open(run.folder)  # by its whole path: a notebook may change its folder


def evaluate(
    config: Config | Run = None,
    *,
    episodes_file: str | Path | None = None,
    swap_policies: str | None = None,
    checkpoint: str | int = LAST,
    **settings: Any,
) -> dict[str, Any]:
    """Held-out metrics, by name, of the last checkpoint of a run or a run's folder, or of a configuration's initial
    weights. Asks no coach.

    episodes_file: where to write the episodes, one a line. swap_policies: two policies, as "a,b", whose roles play with
    each other's weights. checkpoint: which one of the run: "last", "best" by held-out success, or the number of a step.
    Raises CoachrlError.
    """
    run = None
    if swap_policies is not None and not isinstance(swap_policies, str):
        raise ConfigError(f'swap_policies is {brief(swap_policies)}: give two policies, as "a,b"')
    # os.path.isdir, since Path.is_dir raises for a name that is too long for a path
    if isinstance(config, str | Path) and os.path.isdir(config):  # noqa: PTH112
        config = Run.open(config)
    if isinstance(config, Run):
        run, resolved = config, config.config((), _flags(settings))
        check_named(resolved, (), _flags(settings))
    else:
        resolved = configure(config, **settings)
    if run is None and checkpoint != LAST:
        raise ConfigError(
            f"checkpoint={brief(checkpoint)} is one of a run's: give a run, or its folder, in place of a configuration"
        )
    warn_of_sampling((), _flags(settings))
    file = _path("episodes_file", episodes_file) if episodes_file is not None else None
    return _finish(evaluate_run(resolved, run, file, Console(quiet=True), swap_policies, str(checkpoint)))


def rollout(config: Config = None, *, count: int = 1, **settings: Any) -> Rollout:
    """`count` scored episodes of the first training tasks, played with the initial weights. Raises CoachrlError."""
    count = _number("count", count, 1, "of episodes")
    resolved = configure(config, **settings)
    with tempfile.TemporaryDirectory() as folder:
        episodes, scores = _finish(rollout_once(resolved, count, Path(folder) / "ledger.jsonl", Console(quiet=True)))
    return Rollout(tuple(episodes), scores)


def rescore(
    run: Run | str | Path,
    *,
    coach: Any = None,
    coach_prompt: str | Path | None = None,
    coach_api_base: str | None = None,
    failed_only: bool = False,
    sample: int | None = None,
    seed: int = 0,
    repeat: int = 0,
    **settings: Any,
) -> Rescoring:
    """Score a saved run's actions again, beside the old scores, and compare the two.

    coach, coach_prompt, coach_api_base: who scores, the run's own coach by default; further settings of the coach are
    `**{"coach.temperature": 0.7}`. failed_only: only actions whose last score failed. sample: so many actions, drawn by
    `seed`. repeat: 1, 2, … asks the same again. A rescore that was stopped goes on where it was. Raises CoachrlError.
    """
    if sample is not None:
        sample = _number("sample", sample, 1, "of actions")
    repeat = _number("repeat", repeat, 0, "of earlier times that the same was asked")
    seed = _number("seed", seed, 0, "that actions are drawn by")
    opened = _opened(run)
    chosen = _flags({"coach": coach}) if coach is not None else {}
    prompt = _path("coach_prompt", coach_prompt) if coach_prompt is not None else None
    flags = coach_flags(chosen.get("coach.name"), prompt, coach_api_base)
    config = rescore_config(opened, (), {**flags, **chosen, **_flags(settings)})
    warn_of_unread(config, (), _flags(settings))
    by, which = rescored_by(config, repeat), ActionFilter(failed_only, sample, seed)
    done = _finish(rescore_run(opened, config, by, which, lambda done, total: None, make_coach_pool))
    scores = done.rescore.scores if done.rescore is not None else {}
    folder = done.rescore.folder if done.rescore is not None else None
    return Rescoring(done.asked, compare(done.actions, scores), folder, scores)


def audit(*runs: Run | str | Path, resamples: int = 1000, seed: int = 0) -> Audit:
    """Whether the coaches of some runs can be trusted: `.verdicts` says it in words, `.findings` in figures.

    Asks nobody and writes nothing. resamples: bootstrap resamples of tasks. Raises ConfigError.
    """
    if not runs:
        raise ConfigError("name at least one run: coachrl.audit('runs/latest')")
    resamples = _number("resamples", resamples, 2, "of bootstrap resamples")
    if resamples > _MOST_RESAMPLES:
        raise ConfigError(f"resamples={brief(resamples)}: at most {_MOST_RESAMPLES:,} are drawn")
    seed = _number("seed", seed, 0, "that fixes every random choice")
    return audit_runs([_opened(run).folder for run in runs], resamples, seed)


def _number(name: str, value: Any, least: int, what: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ConfigError(f"{name}={brief(value)}: it is a whole number {what}, from {least} up")
    return int(value)  # of NumPy's, too


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is {brief(value)}: give the path of a file")
    return named_path(Path(value), name)


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(run)


def _flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value, of settings as they are given in Python."""
    if "quiet" in settings:  # which is no setting, and whose nearest would mislead
        raise ConfigError("quiet is for train, the one call that prints: leave it out here")
    flags: dict[str, Any] = {}
    for key, value in settings.items():
        if not isinstance(key, str):
            raise ConfigError(f"a setting's name is text, and {brief(key)} is none")
        if value is None and key in _MAY_BE_LEFT_OUT:
            continue
        if key in _CHOOSES and not isinstance(value, Mapping | Section):
            if not (isinstance(value, str | Path) or callable(value)):
                raise ConfigError(
                    f"{key} is {brief(value)}: give a name, a dictionary of settings, or a class or a function of your "
                    "own, and not what it makes"
                )
            flags[f"{key}.{_CHOOSES[key]}"] = _named(value)
        else:
            flags |= dict(_leaves(key, value))
    return flags


def _written(key: str, value: Any) -> str:
    """The value of a setting as the command line has it."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        kinds = "text, a number, True or False, a list or a dictionary"
        raise ConfigError(f"{key} is {brief(value)}: give {kinds}") from None


def _leaves(key: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Section):
        value = value.model_dump(mode="json", exclude_unset=True)
    # A key with a dot in it can only be said as part of its whole mapping.
    if isinstance(value, Mapping) and value and not any("." in str(inner) for inner in value):
        for inner, part in value.items():
            yield from _leaves(f"{key}.{inner}", part)
    else:
        yield key, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):  # as of a sweep
        return value.tolist()
    return _named(value) if isinstance(value, Path) or callable(value) else value


def _named(value: Any) -> Any:
    """A class or a function of one's own as its import path, "__main__:f" for one of a notebook's cells."""
    if isinstance(value, Path):
        return str(value)
    if not callable(value):
        return value
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if getattr(sys.modules.get(str(module)), name, None) is not value:
        raise ConfigError(
            f"{getattr(value, '__qualname__', value)!s}, a class or function of yours, cannot be found again by name: "
            "define it at the top level of a module or a notebook"
        )
    return f"{module}:{name}"


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Where an event loop runs in this thread already, in a thread of its own; whoever interrupts
    that cancels the work, and waits for it to clean up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_in_loop(work)
    started: Future[Callable[[], object]] = Future()

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="coachrl") as thread:
        running = thread.submit(context.run, run_in_loop, cancellable())
        try:
            return running.result()
        except KeyboardInterrupt:
            started.result()()
            with contextlib.suppress(asyncio.CancelledError):
                running.exception()
            raise
