"""How many calls are made at once and in a minute."""

import asyncio
import time

import pytest
import virtual_time
from chat_clients import EIGHT, ask, client_factory, requests_of, score_all
from scripted_server import Received, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients.base import TransientCoachError
from coachrl.coach.clients.rate_limits import ConcurrencyLimiter, Pace, RateLimiter, _regain_s
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


class Quota:
    """A server that takes `per_s` calls in each second, one at a time, and refuses the rest."""

    def __init__(self, per_s: float, refusal: Step) -> None:
        self._gap_s, self._refusal, self._next_s = 1 / per_s, refusal, 0.0
        self.refused = 0

    def __call__(self, _: Received) -> Step:
        now_s = time.monotonic()
        if now_s < self._next_s:
            self.refused += 1
            return self._refusal
        self._next_s = max(self._next_s + self._gap_s, now_s)
        return say(EIGHT, latency_s=0.02)


async def test_a_steady_quota_loses_no_action_and_is_asked_little_more_than_once_for_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quota, actions = Quota(20, status(429)), 50
    async with ScriptedServer(quota) as server:
        made = client_factory(concurrency=32, max_attempts=2, first_wait_s=0.5)
        coach = make_coach(CoachConfig(name="openai/judge", api_base=server.openai_base), client_factory=made)
        scores = await score_all(CoachPool(coach, concurrency=32, client_factory=made), requests_of(actions))
        asked = len(server.requests)
    assert quota.refused > 0
    assert [score.status for score in scores] == ["scored"] * actions
    assert asked <= 1.2 * actions
    told = [message for message in caplog.messages if message.startswith("the provider takes fewer calls")]
    assert "429" in told[0] and len(told) == len(str(quota.refused)), "the 1st, the 10th, the 100th"


@pytest.mark.parametrize(
    ("refusal", "throttled"),
    [
        (status(429), True),
        (status(529, "Busy"), True),
        (status(503, "The model is overloaded."), True),
        (status(503, "down"), False),
        (status(409, "overloaded"), False),
    ],
    ids=lambda value: f"{value.http_status} {value.message}" if isinstance(value, Step) else "",
)
async def test_who_takes_fewer_calls_than_it_is_sent_says_so_by_status_or_in_words(
    refusal: Step, throttled: bool
) -> None:
    async with ScriptedServer([refusal]) as server:
        client = client_factory(max_attempts=1, give_up_after_s=0.001).client("openai/judge", server.openai_base)
        with pytest.raises(TransientCoachError) as caught:
            await client.complete(ask())
        await client.close()
    assert (caught.value.throttled, caught.value.answered, len(server.requests)) == (throttled, True, 1)


async def test_a_server_with_little_room_loses_none_of_many_calls_at_once() -> None:
    def script(_: Received) -> Step:
        return status(429) if server._at_once >= 2 else say(EIGHT, latency_s=0.02)

    async with ScriptedServer(script) as server:
        made = client_factory(concurrency=160, max_attempts=2)
        client = made.client("openai/judge", server.openai_base)
        replies = await asyncio.gather(*(client.complete(ask(f"{n}")) for n in range(160)))
        await client.close()
    assert [reply.text for reply in replies] == [EIGHT] * 160


async def test_all_calls_wait_where_one_is_told_to() -> None:
    times: list[float] = []

    def script(_: Received) -> Step:
        times.append(time.monotonic())
        return status(429, retry_after_s=0.6) if len(times) == 1 else say(EIGHT)

    async with ScriptedServer(script) as server:
        client = client_factory().client("openai/judge", server.openai_base)
        first = asyncio.create_task(client.complete(ask("0")))
        async with asyncio.timeout(60):
            while client._shared.concurrency._refused_since_s is None:  # the refusal has come back
                await asyncio.sleep(0.001)
        await asyncio.gather(first, *(client.complete(ask(f"{n}")) for n in range(1, 6)))
        await client.close()
    assert min(times[1:]) - times[0] >= 0.6


