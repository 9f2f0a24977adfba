"""Real clients over real sockets: limits, fallbacks, budget, cache, structured replies, Google's library."""

import asyncio
import contextlib
import json
import multiprocessing
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from coach_requests import make_action, request_for

from coachrl.coach import CallSettings, CoachRequest, Exchange, make_coach
from coachrl.coach.budget import Budget, Price, spent_in
from coachrl.coach.cache import ReplyCache, cache_key
from coachrl.coach.client import ChatRequest, CoachUnreachable, Reply
from coachrl.coach.ledger import Message, calls_to, read_ledger
from coachrl.coach.limits import Gate, MinuteLimits
from coachrl.coach.pool import CoachPool
from coachrl.coach.providers import ClientSettings, import_litellm, price_of
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable, ConfigError
from coachrl.testing_server import BLOCKED, CUT, HANG, NO_CANDIDATE, Received, ScriptedServer, Step, say, status
from coachrl.types import CoachScore, Episode, Outcome

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")

GEMINI = "gemini/gemini-2.5-flash"
SECRET = "sk-0123456789abcdef"
EIGHT = "PROCESS_SCORE: 8"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    for name in ("GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)


def ask(text: str = "Judge.", **fields: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), **fields)


def exchange(
    budget: Budget | None = None, cache: Path | None = None, client: ClientSettings | None = None, **settings: Any
) -> Exchange:
    call = CallSettings(**{"max_attempts": 3, "first_wait_s": 0.01, **settings}, client=client or ClientSettings())
    return Exchange(call, budget=budget, cache=cache)


async def score_all(pool: CoachPool, requests: Sequence[CoachRequest]) -> list[CoachScore]:
    for request in requests:
        pool.submit(request)
    episode = Episode("e1", "w1", "one-step", "mathchat", tuple(r.action for r in requests), Outcome(True))
    try:
        return list((await pool.settle([episode])).values())
    finally:
        await pool.close()


def requests_of(count: int) -> list[CoachRequest]:
    return [request_for(make_action("solver", f"{index} * 4", index=index)) for index in range(count)]


# Google's library


async def test_gemini_counts_every_kind_of_token_and_its_price() -> None:
    script = [say("one two three", tokens_thinking=50, tokens_cached=1)]
    async with ScriptedServer(script) as server:
        client = exchange(client=ClientSettings(thinking_budget=128)).client(GEMINI, server.gemini_base)
        reply = await client.complete(ask("a b c d e", max_tokens=500, temperature=0.5))
        await client.close()
        (received,) = server.requests
    assert (reply.tokens_in, reply.tokens_out, reply.tokens_thinking, reply.tokens_cached) == (5, 53, 50, 1)
    entry = import_litellm("x").model_cost[GEMINI]
    expected = 4 * entry["input_cost_per_token"] + entry["cache_read_input_token_cost"]
    assert reply.cost_usd == pytest.approx(expected + 53 * entry["output_cost_per_token"])
    config = received.body["generationConfig"]
    assert list(config["thinkingConfig"].values()) == [128]
    assert (config["maxOutputTokens"], config["temperature"]) == (500, 0.5)
    assert received.headers["x-goog-api-key"] == SECRET
    assert SECRET not in received.path


@pytest.mark.parametrize(
    ("step", "finish_reason", "detail"),
    [
        (BLOCKED, "content_filter", "the prompt was blocked: SAFETY"),
        (say("", finish_reason="content_filter"), "content_filter", "the reply was blocked: SAFETY"),
        (say("PROC", finish_reason="length", tokens_thinking=60), "length", "60 of 64 tokens went to thinking"),
    ],
    ids=["prompt blocked", "reply blocked", "cut"],
)
async def test_gemini_endings_are_told_apart(step: Step, finish_reason: str, detail: str) -> None:
    async with ScriptedServer([step]) as server:
        client = exchange().client(GEMINI, server.gemini_base)
        reply = await client.complete(ask(max_tokens=64))
        await client.close()
    assert (reply.finish_reason, reply.detail) == (finish_reason, detail)
    assert reply.cost_usd is not None  # what was read is billed


async def test_gemini_without_a_candidate_is_asked_again() -> None:
    async with ScriptedServer([NO_CANDIDATE, say(EIGHT)]) as server:
        client = exchange().client(GEMINI, server.gemini_base)
        assert (await client.complete(ask())).text == EIGHT
        await client.close()


