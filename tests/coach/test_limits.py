"""How many calls are made at once and in a minute."""

import asyncio
import time

import pytest
from exchanges import EIGHT, ask, exchange

from coachrl.coach.limits import Gate, MinuteLimits
from coachrl.testing_server import Received, ScriptedServer, Step, say, status

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


async def test_throttling_makes_fewer_calls_until_it_passes() -> None:
    """A server that takes four at once and refuses the rest."""
    refused = 0

    def script(_: Received) -> Step:
        nonlocal refused
        if server._at_once >= 4:
            refused += 1
            return status(429)
        return say(EIGHT, latency_s=0.05)

    async with ScriptedServer(script) as server:
        made = exchange(concurrency=32, max_attempts=20)
        client = made.client("openai/judge", server.openai_base)
        replies = await asyncio.gather(*(client.complete(ask(f"{n}")) for n in range(60)))
        ((gate, _),) = made._limits.values()
        await client.close()
    assert all(reply.text == EIGHT for reply in replies)
    assert refused > 0
    assert gate.allowed < 32


async def test_a_gate_halves_once_for_calls_of_one_time_and_grows_again() -> None:
    gate = Gate(16)
    began = time.monotonic()
    for _ in range(10):
        gate.throttled(began)
    assert gate.allowed == 8
    for _ in range(9):
        gate.went_well()
    assert 8.9 < gate.allowed < 10
    for _ in range(500):
        gate.went_well()
    assert gate.allowed == 16


async def test_a_gate_lets_callers_in_by_turn_and_forgets_those_who_left() -> None:
    gate, entered = Gate(1), []

    async def enter(name: int) -> None:
        async with gate:
            entered.append(name)
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(enter(name)) for name in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == [0, 2, 3]
    async with asyncio.timeout(1):
        async with gate:
            pass


async def test_no_minute_holds_more_than_its_requests_and_tokens() -> None:
    minute_s = 0.3
    for limits, amount in ((MinuteLimits(3, None, minute_s), 1), (MinuteLimits(None, 30, minute_s), 10)):
        times = []
        for _ in range(8):
            times.append((await limits.admit(amount)).at_s)
        assert all(later - earlier >= minute_s - 1e-6 for earlier, later in zip(times, times[3:], strict=False))
    limits = MinuteLimits(None, 30, minute_s)
    for _ in range(20):  # calls that took less than was thought leave room
        limits.correct(await limits.admit(10), 0)
    async with asyncio.timeout(60):
        await MinuteLimits(None, 5, minute_s=3600).admit(50)  # more than a minute holds: it goes alone
