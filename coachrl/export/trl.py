"""Data sets for Hugging Face TRL from a saved run: demonstrations, preferences, and a coach's judgements.

    sft            {"messages": [...]}                             replies that scored well, and corrections
    dpo            {"prompt": [...], "chosen": [...], "rejected": [...]}   a better reply against the agent's own
    reward-model   {"prompt": [...], "completion": [...], "score": 7.5}    what a coach read, said and gave

Messages are those that the agents read: few-shot examples, earlier turns, the prompt. A correction is the reply that
the coach suggested in an action's place (`coach.suggest`); a sibling is another reply to the very same messages.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.prompts import find_coach_prompt, render_request
from coachrl.coach.verdict import parse_verdict
from coachrl.errors import CoachError, ConfigError
from coachrl.generation import Message
from coachrl.jsonl import json_line
from coachrl.rescore.store import find_rescore
from coachrl.runs.folder import Run
from coachrl.runs.saved import conversations, requests_of, team_of, training_episodes
from coachrl.tasks import load_tasks
from coachrl.text import nearest
from coachrl.types import Action, CoachScore, Episode

FORMATS = ("sft", "dpo", "reward-model")
DEFAULT_MIN_SCORE = 8.0
DEFAULT_MIN_GAP = 1.0
TOP_SCORE = 10.0
_HOW_PAIRS_COME = (
    "; a pair is two replies to one prompt: train with train.group_size=2 or more (or sampling.scheme=tree), or "
    "have corrections written (coachrl rescore RUN --coach MODEL coach.suggest=true) and add --rescore LABEL; sft and "
    "reward-model need no pairs"
)
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
class Exported:
    """lines: of each kind that were written. left_out: actions, by reason."""

    lines: Mapping[str, int]
    left_out: Mapping[str, int]


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


def export_run(run: Run, form: str, path: Path, scope: ExportFilter) -> Exported:
    """Write `path`, whole. Raises ConfigError for a file that exists, an option that the format does not know, a role
    or a rescore that the run does not have, and where nothing is left to write."""
    _check(run, form, path, scope)
    left_out: Counter[str] = Counter()
    if form == "reward-model":
        records = _judgements(run, scope, left_out)
    else:
        make = _demonstrations if form == "sft" else _preferences
        records = make(_judged(run, scope, left_out), scope, left_out)
    lines = _write(path, records)
    if not lines:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        hint = _HOW_PAIRS_COME if form == "dpo" and left_out["without a better reply"] else ""
        raise ConfigError(f"{run.folder}: nothing to export as {form}: {why or 'no action was scored'}{hint}")
    return Exported(lines, dict(left_out))


def _demonstrations(judged: Iterable[ScoredReply], scope: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """Replies that scored well as they are; in the place of others, what the coach suggested."""
    least = DEFAULT_MIN_SCORE if scope.min_score is None else scope.min_score
    for item in judged:
        if item.score_0_10 >= least and item.ended:
            kind, reply, score = "reply", item.action.text, item.score_0_10
        elif item.correction:
            kind, reply, score = "correction", item.correction, None
        else:
            left_out[f"scored below {least:g}" if item.score_0_10 < least else "cut off"] += 1
            continue
        messages = [*item.prompt, _said(reply)]
        yield kind, {"messages": messages, **item.columns, "source": kind, "score": score}


def _preferences(judged: Iterable[ScoredReply], scope: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """One pair at most for each action: against its correction, else against its best sibling."""
    gap = DEFAULT_MIN_GAP if scope.min_gap is None else scope.min_gap
    groups: dict[str, list[ScoredReply]] = {}
    for item in judged:
        key = json.dumps([item.task_id, item.action.role, item.action.turn, item.prompt])
        groups.setdefault(key, []).append(item)
    for group in groups.values():
        best = max((item for item in group if item.ended), key=lambda item: item.score_0_10, default=None)
        if best is not None and best.score_0_10 < (scope.min_score or 0.0):
            best = None
        pairs = set()
        for item in group:
            if item.correction and TOP_SCORE - item.score_0_10 >= gap:
                kind, chosen, score = "correction", item.correction, None
            elif best is not None and best.score_0_10 - item.score_0_10 >= gap and best.action.text != item.action.text:
                kind, chosen, score = "sibling", best.action.text, best.score_0_10
            else:
                left_out["without a better reply"] += 1
                continue
            if (chosen, item.action.text) in pairs:
                left_out["the same as another"] += 1
                continue
            pairs.add((chosen, item.action.text))
            replies = {"chosen": [_said(chosen)], "rejected": [_said(item.action.text)]}
            scores = {"score_chosen": score, "score_rejected": item.score_0_10}
            yield kind, {"prompt": item.prompt, **replies, **item.columns, "source": kind, **scores}


def _judgements(run: Run, scope: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """What the coach was asked and what it answered, from the ledger. Rules make no calls: their reasons and score
    answer the prompt that a language model would have been given."""
    roles = {action.id: action.role for scored in training_episodes(run) for action in _in_scope(scored.episode, scope)}
    ledger = run.ledger if scope.rescore is None else find_rescore(run.folder, scope.rescore).folder / "ledger.jsonl"
    if not ledger.is_file():
        raise ConfigError(f"{ledger} is missing: a reward model learns from what the coach was asked and answered")
    if next(_replies(ledger), None) is None:
        yield from _rendered(run, scope, left_out)
    seen = set()
    for line in _replies(ledger):
        action_id, reply = line["action_id"], line["reply"]
        if action_id not in roles or (action_id, reply) in seen:  # a resumed run notes again what it finds in its cache
            continue
        seen.add((action_id, reply))
        try:
            score = parse_verdict(reply).process_0_10
        except CoachError:
            left_out["replies without a verdict"] += 1
            continue
        if score is None:
            left_out["abstained"] += 1
        else:  # of a conversation that was repaired, the question and the reply that could be read
            question = line["messages"][0]["content"]
            yield "judgement", _judgement(action_id, roles[action_id], question, reply, score, line["model"])


def _replies(ledger: Path) -> Iterator[dict[str, Any]]:
    return (
        line
        for line in read_ledger(ledger)
        if line["kind"] == "call" and line["reply"] and line["action_id"] and line.get("finish_reason") != "length"
    )


def _rendered(run: Run, scope: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    config, team = run.config(), team_of(run)
    tasks = {task.id: task for task in load_tasks(config)[0]}
    prompt = find_coach_prompt(None, config.pipeline.name)
    evidence = config.coach.evidence
    if scope.rescore is not None:
        settings = find_rescore(run.folder, scope.rescore).by.settings
        shown = settings.get("coach.evidence.ground_truth", evidence.ground_truth)
        evidence = evidence.model_copy(update={"ground_truth": shown})
    judged = {item.action.id: item for item in _judged(run, scope, left_out)}
    for scored in training_episodes(run):
        for request in requests_of(scored.episode, tasks, team, evidence.ground_truth):
            item = judged.get(request.action.id)
            if item is not None:
                reply = f"{item.score.rationale}\n\nPROCESS_SCORE: {item.score_0_10:g}"
                question = render_request(prompt, request, evidence)
                action, score = item.action, item.score
                yield "judgement", _judgement(action.id, action.role, question, reply, item.score_0_10, score.model)


def _judgement(action_id: str, role: str, question: str, reply: str, score_0_10: float, model: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [_said(reply)],
        "score": score_0_10,
        "action_id": action_id,
        "agent": role,
        "coach": model,
    }


def _judged(run: Run, scope: ExportFilter, left_out: Counter[str]) -> Iterator[ScoredReply]:
    """The scored actions of the scope, in order; the others are counted."""
    team = team_of(run)
    given = find_rescore(run.folder, scope.rescore).scores if scope.rescore is not None else None
    for scored in training_episodes(run):
        read = conversations(scored.episode, team)
        for action in _in_scope(scored.episode, scope):
            score = (scored.scores if given is None else given).get(action.id)
            if scored.episode.infra_error is not None or action.infra_error is not None:
                left_out["broken for no fault of the agent"] += 1
            elif score is None:
                left_out["not scored"] += 1
            elif score.process_0_10 is None:
                left_out[score.status] += 1
            else:
                text_only = replace(action, prompt_ids=(), response_ids=(), logprobs=())  # pairs wait in memory
                yield ScoredReply(text_only, scored.episode.task_id, read[action.id], score, score.process_0_10)


def _in_scope(episode: Episode, scope: ExportFilter) -> Iterator[Action]:
    return (action for action in episode.all_actions if not scope.roles or action.role in scope.roles)


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _check(run: Run, form: str, path: Path, scope: ExportFilter) -> None:
    if form not in FORMATS:
        raise ConfigError(f"--format '{form}'{nearest(form, FORMATS)}; formats: {', '.join(FORMATS)}")
    for name, value, forms in (("min-score", scope.min_score, ("sft", "dpo")), ("min-gap", scope.min_gap, ("dpo",))):
        if value is not None and form not in forms:
            raise ConfigError(f"--{name} is for {' and '.join(forms)}; {form} takes every score")
        if value is not None and not 0 <= value <= TOP_SCORE:
            raise ConfigError(f"--{name} {value:g}: scores lie between 0 and 10")
    names = [role.name for role in team_of(run)]
    for name in scope.roles:
        if name not in names:
            raise ConfigError(f"--role: no role '{name}'{nearest(name, names)}; roles: {', '.join(names)}")
    if path.exists():
        raise ConfigError(f"{path} exists already: name another file, or remove it first")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}")


def _write(path: Path, records: Iterable[Line]) -> dict[str, int]:
    """Lines of each kind that were written; `path` appears whole, or not at all where there are none."""
    aside, lines = path.with_name(f".{path.name}.{os.getpid()}"), Counter[str]()
    try:
        with aside.open("w", encoding="utf-8") as file:
            for kind, record in records:
                file.write(json_line(record))
                lines[kind] += 1
        if lines:
            aside.rename(path)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
    return dict(lines)
