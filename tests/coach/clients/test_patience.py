"""How long a call is tried, what it may cost and which model is asked next: without any socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import virtual_time
from chat_clients import ask

from coachrl.coach.clients.base import ChatRequest, CoachUnreachable, Function, Provider, Reply, TransientCoachError
from coachrl.coach.clients.budget import Budget, Price, spent_in
from coachrl.coach.clients.cache import ReplyCache
from coachrl.coach.clients.ledger import Call, Ledger, Message
from coachrl.coach.clients.rate_limits import ConcurrencyLimiter, RateLimiter
from coachrl.coach.clients.retrying import FallbackClient, RetryingClient, SharedState, _likely_tokens
from coachrl.config import CoachConfig
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable
from coachrl.types import Usage

BROKEN, THROTTLED = TransientCoachError("broken"), TransientCoachError("too many", 3.0, throttled=True)


class Failing(Provider):
    """Each call raises the next of `errors`. at_s: when the calls came."""

    structured = calls_functions = False
    options: Mapping[str, object] = MappingProxyType({})

    def __init__(self, errors: Sequence[TransientCoachError], **settings: float) -> None:
        super().__init__("failing", None, CoachConfig(**{"max_attempts": 9, "give_up_after_s": 1000.0, **settings}))
        self._errors = iter(errors)
        self.at_s: list[float] = []

    @property
    def waits_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.at_s)]

    async def close(self) -> None: ...

    async def _answer(self, request: ChatRequest) -> Any:
        self.at_s.append(asyncio.get_running_loop().time())
        raise next(self._errors)

    def _read(self, answer: Any, request: ChatRequest) -> Reply:
        raise NotImplementedError

    def _explained(self, error: Exception) -> CoachError | None:
        return None


def tried(*errors: TransientCoachError, check: bool = False, **settings: float) -> tuple[Failing, CoachError]:
    """A provider that was asked until the call was given up, and the error that it was given up with."""
    provider = Failing(errors, **settings)

    async def main() -> CoachError:
        shared = SharedState(ConcurrencyLimiter(1), RateLimiter(None, None))
        client = RetryingClient(provider, None, shared, Budget(), None, first_wait_s=0.5)
        with pytest.raises(CoachError) as caught:
            await (client.check(ask()) if check else client.complete(ask()))
        return caught.value

    return provider, virtual_time.run(main())


def test_each_wait_is_twice_the_last_one_up_to_half_a_minute_and_no_shorter_than_was_asked() -> None:
    provider, _ = tried(*[BROKEN] * 9)
    assert provider.waits_s == [0.5, 1, 2, 4, 8, 16, 30, 30]
    asked = TransientCoachError("broken", 1.5)
    provider, _ = tried(asked, asked, asked, asked, max_attempts=4)
    assert provider.waits_s == [1.5, 1.5, 2]


def test_failures_use_up_attempts_and_refusals_time_alone() -> None:
    provider, error = tried(BROKEN, THROTTLED, THROTTLED, THROTTLED, BROKEN, BROKEN, max_attempts=3)
    assert len(provider.at_s) == 6 and str(error) == "broken"
    assert provider.waits_s[0] == 0.5 and all(wait_s >= 3 for wait_s in provider.waits_s[1:4])
    provider, _ = tried(BROKEN, max_attempts=1)
    assert len(provider.at_s) == 1


def test_no_attempt_is_made_that_would_come_too_late() -> None:
    provider, _ = tried(TransientCoachError("broken", 2.0), THROTTLED, give_up_after_s=2.9)  # which asks for three more
    assert provider.at_s == [0, 2]
    provider, error = tried(TransientCoachError("broken", 9.0), TransientCoachError("broken", 2.0), check=True)
    assert provider.at_s == [0, 9] and isinstance(error, CoachUnreachable)  # a check is given up after ten seconds


class Model:
    """A client that answers with what it is given, in turn, and then with the last of it."""

    structured, calls_functions = True, True

    def __init__(self, model: str, *answers: str | CoachError) -> None:
        self.model, self._answers, self.asked, self.closed = model, list(answers), 0, False

    async def complete(self, request: ChatRequest) -> Reply:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, CoachError):
            raise answer
        return Reply(answer, self.model, finish_reason="content_filter" if answer == "blocked" else "stop")

    async def close(self) -> None:
        self.closed = True


async def test_a_chain_says_how_many_were_asked_in_vain_and_hears_the_last_ones_refusal_out() -> None:
    chain = FallbackClient([Model("a", CoachError("no")), Model("b", "blocked"), Model("c", "yes", "blocked")])
    first, second = await chain.complete(ask()), await chain.complete(ask())
    assert (first.text, first.model, first.fallbacks) == ("yes", "c", 2)
    assert (second.finish_reason, second.fallbacks) == ("content_filter", 2)
    assert chain.structured and not chain.calls_functions


async def test_a_model_that_cannot_be_used_is_passed_over_and_one_that_failed_once_is_asked_again() -> None:
    lost, flaky, last = (
        Model("lost", CoachUnavailable("no key")),
        Model("flaky", CoachError("no"), "well"),
        Model("last", "yes"),
    )
    chain = FallbackClient([lost, flaky, last])
    assert [(await chain.complete(ask())).fallbacks for _ in range(3)] == [2, 1, 1]
    assert (lost.asked, flaky.asked, last.asked) == (1, 3, 1)
    await chain.close()
    assert lost.closed and flaky.closed and last.closed


async def test_a_chain_is_lost_only_where_all_of_it_is() -> None:
    gone, broken = CoachUnavailable("no key"), CoachError("no")
    with pytest.raises(CoachUnavailable, match="no key; then no key"):
        await FallbackClient([Model("a", gone), Model("b", gone)]).complete(ask())
    with pytest.raises(CoachError, match="no key; then no") as caught:
        await FallbackClient([Model("a", gone), Model("b", broken)]).complete(ask())
    assert not isinstance(caught.value, CoachUnavailable)
    only = Model("b", gone)
    chain = FallbackClient([Model("a", gone), only])
    for _ in range(2):
        with pytest.raises(CoachUnavailable):
            await chain.complete(ask())
    assert only.asked == 2, "the last one is asked whatever became of it before"


async def test_a_budget_is_spent_to_its_very_limit_and_counts_what_was_spent_before() -> None:
    budget = Budget(1.0, spent_usd=0.25)
    async with asyncio.timeout(60), budget.reserved(0.5) as first:
        async with budget.reserved(0.25) as second:
            second.usd = 0.125
        first.usd = 0.5
    assert budget.spent_usd == 0.875
    with pytest.raises(BudgetExceeded, match=r"\$0.8750 are spent, and the next call may cost \$0.2500"):
        async with budget.reserved(0.25):
            pass
    with pytest.raises(BudgetExceeded):  # one that would fit comes too late
        async with budget.reserved(0.125):
            pass
    assert budget.spent_usd == 0.875


async def test_a_call_that_would_not_fit_beside_another_waits_for_what_that_gives_back() -> None:
    budget, order = Budget(1.0), []
    begun = asyncio.Event()

    async def call(name: str, most: float, cost: float) -> None:
        async with budget.reserved(most) as reservation:
            order.append(name)
            begun.set()
            await asyncio.sleep(0.01)
            reservation.usd = cost

    first = asyncio.create_task(call("first", 0.75, 0.25))
    async with asyncio.timeout(60):
        await begun.wait()
        await asyncio.gather(first, call("second", 0.5, 0.5))
    assert order == ["first", "second"] and budget.spent_usd == 0.75


async def test_what_breaks_off_keeps_its_reservation_and_no_limit_counts_all_the_same() -> None:
    for budget in (Budget(1.0), Budget()):
        with pytest.raises(ZeroDivisionError):
            async with budget.reserved(0.5):
                raise ZeroDivisionError
        assert budget.spent_usd == 0.5 and budget._reserved_usd == 0.0 and budget._in_flight == 0


def test_a_price_that_the_table_does_not_name_is_that_of_plain_tokens() -> None:
    assert Price.from_table({"input_cost_per_token": 1.0}) is None
    assert Price.from_table({"output_cost_per_token": 1.0}) is None
    plain = {"input_cost_per_token": 1.0, "output_cost_per_token": 2.0}
    assert Price.from_table(plain) == Price.flat(1.0, 2.0) == Price(1.0, 2.0, 1.0, 2.0, 1.0, 2.0)
    more = {
        "cache_read_input_token_cost": 3.0,
        "output_cost_per_reasoning_token": 4.0,
        "input_cost_per_token_above_200k_tokens": 5.0,
        "output_cost_per_token_above_200k_tokens": 6.0,
    }
    assert Price.from_table(plain | more) == Price(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    longer = {"input_cost_per_token_above_100k_tokens": 7.0, "output_cost_per_token_above_100k_tokens": 8.0}
    price = Price.from_table(plain | longer | {"input_cost_per_token_above_100k_tokens_batches": 9.0})
    assert price == Price(1.0, 2.0, 1.0, 2.0, 7.0, 8.0, long_tokens=100_000)
    assert price is not None and [price.of(Usage(tokens_in=read)) for read in (100_000, 100_001)] == [1e5, 700_007]
    assert Price.from_table({"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}) == Price.flat(0.0, 0.0)


def test_the_most_that_a_call_costs_is_its_bytes_what_stands_around_them_and_the_longest_reply() -> None:
    request = ChatRequest((Message("user", "añ"), Message("user", "word")), max_tokens=10, schema={"a": 1})
    assert Price.flat(1.0, 0.0).most(request) == 3 + 4 + 2 * 32 + len("{'a': 1}")
    assert Price.flat(0.0, 2.0).most(request) == 20
    function = Function("f", "runs a program", {"type": "object"})
    native = Message("assistant", "f()", native={"content": "", "thoughts": "of many words"})
    more = replace(request, messages=(*request.messages, native), function=function)
    assert Price.flat(1.0, 0.0).most(more) > Price.flat(1.0, 0.0).most(request) + len(str(function)) + 40
    assert _likely_tokens(request) == 6 // 4 + 10 and _likely_tokens(replace(request, max_tokens=5000)) == 1001


def test_what_a_ledger_has_spent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    call = Call("e/0", "judge", "", ())
    for usage in (Usage(cost_usd=0.25), Usage(cost_usd=None), Usage(cost_usd=0.5, calls_from_cache=1), Usage()):
        ledger.call(replace(call, usage=usage, reserved_usd=2.0))
    ledger.resumed(3)
    ledger.close()
    assert spent_in(ledger.path) == 2.25 and spent_in(tmp_path / "none.jsonl") == 0.0


def test_a_reply_from_the_cache_says_so_and_what_was_paid_then(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path / "cache.sqlite")
    usage = Usage(attempts=1, tokens_in=7, cost_usd=0.25, calls_from_cache=0)
    cache.put("key", Reply("yes", "judge", usage=usage, finish_reason="length"))
    assert cache.get("key") == Reply("yes", "judge", usage=replace(usage, calls_from_cache=1), finish_reason="length")
    assert cache.get("another") is None
    cache.close()
