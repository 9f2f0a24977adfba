"""A call is one request, to the address that was named: on whichever library's way."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_clients import EIGHT, GEMINI, SECRET, ask, client_factory
from loopback import LoopbackServer, web
from scripted_server import CUT, HANG, RESET, Received, ScriptedServer, Step, say, status

from coachrl.coach.clients.base import TransientCoachError
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.ledger import Ledger, calls_to, read_ledger
from coachrl.coach.clients.litellm import import_litellm
from coachrl.errors import CoachError, CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")

ANTHROPIC, DEEPINFRA = "anthropic/claude-3-5-haiku-20241022", "deepinfra/judge"  # each on a way of its own
MODELS = ("openai/judge", "hosted_vllm/judge", "openai/gpt-4o", DEEPINFRA, ANTHROPIC, GEMINI)


@pytest.fixture(autouse=True)
def more_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC", "DEEPINFRA", "HOSTED_VLLM"):
        monkeypatch.setenv(f"{name}_API_KEY", SECRET)


def base_of(server: ScriptedServer, model: str) -> str:
    if model == GEMINI:
        return server.gemini_base
    return server.address if model == ANTHROPIC else server.openai_base


def well(model: str) -> Step:
    if model != ANTHROPIC:
        return say(EIGHT)
    said = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    content, usage = [{"type": "text", "text": EIGHT}], {"input_tokens": 1, "output_tokens": 2}
    return Step(body=json.dumps({**said, "content": content, "usage": usage}))


@pytest.mark.parametrize("model", MODELS)
async def test_each_request_is_a_line_of_the_ledger_and_counts_where_it_may_be_billed(
    model: str, tmp_path: Path
) -> None:
    ledger, budget = Ledger(tmp_path / "ledger"), Budget(10.0)
    steps = [CUT, status(500), RESET, status(429), RESET, well(model)]
    async with ScriptedServer(steps) as server:
        client = client_factory(budget, max_attempts=9, usd_per_million_tokens=(1.0, 2.0)).client(
            model, base_of(server, model)
        )
        with calls_to(ledger.call):
            assert (await client.complete(ask(max_tokens=100))).text == EIGHT
        await client.close()
        assert len(server.requests) == len(steps)
    lines = list(read_ledger(tmp_path / "ledger"))
    assert [line["usage"]["cost_usd"] != 0.0 for line in lines] == [True, False, True, False, True, True]
    assert spent_in(tmp_path / "ledger") == pytest.approx(budget.spent_usd)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("code", [301, 307, 308])
async def test_a_redirect_is_not_followed(code: int, model: str) -> None:
    async with ScriptedServer([well(model)]) as elsewhere:
        place = f"{elsewhere.address}/elsewhere"
        async with ScriptedServer([Step(http_status=code, place=place)]) as server:
            client = client_factory().client(model, base_of(server, model))
            with pytest.raises(CoachUnavailable, match=r"leads on to"):
                await client.complete(ask())
            await client.close()
            assert len(server.requests) == 1
    assert not elsewhere.requests


@pytest.mark.parametrize("model", MODELS)
async def test_a_connection_that_was_never_made_costs_nothing(model: str) -> None:
    """Else an outage would use up the budget of a run that has spent nothing."""
    async with ScriptedServer([well(model)]) as server:
        base = base_of(server, model)
    client = client_factory(budget := Budget(10.0), max_attempts=2, usd_per_million_tokens=(1.0, 2.0)).client(
        model, base
    )
    with pytest.raises(TransientCoachError, match="Connect call failed"):
        await client.complete(ask())
    await client.close()
    assert budget.spent_usd == 0


async def test_a_connection_that_was_idle_for_a_second_is_not_used_again() -> None:
    """The server may be closing it, and what is sent into it would count as the most that it may cost."""
    came_from = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        came_from.append(request.transport.get_extra_info("peername"))
        return web.json_response({"choices": [{"message": {"content": EIGHT}, "finish_reason": "stop"}]})

    async with LoopbackServer({"/v1/chat/completions": answer}) as server:
        client = client_factory().client("openai/judge", f"{server.address}/v1")
        for pause_s in (0.0, 0.8, 0.0):
            await client.complete(ask())
            await asyncio.sleep(pause_s)
        await client.close()
    first, second, third = came_from
    assert first == second != third


@pytest.mark.parametrize("model", MODELS)
async def test_a_filter_that_refuses_one_request_is_no_refused_key(model: str) -> None:
    """So OpenRouter and firewalls answer to what an agent wrote, and others' actions can still be scored."""
    flagged = status(403, "Your input was flagged: prompt injection patterns detected")
    async with ScriptedServer([flagged, well(model), flagged, well(model)]) as server:
        factory = client_factory(max_attempts=9)
        client = factory.client(model, base_of(server, model))
        with pytest.raises(CoachUnavailable, match="refused the key"):
            await client.complete(ask())
        await client.complete(ask())
        another = factory.past_the_cache().client(model, base_of(server, model))
        with pytest.raises(CoachError, match=r"flagged.*this very request is refused") as refused:
            await another.complete(ask())
        assert type(refused.value) is CoachError
        assert (await another.complete(ask())).text == EIGHT
        await client.close()
        await another.close()
        assert len(server.requests) == 4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("odd", [900_000_000, -900_000_000, 1e300, "many"], ids=str)
