"""A provider with a quota, minute by minute in virtual time: nothing is lost, little is asked in vain, and the quota is
used. The client, its limiter and its retries are the real ones."""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar

import pytest
import virtual_time
from cases import every

from coachrl.coach.clients.base import ChatRequest, Provider, Reply
from coachrl.coach.clients.budget import Budget
from coachrl.coach.clients.ledger import Message
from coachrl.coach.clients.rate_limits import ConcurrencyLimiter, Pace, RateLimiter
from coachrl.coach.clients.retrying import RetryingClient, SharedState
from coachrl.config import CoachConfig
from coachrl.errors import CoachError

QUOTAS = (1, 2, 3, 5, 10, 20)
REFUSALS = tuple(product((429, 529), (0.02, 0.3), ("", "1", "exact")))  # status, seconds until it comes, Retry-After


def evenly(per_s: float) -> Callable[[float], float]:
    """One call each 1 / per_s, and none can be made up for. All of these say how long to wait; 0: it is taken."""
    return bucket(per_s, held=1)


def bucket(per_s: float, held: float) -> Callable[[float], float]:
    """`held` calls at once, filled up with `per_s`."""
    free_s = 0.0

    def wait_s(now_s: float) -> float:
        nonlocal free_s
        if now_s < free_s:
            return free_s - now_s
        free_s = max(free_s, now_s - (held - 1) / per_s) + 1 / per_s
        return 0.0

    return wait_s


def fixed_window(per_s: float, window_s: float = 1.0) -> Callable[[float], float]:
    taken = deque[int]()

    def wait_s(now_s: float) -> float:
        window = math.floor(now_s / window_s)
        while taken and taken[0] < window:
            taken.popleft()
        if len(taken) >= per_s * window_s:
            return (window + 1) * window_s - now_s
        taken.append(window)
        return 0.0

    return wait_s


def sliding_window(per_s: float) -> Callable[[float], float]:
    taken = deque[float]()

    def wait_s(now_s: float) -> float:
        while taken and taken[0] <= now_s - 1:
            taken.popleft()
        if len(taken) >= per_s:
            return taken[0] + 1 - now_s
        taken.append(now_s)
        return 0.0

    return wait_s


def by_chance(share: float, seed: int) -> Callable[[float], float]:
    draw = random.Random(seed)
    return lambda _: 0.1 if draw.random() < share else 0.0


def both(first: Callable[[float], float], second: Callable[[float], float]) -> Callable[[float], float]:
    return lambda now_s: first(now_s) or second(now_s)


KINDS: dict[str, Callable[[float], Callable[[float], float]]] = {
    "evenly": evenly,
    "bucket of a second": lambda per_s: bucket(per_s, held=per_s),
    "bucket of ten seconds": lambda per_s: bucket(per_s, held=10 * per_s),
    "fixed window": fixed_window,
    "sliding window": sliding_window,
}


class Refused(Exception):
    pass


class ProviderWithQuota(Provider):
    """status, lag_s, retry_after: what a refusal says, when it comes, and for how long it asks to wait: "", "1" or
    "exact"."""

    structured = False
    options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, wait_s: Callable[[float], float], refusal: tuple[int, float, str], settings: CoachConfig
    ) -> None:
        super().__init__("made-up", None, settings)
        self._wait_s = wait_s
        self._status, self._lag_s, self._retry_after = refusal
        self._draw = random.Random(0)
        self.taken = self.asked = 0

    async def close(self) -> None: ...

    async def _answer(self, request: ChatRequest) -> Reply:
        self.asked += 1
        wait_s = self._wait_s(asyncio.get_running_loop().time())
        if wait_s > 0:
            await asyncio.sleep(self._lag_s * self._draw.uniform(0.8, 1.2))
            raise Refused({"": None, "1": 1.0, "exact": wait_s}[self._retry_after])
        self.taken += 1
        await asyncio.sleep(self._draw.uniform(0.3, 1.2))
        return Reply("8", self.model)

    def _read(self, answer: Any, request: ChatRequest) -> Reply:
        return answer

    def _explained(self, error: Exception) -> CoachError | None:
        return self._refused(self._status, "too many", error.args[0], "") if isinstance(error, Refused) else None