async def test_what_is_blocked_is_not_asked_for_again() -> None:
    async with ScriptedServer([BLOCKED]) as server:
        coach = make_coach(GEMINI, api_base=server.gemini_base, exchange=exchange())
        with pytest.raises(CoachError, match="ended by: content_filter, the prompt was blocked"):
            await coach.score(requests_of(1)[0])
        await coach.close()
        assert len(server.requests) == 1


async def test_gemini_says_in_its_error_how_long_to_wait() -> None:
    async with ScriptedServer([status(429, retry_after_s=0.4), say(EIGHT)]) as server:
        client = exchange().client(GEMINI, server.gemini_base)
        began = time.monotonic()
        await client.complete(ask())
        await client.close()
    assert time.monotonic() - began >= 0.4


async def test_gemini_refuses_a_bad_key_with_400() -> None:
    async with ScriptedServer([status(400, f"API key not valid: {SECRET}. API_KEY_INVALID")]) as server:
        client = exchange().client(GEMINI, server.gemini_base)
        with pytest.raises(CoachUnavailable, match="refused the key") as caught:
            await client.complete(ask())
        await client.close()
    assert SECRET not in str(caught.value)


async def test_gemini_on_vertex_with_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([say(EIGHT)]) as server:
        account = tmp_path / "account.json"
        account.write_text(json.dumps(service_account(f"{server.address}/token")))
        monkeypatch.delenv("GEMINI_API_KEY")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "my-project")
        client = exchange().client("gemini-2.5-flash", server.address)
        assert (await client.complete(ask())).text == EIGHT
        await client.close()
        (received,) = server.requests
    assert received.headers["Authorization"] == "Bearer scripted-token"
    assert "/projects/my-project/locations/global/" in received.path


def service_account(token_uri: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "coach@my-project.iam.gserviceaccount.com",
        "token_uri": token_uri,
    }


async def test_gemini_through_litellm_where_asked_for() -> None:
    async with ScriptedServer([say(EIGHT, tokens_thinking=3)]) as server:
        client = exchange(client=ClientSettings(library="litellm")).client(GEMINI, server.gemini_base)
        reply = await client.complete(ask())
        await client.close()
    assert (reply.text, reply.tokens_thinking, reply.tokens_out) == (EIGHT, 3, 5)
    assert reply.cost_usd is not None and reply.cost_usd > 0


@pytest.mark.parametrize(
    ("model", "client", "message"),
    [
        ("gpt-4o", ClientSettings(library="google-genai"), "reaches Gemini models only"),
        ("gpt-4o", ClientSettings(thinking_budget=100), "takes no coach.thinking_budget"),
        ("mistral/mistral-tiny", ClientSettings(reasoning_effort="low"), "takes no coach.reasoning_effort"),
    ],
)
def test_settings_that_a_model_does_not_take(model: str, client: ClientSettings, message: str) -> None:
    with pytest.raises(CoachUnavailable, match=message):
        exchange(client=client).client(model)


def test_prices_are_those_of_litellm() -> None:
    litellm = import_litellm("x")
    for model in ("gemini/gemini-2.5-pro", "openai/gpt-4o", "anthropic/claude-sonnet-4-5"):
        price = price_of(model, litellm)
        assert price is not None
        into, out = litellm.cost_per_token(model=model, prompt_tokens=3000, completion_tokens=700)
        assert price.of(Reply("", model, tokens_in=3000, tokens_out=700)) == pytest.approx(into + out)
    assert price_of("hosted_vllm/gpt-4o", litellm) is None


# Structured replies


async def test_a_schema_goes_to_models_that_take_one() -> None:
    answer = {"rationale": "Sound.", "process_score": 7, "answer_correct": None, "abstain": False}
    for model, key in (("openai/gpt-4o", "response_format"), (GEMINI, "generationConfig")):
        async with ScriptedServer([say(json.dumps(answer))]) as server:
            base = server.gemini_base if model == GEMINI else server.openai_base
            coach = make_coach(model, api_base=base, exchange=exchange())
            score = await coach.score(requests_of(1)[0])
            await coach.close()
            (received,) = server.requests
        assert (score.process_0_10, score.rationale) == (7, "Sound.")
        assert '"process_score"' in json.dumps(received.body[key])
        assert '- "process_score": the score' in received.prompt


