"""The checkpoint of a run that a command is told to take: its last, its best, or that of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coachrl.errors import CheckpointError
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.runs.lost import read_steps
from coachrl.runs.records import step_of
from coachrl.text import brief

LAST, BEST = "last", "best"
_STEP = re.compile(r"(?:step-)?([0-9]{1,10})")


@contextmanager
def checkpoint_kept(run: Run, which: str = LAST) -> Iterator[Path]:
    """The checkpoint that `which` names, which stays while the block reads it, also where the run goes on. Raises
    CheckpointError as `chosen_checkpoint` does."""
    while True:
        folder = chosen_checkpoint(run, which)
        with checkpoints.kept(folder) as is_there:
            if is_there:  # else a newer one took its place just now
                yield folder
                return


def chosen_checkpoint(run: Run, which: str) -> Path:
    """which: "last"; "best", by held-out success; or a step, as 4 or step-000004. Raises CheckpointError that says what
    there is where it is not there."""
    if which == LAST:
        return run.last_checkpoint()
    if which == BEST:
        return _best(run)
    if (step := _STEP.fullmatch(which)) is None:
        raise CheckpointError(f"checkpoint {brief(which)}: give {LAST}, {BEST}, or the number of a step")
    found = _by_step(run)
    if int(step[1]) not in found:
        raise CheckpointError(f"{run.folder} has no checkpoint of step {int(step[1])}; it has {_listed(run, found)}")
    return found[int(step[1])]


def _best(run: Run) -> Path:
    problems: list[str] = []
    steps = read_steps(run, problems)
    for problem in problems:
        run.warn(problem)
    found = _by_step(run)
    best, kept = checkpoints.best_step(steps), checkpoints.best_step(steps, found)
    if best is None:
        raise CheckpointError(
            f"{run.folder} has no evaluation of trained weights yet, and so no best checkpoint; it has "
            f"{_listed(run, found)}"
        )
    if best != kept:
        instead = f"the best of those that are there: step {kept}" if kept is not None else _listed(run, found)
        raise CheckpointError(
            f"{run.folder}: its best evaluation was after step {best}, whose checkpoint is not there (train.keep_best "
            f"keeps it, and a run that trains may still be writing it); it has {instead}"
        )
    return found[best]


def _by_step(run: Run) -> dict[int, Path]:
    return {step_of(path): path for path in run.checkpoints()}


def _listed(run: Run, found: dict[int, Path]) -> str:
    return f"those of step {', '.join(map(str, found))}" if found else "none"
