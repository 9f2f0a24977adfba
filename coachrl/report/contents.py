"""What a run's folder holds, read as far as it can be read. What cannot is said in `Contents.problems`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.report.statistics import Key
from coachrl.runs import Run, episode_from_record, read_jsonl
from coachrl.types import CoachScore, Episode


@dataclass(frozen=True)
class EpisodeFile:
    """One file of `episodes/`: `step` is the training step, or the number of steps before the evaluation."""

    name: str
    step: int
    episodes: tuple[Episode, ...]
    scores: Mapping[str, CoachScore]

    @property
    def sound(self) -> list[Episode]:
        """Episodes that ended; broken ones are no measurement."""
        return [episode for episode in self.episodes if episode.fault is None]


@dataclass(frozen=True)
class Contents:
    """A run's folder.

    steps: step -> all numbers of metrics.jsonl at that step. evaluations: in order of steps; those between the first
    and the last come without their actions. training: the first and the last training step that left a file.
    problems: one line for each part that could not be read.
    """

    name: str
    config: RunConfig
    versions: Mapping[str, Any]
    steps: Mapping[int, Mapping[str, float]]
    evaluations: Sequence[EpisodeFile]
    training: Sequence[EpisodeFile]
    problems: Sequence[str]

    @property
    def trained_steps(self) -> list[int]:
        return [step for step, metrics in self.steps.items() if "time/step_s" in metrics or "train/success" in metrics]

    def series(self, key: str) -> list[tuple[float, float]]:
        """(step, value) wherever a step has the metric."""
        return [(float(step), metrics[key]) for step, metrics in self.steps.items() if key in metrics]


def draw_key(episode: Episode) -> Key:
    """The task, and which draw of it: the id of an evaluation's episode ends in `.<draw>`."""
    return episode.task_id, episode.id.rpartition(".")[2]


def read_contents(run: Run) -> Contents:
    """Raises ConfigError where config.yaml cannot be read: then the folder is no run."""
    problems: list[str] = []
    files = {path.stem: path for path in run.episode_files()}
    evaluations = sorted(stem for stem in files if stem.startswith("eval-"))
    training = sorted(stem for stem in files if stem.startswith("step-"))
    return Contents(
        name=run.folder.name,
        config=run.config(),
        versions=_versions(run.folder / "versions.json", problems),
        steps=_steps(run.folder / "metrics.jsonl", problems),
        evaluations=_episode_files([files[stem] for stem in evaluations], problems, whole=_ends(evaluations)),
        training=_episode_files([files[stem] for stem in _ends(training)], problems, whole=_ends(training)),
        problems=problems,
    )


def _records(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The lines of a JSONL file up to the first that is broken."""
    records = []
    try:
        for record in read_jsonl(path):
            records.append(record)
    except (ConfigError, UnicodeDecodeError) as error:
        problems.append(f"{path.name}: {error}")
    return records


def _steps(path: Path, problems: list[str]) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    for number, record in enumerate(_records(path, problems), 1):
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            problems.append(f"{path.name}, line {number}: it has no step, and is left out")
            continue
        values = {
            key: float(value)
            for key, value in record.items()
            if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)
        }
        steps.setdefault(record["step"], {}).update(values)
    return dict(sorted(steps.items()))


def _versions(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    return found if isinstance(found, dict) else {}


def _ends(stems: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*stems[:1], *stems[-1:]]))


def _episode_files(paths: Sequence[Path], problems: list[str], whole: Sequence[str]) -> list[EpisodeFile]:
    """Only the files named in `whole` keep their actions: a run's evaluations together can be larger than memory."""
    found = []
    for path in paths:
        try:
            step = int(path.stem.rpartition("-")[2])
            pairs = [episode_from_record(record) for record in _records(path, problems)]
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"{path.name}: not an episode file of this version of coachrl: {error!r}")
            continue
        episodes = [episode if path.stem in whole else replace(episode, actions=()) for episode, _ in pairs]
        scores = {action_id: score for _, its_scores in pairs for action_id, score in its_scores.items()}
        found.append(EpisodeFile(f"episodes/{path.name}", step, tuple(episodes), scores))
    return found
