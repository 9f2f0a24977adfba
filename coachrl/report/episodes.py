"""Episodes as the pages show them: which ones, with which scores, and which agent's files who used."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup, escape

from coachrl.report.charts import number
from coachrl.report.fault import Fault, find_fault
from coachrl.report.rendering import cut, rendering_svg
from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes
from coachrl.text import one_line, printable
from coachrl.types import Action, CoachScore, Episode

PAGE_BYTES = 3_000_000  # of the episodes to browse; curves and pairs come on top, and a page stays under 5 MB
PAIR_BYTES = 520_000  # of two episodes that stand side by side at the top; there are up to three such pairs
_ACTION_BYTES = 900  # of markup around one action's text
_FILE_BYTES = 100  # of markup around a file's name, and of who used it
SHOWN_FILES = 40  # of those that appeared with one action; more are counted
SHOWN_ACTIONS = 200  # of one episode: the first and the last half of so many; the others stay in the episode file
PROBLEM_CHARACTERS = 4000  # of a problem; what the first agent saw holds it again
_SHOWN_PROBLEM = 160  # characters of a problem in a row of the list
_SHOWN_SCORES = 12  # of one agent in a row of the list
_MISSES = 8  # episodes in a row that are too long for what is left of a file's share end the search for shorter ones
_ROW_BYTES = 2000  # of markup around an episode, and of what its row repeats
_SAFE_ANCHOR = re.compile(r"[A-Za-z0-9._-]{1,120}")


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

    @property
    def anchor(self) -> str:
        """What a link to this episode ends in, after the #: its id, or a hash of one that no address could hold."""
        episode_id = self.episode.id
        if _SAFE_ANCHOR.fullmatch(episode_id):
            return f"e.{episode_id}"
        return f"e.{hashlib.sha256(episode_id.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"

    @property
    def problem(self) -> str:
        """The problem as the task states it; of a run that did not keep it, what the first agent read."""
        episode = self.episode
        return episode.task_prompt or (episode.actions[0].prompt_text if episode.actions else "")

    @property
    def problem_in_row(self) -> str:
        return one_line(self.problem, _SHOWN_PROBLEM) or self.episode.task_id

    @property
    def result(self) -> str:
        """ "success", "failure", or "broke": an episode that ended by nobody's fault measured nothing."""
        if self.episode.infra_error is not None:
            return "broke"
        return "success" if self.episode.outcome.success else "failure"

    @property
    def outcome_in_words(self) -> str:
        """What was measured, with the reference answer where the task has one."""
        outcome = self.episode.outcome
        return self.episode.infra_error or outcome.summary or outcome.reason

    @cached_property
    def fault(self) -> Fault | None:
        """Who was at fault, where a scored episode failed."""
        return find_fault(self.episode, self.scores) if self.result == "failure" and self.scores else None

    @cached_property
    def mean_score(self) -> float | None:
        values = [score.process_0_10 for score in self.scores.values() if score.process_0_10 is not None]
        return sum(values) / len(values) if values else None

    @property
    def shown_actions(self) -> Sequence[Action]:
        """All actions, or of very many the first and the last ones."""
        actions, half = self.episode.actions, SHOWN_ACTIONS // 2
        return actions if len(actions) <= SHOWN_ACTIONS else (*actions[:half], *actions[-half:])

    @property
    def scores_by_agent(self) -> dict[str, str]:
        """Agent -> its scores in order, as a row of the list shows them."""
        found: dict[str, list[str]] = {}
        for action in self.episode.actions:
            score = self.scores.get(action.id)
            if score is not None and score.process_0_10 is not None:
                found.setdefault(action.role, []).append(number(score.process_0_10))
        return {
            role: ", ".join(values[:_SHOWN_SCORES]) + (f", … ({len(values)})" if len(values) > _SHOWN_SCORES else "")
            for role, values in found.items()
        }


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

    Every file gives the same share: its episodes in turn from the lowest mean score and from the highest, as many as
    the share has room for. Training comes before what is held out.
    """
    files = run.episode_files()
    chosen, total, left = [], 0, budget
    for position, path in enumerate(files):
        ranked = _from_both_ends(list(read_shown(path, problems)))
        total += len(ranked)
        share, missed = left // (len(files) - position), 0
        for shown in ranked:
            size = page_bytes(shown)
            if size <= share:
                missed, share, left = 0, share - size, left - size
                chosen.append(shown)
                continue
            missed += 1
            if missed == _MISSES:
                break
    return sorted(chosen, key=lambda shown: (shown.category != "training", shown.step, shown.episode.id)), total


def clear_failure(entries: Iterable[Shown]) -> Shown | None:
    """A failed training episode to begin with: of the latest step in which the coach names one culprit, the one whose
    culprit stands out most; else any that failed. None where none did."""
    failed = [shown for shown in entries if shown.category == "training" and shown.fault is not None]
    return max(failed, key=_clarity, default=None)


def _clarity(shown: Shown) -> tuple[bool, int, float]:
    assert shown.fault is not None
    return shown.fault.culprit is not None, shown.step, shown.fault.margin


def pages(entries: Iterable[Shown], budget: int = PAGE_BYTES) -> Iterator[list[Shown]]:
    """The entries in turn, in parts that a page has room for; what is too long for any page has one of its own."""
    part: list[Shown] = []
    used = 0
    for shown in entries:
        size = page_bytes(shown)
        if part and used + size > budget:
            yield part
            part, used = [], 0
        part.append(shown)
        used += size
    if part:
        yield part


def new_files(action: Action) -> list[str]:
    """Files that this action added to the workspace."""
    return sorted(set(action.files_after) - set(action.files_before))


def artifacts(episode: Episode, action: Action) -> list[Artifact]:
    """The first of its new files, each with its users among the actions that follow."""
    names = new_files(action)[:SHOWN_FILES]
    if not names:  # as of most actions: an episode may have thousands, all of which would be looked through for each
        return []
    later = [other for other in episode.actions if other.index > action.index and other.code][:SHOWN_ACTIONS]
    return [
        Artifact(name, [f"{other.role} turn {other.turn + 1}" for other in later if name in (other.code or "")])
        for name in names
    ]


def role_scores(shown: Shown) -> str:
    """JSON for the filter: [role, score or null] of every action that is shown."""
    scores = [(action.role, shown.scores.get(action.id)) for action in shown.shown_actions]
    return json.dumps([[role, score.process_0_10 if score is not None else None] for role, score in scores])


def _from_both_ends(episodes: list[Shown]) -> list[Shown]:
    """Lowest, highest, second lowest, ...; those without scores in the order of the file, after the others."""
    unscored = [shown for shown in episodes if shown.mean_score is None]
    scored = [shown for shown in episodes if shown.mean_score is not None]
    scored.sort(key=lambda shown: shown.mean_score or 0.0)
    ends = [scored[i // 2] if i % 2 == 0 else scored[-1 - i // 2] for i in range(len(scored))]
    return ends + unscored


def page_bytes(shown: Shown) -> int:
    """Bytes that an episode takes on a page, about: its text as it is written there, and the environments that are
    drawn."""
    episode, actions = shown.episode, shown.shown_actions
    texts = [text for action in actions for text in _texts(action, shown.scores.get(action.id))]
    texts += [other.text for other in episode.rejected_candidates]
    texts += [shown.problem[:PROBLEM_CHARACTERS], shown.outcome_in_words]
    written = sum(_bytes(cut(text)) for text in texts)
    names = [file.name for action in actions for file in artifacts(episode, action)]
    written += sum(_bytes(escape(printable(name))) + _FILE_BYTES for name in names)
    drawn = sum(len(rendering_svg(action.rendering)) for action in actions if action.rendering)
    return written + drawn + _ACTION_BYTES * (len(actions) + len(episode.rejected_candidates)) + _ROW_BYTES


def _bytes(markup: Markup) -> int:
    return len(markup.encode("utf-8", "replace"))


def _texts(action: Action, score: CoachScore | None) -> list[str]:
    """What is shown of an action in words."""
    ran = action.execution
    streams = [ran.stdout, ran.stderr] if ran is not None else []
    return [action.prompt_text, action.text, action.result, *streams, score.rationale if score is not None else ""]
