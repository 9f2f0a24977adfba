"""Structured replies and fallbacks over real sockets, and who hears of a call."""

import json
import time
from typing import Any

import pytest
from chat_clients import EIGHT, GEMINI, ask, client_factory, requests_of, score_all
from scripted_server import Received, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients.ledger import calls_to
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


async def test_a_schema_goes_to_models_that_take_one() -> None:
    answer = {"rationale": "Sound.", "process_score": 7, "answer_correct": None, "abstain": False}
    for model, key in (("openai/gpt-4o", "response_format"), (GEMINI, "generationConfig")):
        async with ScriptedServer([say(json.dumps(answer))]) as server:
            base = server.gemini_base if model == GEMINI else server.openai_base
            coach = make_coach(CoachConfig(name=model, api_base=base), client_factory=client_factory())
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
            CoachConfig(name="openai/judge", api_base=server.openai_base),
            client_factory=client_factory(structured=structured),
        )
        assert (await coach.score(requests_of(1)[0])).process_0_10 == 8
        await coach.close()
        assert ("response_format" in server.requests[0].body) is asked


async def test_a_provider_that_broke_is_asked_again_no_sooner_than_it_said() -> None:
    times: list[float] = []

    def script(_: Received) -> Step:
        times.append(time.monotonic())
        return status(503, retry_after_s=0.6) if len(times) == 1 else say(EIGHT)

    async with ScriptedServer(script) as server:
        client = client_factory().client("openai/judge", server.openai_base)
        assert (await client.complete(ask())).text == EIGHT
        await client.close()
    assert times[1] - times[0] >= 0.6


# Fallbacks


async def test_a_fallback_answers_where_the_first_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(500)]) as broken, ScriptedServer([say(EIGHT)]) as sound:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", sound.openai_base)
        made = client_factory(max_attempts=2)
        coach = make_coach(
            CoachConfig(name="openai/judge", api_base=broken.openai_base, fallbacks=["hosted_vllm/spare"]),
            client_factory=made,
        )
        (score,) = await score_all(CoachPool(coach, client_factory=made), requests_of(1))
        assert (len(broken.requests), len(sound.requests)) == (2, 1)
    assert (score.process_0_10, score.model, score.fallbacks, score.usage.attempts) == (8, "hosted_vllm/spare", 1, 3)


async def test_a_model_that_is_lost_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(401)]) as closed, ScriptedServer([say(EIGHT)]) as sound:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", sound.openai_base)
        client = client_factory().client("openai/judge", closed.openai_base, ["hosted_vllm/spare"])
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
    async with ScriptedServer([status(503, "down")]) as down, ScriptedServer([say(EIGHT)]) as sound:
        first, second = (down, sound) if first_is_down else (sound, down)
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", second.openai_base)
        client = client_factory(max_attempts=1).client("openai/judge", first.openai_base, ["hosted_vllm/spare"])
        await client.check(ask())
        assert len(first.requests) == len(second.requests) == 1
        (warning,) = caplog.messages
        assert "503 down" in warning and warning.endswith("the other models of the chain are asked in its place")
        for _ in range(3):
            assert (await client.complete(ask())).fallbacks == int(first_is_down)
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 + int(first_is_down)  # not once a call
        await client.close()


async def test_a_chain_that_is_down_from_end_to_end_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(503, "down")]) as down:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://127.0.0.1:1/v1")
        client = client_factory(max_attempts=1).client("openai/judge", down.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match=r"503 down.*; then coach hosted_vllm/spare"):
            await client.check(ask())
        await client.close()


@pytest.mark.parametrize("wrong", ["first", "second"])
async def test_a_wrong_key_anywhere_in_a_chain_stops_at_the_start(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([status(401)]) as closed, ScriptedServer([say(EIGHT)]) as sound:
        first, second = (closed, sound) if wrong == "first" else (sound, closed)
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", second.openai_base)
        client = client_factory().client("openai/judge", first.openai_base, ["hosted_vllm/spare"])
        with pytest.raises(CoachUnavailable, match=r"refused the key|wants a key"):
            await client.check(ask())
        await client.close()


# Records


async def test_calls_are_recorded_whoever_makes_them() -> None:
    calls: list[Any] = []
    async with ScriptedServer([status(500), say(EIGHT)]) as server:
        client = client_factory().client("openai/judge", server.openai_base)
        with calls_to(calls.append):
            await client.complete(ask(prompt_hash="abc"))
        await client.close()
    assert [(call.error != "", call.prompt_hash) for call in calls] == [(True, "abc"), (False, "abc")]
