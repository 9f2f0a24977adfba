"""What stands between coaches and providers: the one retry loop, limits, budget, cache, and a record of every call."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from coachrl.coach.clients.base import (
    ChatClient,
    ChatRequest,
    CoachUnreachable,
    Provider,
    Reply,
    StreamBroken,
    TransientCoachError,
)
from coachrl.coach.clients.budget import Budget, CostReservation, Price
from coachrl.coach.clients.cache import ReplyCache, cache_key
from coachrl.coach.clients.ledger import Call, record_call
from coachrl.coach.clients.providers import make_provider, price_of
from coachrl.coach.clients.rate_limits import ConcurrencyLimiter, RateLimiter
from coachrl.coach.repeated_warnings import RepeatedWarnings
from coachrl.config import CoachConfig
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable
from coachrl.types import Usage

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WAIT_S = 0.5  # before the second attempt, and twice as long before each further one
_LONGEST_WAIT_S = 30.0
_CHECK_S = 10.0  # after which the check before a run makes no further attempt
_EXPECTED_REPLY_TOKENS = 1000
_GIVEN_UP = "given up before the reply came"
_CHARACTERS_A_TOKEN = 4


@dataclass
class SharedState:
    """What calls to one model share. in_plain_words: it is held to no JSON schema, since it answered nothing there.
    under_schema: how many replies held something there, less those that did not.
    has_answered: so that a key is good, whichever of its clients was answered.
    refusals: what is said of calls that were one too many."""

    concurrency: ConcurrencyLimiter
    rate: RateLimiter
    in_plain_words: bool = False
    under_schema: int = 0
    has_answered: bool = False
    refusals: RepeatedWarnings = field(default_factory=lambda: RepeatedWarnings(log))


class ChatClientFactory:
    """Makes the clients of a run, as its `coach` section says. All of them share its budget and its cache; calls to one
    model share its limits.

    cache: SQLite file of replies, made when the first client is; None keeps none. first_wait_s: as `FIRST_WAIT_S`.
    """

    def __init__(
        self,
        settings: CoachConfig | None = None,
        *,
        budget: Budget | None = None,
        cache: Path | None = None,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.settings = settings or CoachConfig()
        self.budget = budget or Budget()
        self._first_wait_s = first_wait_s
        self._cache_file = cache
        self._cache: ReplyCache | None = None
        self._shared: dict[tuple[str, str | None], SharedState] = {}

    def client(
        self, model: str, api_base: str | None = None, fallbacks: Sequence[str] = (), member: str = ""
    ) -> ChatClient:
        """A client for `model`; where a call to it fails for good, `fallbacks` are asked in turn (at their providers'
        own addresses), as stand-ins for the `member` of an ensemble. Raises CoachUnavailable for an unknown model or a
        missing key, ConfigError for a budget that cannot be kept since a price is not known."""
        first = self._retrying(model, api_base)
        if not fallbacks:
            return first
        return FallbackClient([first, *(self._retrying(name, None) for name in fallbacks)], member)

    def past_the_cache(self) -> ChatClientFactory:
        """One whose clients ask anew, within the same budget and the same limits."""
        factory = ChatClientFactory(self.settings, budget=self.budget, first_wait_s=self._first_wait_s)
        factory._shared = self._shared
        return factory

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def around(self, provider: Provider, cached: bool = False) -> RetryingClient:
        """A client for a provider that is there already. Raises ConfigError for a budget that cannot be kept."""
        settings = self.settings
        price = price_of(provider.model, settings, is_needed=self.budget.limit_usd is not None)
        shared = self._shared.setdefault(
            (provider.model, provider.api_base),
            SharedState(
                ConcurrencyLimiter(settings.concurrency, settings.give_up_after_s),
                RateLimiter(settings.requests_per_minute, settings.tokens_per_minute),
            ),
        )
        if cached and self._cache is None and self._cache_file is not None:
            self._cache = ReplyCache(self._cache_file)
        cache = self._cache if cached else None
        return RetryingClient(provider, price, shared, self.budget, cache, self._first_wait_s)

    def _retrying(self, model: str, api_base: str | None) -> RetryingClient:
        return self.around(make_provider(model, api_base, self.settings), cached=True)


class RetryingClient:
    """One model: calls that are repeated where that can help, kept within limits, cached and recorded."""

    def __init__(
        self,
        provider: Provider,
        price: Price | None,
        shared: SharedState,
        budget: Budget,
        cache: ReplyCache | None,
        first_wait_s: float,
    ) -> None:
        self.model = provider.model
        self._provider = provider
        self._price = price
        self._shared = shared
        self._budget = budget
        self._cache = cache
        self._first_wait_s = first_wait_s
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def structured(self) -> bool:
        return self._provider.structured and not self._shared.in_plain_words

    @property
    def calls_functions(self) -> bool:
        return self._provider.calls_functions

    def ask_in_plain_words(self, model: str) -> None:
        if model != self.model or self._shared.in_plain_words:
            return
        self._shared.under_schema -= 1
        if self._shared.under_schema < 0:
            log.warning("coach %s answers nothing where it is held to a JSON schema: it is asked in plain words", model)
            self._shared.in_plain_words = True

    async def complete(self, request: ChatRequest) -> Reply:
        """The reply, from the cache where it was given before. Raises what a client raises, and BudgetExceeded."""
        reply = await self._cached(request)
        if request.schema is not None and reply.text.strip():
            self._shared.under_schema += 1
        return reply

    async def _cached(self, request: ChatRequest) -> Reply:
        if self._cache is None:
            return await self._patiently(request)
        key = cache_key(self.model, request, self._provider.options)
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:  # the same question while it is being answered waits for that answer
            reply = self._cache.get(key)
            if reply is not None:
                record_call(_answered(request, reply))
                return reply
            return await self._patiently(request, keep=partial(self._cache.put, key))

    async def check(self, request: ChatRequest) -> None:
        """A call past the cache, tried again for some seconds. Raises CoachUnavailable where it shows that no call can
        go well, and of these CoachUnreachable where the provider is down."""
        try:
            await self._patiently(request, _CHECK_S)
        except CoachUnavailable:
            raise
        except BudgetExceeded as error:
            if self._budget.spent_usd > 0:  # a run that goes on may have reached it
                raise
            raise CoachUnavailable(f"{error} (asked before the first rollout)") from error
        except CoachError as error:
            if isinstance(error, TransientCoachError) and error.throttled:
                log.warning("%s: busy at the start, going on", error)
                return
            kind = CoachUnreachable if isinstance(error, TransientCoachError) else CoachUnavailable
            raise kind(f"{error} (asked before the first rollout)") from error

    async def close(self) -> None:
        self._shared.refusals.sum_up()
        await self._provider.close()

    async def _patiently(
        self, request: ChatRequest, most_s: float = math.inf, keep: Callable[[Reply], None] | None = None
    ) -> Reply:
        """The reply, after as many attempts as it takes: failures use up attempts, refusals for being one too many use
        up time alone. The time runs from the first attempt: before it, the call has only waited for its turn."""
        settings, now = self._provider.settings, asyncio.get_running_loop().time
        most_s = min(settings.give_up_after_s, most_s)
        since_s: float | None = None
        failures = 0
        while True:
            async with self._shared.concurrency.turn(again=since_s is not None):
                since_s = now() if since_s is None else since_s
                try:
                    return await self._once(request, keep)
                except TransientCoachError as error:
                    wait_s = error.retry_after_s or 0.0
                    if not error.throttled:
                        failures += 1
                        wait_s = max(wait_s, min(_LONGEST_WAIT_S, self._first_wait_s * 2 ** min(failures - 1, 32)))
                    if failures >= settings.max_attempts or now() + wait_s - since_s > most_s:
                        raise
                    throttled = error.throttled
                    if throttled:
                        # Nothing fails, and a step may take minutes longer for it: whoever waits is told why.
                        self._shared.refusals.warn("the provider takes fewer calls, and they wait", str(error))
            # A call that waits for its next attempt takes up no place. One that was one too many asks for its next turn
            # at once: the pace of all calls says when that is.
            await asyncio.sleep(0.0 if throttled else wait_s)

    async def _once(self, request: ChatRequest, keep: Callable[[Reply], None] | None) -> Reply:
        permit = await self._shared.rate.admit(_likely_tokens(request))
        most_usd = self._price.most(request) if self._price is not None else 0.0
        async with self._budget.reserved(most_usd) as reservation:
            began = asyncio.get_running_loop().time()
            self._provider.has_answered |= self._shared.has_answered
            try:
                reply = await self._provider.complete(request)
            except (Exception, asyncio.CancelledError) as error:  # whatever ends it, the request was made
                latency_s = asyncio.get_running_loop().time() - began
                if isinstance(error, TransientCoachError) and error.throttled:
                    self._shared.concurrency.refused(began, error)
                record_call(self._failed(request, error, latency_s, reservation))
                raise
            usage = reply.usage
            usage = self._priced(usage, reservation) if reply.usage_known else replace(usage, cost_usd=None)
            reply = replace(reply, usage=usage)
            if keep is not None:
                keep(reply)  # in the cache, before the ledger: after a kill no call on record is paid for again
            record_call(_answered(request, reply, reservation.usd))
        self._shared.has_answered = True
        self._shared.concurrency.taken()
        if reply.usage_known:
            self._shared.rate.correct(permit, reply.usage.tokens_in + reply.usage.tokens_out)
        return reply

    def _failed(
        self, request: ChatRequest, error: BaseException, latency_s: float, reservation: CostReservation
    ) -> Call:
        """The record of a call that gave no reply."""
        call = Call("", self.model, request.prompt_hash, request.messages, error=str(error) or _GIVEN_UP)
        if isinstance(error, TransientCoachError) and error.took is not None:
            usage = self._priced(error.took, reservation)
            return replace(call, usage=usage, reserved_usd=reservation.usd)
        return reservation.failed(call, latency_s, _may_be_billed(error))

    def _priced(self, usage: Usage, reservation: CostReservation) -> Usage:
        """With its price, where that is known, which is then all that is reserved."""
        if self._price is None:
            return replace(usage, cost_usd=None)
        reservation.usd = self._price.of(usage)
        return replace(usage, cost_usd=reservation.usd)


class FallbackClient:
    """A chain of models: each is asked where all before it have failed. `Reply.fallbacks` says how many had. member: of
    an ensemble, which the others stand in for."""

    def __init__(self, clients: Sequence[ChatClient], member: str = "") -> None:
        self.model = clients[0].model
        self._member = member
        self._clients = clients
        self._lost = set[str]()
        self._warnings = RepeatedWarnings(log)

    @property
    def structured(self) -> bool:
        return all(client.structured for client in self._clients)

    @property
    def calls_functions(self) -> bool:
        return False  # a conversation with calls is in one provider's own form

    def ask_in_plain_words(self, model: str) -> None:
        for client in self._clients:
            client.ask_in_plain_words(model)

    async def complete(self, request: ChatRequest) -> Reply:
        """Raises CoachUnavailable where none can be used at all, CoachError where each one failed."""
        errors: list[CoachError] = []
        for position, client in enumerate(self._clients):
            if client.model in self._lost and position < len(self._clients) - 1:
                continue
            last = client is self._clients[-1]
            try:
                asked = replace(request, instead_of=self._member) if position else request
                reply = await client.complete(asked)
                if reply.finish_reason != "content_filter" or last:
                    return replace(reply, fallbacks=position)
                errors.append(CoachError(f"coach {reply.model}: {reply.detail or 'the content filter intervened'}"))
            except CoachError as error:
                errors.append(error)
                if isinstance(error, CoachUnavailable):
                    self._lost.add(client.model)
            if not last:
                self._warnings.warn("the next model is asked", str(errors[-1]))
        kind = CoachUnavailable if all(isinstance(error, CoachUnavailable) for error in errors) else CoachError
        raise kind("; then ".join(map(str, errors)))

    async def check(self, request: ChatRequest) -> None:
        """Asks all models at once. One that is down is a warning where another answers; raises CoachUnavailable where
        all are, and for a wrong key or an unknown model anywhere in the chain."""
        found = await all_or_error([_unreachable(client, request) for client in self._clients])
        down = [error for error in found if error is not None]
        if len(down) == len(self._clients):
            raise CoachUnreachable("; then ".join(map(str, down)))
        for reason in down:
            log.warning("%s; the other models of the chain are asked in its place", reason)

    async def close(self) -> None:
        self._warnings.sum_up()
        for client in self._clients:
            await client.close()


async def all_or_error(asked: Iterable[Awaitable[T]]) -> list[T]:
    """What each gives, in order. The first that raises ends the others: nothing goes on in the background."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unreachable(client: ChatClient, request: ChatRequest) -> CoachUnreachable | None:
    """Why the model cannot be reached, or None where it answers."""
    try:
        await client.check(request)
    except CoachUnreachable as error:
        return error
    return None


def _may_be_billed(error: BaseException) -> bool:
    """Whether nobody knows. What a provider refuses, it does not bill."""
    if isinstance(error, TransientCoachError):
        return not error.answered
    return isinstance(error, StreamBroken) or not isinstance(error, CoachError)


def _likely_tokens(request: ChatRequest) -> int:
    into = sum(len(message.content) for message in request.messages) // _CHARACTERS_A_TOKEN
    return into + min(request.max_tokens, _EXPECTED_REPLY_TOKENS)


def _answered(request: ChatRequest, reply: Reply, reserved_usd: float = 0.0) -> Call:
    asked = Call("", reply.model, request.prompt_hash, request.messages, reserved_usd=reserved_usd)
    return replace(asked, reply=reply.said, finish_reason=reply.finish_reason, usage=reply.usage)
