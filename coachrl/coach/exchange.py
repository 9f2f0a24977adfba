"""What stands between coaches and providers: the one retry loop, its limits, and a record of every call."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

import tenacity

from coachrl.coach.client import ChatClient, ChatRequest, Reply, TransientCoachError, make_client
from coachrl.coach.ledger import Call, record_call
from coachrl.errors import CoachError

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class CallSettings:
    """How calls are made.

    concurrency: calls to one model in flight at once, waits between attempts included, so that a provider which says
    429 is asked less. timeout_s: of one attempt. max_attempts, give_up_after_s: bounds of one call with its retries.
    """

    concurrency: int = 32
    timeout_s: float = 60.0
    max_attempts: int = 5
    give_up_after_s: float = 600.0
    first_wait_s: float = _FIRST_WAIT_S


class Exchange:
    """Makes the clients of a run, which share its limits. `client` may be asked for the same model again: calls to one
    model count against one limit."""

    def __init__(self, settings: CallSettings | None = None) -> None:
        self.settings = settings or CallSettings()
        self._slots: dict[str, asyncio.Semaphore] = {}

    def client(self, model: str, api_base: str | None = None) -> ChatClient:
        """A client for `model` that retries. Raises CoachUnavailable for an unknown model or a missing key."""
        inner = make_client(model, api_base=api_base, timeout_s=self.settings.timeout_s)
        slots = self._slots.setdefault(inner.model, asyncio.Semaphore(self.settings.concurrency))
        return ManagedClient(inner, self.settings, slots)


class ManagedClient:
    """A client whose calls are repeated where that can help, and recorded."""

    def __init__(self, inner: ChatClient, settings: CallSettings, slots: asyncio.Semaphore) -> None:
        self.model, self.structured = inner.model, inner.structured
        self._inner, self._settings, self._slots = inner, settings, slots

    async def complete(self, request: ChatRequest) -> Reply:
        async with self._slots:
            async for attempt in self._attempts():
                with attempt:
                    reply = await self._recorded(request)
        return reply

    async def close(self) -> None:
        await self._inner.close()

    async def _recorded(self, request: ChatRequest) -> Reply:
        call, began = Call("", self.model, request.prompt_hash, request.messages), time.monotonic()
        try:
            reply = await self._inner.complete(request)
        except CoachError as error:
            maybe_billed = isinstance(error, TransientCoachError) and not error.answered
            latency_s = time.monotonic() - began
            record_call(replace(call, error=str(error), cost_usd=None if maybe_billed else 0.0, latency_s=latency_s))
            raise
        record_call(_answered(call, reply))
        return reply

    def _attempts(self) -> tenacity.AsyncRetrying:
        settings = self._settings
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TransientCoachError),
            stop=tenacity.stop_after_attempt(settings.max_attempts)
            | tenacity.stop_before_delay(settings.give_up_after_s),
            wait=self._wait_s,
            reraise=True,
        )

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Exponential with jitter, and never shorter than what the provider asked for."""
        first_s = self._settings.first_wait_s
        backoff_s = tenacity.wait_exponential_jitter(initial=first_s, max=_LONGEST_WAIT_S, jitter=first_s)(state)
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, TransientCoachError) else None
        return max(backoff_s, asked_s or 0.0)


def _answered(call: Call, reply: Reply) -> Call:
    return replace(
        call,
        reply=reply.text,
        finish_reason=reply.finish_reason,
        tokens_in=reply.tokens_in,
        tokens_out=reply.tokens_out,
        tokens_thinking=reply.tokens_thinking,
        tokens_cached=reply.tokens_cached,
        cost_usd=reply.cost_usd,
        latency_s=reply.latency_s,
        from_cache=reply.from_cache,
    )