async def ask_for(provider: ProviderWithQuota, concurrency: int, seconds: float) -> int:
    """Calls without end for `seconds`; how many were lost."""
    limits = SharedState(ConcurrencyLimiter(concurrency, provider.settings.give_up_after_s), RateLimiter(None, None))
    client = RetryingClient(provider, None, limits, Budget(), None, first_wait_s=0.5)
    lost = 0

    async def work(name: int) -> None:
        nonlocal lost
        while True:
            try:
                await client.complete(ChatRequest((Message("user", str(name)),)))
            except CoachError:
                lost += 1

    workers = [asyncio.create_task(work(name)) for name in range(concurrency)]
    await asyncio.sleep(seconds)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return lost


def check(provider: ProviderWithQuota, lost: int, least: float) -> None:
    """No call is lost, `least` are taken, and few are asked twice."""
    assert lost == 0
    assert provider.taken >= least
    assert provider.asked <= 1.1 * provider.taken


CASES = [
    pytest.param(
        per_s, kind, REFUSALS[nth % len(REFUSALS)], id=f"{per_s} a second, {kind}, {REFUSALS[nth % len(REFUSALS)]}"
    )
    for nth, (per_s, kind) in enumerate(product(QUOTAS, KINDS))
]


@pytest.mark.parametrize(("per_s", "kind", "refusal"), every(4, CASES))
def test_a_quota_loses_no_call_and_is_used_to_nine_tenths(
    per_s: int, kind: str, refusal: tuple[int, float, str]
) -> None:
    seconds = 300.0 if per_s == 1 else 150.0  # until the share of the first storm is small
    provider = ProviderWithQuota(KINDS[kind](per_s), refusal, CoachConfig())
    lost = virtual_time.run(ask_for(provider, concurrency=32, seconds=seconds))
    check(provider, lost, 0.9 * per_s * seconds)


@pytest.mark.parametrize("kind", ["evenly", "fixed window"])
def test_refusals_of_the_first_storm_do_not_hold_back_a_quota_of_fifty_a_second(kind: str) -> None:
    provider = ProviderWithQuota(KINDS[kind](50), (429, 0.02, ""), CoachConfig())
    lost = virtual_time.run(ask_for(provider, concurrency=160, seconds=150.0))
    check(provider, lost, 0.9 * 50 * 150)


@pytest.mark.parametrize("concurrency", [8, 160])
@pytest.mark.parametrize(("status", "retry_after"), [(429, "1"), (529, "")])
def test_however_many_calls_wait(concurrency: int, status: int, retry_after: str) -> None:
    provider = ProviderWithQuota(evenly(3), (status, 0.3, retry_after), CoachConfig())
    lost = virtual_time.run(ask_for(provider, concurrency, 300.0))
    check(provider, lost, 0.9 * 3 * 300)


@pytest.mark.parametrize(
    ("share", "seconds", "least_per_s"),
    [(0.003, 600, 25), (0.01, 600, 30), (0.05, 200, 20), (0.1, 200, 12), (1 / 7, 200, 3)],
)
def test_refusals_that_come_at_whatever_pace_do_not_bring_it_down(
    share: float, seconds: float, least_per_s: float
) -> None:
    """As where many customers share one quota. Without refusals 42 calls a second are taken."""
    for seed in (0, 1, 2):
        provider = ProviderWithQuota(by_chance(share, seed), (429, 0.2, ""), CoachConfig())
        lost = virtual_time.run(ask_for(provider, 32, seconds))
        assert lost == 0 and provider.taken >= least_per_s * seconds, (seed, provider.taken / seconds)


def test_one_refusal_in_five_by_chance_that_asks_for_a_second_leaves_a_quarter_of_the_calls() -> None:
    provider = ProviderWithQuota(by_chance(0.2, 0), (429, 0.03, "1"), CoachConfig())
    lost = virtual_time.run(ask_for(provider, 32, 600.0))
    assert lost == 0 and provider.taken >= 42 / 4 * 600, provider.taken / 600


