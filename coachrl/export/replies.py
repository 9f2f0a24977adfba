"""The scored replies of a saved run, each with the messages that its agent read: what data sets are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from coachrl.pipelines.generation import Message
from coachrl.rescore.store import find_rescore
from coachrl.runs.folder import Run
from coachrl.runs.reading import conversations, team_of, training_episodes
from coachrl.types import Action, CoachScore, Episode

Line = tuple[str, dict[str, Any]]  # kind, record


@dataclass(frozen=True)
class ExportFilter:
    """What of a run goes into the file.

    roles: only theirs; empty: all. rescore: label of the rescore whose scores and suggestions count in place of the
    run's own. min_score: of a reply that is learned from (sft, and chosen siblings of dpo). min_gap: by how many points
    the chosen reply of a pair must score above the rejected one; a correction counts as a 10.
    """

    roles: tuple[str, ...] = ()
    rescore: str | None = None
    min_score: float | None = None
    min_gap: float | None = None


@dataclass(frozen=True)
class ScoredReply:
    """A scored action with the messages that its agent read."""

    action: Action
    task_id: str
    prompt: tuple[Message, ...]
    score: CoachScore
    score_0_10: float

    @property
    def correction(self) -> str:
        """What the coach would have written; empty where that is nothing else."""
        return self.score.suggestion if self.score.suggestion != self.action.text.strip() else ""

    @property
    def ended(self) -> bool:
        """A reply that was cut off is nothing to learn from; it may still be what another one is better than."""
        return self.action.finish_reason == "stop"

    @property
    def columns(self) -> dict[str, Any]:
        """Where a line comes from. TRL takes no notice of them."""
        return {"action_id": self.action.id, "task_id": self.task_id, "agent": self.action.role}


def scored_replies(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[ScoredReply]:
    """The scored actions that are wanted, in order; the others are counted."""
    team = team_of(run)
    given = find_rescore(run.folder, which.rescore).scores if which.rescore is not None else None
    for scored in training_episodes(run):
        read = conversations(scored.episode, team)
        for action in wanted_actions(scored.episode, which):
            score = (scored.scores if given is None else given).get(action.id)
            if scored.episode.infra_error is not None or action.infra_error is not None:
                left_out["broken for no fault of the agent"] += 1
            elif score is None:
                left_out["not scored"] += 1
            elif not action.is_of(score.action_digest):
                left_out["scored when the run held another reply"] += 1
            elif score.process_0_10 is None:
                left_out[score.status] += 1
            else:
                text_only = replace(action, prompt_ids=(), response_ids=(), logprobs=())  # pairs wait in memory
                yield ScoredReply(text_only, scored.episode.task_id, read[action.id], score, score.process_0_10)


def wanted_actions(episode: Episode, which: ExportFilter) -> Iterator[Action]:
    return (action for action in episode.all_actions if not which.roles or action.role in which.roles)


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}
