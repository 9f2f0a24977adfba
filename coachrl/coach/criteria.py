"""Weighted criteria: a coach prompt's header lists them, the coach gives each a reason and a score, we make the total.

    criteria:
      correctness: {weight: 3, question: Is what it claims or computes right?}
      hand_on: {weight: 1, question: Can the next agent use what it left?}

A reply states two lines for each, ``REASON correctness: ...`` and ``SCORE correctness: n``, or the key ``criteria`` of
a JSON object. The total is the mean of the scores by their weights. Where one criterion has no score or no reason there
is no total: nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coachrl.coach import replies
from coachrl.coach.replies import Statement
from coachrl.coach.verdict import (
    ABSTAIN_KEY,
    HOW_TO_ABSTAIN,
    SCORE_OR_NOT,
    Verdict,
    abstains,
    closed_schema,
    without_suggestion,
)
from coachrl.errors import CoachError, ConfigError
from coachrl.parsing import is_number
from coachrl.text import brief
from coachrl.types import HIGHEST_SCORE, CriterionScore

MOST_CRITERIA = 12
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_LINE = replies.statement_lines(
    r"(?P<part>SCORE|REASON)[ \u00a0]+(?P<name>[a-z](?:\\?[a-z0-9_-])*+)"
)  # Markdown writes \_
_REASON = {"type": "string", "description": "one or two sentences"}
_SCORE = {**SCORE_OR_NOT, "description": "from 0 to 10, or null where you abstain"}


@dataclass(frozen=True)
class Criterion:
    """One question of a prompt, and what its answer weighs beside the others'."""

    name: str
    weight: float
    question: str


def parse_criteria(header: Mapping[str, Any], where: str) -> tuple[Criterion, ...]:
    """The criteria of a prompt's header; none where it lists none. Raises ConfigError."""
    listed = header.get("criteria", {})
    if not isinstance(listed, dict) or len(listed) > MOST_CRITERIA or ("criteria" in header and not listed):
        raise ConfigError(
            f"coach prompt {where}: criteria must be 1 to {MOST_CRITERIA} names, each with a question and a weight"
        )
    return tuple(_criterion(str(name), entry, where) for name, entry in listed.items())


def _criterion(name: str, entry: Any, where: str) -> Criterion:
    place = f"coach prompt {where}: criterion {brief(name)}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{place}: a name has small letters, digits, - and _ only, and begins with a letter")
    if not isinstance(entry, dict) or not entry.keys() <= {"weight", "question"}:
        raise ConfigError(f"{place}: write {{weight: 1, question: ...}}, not {brief(entry)}")
    weight, question = entry.get("weight", 1), entry.get("question")
    if not is_number(weight) or not 0 < weight < math.inf:
        raise ConfigError(f"{place}: its weight must be a number above 0, not {brief(weight)}")
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{place}: it needs a question")
    return Criterion(name, float(weight), " ".join(question.split()))


def criteria_words(criteria: Sequence[Criterion]) -> str:
    """What a prompt shows as {{criteria}}: the questions, and the lines that the reply must end in."""
    whole = sum(criterion.weight for criterion in criteria)
    questions = [f"- {one.name} ({one.weight / whole:.0%} of the total): {one.question}" for one in criteria]
    lines = [f"REASON {one.name}: <one or two sentences>\nSCORE {one.name}: <number from 0 to 10>" for one in criteria]
    closing = "Then end with exactly these lines, each number alone after its colon. Give no total: it is computed."
    return "\n".join([*questions, "", closing, "", *lines, "", HOW_TO_ABSTAIN])


def criteria_schema(criteria: Sequence[Criterion], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JSON schema of a verdict by criteria. extra: further keys, as for `verdict_schema`."""
    judged = closed_schema({"reason": _REASON, "score": _SCORE})
    names = ", ".join(f'"{criterion.name}"' for criterion in criteria)
    by_name = {
        **closed_schema({criterion.name: judged for criterion in criteria}),
        "description": f'an object with the keys {names}, each an object with "reason" (one or two sentences) and '
        '"score" (a number from 0 to 10, or null where you abstain)',
    }
    return closed_schema({**(extra or {}), "criteria": by_name, **ABSTAIN_KEY})


def parse_verdict_by_criteria(reply: str, criteria: Sequence[Criterion]) -> Verdict:
    """The verdict of `reply`, as strict as `parse_verdict`. Raises CoachError where a criterion has no score, no reason
    or two different scores, or where more follows the last of them."""
    text, suggestion = without_suggestion(replies.own_words(reply))
    objects = list(replies.json_objects(text))
    stated = [*replies.last_statements(_LINE, text, _key), *_in_objects(objects)]
    if abstains(text, objects, stated):
        return Verdict(None, None, text, suggestion)
    scores = tuple(_judged(criterion, stated) for criterion in criteria)
    replies.check_end(text, max(one.end for one in stated), "verdict")
    return Verdict(weighted_mean(scores), None, text, suggestion, scores)


def weighted_mean(scores: Sequence[CriterionScore]) -> float:
    """The total of what each criterion got, from 0 to 10. It is rounded, so that equal totals are equal numbers: eights
    are not below 8, and where all of a group have one total it has no spread."""
    whole = sum(score.weight for score in scores)
    return min(HIGHEST_SCORE, round(sum(score.weight / whole * score.score_0_10 for score in scores), 9))


def _judged(criterion: Criterion, stated: Sequence[Statement]) -> CriterionScore:
    score = replies.one_number(stated, f"SCORE {criterion.name}", 0, 10)
    if score is None:
        raise CoachError(f"the criterion {criterion.name} has no score, and the others have one")
    reasons = [replies.undecorated(str(one.value or "")) for one in stated if one.key == f"REASON {criterion.name}"]
    reasons = [reason for reason in reasons if reason]
    if not reasons:
        raise CoachError(f"the criterion {criterion.name} has no reason: no line 'REASON {criterion.name}: ...'")
    return CriterionScore(criterion.name, criterion.weight, score, reasons[-1])


def _key(match: re.Match[str]) -> str:
    name = match["name"].replace("\\", "").lower()
    return f"{match['part'].upper()} {name}"


def _in_objects(objects: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Statement]:
    for fields, end in objects:
        listed = fields.get("criteria")
        for name, judged in listed.items() if isinstance(listed, dict) else ():
            for part in ("reason", "score") if isinstance(judged, dict) else ():
                if part in judged:
                    yield Statement(f"{part.upper()} {name.lower()}", judged[part], end, end)
