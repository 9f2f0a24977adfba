"""The texts behind single figures: what an action said, and what each rater wrote about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.runs.records import ScoredEpisode, read_episodes, scores_of_rescores


@dataclass(frozen=True)
class ActionText:
    """One action for people to read. rationales: rescore label -> rationale; the run's own under ""."""

    role: str
    asked: str
    text: str
    output: str
    rationales: Mapping[str, str]


def find_texts(runs: Mapping[str, Path], wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], ActionText]:
    """(run, action id) -> its texts, for those that are found. runs: name -> folder."""
    found: dict[tuple[str, str], ActionText] = {}
    said: list[str] = []  # by the table's reader already
    for name, folder in runs.items():
        ids = {action for run, action in wanted if run == name}
        if not ids:
            continue
        rationales = _rescore_rationales(folder, ids)
        for path in sorted((folder / "episodes").glob("step-*.jsonl")):
            for scored in read_episodes(path, said):
                found |= {(name, key): text for key, text in _texts(scored, ids, rationales)}
    return found


def _texts(
    scored: ScoredEpisode, ids: Collection[str], rationales: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, ActionText]]:
    for action in scored.episode.actions:
        if action.id not in ids:
            continue
        own = scored.scores.get(action.id)
        streams = () if action.execution is None else (action.execution.stdout, action.execution.stderr)
        said = {"": "" if own is None else own.rationale, **rationales.get(action.id, {})}
        output = "\n".join(stream for stream in streams if stream)
        yield action.id, ActionText(action.role, action.prompt_text, action.text, output, said)


def _rescore_rationales(folder: Path, ids: Collection[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for label, scores in scores_of_rescores(folder, []).items():
        for key in scores.keys() & set(ids):
            found.setdefault(key, {})[label] = scores[key].rationale
    return found
