"""What a run's folder holds, read as far as it can be read. What cannot is said in `Contents.problems`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coachrl.config import RunConfig, load_config
from coachrl.config.algorithm import SavedAlgorithmConfig
from coachrl.errors import ConfigError
from coachrl.parsing import read_json
from coachrl.runs.folder import Run
from coachrl.runs.lost import lost_episodes, lost_steps, newest_step, read_steps
from coachrl.runs.records import read_each_once, step_of
from coachrl.stats import DrawKey
from coachrl.trainers.algorithms import make_algorithm
from coachrl.types import CoachScore, Episode


@dataclass(frozen=True)
class EpisodeFile:
    """One file of `episodes/`: `step` is the training step, or the number of steps before the evaluation."""

    name: str
    step: int
    episodes: tuple[Episode, ...]
    scores: Mapping[str, CoachScore]

    @property
    def valid(self) -> list[Episode]:
        """Episodes that ended; broken ones are no measurement."""
        return [episode for episode in self.episodes if episode.infra_error is None]


@dataclass(frozen=True)
class Contents:
    """A run's folder.

    steps: step -> all numbers of metrics.jsonl at that step. evaluations: in order of steps; those between the first
    and the last that measured anything come without their actions. training: the first and the last training step that
    left a file. config: None where there is none. problems: one line for each part that could not be read.
    """

    name: str
    config: RunConfig | None
    versions: Mapping[str, Any]
    steps: Mapping[int, Mapping[str, float]]
    evaluations: Sequence[EpisodeFile]
    training: Sequence[EpisodeFile]
    problems: Sequence[str]

    @property
    def trained_steps(self) -> list[int]:
        return [step for step, metrics in self.steps.items() if "time/step_s" in metrics or "train/success" in metrics]

    @property
    def coach(self) -> str:
        """Who scored the run's actions, for people: as its episodes show, or before the first as it was configured."""
        if self.config is None:
            return "not known"
        asked = any(file.scores for file in self.training) if self.training else asks_coach(self.config)
        return self.config.coach.label if asked else "none"

    def series(self, key: str) -> list[tuple[float, float]]:
        """(step, value) wherever a step has the metric."""
        return [(float(step), metrics[key]) for step, metrics in self.steps.items() if key in metrics]


def asks_coach(config: RunConfig) -> bool:
    """Of a saved run: whether its rewards need one. Code of the user's own is not run for reading, and may."""
    algorithm, reward = config.algorithm, config.reward
    own = isinstance(algorithm, SavedAlgorithmConfig) or reward.is_own
    return own or make_algorithm(algorithm).needs_coach(reward)


def draw_key(episode: Episode) -> DrawKey:
    """The task, and which draw of it: the id of an evaluation's episode ends in `.<draw>`. Another problem that has the
    same id by now is not the same draw."""
    return episode.task_id, f"{episode.id.rpartition('.')[2]} {episode.task_prompt}"


def read_contents(run: Run) -> Contents:
    """Never raises for what is missing or cannot be read: `problems` says what that is."""
    problems: list[str] = []
    config, versions = _config(run.folder / "config.yaml", problems), _versions(run, problems)
    problems += [
        f"{path.name}: not a file of this run (step-… or eval-…), and left out"
        for path in sorted(set((run.folder / "episodes").glob("*.jsonl")) - set(run.episode_files()))
    ]
    newest = newest_step(run)
    steps = read_steps(run, problems)
    evaluations = _evaluations(run.episode_files("eval"), problems)  # after the metrics, which come last of a step
    paths = run.episode_files("step")
    training = [_episode_file(path, problems) for path in dict.fromkeys([*paths[:1], *paths[-1:]])]
    found = {Path(file.name).name: len(file.valid) for file in (*evaluations, *training)}
    problems += [*lost_steps(steps, newest), *lost_episodes(steps, found, problems)]
    return Contents(
        name=run.folder.name,
        config=config,
        versions=versions,
        steps=steps,
        evaluations=evaluations,
        training=training,
        problems=problems,
    )


def _config(path: Path, problems: list[str]) -> RunConfig | None:
    try:
        return load_config(path, saved=True)
    except ConfigError as error:
        problems.append(str(error))
        return None


def _versions(run: Run, problems: list[str]) -> dict[str, Any]:
    path = run.folder / "versions.json"
    try:
        found = read_json(path, path.name)
    except ConfigError as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    return found if isinstance(found, dict) else {}


def _evaluations(paths: Sequence[Path], problems: list[str]) -> list[EpisodeFile]:
    """Only the ends keep their actions: of the files, and of those that measured anything. All evaluations of a run
    together can be larger than memory."""
    found: list[EpisodeFile] = []
    measured: list[int] = []
    whole: set[int] = set()
    for place, path in enumerate(paths):
        found.append(_episode_file(path, problems))
        if found[place].valid:
            measured.append(place)
        ends = {0, place, *measured[:1], *measured[-1:]}
        for other in whole - ends:
            without = tuple(replace(episode, actions=()) for episode in found[other].episodes)
            found[other] = replace(found[other], episodes=without)
        whole = ends
    return found


def _episode_file(path: Path, problems: list[str]) -> EpisodeFile:
    pairs = list(read_each_once(path, set(), problems))
    scores = {action_id: score for _, its_scores in pairs for action_id, score in its_scores.items()}
    return EpisodeFile(f"episodes/{path.name}", step_of(path), tuple(episode for episode, _ in pairs), scores)
