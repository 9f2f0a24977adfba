"""The check of a coach before a run: what passes, what stops at once, and how long it waits."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from chat_clients import EIGHT, GEMINI, ask, client_factory
from scripted_server import CUT, HANG, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients.base import CoachUnreachable
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


@pytest.mark.parametrize("model", ["openai/judge", "openai/gpt-4o", GEMINI])
@pytest.mark.parametrize("trouble", [status(503), status(429), CUT], ids=["503", "429", "cut"])
async def test_a_fault_that_passes_does_not_stop_a_run(model: str, trouble: Step, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    async with ScriptedServer([trouble, say(EIGHT)]) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        made = client_factory(cache=tmp_path / "cache.sqlite")
        pool = CoachPool(
            make_coach(CoachConfig(name=model, api_base=base), client_factory=made), ledger=ledger, client_factory=made
        )
        await pool.check()
        await pool.check()  # past the cache
        await pool.close()
        assert len(server.requests) == 3
    assert [line["error"] != "" for line in read_ledger(ledger)] == [True, False, False]


async def test_a_check_makes_no_more_attempts_than_a_call() -> None:
    async with ScriptedServer([status(503, "down")]) as server:
        client = client_factory(max_attempts=3).client("openai/judge", server.openai_base)
        with pytest.raises(CoachUnreachable, match=r"503 down \(asked before the first rollout\)"):
            await client.check(ask())
        await client.close()
        assert len(server.requests) == 3


@pytest.mark.parametrize(("code", "stops"), [(503, True), (429, False)])
async def test_a_check_does_not_wait_for_long(code: int, stops: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Where the provider asks for an hour: one that is down stops the run, one that is busy is heard of later."""
    async with ScriptedServer([status(code, retry_after_s=3600)]) as server, asyncio.timeout(60):
        client = client_factory().client("openai/judge", server.openai_base)
        if stops:
            with pytest.raises(CoachUnreachable):
                await client.check(ask())
        else:
            await client.check(ask())
            assert "busy at the start" in caplog.messages[0]
        await client.close()
        assert len(server.requests) == 1


async def test_a_check_is_bounded_in_time_whatever_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coachrl.coach.clients.retrying._CHECK_S", 0.2)
    client = client_factory(max_attempts=10**6).client("openai/judge", "http://127.0.0.1:1/v1")
    async with asyncio.timeout(60):
        with pytest.raises(CoachUnreachable, match=r"127\.0\.0\.1:1"):
            await client.check(ask())
    await client.close()


async def test_an_address_that_takes_no_connection_is_told_from_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coachrl.coach.clients.openai_compatible._CONNECT_S", 0.3)
    with socket.socket() as deaf, contextlib.ExitStack() as queue:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)  # what is beyond its queue gets no answer at all
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        client = client_factory(max_attempts=1).client("openai/judge", f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        with pytest.raises(CoachUnreachable, match=r"no connection within 0\.3 s"):
            await client.check(ask())
        await client.close()


async def test_a_wrong_key_is_said_while_another_model_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([HANG]) as slow, ScriptedServer([status(401)]) as closed, asyncio.timeout(60):
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", closed.openai_base)
        client = client_factory(timeout_s=3600).client("openai/judge", slow.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match="wants a key"):
            await client.check(ask())
        await client.close()
        assert len(closed.requests) == 1
