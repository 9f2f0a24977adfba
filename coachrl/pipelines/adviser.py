"""A language model that advises agents between their turns: no score, only words (MAGRPO, Sec. 5.2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from coachrl.coach.client import ChatClient, ChatRequest
from coachrl.coach.exchange import Exchange
from coachrl.coach.ledger import Message
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.pipelines.roles import fill
from coachrl.prompts import Prompt

log = logging.getLogger(__name__)

_MAX_TOKENS = 2048
NO_ADVICE = "No advice could be had for this turn."


@dataclass(frozen=True)
class Advice:
    """What the adviser said. failed: it could not be asked, as `text` says. cost_usd None: the price is not known."""

    text: str
    failed: bool = False
    cost_usd: float | None = 0.0


class Adviser:
    """Any chat model that can be a coach. The client is made at the first question."""

    def __init__(self, model: str, api_base: str | None, prompt: Prompt) -> None:
        self._model, self._api_base, self._prompt = model, api_base, prompt
        self._client: ChatClient | None = None

    async def advise(self, values: Mapping[str, object]) -> Advice:
        """The model's words. Where the call failed after its retries the agents are told so, and the log says why.

        Raises CoachUnavailable where no call can go well (unknown model, wrong key)."""
        if self._client is None:
            self._client = Exchange().client(self._model, self._api_base)
        question = Message("user", fill(self._prompt, values))
        try:
            reply = await self._client.complete(
                ChatRequest((question,), 0.0, _MAX_TOKENS, None, 0, self._prompt.sha256)
            )
        except CoachUnavailable:
            raise
        except CoachError as error:
            log.warning("adviser %s: %s", self._model, error)
            return Advice(NO_ADVICE, failed=True)
        text = reply.text.strip()
        return Advice(text or NO_ADVICE, failed=not text, cost_usd=reply.cost_usd)
