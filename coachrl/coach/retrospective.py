"""The retrospective pass of retrospective credit (MAPPA, App. F): who brought the outcome about?

A `RetrospectiveCoach` is asked about one action at a time, from the last to the first. It sees the outcome and, in
words, what later actions left of it to be explained; it answers with the action's signed contribution and what it
leaves itself. The chain is `CoachPool`'s; `coachrl.trainers.algorithms.rewards` makes rewards of contributions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient
from coachrl.coach.llm import PromptedCoach, with_replies
from coachrl.coach.verdict import closed_schema, json_objects, number_within
from coachrl.config import CoachConfig
from coachrl.errors import CoachError
from coachrl.prompts import Prompt
from coachrl.text import visible
from coachrl.types import CoachScore

LIMIT = 10.0
_LINE = re.compile(r"^[ \t*_`#-]*CONTRIBUTION[ \t*_`]*[:=](?P<value>.*)$", re.IGNORECASE | re.MULTILINE)
_RESIDUAL = re.compile(
    r"^[ \t*_`#-]*RESIDUAL[ \t*_`]*[:=](?P<value>.*?)(?=^[ \t*_`#-]*CONTRIBUTION[ \t*_`]*[:=]|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_SCHEMA: Mapping[str, Any] = {
    "rationale": {"type": "string", "description": "your reasons, in two to four sentences"},
    "contribution": {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "description": "this action's share of the outcome, a number from -10 to 10, or null where you abstain",
    },
    "residual": {"type": "string", "description": "what is left to be explained by earlier actions, with its points"},
    "abstain": {"type": "boolean", "description": "true where the material does not allow any judgement"},
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
        attribution, replies = await self._ask(request, parse_attribution, _REPAIR)
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
    CoachError where there is not exactly one contribution from -10 to 10, or no residual."""
    text = visible(reply)
    if not text:
        raise CoachError("the reply is empty" if not reply.strip() else "the reply holds nothing but hidden thoughts")
    given, residuals = _statements(text)
    if not given:
        raise CoachError("the reply has no line 'CONTRIBUTION: n'")
    if len(given) > 1:
        raise CoachError("the reply contradicts itself: it states two contributions")
    contribution, residual = given.pop(), "\n".join(sorted(residuals - {""}))
    if contribution is not None and not residual:
        raise CoachError("the reply has no line 'RESIDUAL: ...' that says what earlier actions are left to explain")
    return Attribution(contribution, residual, text)


def _statements(text: str) -> tuple[set[float | None], set[str]]:
    """Every contribution and every residual that the reply states."""
    given = {number_within(match["value"], "CONTRIBUTION", -LIMIT, LIMIT) for match in _LINE.finditer(text)}
    residuals = {match["value"].strip(" \t\r\n*_`") for match in _RESIDUAL.finditer(text)}
    for found in json_objects(text):
        if found.get("abstain") is True:
            given.add(None)
        elif "contribution" in found:
            given.add(number_within(found["contribution"], "CONTRIBUTION", -LIMIT, LIMIT))
        if isinstance(found.get("residual"), str):
            residuals.add(found["residual"].strip())
    return given, residuals
