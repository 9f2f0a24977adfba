"""Episodes as the pages show them: which ones, with which scores, and which agent's files who used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

from coachrl.report.rendering import rendering_svg
from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes
from coachrl.types import Action, CoachScore, Episode

PAGE_BYTES = 3_000_000  # of the episodes to browse; curves and pairs come on top, and a page stays under 5 MB
PAIR_BYTES = 500_000  # of two episodes that stand side by side at the top; there are up to three such pairs
_ACTION_BYTES = 900  # of markup around one action's text
_FILE_BYTES = 100  # of markup around a file's name, and of who used it
SHOWN_FILES = 40  # of those that appeared with one action; more are counted
_SHOWN_CHARACTERS = 20_000  # of one text; the rest stays in the episode file


@dataclass(frozen=True)
class Shown:
    """An episode on a page: why it stands there, and where it is from."""

    why: str
    source: str
    episode: Episode
    scores: Mapping[str, CoachScore]

    @property
    def step(self) -> int:
        return int(Path(self.source).stem.rpartition("-")[2])

    @property
    def category(self) -> str:
        return "held-out" if Path(self.source).name.startswith("eval-") else "training"


@dataclass(frozen=True)
class Artifact:
    """A file that an action left, and the later actions whose code names it."""

    name: str
    users: Sequence[str]


def read_shown(path: Path, problems: list[str]) -> Iterator[Shown]:
    """The episodes of a file. problems: gets a line for what is none."""
    for episode, scores in read_episodes(path, problems):
        yield Shown(episode.id, f"episodes/{path.name}", episode, scores)


def choose(run: Run, problems: list[str], budget: int = PAGE_BYTES) -> tuple[list[Shown], int]:
    """Episodes for one page, and how many the run has in all. problems: gets a line for each file with other things.

    Every file gives the same share: its episodes in turn from the lowest mean score and from the highest, until the
    share is used up.
    """
    files = run.episode_files()
    chosen, total, left = [], 0, budget
    for position, path in enumerate(files):
        ranked = _from_both_ends(list(read_shown(path, problems)))
        total += len(ranked)
        share = left // (len(files) - position)
        for shown in ranked:
            size = page_bytes(shown)
            if size > share:
                break
            share, left = share - size, left - size
            chosen.append(shown)
    return sorted(chosen, key=lambda shown: (shown.step, shown.category, shown.episode.id)), total


def artifacts(episode: Episode, action: Action) -> list[Artifact]:
    """Files that this action added to the workspace, each with its users."""
    later = [other for other in episode.actions if other.index > action.index and other.code]
    return [
        Artifact(name, [f"{other.role} turn {other.turn + 1}" for other in later if name in (other.code or "")])
        for name in sorted(set(action.files_after) - set(action.files_before))
    ]


def role_scores(shown: Shown) -> str:
    """JSON for the filter: [role, score or null] of every action."""
    scores = [(action.role, shown.scores.get(action.id)) for action in shown.episode.actions]
    return json.dumps([[role, score.process_0_10 if score is not None else None] for role, score in scores])


def mean_score(shown: Shown) -> float | None:
    values = [score.process_0_10 for score in shown.scores.values() if score.process_0_10 is not None]
    return sum(values) / len(values) if values else None


def cut(text: str) -> str:
    more = len(text) - _SHOWN_CHARACTERS
    return text if more <= 0 else f"{text[:_SHOWN_CHARACTERS]}\n[… {more:,} more characters are in the episode file]"


def _from_both_ends(episodes: list[Shown]) -> list[Shown]:
    """Lowest, highest, second lowest, ...; those without scores in the order of the file, after the others."""
    scored = sorted((s for s in episodes if mean_score(s) is not None), key=lambda s: mean_score(s) or 0.0)
    ends = [scored[i // 2] if i % 2 == 0 else scored[-1 - i // 2] for i in range(len(scored))]
    return ends + [s for s in episodes if mean_score(s) is None]


def page_bytes(shown: Shown) -> int:
    """Bytes that an episode takes on a page, about: its text as it is written there, and the environments that are
    drawn."""
    episode = shown.episode
    texts = [text for action in episode.actions for text in _texts(action, shown.scores.get(action.id))]
    texts += [other.text for other in episode.rejected_candidates]
    written = sum(len(escape(cut(text)).encode("utf-8", "replace")) for text in texts)
    names = [file.name for action in episode.actions for file in artifacts(episode, action)[:SHOWN_FILES]]
    written += sum(len(escape(name).encode("utf-8", "replace")) + _FILE_BYTES for name in names)
    drawn = sum(len(rendering_svg(action.rendering)) for action in episode.actions if action.rendering)
    return written + drawn + _ACTION_BYTES * (len(episode.all_actions) + 1)


def _texts(action: Action, score: CoachScore | None) -> list[str]:
    """What is shown of an action in words."""
    ran = action.execution
    streams = [ran.stdout, ran.stderr] if ran is not None else []
    return [action.prompt_text, action.text, action.result, *streams, score.rationale if score is not None else ""]