async def test_a_claim_that_cannot_be_costs_what_was_reserved_and_is_said_once(
    odd: Any, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(received: Received) -> Step:
        step = well(model)
        names = {"prompt_tokens": 10, "completion_tokens": odd, "total_tokens": 20}
        if model == GEMINI:
            parts = {"content": {"parts": [{"text": EIGHT}]}, "finishReason": "STOP"}
            counts = {"promptTokenCount": 10, "candidatesTokenCount": odd}
            return Step(body=json.dumps({"candidates": [parts], "usageMetadata": counts}))
        if model == ANTHROPIC:
            body = {**json.loads(step.body or ""), "usage": {"input_tokens": 10, "output_tokens": odd}}
            return Step(body=json.dumps(body))
        choice = {"index": 0, "message": {"role": "assistant", "content": EIGHT}, "finish_reason": "stop"}
        fixed = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        return Step(body=json.dumps({**fixed, "choices": [choice], "usage": names}))

    budget = Budget(1e9)
    async with ScriptedServer(script) as server:
        client = client_factory(budget, max_attempts=1, usd_per_million_tokens=(1.0, 2.0)).client(
            model, base_of(server, model)
        )
        most_usd = client._price.most(ask(max_tokens=100))  # type: ignore[attr-defined]
        for repeat in range(3):
            try:
                assert (await client.complete(ask(max_tokens=100, repeat=repeat))).text == EIGHT
            except CoachError as unreadable:  # some libraries refuse such a body
                assert "cannot be read" in str(unreadable)
        await client.close()
    assert budget.spent_usd == pytest.approx(3 * most_usd)
    said = [message for message in caplog.messages if message.startswith(f"{model} claims 10 tokens read and ")]
    assert len(said) == 1 or (not said and not isinstance(odd, int))  # what no library reads, nobody claims


def test_a_client_of_litellm_that_blocks_follows_no_redirect_either() -> None:
    import_litellm("openai/judge")
    from litellm.llms.custom_httpx.http_handler import HTTPHandler

    handler = HTTPHandler()
    assert not handler.client.follow_redirects
    handler.close()


async def test_a_call_that_is_given_up_stands_in_the_ledger_as_one_that_may_be_billed(tmp_path: Path) -> None:
    ledger, budget = Ledger(tmp_path / "ledger"), Budget(10.0)
    async with ScriptedServer([HANG]) as server:
        client = client_factory(budget, usd_per_million_tokens=(1.0, 2.0)).client("openai/judge", server.openai_base)
        with calls_to(ledger.call):
            asked = asyncio.create_task(client.complete(ask()))
        while not server.requests:
            await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.wait({asked})
        await client.close()
    [line] = read_ledger(tmp_path / "ledger")
    assert line["error"] == "given up before the reply came" and line["usage"]["cost_usd"] is None
    assert spent_in(tmp_path / "ledger") == budget.spent_usd > 0


async def test_a_model_that_openai_gives_its_responses_form_is_asked_once_a_call_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As gpt-5-pro: LiteLLM's way to it needs the package mcp, and the model another temperature."""
    text = {"type": "output_text", "text": EIGHT, "annotations": []}
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [text]}
    told = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [message]}
    usage = {"input_tokens": 30, "output_tokens": 20, "total_tokens": 50}
    steps = [CUT, status(500), status(429), Step(body=json.dumps({**told, "usage": usage}))]
    async with ScriptedServer(steps) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.openai_base)
        client = client_factory(Budget(10.0), max_attempts=9).client("openai/gpt-5-pro", None)
        reply = await client.complete(ask(max_tokens=100, temperature=1.0))
        await client.close()
        assert reply.text == EIGHT
        assert [request.path for request in server.requests] == ["/v1/responses"] * len(steps)


async def test_a_temperature_that_a_model_does_not_take_is_told_with_the_setting() -> None:
    client = client_factory(Budget(10.0)).client("openai/gpt-5-pro", None)
    with pytest.raises(
        CoachUnavailable, match=r"^coach openai/gpt-5-pro: .*temperature=0.*; set coach\.temperature=1$"
    ):
        await client.complete(ask(max_tokens=100))
    await client.close()
