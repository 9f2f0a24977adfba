"""Compares runs on the held-out tasks that they share: the same tasks, the same draws, paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coachrl.config import flat_settings
from coachrl.errors import ConfigError
from coachrl.report.contents import EpisodeFile, draw_key, read_contents
from coachrl.report.outcome import BeforeAfter, conclusion, ends, success_rows, table2_rows
from coachrl.runs.folder import Run
from coachrl.text import counted, one_line

_OF_ANOTHER_TEAM = ("pipeline.name", "model", "tasks.source")  # then more than training makes a difference
_CHOICES = ("pipeline.name", "tasks.source", "algorithm.name")  # each brings a section of its own
_MOST_DIFFERENCES = 12


@dataclass(frozen=True)
class RunComparison:
    """A run against the first one. rows: `before` is the first run, `after` this one; differences are over the draws
    that both hold. shared, draws: how many draws are compared, and how many either run holds. differences: see
    `differences`. steps: after which step each of the two was measured."""

    baseline: str
    name: str
    rows: tuple[BeforeAfter, ...]
    shared: int
    draws: int
    differences: tuple[str, ...] = ()
    steps: tuple[int, int] = (0, 0)

    @property
    def settings(self) -> str:
        """What was otherwise, in a sentence: after which step each run was measured, and what was set; "" where nothing
        was."""
        first, last = self.steps
        measured = "" if first == last else f"Measured after step {first} of {self.baseline}, {last} of {self.name}. "
        return (measured + self._settings).strip()

    @property
    def _settings(self) -> str:
        if not self.differences:
            return ""
        keys = [difference.partition(":")[0] for difference in self.differences]
        other = [key.partition(".")[0] for key in _OF_ANOTHER_TEAM if key in keys]
        warning = f"Not the same {' and '.join(other)}: more than training makes the difference. " if other else ""
        shown = "; ".join(self.differences[:_MOST_DIFFERENCES])
        more = len(self.differences) - _MOST_DIFFERENCES
        return f"{warning}Settings that differ, {self.baseline} against {self.name}: {shown}" + (
            f"; and {more} more" if more > 0 else ""
        )

    @property
    def conclusion(self) -> str:
        return conclusion(self.rows[0].difference)


def compare(runs: Sequence[Run]) -> list[RunComparison]:
    """Every run after the first against the first, each by its last evaluation.

    Raises ConfigError where fewer than two runs are given, one has no evaluation, or two share no held-out draw.
    """
    return compare_evaluations(runs, last_evaluations(runs))


def compare_evaluations(runs: Sequence[Run], evaluations: Sequence[EpisodeFile]) -> list[RunComparison]:
    """As `compare`, of the last evaluations as they were read."""
    (baseline, first), *others = zip(run_names(runs), evaluations, strict=True)
    return [
        _comparison(baseline, first, name, last, differences(runs[0], run), _other_seed(runs[0], run))
        for run, (name, last) in zip(runs[1:], others, strict=True)
    ]


def differences(baseline: Run, run: Run) -> tuple[str, ...]:
    """The settings that differ, "train.steps: 8 against 4", the baseline's first; before the others those that make it
    another team or other tasks. Of a section that another choice has brought, the choice alone is named."""
    try:
        ours, theirs = (flat_settings(each.config().model_dump(mode="json")) for each in (baseline, run))
    except ConfigError as error:  # it is compared all the same, by its episodes
        run.warn(f"settings are not compared: {error}")
        return ()
    differing = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    chosen = [key.rpartition(".")[0] for key in _CHOICES if key in differing]
    shown = [
        key
        for key in differing
        if key not in ("name", "out") and (key in _CHOICES or key.partition(".")[0] not in chosen)
    ]
    shown.sort(key=lambda key: _OF_ANOTHER_TEAM.index(key) if key in _OF_ANOTHER_TEAM else len(_OF_ANOTHER_TEAM))
    return tuple(f"{key}: {_shown(ours.get(key))} against {_shown(theirs.get(key))}" for key in shown)


def _shown(value: object) -> str:
    return "none" if value is None else one_line(str(value))


def run_names(runs: Sequence[Run]) -> list[str]:
    """The folders' names, or their paths where different folders are called the same."""
    folders = [run.folder for run in runs]
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(set(folders)) else [str(folder) for folder in folders]


def last_evaluations(runs: Sequence[Run]) -> list[EpisodeFile]:
    """Of each run. Raises ConfigError where fewer than two are given, or one has measured nothing."""
    if len(runs) < 2:
        raise ConfigError("compare needs two runs or more: the first is what the others are compared with")
    found = []
    for run in runs:
        contents = read_contents(run)
        for problem in contents.problems:
            if problem.startswith("eval-"):
                run.warn(problem)
        first, last = ends(contents)
        if first is None:
            raise ConfigError(f"run {contents.name}: {_nothing_measured(contents.evaluations)}")
        found.append(last or first)
    return found


def _nothing_measured(evaluations: Sequence[EpisodeFile]) -> str:
    broken = [episode for evaluation in evaluations for episode in evaluation.episodes]
    if not broken:
        return "it has no evaluation to compare (no episode in episodes/eval-*.jsonl)"
    why = one_line(broken[-1].infra_error or "")
    return f"nothing was measured: its evaluations' {counted(len(broken), 'episode')} all broke, the last by '{why}'"


def _other_seed(baseline: Run, run: Run) -> str:
    """What is said of two runs of different seeds that leave it to the seed which tasks are held out, else ""."""
    try:
        both = baseline.config(), run.config()
    except ConfigError:  # which `differences` tells
        return ""
    if both[0].seed == both[1].seed or any(getattr(config.tasks, "heldout", None) is not None for config in both):
        return ""
    can_name_them = all("heldout" in type(config.tasks).model_fields for config in both)
    return "; each seed holds out tasks of its own" + (", unless tasks.heldout names them" if can_name_them else "")


def _comparison(
    baseline: str, first: EpisodeFile, name: str, last: EpisodeFile, differing: tuple[str, ...], other_seed: str
) -> RunComparison:
    ours, theirs = {draw_key(e) for e in first.valid}, {draw_key(e) for e in last.valid}
    shared = ours & theirs
    if not shared:
        raise ConfigError(
            f"{baseline} and {name} share no held-out draw: they were evaluated on {_others(ours, theirs)}"
            + (f"; settings: {'; '.join(differing[:_MOST_DIFFERENCES])}" if differing else "")
            + other_seed
        )
    first, last = _only(first, shared), _only(last, shared)
    steps = first.step, last.step
    rows = (*success_rows(first, last), *table2_rows(first, last))
    return RunComparison(baseline, name, rows, len(shared), len(ours | theirs), differing, steps)


def _only(evaluation: EpisodeFile, keys: set[tuple[str, str]]) -> EpisodeFile:
    """The evaluation without what the other run does not hold, so that all figures are of the same draws."""
    return replace(evaluation, episodes=tuple(e for e in evaluation.valid if draw_key(e) in keys))


def _others(ours: set[tuple[str, str]], theirs: set[tuple[str, str]]) -> str:
    if {task for task, _ in ours} & {task for task, _ in theirs}:
        return f"other problems, or draws, of the same ids ({_examples(ours)})"
    return f"other tasks ({_examples(ours)} against {_examples(theirs)})"


def _examples(keys: set[tuple[str, str]]) -> str:
    tasks = sorted({task for task, _ in keys})
    return ", ".join(tasks[:2]) + (", ..." if len(tasks) > 2 else "")
