"""Whole lines and files that are gone from a run. They leave no trace of their own: what is there is held against what
else is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from coachrl.errors import CheckpointError
from coachrl.runs.folder import MOST_STEPS, Run
from coachrl.runs.records import step_of
from coachrl.storage.jsonl import readable_jsonl
from coachrl.text import brief, counted

_MOST_NAMED = 5  # of what is gone: whole folders may be

Steps = Mapping[int, Mapping[str, float]]
"""Step -> all numbers of metrics.jsonl at that step, in order of steps."""


def newest_step(run: Run) -> int:
    """The last step that must have metrics: one with a checkpoint, or with episodes of a later step. Of a run that goes
    on it is asked before the metrics are read."""
    try:
        kept = run.checkpoints()
    except CheckpointError:
        kept = []
    return max([0, *map(step_of, kept), *(step_of(path) - 1 for path in run.episode_files("step"))])


def read_steps(run: Run, problems: list[str]) -> Steps:
    """What metrics.jsonl holds, as far as it can be read; problems: gets a line for what cannot."""
    path = run.folder / "metrics.jsonl"
    if not path.exists() or not path.stat().st_size:
        what = "empty" if path.exists() else "missing"
        problems.append(f"{path.name} is {what}: there are no curves and no costs")
    steps: dict[int, dict[str, float]] = {}
    for step, values in readable_jsonl(path, _step, problems):
        steps.setdefault(step, {}).update(values)
    return dict(sorted(steps.items()))


def _step(record: dict[str, Any]) -> tuple[int, dict[str, float]]:
    """A step and its numbers. Raises TypeError or ValueError for a line that has no step."""
    if type(record["step"]) is not int:
        raise TypeError(f"step is {brief(record['step'])}")
    if not 0 <= record["step"] <= MOST_STEPS:
        raise ValueError(f"step is {brief(record['step'])}, not a number from 0 to {MOST_STEPS:,}")
    return record["step"], {
        key: float(value)
        for key, value in record.items()
        if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def lost_steps(steps: Steps, newest: int) -> list[str]:
    """A sentence where metrics of a step lack between those of others, or after them. newest: `newest_step`. Of a run
    without any metrics it says nothing."""
    numbers = sorted(steps)
    after = [str(earlier) for earlier, later in pairwise(numbers) if later > earlier + 1]
    after += [str(last) for last in numbers[-1:] if newest > last]
    return [f"metrics.jsonl: steps are missing after step {_first_of(after)}"] if after else []


def lost_episodes(
    steps: Steps, found: Mapping[str, int], told: Sequence[str], kinds: tuple[str, ...] = ("eval",)
) -> Iterator[str]:
    """A sentence for each kind of which files are gone, and one for each file that has fewer episodes than the metrics
    of its step were made of. found: name of a file -> how many of its episodes ended; kinds: those of which all files
    were looked for. told: what is said already of files with lines that cannot be read."""
    measured = {
        f"{file}-{step:06d}.jsonl": int(metrics.get(f"{kind}/episodes", 0))
        for step, metrics in steps.items()
        for file, kind in (("eval", "eval"), ("step", "train"))
    }
    for kind in kinds:
        gone = [name for name, count in measured.items() if count and name.startswith(kind) and name not in found]
        if gone:  # perhaps on purpose, for their room
            yield f"{_first_of(gone)}: gone, and metrics.jsonl tells of episodes there"
    short = [
        f"{name}: {has} of the {counted(measured[name], 'episode')} that metrics.jsonl tells of are there"
        for name, has in found.items()
        if has < measured.get(name, 0) and not any(problem.startswith(name) for problem in told)
    ]
    if len(short) > _MOST_NAMED:  # as where each was thinned out
        short[_MOST_NAMED - 1] += f"; fewer, too, in others: {len(short)} files in all"
    yield from short[:_MOST_NAMED]


def _first_of(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