@pytest.mark.parametrize(("retry_after", "least_per_s"), [("", 8), ("1", 2)])
def test_a_quota_beside_refusals_by_chance_is_not_asked_twice_for_each_call(
    retry_after: str, least_per_s: float
) -> None:
    """One in five is refused by chance, and what is over the quota of 20 a second."""
    for seed in (0, 1, 2):
        wait_s = both(by_chance(0.2, seed), fixed_window(20))
        provider = ProviderWithQuota(wait_s, (429, 0.1, retry_after), CoachConfig())
        lost = virtual_time.run(ask_for(provider, 32, 300.0))
        assert lost == 0 and provider.taken >= least_per_s * 300, (seed, provider.taken / 300)
        assert provider.asked <= 1.8 * provider.taken, (seed, provider.asked / provider.taken)


@pytest.mark.parametrize("kind", ["bucket of ten seconds", "fixed window", "sliding window"])
@pytest.mark.parametrize("retry_after", ["", "1"])
def test_a_quota_of_one_call_a_second_is_not_taken_for_chance(kind: str, retry_after: str) -> None:
    provider = ProviderWithQuota(KINDS[kind](1), (429, 0.03, retry_after), CoachConfig())
    lost = virtual_time.run(ask_for(provider, 64, 600.0))
    check(provider, lost, 0.85 * 600)


@pytest.mark.parametrize("refusal", [(429, 0.3, "1"), (429, 0.02, "")])
def test_the_storm_of_a_quota_that_falls_is_not_taken_for_chance(refusal: tuple[int, float, str]) -> None:
    before, after = bucket(40, 40), bucket(5, 5)
    provider = ProviderWithQuota(lambda at_s: (before if at_s < 120 else after)(at_s), refusal, CoachConfig())
    lost = virtual_time.run(ask_for(provider, 64, 360.0))
    assert lost == 0 and provider.asked <= 1.1 * provider.taken


def test_a_quota_of_the_minute_is_used_to_nine_tenths_where_the_provider_says_when_it_ends() -> None:
    provider = ProviderWithQuota(fixed_window(3, window_s=60.0), (429, 0.3, "exact"), CoachConfig())
    lost = virtual_time.run(ask_for(provider, 32, 600.0))
    check(provider, lost, 0.9 * 3 * 600)


def test_a_quota_of_the_minute_is_found_where_the_provider_says_nothing() -> None:
    """The first minutes' quota is gone in seconds; after some minutes the pace is that of the minute."""
    provider = ProviderWithQuota(fixed_window(3, window_s=60.0), (429, 0.02, ""), CoachConfig())
    lost = virtual_time.run(ask_for(provider, 32, 900.0))
    check(provider, lost, 0.8 * 3 * 900)


def test_a_provider_that_takes_nothing_for_a_minute_is_soon_asked_as_before() -> None:
    calm = evenly(10)

    def wait_s(now_s: float) -> float:
        return 60.0 if 60 <= now_s < 120 else calm(now_s)

    provider = ProviderWithQuota(wait_s, (529, 0.1, ""), CoachConfig())
    lost = virtual_time.run(ask_for(provider, 32, 300.0))
    assert lost == 0
    assert provider.taken >= 0.7 * 10 * 240


def test_a_provider_that_is_out_is_not_taken_for_one_that_refuses_by_chance() -> None:
    """One refusal in four comes after that of the next call, as where the machine is busy."""
    pace, quota, now_s = Pace(), fixed_window(10), 0.0

    def begin() -> float:
        nonlocal now_s
        now_s += max(0.001, pace.wait_s(now_s))
        pace.began(now_s, waited=True)
        return now_s

    def taken_until(end_s: float) -> int:
        taken = 0
        while now_s < end_s:
            if quota(begin()):
                pace.refused(now_s, now_s + 0.02, None)
            else:
                taken += 1
        return taken

    taken_until(60)
    while now_s < 120:
        for calls in (1, 1, 1, 2):
            for began_s in reversed([begin() for _ in range(calls)]):
                pace.refused(began_s, now_s + 0.05, None)
    assert taken_until(240) >= 600
