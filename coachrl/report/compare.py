"""Compares runs on the held-out tasks that they share: the same tasks, the same draws, paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coachrl.errors import ConfigError
from coachrl.report.contents import Contents, EpisodeFile, draw_key, read_contents
from coachrl.report.outcome import BeforeAfter, conclusion, ends, success_rows, table2_rows
from coachrl.runs.folder import Run


@dataclass(frozen=True)
class RunComparison:
    """A run against the first one. rows: `before` is the first run, `after` this one; differences are over the draws
    that both hold. shared, draws: how many draws are compared, and how many either run holds."""

    baseline: str
    name: str
    rows: tuple[BeforeAfter, ...]
    shared: int
    draws: int

    @property
    def conclusion(self) -> str:
        return conclusion(self.rows[0].difference)


def compare(runs: Sequence[Run]) -> list[RunComparison]:
    """Every run after the first against the first, each by its last evaluation.

    Raises ConfigError where fewer than two runs are given, one has no evaluation, or two share no held-out draw.
    """
    if len(runs) < 2:
        raise ConfigError("compare needs two runs or more: the first is what the others are compared with")
    evaluations = [_evaluation(run) for run in runs]
    (baseline, first), *others = zip(run_names(runs), evaluations, strict=True)
    return [_comparison(baseline, first, name, last) for name, last in others]


def _evaluation(run: Run) -> EpisodeFile:
    contents = read_contents(run)
    for problem in contents.problems:
        if problem.startswith("eval-"):
            run.warn(problem)
    return last_evaluation(contents)


def run_names(runs: Sequence[Run]) -> list[str]:
    """The folders' names, or their paths where different folders are called the same."""
    folders = [run.folder for run in runs]
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(set(folders)) else [str(folder) for folder in folders]


def last_evaluation(contents: Contents) -> EpisodeFile:
    """Raises ConfigError where the run has measured nothing."""
    first, last = ends(contents)
    found = last or first
    if found is None:
        raise ConfigError(f"run {contents.name}: it has no evaluation to compare (no episodes/eval-*.jsonl)")
    return found


def _comparison(baseline: str, first: EpisodeFile, name: str, last: EpisodeFile) -> RunComparison:
    ours, theirs = {draw_key(e) for e in first.valid}, {draw_key(e) for e in last.valid}
    shared = ours & theirs
    if not shared:
        raise ConfigError(
            f"{baseline} and {name} share no held-out draw: they were evaluated on other tasks "
            f"({_examples(ours)} against {_examples(theirs)})"
        )
    first, last = _only(first, shared), _only(last, shared)
    rows = (*success_rows(first, last), *table2_rows(first, last))
    return RunComparison(baseline, name, rows, len(shared), len(ours | theirs))


def _only(evaluation: EpisodeFile, keys: set[tuple[str, str]]) -> EpisodeFile:
    """The evaluation without what the other run does not hold, so that all figures are of the same draws."""
    return replace(evaluation, episodes=tuple(e for e in evaluation.valid if draw_key(e) in keys))


def _examples(keys: set[tuple[str, str]]) -> str:
    tasks = sorted({task for task, _ in keys})
    return ", ".join(tasks[:2]) + (", ..." if len(tasks) > 2 else "")
