"""The texts behind single figures: what an action said, and what each rater wrote about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes, scores_of_rescores
from coachrl.types import Action, CoachScore


@dataclass(frozen=True)
class ActionText:
    """One action for people to read. rationales: rescore label -> rationale; the run's own under ""."""

    role: str
    asked: str
    text: str
    output: str
    rationales: Mapping[str, str]

    def rationale_of(self, rater: str) -> str:
        """A rescore's own word, else the run's."""
        return self.rationales.get(rater, self.rationales.get("", ""))


def find_texts(runs: Mapping[str, Path], wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], ActionText]:
    """(run, action id) -> its texts, for those that are found. runs: name -> folder."""
    found: dict[tuple[str, str], ActionText] = {}
    for name, folder in runs.items():
        ids = {action for run, action in wanted if run == name}
        if not ids:
            continue
        said: list[str] = []  # by the table's reader already
        rescores = scores_of_rescores(folder, said)
        for path in Run(folder).episode_files("step"):
            for episode, scores in read_episodes(path, said):
                by_rater = {"": scores, **rescores}
                found |= {(name, a.id): _text_of(a, by_rater) for a in episode.actions if a.id in ids}
    return found


def _text_of(action: Action, by_rater: Mapping[str, Mapping[str, CoachScore]]) -> ActionText:
    streams = () if action.execution is None else (action.execution.stdout, action.execution.stderr)
    output = "\n".join(stream for stream in streams if stream)
    rationales = {
        rater: score.rationale
        for rater, scores in by_rater.items()
        if (score := scores.get(action.id)) is not None and action.is_of(score.action_digest)
    }
    return ActionText(action.role, action.prompt_text, action.text, output, {"": "", **rationales})