async def test_a_provider_that_takes_nothing_for_long_is_given_up_by_all_who_wait() -> None:
    async with ScriptedServer([status(429, "out of quota")]) as server, asyncio.timeout(60):
        client = client_factory(concurrency=2, give_up_after_s=0.5).client("openai/judge", server.openai_base)
        calls = [client.complete(ask(f"{n}")) for n in range(40)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert len(server.requests) < 20  # most have never been sent
        await client.close()
    assert {type(error) for error in errors} == {TransientCoachError}
    assert all("429 out of quota" in str(error) for error in errors)


async def test_a_call_that_waits_for_its_next_attempt_takes_no_place() -> None:
    def script(received: Received) -> Step:
        return status(500) if received.prompt == "bad" else say(EIGHT)

    async with ScriptedServer(script) as server, asyncio.timeout(60):
        client = client_factory(concurrency=1, max_attempts=2, first_wait_s=30).client(
            "openai/judge", server.openai_base
        )
        bad = asyncio.create_task(client.complete(ask("bad")))
        while not server.requests:
            await asyncio.sleep(0.001)
        assert (await client.complete(ask("good"))).text == EIGHT
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
        await client.close()


def test_a_pace_recovers_from_an_outage() -> None:
    pace, now_s = Pace(), 0.0
    for _ in range(40):
        now_s += max(0.0, pace.wait_s(now_s))
        pace.began(now_s, waited=True)
        pace.refused(now_s, now_s, None)
    assert pace.wait_s(now_s) < 16
    outage_s = now_s
    while now_s - outage_s < 300:
        now_s += max(0.0, pace.wait_s(now_s))
        pace.began(now_s, waited=True)
    assert pace.per_s > 10


def test_the_first_call_that_is_taken_after_an_outage_says_that_it_is_over() -> None:
    pace, now_s = Pace(), 0.0
    for _ in range(12):
        now_s += max(0.0, pace.wait_s(now_s))
        pace.began(now_s, waited=True)
        pace.refused(now_s, now_s, None)
    paces = []
    for _ in range(2):  # the probe, and the next one, for which the probe was not refused
        now_s += max(0.0, pace.wait_s(now_s))
        pace.began(now_s, waited=True)
        paces.append(pace.per_s)
    assert paces[0] < 0.1 and paces[1] > 2


def test_refusals_of_one_moment_slow_down_once() -> None:
    pace = Pace()
    pace.began(0.0, waited=False)
    for _ in range(10):
        pace.refused(0.0, 0.1, None)
    once = pace.per_s
    assert once < 10
    pace.refused(0.2, 0.3, None)
    assert pace.per_s < once


def test_calls_that_a_busy_machine_begins_late_do_not_slow_down_those_after_them() -> None:
    pace, now_s = Pace(), 0.0
    pace.began(0.0, waited=False)
    pace.refused(0.0, 0.0, None)  # from here on the pace hardly grows
    for _ in range(20):
        now_s += max(0.0, pace.wait_s(now_s)) + 0.1
        pace.began(now_s, waited=True)
    assert now_s < 20 / 5 + 0.5


def test_a_pace_that_nobody_needs_does_not_grow() -> None:
    pace = Pace()
    for second in range(100):
        pace.began(float(second), waited=False)
    assert pace.per_s == Pace().per_s


async def test_a_limiter_lets_callers_in_by_turn_and_forgets_those_who_left() -> None:
    limiter, entered = ConcurrencyLimiter(1), []

    async def enter(name: int, again: bool = False) -> None:
        async with limiter.turn(again):
            entered.append(name)
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(enter(name)) for name in range(4)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(enter(4, again=True)))  # refused before: it has waited for longest
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == [0, 4, 2, 3]
    async with asyncio.timeout(60):
        async with limiter.turn():
            pass


def test_a_pace_grows_by_a_twentieth_and_is_cut_the_less_the_longer_it_held() -> None:
    pace = Pace()
    pace.began(0.0, waited=True)
    assert pace.per_s == pytest.approx(10.5)
    for calls, kept in ((1, 0.5), (4, 0.6), (20, 0.92), (40, 0.96), (400, 0.96)):
        pace = Pace()
        for second in range(calls):
            pace.began(float(second), waited=False)
        pace.refused(calls - 1.0, calls - 0.5, None)
        assert pace.per_s == pytest.approx(10 * kept), calls
    assert [_regain_s(change) for change in (0.0, -0.04, 0.05, 0.19, 0.2, -0.5)] == [60, 60, 30, 30, 5, 5]


