"""Streams of roles that a provider's model plays: passed on as they come, counted like whole replies, and ended with
their client."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from gateway_apps import LOOK_UP, play, user
from scripted_server import ScriptedServer, Step, say

from coachrl.coach.build import make_client_factory
from coachrl.coach.clients.ledger import read_ledger
from coachrl.config import CoachConfig, PipelineConfig
from coachrl.gateway.external import GatewayRole, LiteLLMProviders
from coachrl.gateway.served_team import ServedTeam
from coachrl.gateway.server import Server
from coachrl.pipelines import make_pipeline
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import Role, SamplingParams

pytest.importorskip("litellm", reason="needs the llm extra")

TEXT = "A fine plan, all in all."
PRICES = CoachConfig(usd_per_million_tokens=(1e6, 1e6), budget_usd=10_000_000)  # a dollar a token
ASKS_FOR_A_TOOL = (
    {"role": "assistant", "content": "Let me see. "},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "height_of"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"mountain": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Teide"}'}}]},
)

on_piece = None
"""What the app of these tests does with each piece of text; each test says it anew."""


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours-and-secret")


async def streams(task, endpoint):
    """The text of the critic's streamed reply, the arguments of a function that it asked for, and what it was said to
    have taken."""
    asked = {"model": "critic", "messages": [user(task.prompt)], "tools": [LOOK_UP]}
    stream = await endpoint.async_openai().chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    text, arguments, usage = "", "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                arguments += call.function.arguments
            if choice.delta.content:
                text += choice.delta.content
                on_piece(text)
    return text, arguments, (usage.prompt_tokens, usage.completion_tokens)


async def asks(task, endpoint):
    """The same without a stream."""
    asked = {"model": "critic", "messages": [user(task.prompt)], "tools": [LOOK_UP]}
    whole = await endpoint.async_openai().chat.completions.create(**asked)
    return whole.choices[0].message.content, "", (whole.usage.prompt_tokens, whole.usage.completion_tokens)


async def leaves(task, endpoint):
    """Goes away after the first piece of text."""
    body = {"model": "critic", "messages": [user(task.prompt)], "stream": True}
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("POST", f"{endpoint.base_url}/chat/completions", json=body, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if '"A"' in line:
                break
    await on_piece()


def is_said(task, result):
    is_said.result = result
    return True


async def episode_of(app, server, ledger, settings=PRICES):
    """The one episode of an app of this file, and the budget that its calls count in."""
    roles = {"critic": {"external": "openai/judge", "api_base": server.openai_base, "max_new_tokens": 50}}
    options = {"run": f"{__name__}:{app.__name__}", "grade": f"{__name__}:is_said", "roles": roles}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options=options))
    factory = make_client_factory(settings, ledger)
    pipeline.connect(factory, ledger)
    async with asyncio.timeout(60):
        [episode] = await play(pipeline, ScriptedPolicy(lambda call: "unused"))
    return episode, factory.budget


def set_app(monkeypatch, does):
    monkeypatch.setitem(globals(), "on_piece", does)


async def test_pieces_arrive_while_the_provider_still_writes(monkeypatch, tmp_path):
    """The provider goes on only once the app has its first word."""
    go = asyncio.Event()
    set_app(monkeypatch, lambda text: go.set() if text == "A" else None)
    async with ScriptedServer([replace(say(TEXT), go=go)]) as server:
        episode, _ = await episode_of(streams, server, tmp_path / "ledger")
    assert episode.infra_error is None and is_said.result[0] == TEXT == episode.actions[0].text


async def test_a_stream_is_recorded_counted_and_paid_as_the_whole_reply_is(monkeypatch, tmp_path):
    set_app(monkeypatch, lambda text: None)
    seen = []
    for app in (asks, streams):
        async with ScriptedServer([say(TEXT)]) as server:
            episode, budget = await episode_of(app, server, tmp_path / app.__name__)
        [line] = read_ledger(tmp_path / app.__name__)
        line["usage"].pop("latency_s")
        metrics = {name: value for name, value in episode.outcome.metrics.items() if name.startswith("external/")}
        seen.append((is_said.result, episode.actions[0].text, line, metrics, budget.spent_usd))
    assert seen[0] == seen[1]
    assert (
        seen[0][0] == (TEXT, "", (2, 6)) and seen[0][3] == {"external/calls": 1, "external/usd": 8} and seen[0][4] == 8
    )


async def test_functions_that_a_stream_asks_for_reach_the_app_and_the_record(monkeypatch, tmp_path):
    set_app(monkeypatch, lambda text: None)
    async with ScriptedServer([Step(deltas=ASKS_FOR_A_TOOL, finish_reason="tool_calls")]) as server:
        episode, _ = await episode_of(streams, server, tmp_path / "ledger")
    text, arguments, _ = is_said.result
    assert (text, json.loads(arguments)) == ("Let me see. ", {"mountain": "Teide"})
    assert "Let me see. " in episode.actions[0].text and "height_of" in episode.actions[0].text


async def test_a_stream_that_tells_no_usage_counts_as_what_was_reserved(monkeypatch, tmp_path):
    """LiteLLM would make up a count of its own."""
    set_app(monkeypatch, lambda text: None)
    async with ScriptedServer([replace(say(TEXT), is_counted=False)]) as server:
        episode, budget = await episode_of(streams, server, tmp_path / "ledger")
    [line] = read_ledger(tmp_path / "ledger")
    assert line["usage"]["cost_usd"] is None and budget.spent_usd == line["reserved_usd"] > 50
    assert "external/usd" not in episode.outcome.metrics


async def test_a_client_that_leaves_ends_the_providers_call(monkeypatch, tmp_path):
    async with ScriptedServer([replace(say(TEXT), go=asyncio.Event())]) as server:
        set_app(monkeypatch, server.left.wait)
        episode, budget = await episode_of(leaves, server, tmp_path / "ledger")
        assert server.left.is_set()
    [action] = episode.actions
    assert action.text == "" and action.result == "Nobody waited for this reply: the client went away."
    assert episode.outcome.metrics["calls_given_up"] == episode.outcome.metrics["external/calls"] == 1
    [line] = read_ledger(tmp_path / "ledger")
    assert line["error"] == "given up before the reply came" and line["usage"]["cost_usd"] is None
    assert budget.spent_usd == line["reserved_usd"] > 50, "it may be billed, nobody knows how much"


@pytest.mark.parametrize("behavior", ["cut", "end"])
async def test_a_provider_that_dies_in_mid_stream_is_no_fault_of_the_agents(monkeypatch, tmp_path, behavior):
    set_app(monkeypatch, lambda text: None)
    async with ScriptedServer([replace(say(TEXT), behavior=behavior)]) as server:
        episode, budget = await episode_of(streams, server, tmp_path / "ledger")
    assert episode.infra_error.startswith("provider: openai/judge: ") and "sk-ours" not in episode.infra_error
    [line] = read_ledger(tmp_path / "ledger")
    assert line["error"] and not line["reply"] and budget.spent_usd == line["reserved_usd"] > 50


async def test_an_error_in_mid_stream_is_the_providers_whatever_its_number(monkeypatch, tmp_path):
    """Servers of open models say so of an engine that dies; the request was fine when the reply began."""
    set_app(monkeypatch, lambda text: None)
    broken = {"error": {"message": "the engine burnt down", "type": "BadRequestError", "code": 400}}
    async with ScriptedServer([replace(say(TEXT), behavior="end", last=broken)]) as server:
        episode, _ = await episode_of(streams, server, tmp_path / "ledger")
    assert episode.infra_error.startswith("provider: openai/judge: ") and "burnt down" in episode.infra_error


async def test_a_served_team_passes_a_providers_stream_on(monkeypatch):
    go, role = asyncio.Event(), Role("critic", policy="critic", external="openai/judge")
    async with asyncio.timeout(60), ScriptedServer([replace(say(TEXT), go=go)]) as provider:
        providers = LiteLLMProviders({"critic": GatewayRole(external="openai/judge", api_base=provider.openai_base)})
        team = ServedTeam([role], None, providers, SamplingParams())
        body = {"model": "critic", "max_tokens": 9, "stream": True, "messages": [user("?")]}
        text, usage = "", {}
        async with (
            Server(team) as server,
            httpx.AsyncClient(timeout=None) as client,
            client.stream("POST", f"{server.url}/v1/messages", json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    text += event.get("delta", {}).get("text", "")
                    usage = event.get("usage", usage)
                    if text:
                        go.set()
    assert text == TEXT and usage == {"input_tokens": 1, "output_tokens": 6}
