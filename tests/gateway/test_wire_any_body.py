"""Whatever a body holds, it gets a reply that the provider's own types accept, or an error in the provider's form."""

import asyncio
import copy
import json
import threading

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")
pytest.importorskip("openai", reason="comes with the dev extra")
pytest.importorskip("anthropic", reason="comes with the dev extra")

import httpx
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_answerer import KEY, ScriptedAnswerer, events, reply

from coachrl.gateway.server import Server

PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}}
RICH = {
    "/v1/chat/completions": {
        "model": "coder",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "text", "text": "!"}], "name": "me"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"word": "a"}'}},
                    {"id": "2", "type": "function", "function": {"name": "f", "arguments": "["}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "fine"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True,
        "n": 2,
        "stop": ["END", "\n\n"],
        "seed": -1,
        "max_completion_tokens": 5,
        "temperature": 0,
        "top_p": 1,
        "logprobs": True,
        "response_format": {"type": "text"},
        "stream_options": {"include_usage": True},
        "stream": False,
    },
    "/v1/responses": {
        "model": "coder",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "?"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "fine"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "max_output_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.5,
        "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "stream": False,
    },
    "/v1/messages": {
        "model": "coder",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"word": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "fine"}]},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "x", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "stop_sequences": ["END"],
        "temperature": 1,
        "top_p": 0.9,
        "stream": False,
    },
}
PATHS = list(RICH)

WHOLE = {"/v1/chat/completions": ChatCompletion, "/v1/responses": Response, "/v1/messages": Message}
PIECE = {
    "/v1/chat/completions": TypeAdapter(ChatCompletionChunk),
    "/v1/responses": TypeAdapter(ResponseStreamEvent),
    "/v1/messages": TypeAdapter(RawMessageStreamEvent),
}


def answers(call, place):
    """Text, and a call of each tool: what a reply can hold."""
    calls = [(tool["function"]["name"], {"word": "é👩‍🏫"}) for tool in call.tools]
    return reply("One, two 👩‍👩‍👧‍👦 \ufffd", calls=calls, stop_text=call.stop[0] if call.stop else None)


@pytest.fixture(scope="module")
def client():
    """A client of a server that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    server = Server(ScriptedAnswerer(answers))
    run(server.__aenter__())
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    try:
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            yield client
    finally:
        run(server.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def check(path, response):
    """Raises where a response is neither a reply nor an error that the provider's types accept."""
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        body = response.json()
        assert isinstance(body["error"]["message"], str)
        assert "Traceback" not in response.text
        if path == "/v1/messages":
            assert body["type"] == "error"
    elif response.headers["content-type"].startswith("text/event-stream"):
        for name, data in events(response.text):
            if data != "[DONE]":
                PIECE[path].validate_python(data)
                assert name is None or name == data["type"]
    else:
        WHOLE[path].model_validate(response.json())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
# What a field may be taken for by mistake.
LIKELY = st.sampled_from(
    [
        *(None, True, 0, -1, 1, 0.5, 2**31, 2**63, 1e308, [], {}, [[]], [{}], {"type": "text"}, "", "\x00", "END", "f"),
        *("coder", "auto", "none", "any", "required", "text", "tool", "function", "image", "user", "assistant"),
    ]
)
ADDED = st.sampled_from(["type", "content", "name", "top_k", "response_format", "role"])


def places(value, prefix=()):
    """The path of every value inside of `value`."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [(*prefix, key), *places(inner, (*prefix, key))]
    return found


@st.composite
def damaged(draw, path):
    """A rich body with some of its values exchanged, some gone, and some added."""
    body = copy.deepcopy(RICH[path])
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(body) or [("model",)]))
        inner = body
        for key in place[:-1]:
            inner = inner[key]
        match draw(st.sampled_from(["exchange", "exchange", "remove", "add"])):
            case "exchange":
                inner[place[-1]] = copy.deepcopy(draw(LIKELY | JSON))  # a later change may go into what LIKELY holds
            case "remove" if isinstance(inner, dict):
                inner.pop(place[-1], None)
            case "add" if isinstance(inner, dict):
                inner[draw(ADDED)] = draw(JSON)
    body["stream"] = draw(st.sampled_from([False, True, True, "true"])) if draw(st.booleans()) else body.get("stream")
    return body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_rich_body_gets_a_reply_that_the_providers_types_accept(client, path, stream):
    response = client.post(path, json={**RICH[path], "stream": stream})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    check(path, response)


@pytest.mark.parametrize("path", PATHS)
def test_the_checks_themselves_can_fail(client, path):
    with pytest.raises(ValueError, match="Field required"):
        WHOLE[path].model_validate({})
    with pytest.raises(ValueError):
        PIECE[path].validate_python({"type": "response.created"})


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("path", PATHS)
def test_a_damaged_body_gets_a_reply_or_an_error_in_the_providers_form(client, path, data):
    body = data.draw(damaged(path))
    check(path, client.post(path, content=json.dumps(body)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=JSON | st.dictionaries(st.sampled_from(["model", "messages", "input", "max_tokens"]), JSON))
@pytest.mark.parametrize("path", PATHS)
def test_any_json_gets_a_reply_or_an_error_in_the_providers_form(client, path, body):
    check(path, client.post(path, content=json.dumps(body)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200))
@pytest.mark.parametrize("path", PATHS)
def test_any_bytes_get_an_error_in_the_providers_form(client, path, body):
    check(path, client.post(path, content=body))