@pytest.mark.parametrize(("structured", "asked"), [(None, False), (True, True)])
async def test_a_model_of_unknown_skill_gets_a_schema_only_where_told_so(structured: bool | None, asked: bool) -> None:
    async with ScriptedServer([say(EIGHT)]) as server:
        coach = make_coach(
            "openai/judge",
            api_base=server.openai_base,
            exchange=exchange(client=ClientSettings(structured=structured)),
        )
        assert (await coach.score(requests_of(1)[0])).process_0_10 == 8
        await coach.close()
        assert ("response_format" in server.requests[0].body) is asked


# Limits


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


# Fallbacks


async def test_a_fallback_answers_where_the_first_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(500)]) as broken, ScriptedServer([say(EIGHT)]) as sound:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", sound.openai_base)
        made = exchange(max_attempts=2)
        coach = make_coach("openai/judge", api_base=broken.openai_base, fallbacks=["hosted_vllm/spare"], exchange=made)
        (score,) = await score_all(CoachPool(coach, exchange=made), requests_of(1))
        assert (len(broken.requests), len(sound.requests)) == (2, 1)
    assert (score.process_0_10, score.model, score.fallbacks, score.attempts) == (8, "hosted_vllm/spare", 1, 3)


async def test_a_model_that_is_lost_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(401)]) as closed, ScriptedServer([say(EIGHT)]) as sound:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", sound.openai_base)
        client = exchange().client("openai/judge", closed.openai_base, ["hosted_vllm/spare"])
        for _ in range(3):
            assert (await client.complete(ask())).fallbacks == 1
        assert len(closed.requests) == 1
        with pytest.raises(CoachUnavailable):  # before a run it counts
            await client.check(ask())
        await client.close()


@pytest.mark.parametrize("first_is_down", [True, False])
async def test_a_model_that_is_down_at_the_start_is_a_warning_where_another_answers(
    first_is_down: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer([status(503, "overloaded")]) as down, ScriptedServer([say(EIGHT)]) as sound:
        first, second = (down, sound) if first_is_down else (sound, down)
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", second.openai_base)
        client = exchange(max_attempts=1).client("openai/judge", first.openai_base, ["hosted_vllm/spare"])
        await client.check(ask())
        assert len(first.requests) == len(second.requests) == 1
        (warning,) = caplog.messages
        assert "overloaded" in warning and warning.endswith("the other models of the chain are asked in its place")
        for _ in range(3):
            assert (await client.complete(ask())).fallbacks == int(first_is_down)
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 + int(first_is_down)  # not once a call
        await client.close()


async def test_a_chain_that_is_down_from_end_to_end_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(503, "overloaded")]) as down:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://127.0.0.1:1/v1")
        client = exchange(max_attempts=1).client("openai/judge", down.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match=r"503 overloaded.*; then coach hosted_vllm/spare"):
            await client.check(ask())
        await client.close()


@pytest.mark.parametrize("wrong", ["first", "second"])
async def test_a_wrong_key_anywhere_in_a_chain_stops_at_the_start(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(401)]) as closed, ScriptedServer([say(EIGHT)]) as sound:
        first, second = (closed, sound) if wrong == "first" else (sound, closed)
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", second.openai_base)
        client = exchange().client("openai/judge", first.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match=r"refused the key|wants a key"):
            await client.check(ask())
        await client.close()


# The check before a run


