"""A language model that advises agents between their turns: no score, only words (MAGRPO, Sec. 5.2)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from coachrl.coach.clients.base import ChatClient, ChatRequest
from coachrl.coach.clients.ledger import Ledger, Message, calls_to
from coachrl.coach.clients.providers import check_key
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.repeated_warnings import RepeatedWarnings
from coachrl.coach.replies import own_words
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.pipelines.team.roles import fill
from coachrl.prompts import Prompt
from coachrl.text import defused

log = logging.getLogger(__name__)

_MAX_TOKENS = 2048
NO_ADVICE = "No advice could be had for this turn."


@dataclass(frozen=True)
class Advice:
    """What the adviser said. failed: it could not be asked, as `text` says. cost_usd None: the price is not known."""

    text: str
    failed: bool = False
    cost_usd: float | None = 0.0


class Adviser(ABC):
    """Who is asked for advice. What is beside `advise` concerns those that ask a model from this process."""

    @abstractmethod
    async def advise(self, values: Mapping[str, object]) -> Advice:
        """What the agents are told. `values`: fields of the adviser's prompt."""

    def check_key(self, settings: CoachConfig) -> None:
        """Raises CoachUnavailable where its key is known to be missing."""
        return

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Share the run's limits, budget, cache and ledger from now on."""
        return

    async def check(self) -> None:
        """Raises CoachUnavailable where it cannot be asked."""
        return

    async def close(self) -> None:
        """End what is open."""
        return


class ModelAdviser(Adviser):
    """Any chat model that can be a coach. After `connect` its calls share the run's limits, budget, cache and ledger;
    on its own it has none of them, and its client is made at the first question."""

    def __init__(self, model: str, api_base: str | None, prompt: Prompt) -> None:
        self._model, self._api_base, self._prompt = model, api_base, prompt
        self._client_factory, self._troubles = ChatClientFactory(), RepeatedWarnings(log)
        self._ledger: Ledger | None = None
        self._client: ChatClient | None = None

    def check_key(self, settings: CoachConfig) -> None:
        check_key(self._model, self._api_base, settings)

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Ask by way of `client_factory` from now on, and note the calls in `ledger`. Asks nothing yet.

        Raises CoachUnavailable for an unknown model or a missing key, ConfigError where a budget is set and its price
        is not known."""
        self._client_factory, self._ledger = client_factory, Ledger(ledger) if ledger is not None else None
        self._asked()

    async def check(self) -> None:
        """Ask once whether the model can be asked. Raises CoachUnavailable where it cannot."""
        with self._noted():
            await self._asked().check(self._request("This is a test of the connection, there is nothing to advise."))

    async def advise(self, values: Mapping[str, object]) -> Advice:
        """The model's words, without its hidden thoughts. Where the call failed after its retries, or there are none,
        the agents are told so.

        Raises CoachUnavailable where no call can go well (unknown model, wrong key), BudgetExceeded where the next one
        may cost more than is left."""
        try:
            with self._noted():
                reply = await self._asked().complete(self._request(defused(fill(self._prompt, values))))
        except CoachUnavailable:
            raise
        except CoachError as error:
            return self._no_advice(error, cost_usd=0.0)
        cost_usd = 0.0 if reply.from_cache else reply.usage.cost_usd
        try:
            return Advice(own_words(reply.text), cost_usd=cost_usd)
        except CoachError as error:
            return self._no_advice(error, cost_usd)

    async def close(self) -> None:
        self._troubles.sum_up()
        if self._client is not None:
            await self._client.close()
        if self._ledger is not None:
            self._ledger.close()

    def _no_advice(self, error: CoachError, cost_usd: float | None) -> Advice:
        self._troubles.warn(f"adviser {self._model}", str(error))
        return Advice(NO_ADVICE, failed=True, cost_usd=cost_usd)

    def _asked(self) -> ChatClient:
        if self._client is None:
            self._client = self._client_factory.client(self._model, self._api_base)
        return self._client

    def _request(self, text: str) -> ChatRequest:
        return ChatRequest((Message("user", text),), 0.0, _MAX_TOKENS, None, 0, self._prompt.sha256)

    def _noted(self) -> AbstractContextManager[None]:
        return calls_to(self._ledger.call) if self._ledger is not None else nullcontext()