@pytest.mark.parametrize(
    ("asked_s", "in_flight_too", "began_s", "taken", "passed_s"),
    [
        (None, False, (0.7, 2.0, 3.1, 4.2), 6, 4.2 - 0.6),
        (None, True, (0.7, 2.0, 3.1, 4.2), 5, 4.2 - 0.6),  # one that was under way: it sets no mark of its own
        (1.0, False, (1.5, 2.8, 3.9, 5.0), 6, 5.0 - 1.4),  # what is counted begins after the pause that was asked for
        (10.0, False, (10.5, 11.8, 12.9, 14.0), 6, 14.0 - 2.4),  # of a long one two seconds are left out
    ],
)
def test_what_a_provider_took_from_one_refusal_to_the_next_bounds_the_pace(
    asked_s: float | None, in_flight_too: bool, began_s: tuple[float, ...], taken: int, passed_s: float
) -> None:
    """The second of four calls is refused after 0.3 s, the eighth later on. Five a second were tried since, and fewer
    were asked for: the quota is at most a quarter above what was taken. After four calls it is cut by two fifths."""
    pace = Pace()
    for number in range(4):
        pace.began(number / 10, waited=False)
    pace.refused(0.1, 0.4, asked_s)
    assert pace.per_s == 5
    if in_flight_too:
        pace.refused(0.2, 0.5, None)
        assert pace.per_s == 5
    for at_s in began_s:
        assert pace.wait_s(at_s) <= 0
        pace.began(at_s, waited=False)
    pace.refused(began_s[-1], began_s[-1] + 0.1, None)
    assert pace.per_s == pytest.approx(1.25 * taken / passed_s * 0.6)


def test_a_call_that_came_late_leaves_nothing_to_count_and_the_pace_that_was_refused_counts() -> None:
    for last_s, per_s in ((4.2, 1.25), (4.4, 5 * 0.6)):  # it might have begun at 3.3 s
        pace = Pace()
        for number in range(4):
            pace.began(number / 10, waited=False)
        pace.refused(0.1, 0.4, None)
        for at_s in (0.7, 2.0, 3.1, last_s):
            pace.began(at_s, waited=False)
        pace.refused(last_s, last_s + 0.1, None)
        assert pace.per_s == pytest.approx(per_s)


def begun_at(limits: RateLimiter, *calls: tuple[float, int], taken: dict[int, tuple[int, int]] | None = None) -> object:
    """When calls begin that come at these seconds, and take so many tokens. taken: before call n, what call m has
    really taken."""

    async def main() -> list[float]:
        permits = []
        for number, (at_s, tokens) in enumerate(calls):
            await asyncio.sleep(max(0.0, at_s - asyncio.get_running_loop().time()))
            if taken is not None and number in taken:
                earlier, really = taken[number]
                limits.correct(permits[earlier], really)
            permits.append(await limits.admit(tokens))
        return [permit.at_s for permit in permits]

    return pytest.approx(virtual_time.run(main()))


def at_once(*amounts: int) -> list[tuple[float, int]]:
    return [(0.0, amount) for amount in amounts]


def test_a_minute_is_full_until_the_calls_that_fill_it_are_a_minute_old() -> None:
    assert begun_at(RateLimiter(2, None), *at_once(9, 9, 9, 9, 9)) == [0, 0, 60, 60, 120]
    assert begun_at(RateLimiter(2, None), (0, 1), (30, 1), (45, 1), (46, 1)) == [0, 30, 60, 90]
    assert begun_at(RateLimiter(None, 30), *at_once(20, 10, 1, 29, 1)) == [0, 0, 60, 60, 120]
    assert begun_at(RateLimiter(None, 30), *at_once(50, 1)) == [0, 60]
    assert begun_at(RateLimiter(3, 30), *at_once(1, 1, 1, 1)) == [0, 0, 0, 60]
    assert begun_at(RateLimiter(None, None), *at_once(99, 99)) == [0, 0]


@pytest.mark.parametrize(("tokens", "begins_s"), [(5, 50), (10, 60), (11, 90)])
def test_a_call_waits_for_so_many_calls_to_grow_old_as_it_needs_the_tokens_of(tokens: int, begins_s: float) -> None:
    """Of 30 tokens a minute 5 and then 20 are taken: 10 more have room without the first, 11 not before the second."""
    assert begun_at(RateLimiter(None, 30), (0, 5), (30, 20), (50, tokens)) == [0, 30, begins_s]


def test_what_a_call_has_really_taken_counts_in_its_own_minute_alone() -> None:
    assert begun_at(RateLimiter(None, 30), *at_once(20, 20, 10), taken={1: (0, 5)}) == [0, 0, 60]
    assert begun_at(RateLimiter(None, 30), *at_once(20, 20, 10, 1), taken={2: (0, 0)}) == [0, 60, 60, 120]
    assert begun_at(RateLimiter(None, 30), *at_once(10, 10, 10), taken={2: (0, 25)}) == [0, 0, 60]
    old = (0, 5), (70, 20), (80, 10), (81, 1)
    assert begun_at(RateLimiter(None, 30), *old, taken={2: (0, 1000)}) == [0, 70, 80, 130]