@pytest.mark.parametrize("model", ["openai/judge", "openai/gpt-4o", GEMINI])
@pytest.mark.parametrize("trouble", [status(503), status(429), CUT], ids=["503", "429", "cut"])
async def test_a_fault_that_passes_does_not_stop_a_run(model: str, trouble: Step, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    async with ScriptedServer([trouble, say(EIGHT)]) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        made = exchange(cache=tmp_path / "cache.sqlite")
        pool = CoachPool(make_coach(model, api_base=base, exchange=made), ledger=ledger, exchange=made)
        await pool.check()
        await pool.check()  # past the cache
        await pool.close()
        assert len(server.requests) == 3
    assert [line["error"] != "" for line in read_ledger(ledger)] == [True, False, False]


async def test_a_check_makes_no_more_attempts_than_a_call() -> None:
    async with ScriptedServer([status(503, "overloaded")]) as server:
        client = exchange(max_attempts=3).client("openai/judge", server.openai_base)
        with pytest.raises(CoachUnreachable, match=r"503 overloaded \(asked before the first rollout\)"):
            await client.check(ask())
        await client.close()
        assert len(server.requests) == 3


@pytest.mark.parametrize(("code", "stops"), [(503, True), (429, False)])
async def test_a_check_does_not_wait_for_long(code: int, stops: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Where the provider asks for an hour: one that is down stops the run, one that is busy is heard of later."""
    async with ScriptedServer([status(code, retry_after_s=3600)]) as server, asyncio.timeout(60):
        client = exchange().client("openai/judge", server.openai_base)
        if stops:
            with pytest.raises(CoachUnreachable):
                await client.check(ask())
        else:
            await client.check(ask())
            assert "busy at the start" in caplog.messages[0]
        await client.close()
        assert len(server.requests) == 1


async def test_a_check_is_bounded_in_time_whatever_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coachrl.coach.exchange._CHECK_S", 0.2)
    client = exchange(max_attempts=10**6).client("openai/judge", "http://127.0.0.1:1/v1")
    async with asyncio.timeout(60):
        with pytest.raises(CoachUnreachable, match=r"127\.0\.0\.1:1"):
            await client.check(ask())
    await client.close()


async def test_an_address_that_takes_no_connection_is_told_from_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coachrl.coach.server_client._CONNECT_S", 0.3)
    with socket.socket() as deaf, contextlib.ExitStack() as queue:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)  # what is beyond its queue gets no answer at all
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        client = exchange(max_attempts=1).client("openai/judge", f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        with pytest.raises(CoachUnreachable, match=r"no connection within 0\.3 s"):
            await client.check(ask())
        await client.close()


async def test_a_wrong_key_is_said_while_another_model_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([HANG]) as slow, ScriptedServer([status(401)]) as closed, asyncio.timeout(60):
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", closed.openai_base)
        settings = ClientSettings(timeout_s=3600)
        client = exchange(client=settings).client("openai/judge", slow.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match="wants a key"):
            await client.check(ask())
        await client.close()
        assert len(closed.requests) == 1


# Budget


def test_a_budget_wants_prices() -> None:
    with pytest.raises(ConfigError, match=r"price of 'openai/judge' is not known.*usd_per_million_tokens"):
        exchange(Budget(1.0)).client("openai/judge", "http://127.0.0.1:1")
    exchange(Budget(1.0), usd_per_million_tokens=(1.0, 2.0)).client("openai/judge", "http://127.0.0.1:1")


async def test_a_budget_is_met_and_never_passed(tmp_path: Path) -> None:
    """Calls cost $0.012 and may cost $0.1: the more is spent, the fewer go at once, and the last fraction is left."""
    ledger = tmp_path / "ledger.jsonl"
    budget = Budget(0.5)
    made = exchange(budget, concurrency=16, usd_per_million_tokens=(0.0, 1000.0))
    async with ScriptedServer([say("word " * 10 + f"\n{EIGHT}", latency_s=0.01)]) as server:
        coach = make_coach("openai/judge", api_base=server.openai_base, max_tokens=100, exchange=made)
        pool = CoachPool(coach, ledger=ledger, exchange=made)
        with pytest.raises(BudgetExceeded, match=r"coach.budget_usd of \$0.5 is reached"):
            await score_all(pool, requests_of(100))
        answered = len(server.requests)
    assert budget.spent_usd == pytest.approx(answered * 0.012)
    assert 0.4 < budget.spent_usd <= 0.5  # less than one call's most was left
    assert spent_in(ledger) == pytest.approx(budget.spent_usd)  # those under way were waited for
    with pytest.raises(BudgetExceeded):
        pool.submit(requests_of(101)[100])


async def test_a_call_that_broke_off_counts_as_the_most_that_it_may_cost(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    budget = Budget(0.25)
    made = exchange(budget, client=ClientSettings(timeout_s=0.2), max_attempts=5, usd_per_million_tokens=(0.0, 1000.0))
    async with ScriptedServer([Step("hang")]) as server:
        coach = make_coach("openai/judge", api_base=server.openai_base, max_tokens=100, exchange=made)
        with pytest.raises(BudgetExceeded):
            await score_all(CoachPool(coach, ledger=ledger, exchange=made), requests_of(1))
        assert len(server.requests) == 2
    assert budget.spent_usd == pytest.approx(0.2)
    assert spent_in(ledger) == pytest.approx(0.2)
    assert [line["cost_usd"] for line in read_ledger(ledger)] == [None, None]


def test_the_most_that_a_call_costs_covers_text_of_any_script() -> None:
    price = Price.flat(1.0, 0.0)
    assert price.most(ask("añ漢")) >= len("añ漢".encode())


# Cache


async def test_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    file = tmp_path / "cache.sqlite"
    async with ScriptedServer([say(EIGHT, latency_s=0.05)]) as server:

        async def run(**fields: Any) -> Reply:
            made = exchange(cache=file)
            client = made.client(GEMINI, server.gemini_base)
            first, second = await asyncio.gather(client.complete(ask(**fields)), client.complete(ask(**fields)))
            assert (first.text, first.cost_usd) == (second.text, second.cost_usd)
            await client.close()
            made.close()
            return first

        paid, again = await run(), await run()
        assert len(server.requests) == 1  # both at once, and after a restart
        assert (paid.from_cache, again.from_cache) == (False, True)
        assert again.cost_usd == paid.cost_usd
        for number, fields in enumerate([{"temperature": 0.5}, {"repeat": 1}, {"schema": {"type": "object"}}], start=2):
            await run(**fields)
            assert len(server.requests) == number


async def test_errors_are_not_kept(tmp_path: Path) -> None:
    async with ScriptedServer([status(400), say(EIGHT)]) as server:
        made = exchange(cache=tmp_path / "cache.sqlite")
        client = made.client(GEMINI, server.gemini_base)
        with pytest.raises(CoachError):
            await client.complete(ask())
        assert (await client.complete(ask())).text == EIGHT
        await client.close()
        made.close()


def test_a_key_holds_all_that_a_reply_depends_on() -> None:
    keys = {
        cache_key(model, request, options)
        for model in ("openai/a", "openai/b")
        for request in (ask("x"), ask("y"), ask("x", max_tokens=7), ask("x", schema={"a": 1}))
        for options in ({"api_base": None}, {"api_base": "http://h"})
    }
    assert len(keys) == 16
    assert cache_key("m", ask(prompt_hash="1"), {}) == cache_key("m", ask(prompt_hash="2"), {})


def fill(path: Path, name: str) -> None:
    cache = ReplyCache(path)
    for number in range(200):
        cache.put(f"{name}-{number}", Reply(name, "m"))
        cache.put(f"shared-{number}", Reply("shared", "m"))
    cache.close()


def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=fill, args=(path, name)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    cache = ReplyCache(path)
    assert all(cache.get(f"{name}-{number}") is not None for name in "abc" for number in range(200))
    cache.close()


def test_a_cache_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.execute, ("COMMIT",))
        timer.start()
        ReplyCache(path).close()
        timer.join()


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be taken for one. " * 50)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        ReplyCache(path)


async def test_a_resumed_pool_repeats_no_finished_call(tmp_path: Path) -> None:
    """The first pool is left behind while calls are under way, as by a kill."""
    requests, ledger = requests_of(20), tmp_path / "ledger.jsonl"

    def slow_where_odd(received: Received) -> Step:
        number = int(received.prompt.rsplit(" * 4", 1)[0].split()[-1])
        return say(EIGHT, latency_s=0.0 if number % 2 == 0 else 30.0)

    def pool_of(server: ScriptedServer) -> CoachPool:
        made = exchange(cache=tmp_path / "cache.sqlite")
        return CoachPool(make_coach(GEMINI, api_base=server.gemini_base, exchange=made), ledger=ledger, exchange=made)

    async with ScriptedServer(slow_where_odd) as server:
        pool = pool_of(server)
        for request in requests:
            pool.submit(request)
        await wait_until(lambda: sum(line["kind"] == "score" for line in read_ledger(ledger)) == 10, ledger)
        await pool.close()
        server._script = [say(EIGHT)]
        before = len(server.requests)
        scores = await score_all(pool_of(server), requests)
        assert len(server.requests) - before == 10
    assert [score.process_0_10 for score in scores] == [8.0] * 20
    assert sum(score.calls_from_cache for score in scores) == 10
    assert all(score.cost_usd is not None and score.cost_usd > 0 for score in scores)


async def wait_until(condition: Callable[[], bool], file: Path) -> None:
    async with asyncio.timeout(30):
        while not (file.exists() and condition()):
            await asyncio.sleep(0.05)


async def test_calls_are_recorded_whoever_makes_them() -> None:
    calls: list[Any] = []
    async with ScriptedServer([status(500), say(EIGHT)]) as server:
        client = exchange().client("openai/judge", server.openai_base)
        with calls_to(calls.append):
            await client.complete(ask(prompt_hash="abc"))
        await client.close()
    assert [(call.error != "", call.prompt_hash) for call in calls] == [(True, "abc"), (False, "abc")]


def test_importing_coaches_imports_no_client_library() -> None:
    code = "import sys, coachrl.coach; sys.exit(bool({'litellm', 'google.genai', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
