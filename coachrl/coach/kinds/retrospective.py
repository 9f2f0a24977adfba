"""The retrospective pass of retrospective credit (MAPPA, App. F): who brought the outcome about?

A `RetrospectiveCoach` is asked about one action at a time, from the last to the first. It sees the outcome and, in
words, what later actions left of it to be explained; it answers with the action's signed contribution and what it
leaves itself. The chain is `CoachPool`'s; `coachrl.trainers.algorithms.advantages.rewards` makes rewards of
contributions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coachrl.coach import replies
from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient
from coachrl.coach.kinds.llm import PromptedCoach, with_replies
from coachrl.coach.replies import Statement
from coachrl.coach.verdict import ABSTAIN_KEY, closed_schema
from coachrl.config import CoachConfig
from coachrl.errors import CoachError
from coachrl.prompts import Prompt
from coachrl.types import CoachScore

LIMIT = 10.0
_CONTRIBUTION = replies.statement_lines("CONTRIBUTION")
_RESIDUAL = replies.statement_lines("RESIDUAL")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SCHEMA: Mapping[str, Any] = {
    "rationale": {"type": "string", "description": "your reasons, in two to four sentences"},
    "contribution": {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "description": "this action's share of the outcome, a number from -10 to 10, or null where you abstain",
    },
    "residual": {"type": "string", "description": "what is left to be explained by earlier actions, with its points"},
    **ABSTAIN_KEY,
}
_REPAIR = (
    "Keep your judgement and answer again with two lines alone, 'CONTRIBUTION: n', n being one number from -10 to 10 "
    "(or ABSTAIN), and 'RESIDUAL: ...', what earlier actions are left to explain."
)


@dataclass(frozen=True)
class Attribution:
    """contribution: None where the coach abstained; residual may then be empty. rationale: the whole visible reply."""

    contribution: float | None
    residual: str
    rationale: str


class RetrospectiveCoach(PromptedCoach):
    """A chat model that attributes an outcome to one action. `prompt` must be of use "retrospective"."""

    def __init__(self, client: ChatClient, prompt: Prompt, settings: CoachConfig) -> None:
        super().__init__(client, prompt, settings, closed_schema(_SCHEMA))

    async def score(self, request: CoachRequest) -> CoachScore:
        """The contribution and the residual of `request.action`; its process score is None. Raises CoachError where two
        replies running held no attribution, and what the client raises."""
        attribution, replies = await self._ask(self._text(request), parse_attribution, _REPAIR)
        score = CoachScore(
            request.action.id,
            "abstained" if attribution.contribution is None else "scored",
            rationale=attribution.rationale,
            prompt_hash=self._prompt.sha256,
            contribution=attribution.contribution,
            residual=attribution.residual,
        )
        return with_replies(score, replies)


def parse_attribution(reply: str) -> Attribution:
    """The attribution that `reply` states, in its two lines or as a JSON object. As strict as `parse_verdict`: raises
    CoachError where there is not exactly one contribution from -10 to 10, no residual, or where the two do not stand
    together at the end of the reply."""
    text = replies.own_words(reply)
    objects = list(replies.json_objects(text))
    contributions = _contributions(text, objects)
    contribution = replies.one_number(contributions, "CONTRIBUTION", -LIMIT, LIMIT)
    # Who abstains may leave the second line empty.
    residuals = [stated for stated in _residuals(text, objects) if stated.value or contribution is None]
    residual = residuals[-1].value if residuals else ""
    if contribution is not None and not residual:
        raise CoachError("the reply has no line 'RESIDUAL: ...' that says what earlier actions are left to explain")
    # The two stand together, in whatever order, at the end of the reply.
    final = sorted([contributions[-1], *residuals[-1:]], key=lambda stated: stated.start)
    replies.check_end(text[: final[-1].start], final[0].end, "attribution")
    replies.check_end(text, final[-1].end, "attribution")
    return Attribution(contribution, residual, text)


def _contributions(text: str, objects: Sequence[tuple[dict[str, Any], int]]) -> list[Statement]:
    """In the order in which they stand."""
    found = replies.last_statements(_CONTRIBUTION, text, lambda _: "CONTRIBUTION")
    for fields, end in objects:
        if fields.get("abstain") is True:
            found.append(Statement("CONTRIBUTION", "ABSTAIN", end, end))
        elif "contribution" in fields:
            found.append(Statement("CONTRIBUTION", fields["contribution"], end, end))
    return sorted(found, key=lambda stated: stated.start)


def _residuals(text: str, objects: Sequence[tuple[dict[str, Any], int]]) -> list[Statement]:
    """The last one that stands on a line, with its paragraph, and those of JSON objects, in the order in which they
    stand."""
    found = [
        Statement("RESIDUAL", fields["residual"].strip(), end, end)
        for fields, end in objects
        if isinstance(fields.get("residual"), str)
    ]
    for line in replies.last_statements(_RESIDUAL, text, lambda _: "RESIDUAL")[-1:]:
        follows = (_BLANK_LINE.search(text, line.end), _CONTRIBUTION.search(text, line.end))
        end = min((match.start() for match in follows if match is not None), default=len(text))
        value = replies.undecorated(line.value + text[line.end : end])
        found.append(Statement("RESIDUAL", value, line.start, end))
    return sorted(found, key=lambda stated: stated.start)
