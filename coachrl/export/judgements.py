"""What a coach read, said and gave: prompts, completions and scores for a reward model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.criteria import Criterion, parse_verdict_by_criteria
from coachrl.coach.prompt_rendering import find_coach_prompt, render_request
from coachrl.coach.verdict import parse_verdict
from coachrl.errors import CoachError, ConfigError
from coachrl.export.replies import ExportFilter, Line, said, scored_replies, wanted_actions
from coachrl.rescore.store import find_rescore
from coachrl.runs.folder import Run
from coachrl.runs.reading import requests_of, tasks_of, team_of, training_episodes

_UNREAD = ("length", "content_filter")  # endings of replies that the coach itself did not read


def judgements(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """What the coach was asked and what it answered, from the ledger. Rules make no calls: their reasons and score
    answer the prompt that a language model would have been given."""
    roles = {
        action.id: action.role for scored in training_episodes(run) for action in wanted_actions(scored.episode, which)
    }
    ledger = run.ledger if which.rescore is None else find_rescore(run.folder, which.rescore).folder / "ledger.jsonl"
    if not ledger.is_file():
        raise ConfigError(f"{ledger} is missing: a reward model learns from what the coach was asked and answered")
    replies, criteria = _replies_and_criteria(ledger)
    if not replies:
        yield from _rendered(run, which, left_out)
    seen = set()
    for line in replies:
        action_id, reply = line["action_id"], line["reply"]
        if action_id not in roles or (action_id, reply) in seen:  # a resumed run notes again what it finds in its cache
            continue
        seen.add((action_id, reply))
        if not line["messages"]:
            left_out["replies without a question"] += 1
            continue
        try:
            asked = criteria.get(action_id)
            verdict = parse_verdict_by_criteria(reply, asked) if asked else parse_verdict(reply)
        except CoachError:
            left_out["replies without a verdict"] += 1
            continue
        if verdict.process_0_10 is None:
            left_out["abstained"] += 1
        else:  # of a conversation that was repaired, the question and the reply that could be read
            question = line["messages"][0]["content"]
            record = _judgement(action_id, roles[action_id], question, reply, verdict.process_0_10, line["model"])
            if criteria:  # a column of all lines, or of none
                record["criteria"] = [{"name": one.name, "score": one.score_0_10} for one in verdict.criteria]
            yield "judgement", record


def _replies_and_criteria(ledger: Path) -> tuple[list[dict[str, Any]], dict[str, tuple[Criterion, ...]]]:
    """The calls that gave whole replies, and what each action was judged by, where its score says so: scores stand
    behind their calls. Read once, so that a torn line is warned of once."""
    replies: list[dict[str, Any]] = []
    criteria: dict[str, tuple[Criterion, ...]] = {}
    for line in read_ledger(ledger):
        if line["kind"] == "score" and line.get("criteria"):
            asked = (Criterion(one["name"], one["weight"], "") for one in line["criteria"])
            criteria[line["action_id"]] = tuple(asked)
        elif (
            line["kind"] == "call" and line["reply"] and line["action_id"] and line.get("finish_reason") not in _UNREAD
        ):
            replies.append({**line, "messages": line["messages"][:1]})  # of a repaired conversation the rest is long
    return replies, criteria


def _rendered(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    config, team = run.config(), team_of(run)
    tasks = tasks_of(run, config)
    prompt = find_coach_prompt(None, config.pipeline.name)
    evidence = config.coach.evidence
    if which.rescore is not None:
        settings = find_rescore(run.folder, which.rescore).by.settings
        shown = settings.get("coach.evidence.ground_truth", evidence.ground_truth)
        evidence = evidence.model_copy(update={"ground_truth": shown})
    scored = {item.action.id: item for item in scored_replies(run, which, left_out)}
    for episode, _ in training_episodes(run):
        for request in requests_of(episode, tasks, team, evidence.ground_truth):
            item = scored.get(request.action.id)
            if item is not None:
                reply = f"{item.score.rationale}\n\nPROCESS_SCORE: {item.score_0_10:g}"
                question = render_request(prompt, request, evidence)
                action, score = item.action, item.score
                yield "judgement", _judgement(action.id, action.role, question, reply, item.score_0_10, score.model)


def _judgement(action_id: str, role: str, question: str, reply: str, score_0_10: float, model: str) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [said(reply)],
        "score": score_0_10,
        "action_id": action_id,
        "agent": role,
        "coach": model,
    }
