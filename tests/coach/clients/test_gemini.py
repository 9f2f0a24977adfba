"""Google's library over real sockets: tokens, prices, endings, keys, and settings that go through."""

import json
import time
from pathlib import Path

import pytest
from chat_clients import EIGHT, GEMINI, SECRET, ask, client_factory, requests_of
from scripted_server import BLOCKED, NO_CANDIDATE, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients.providers import import_litellm
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


async def test_gemini_counts_every_kind_of_token_and_its_price() -> None:
    script = [say("one two three", tokens_thinking=50, tokens_cached=1)]
    async with ScriptedServer(script) as server:
        client = client_factory(thinking_budget=128).client(GEMINI, server.gemini_base)
        reply = await client.complete(ask("a b c d e", max_tokens=500, temperature=0.5))
        await client.close()
        (received,) = server.requests
    assert (reply.usage.tokens_in, reply.usage.tokens_out, reply.usage.tokens_thinking, reply.usage.tokens_cached) == (
        5,
        53,
        50,
        1,
    )
    entry = import_litellm("x").model_cost[GEMINI]
    expected = 4 * entry["input_cost_per_token"] + entry["cache_read_input_token_cost"]
    assert reply.usage.cost_usd == pytest.approx(expected + 53 * entry["output_cost_per_token"])
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
        client = client_factory().client(GEMINI, server.gemini_base)
        reply = await client.complete(ask(max_tokens=64))
        await client.close()
    assert (reply.finish_reason, reply.detail) == (finish_reason, detail)
    assert reply.usage.cost_usd is not None  # what was read is billed


async def test_gemini_without_a_candidate_is_asked_again() -> None:
    async with ScriptedServer([NO_CANDIDATE, say(EIGHT)]) as server:
        client = client_factory().client(GEMINI, server.gemini_base)
        assert (await client.complete(ask())).text == EIGHT
        await client.close()


async def test_what_is_blocked_is_not_asked_for_again() -> None:
    async with ScriptedServer([BLOCKED]) as server:
        coach = make_coach(CoachConfig(name=GEMINI, api_base=server.gemini_base), client_factory=client_factory())
        with pytest.raises(CoachError, match="ended by: content_filter, the prompt was blocked"):
            await coach.score(requests_of(1)[0])
        await coach.close()
        assert len(server.requests) == 1


async def test_gemini_says_in_its_error_how_long_to_wait() -> None:
    async with ScriptedServer([status(429, retry_after_s=0.4), say(EIGHT)]) as server:
        client = client_factory().client(GEMINI, server.gemini_base)
        began = time.monotonic()
        await client.complete(ask())
        await client.close()
    assert time.monotonic() - began >= 0.4


async def test_gemini_refuses_a_bad_key_with_400() -> None:
    async with ScriptedServer([status(400, f"API key not valid: {SECRET}. API_KEY_INVALID")]) as server:
        client = client_factory().client(GEMINI, server.gemini_base)
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
        client = client_factory().client("gemini-2.5-flash", server.address)
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
        client = client_factory(library="litellm").client(GEMINI, server.gemini_base)
        reply = await client.complete(ask())
        await client.close()
    assert (reply.text, reply.usage.tokens_thinking, reply.usage.tokens_out) == (EIGHT, 3, 5)
    assert reply.usage.cost_usd is not None and reply.usage.cost_usd > 0
