"""Streams: pieces come while a reply is drawn, begin what it is in the end, and end with their client."""

import asyncio
import json
from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")
pytest.importorskip("torch", reason="needs the torch extra")

import anthropic
import httpx
import openai
from hypothesis import given
from hypothesis import strategies as st
from scripted_answerer import KEY, ScriptedAnswerer, events, reply

from coachrl.config import RunConfig
from coachrl.errors import BackendError
from coachrl.gateway.calls import Call, Piece
from coachrl.gateway.conversation_tokens import read_reply
from coachrl.gateway.growing import settled
from coachrl.gateway.served_team import ServedTeam
from coachrl.gateway.server import Server
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import CharacterTokenizer
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.types import Role, SamplingParams

HELLO = [{"role": "user", "content": "Hello?"}]
TEXT = "Hello there, whoever you are."
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


class TellingAnswerer(ScriptedAnswerer):
    """Tells the first half of its text, and the rest once `go` is set; fails in between where it is given an error."""

    def __init__(self, error=None, **ending):
        super().__init__(lambda call, place: reply(TEXT, **ending))
        self.go, self.gone, self.error = asyncio.Event(), asyncio.Event(), error

    async def answer(self, call, token):
        replies = await super().answer(call, token)
        if call.tell is not None:
            for place in range(call.n):
                call.tell(Piece(place, TEXT[:3], 7))
                call.tell(Piece(place, TEXT[3:12], 7))
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.gone.set()
                raise
            if self.error is not None:
                raise self.error
        return replies


async def chat_pieces(server, on_piece, **more):
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client,
        client.chat.completions.stream(model="coder", messages=HELLO, **more) as stream,
    ):
        async for event in stream:
            if event.type == "content.delta":
                on_piece(event.delta)
        return (await stream.get_final_completion()).choices[0].message.content


async def response_pieces(server, on_piece, **more):
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client,
        client.responses.stream(model="coder", input="?", **more) as stream,
    ):
        async for event in stream:
            if event.type == "response.output_text.delta":
                on_piece(event.delta)
        return (await stream.get_final_response()).output_text


async def message_pieces(server, on_piece):
    async with (
        anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client,
        client.messages.stream(model="coder", max_tokens=9, messages=HELLO) as stream,
    ):
        async for text in stream.text_stream:
            on_piece(text)
        return (await stream.get_final_message()).content[0].text


@pytest.mark.parametrize("read", [chat_pieces, response_pieces, message_pieces])
@pytest.mark.parametrize("calls", [(), [("add", {"first": 1})]], ids=["text", "and a function"])
async def test_pieces_arrive_while_the_reply_is_drawn(read, calls):
    """The rest is said only once the client has the first half."""
    answerer, seen = TellingAnswerer(calls=calls), []

    def on_piece(text):
        seen.append(text)
        if "".join(seen) == TEXT[:12]:
            answerer.go.set()

    async with asyncio.timeout(60), Server(answerer) as server:
        assert await read(server, on_piece) == TEXT
    assert "".join(seen) == TEXT and len(seen) > 3


@pytest.mark.parametrize("read", [chat_pieces, response_pieces, message_pieces])
async def test_an_error_in_mid_stream_is_one_for_the_client(read):
    answerer = TellingAnswerer(error=BackendError("the engine burnt down"))
    async with asyncio.timeout(60), Server(answerer) as server:
        with pytest.raises((openai.APIError, anthropic.APIError), match="burnt down"):
            await read(server, lambda text: answerer.go.set())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "n": 2}),
        ("/v1/responses", {"input": "?"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    ],
)
async def test_a_client_that_leaves_in_mid_stream_ends_its_reply(path, body):
    answerer = TellingAnswerer()
    async with asyncio.timeout(60), Server(answerer) as server, httpx.AsyncClient() as client:
        asked = {"model": "coder", "stream": True, **body}
        async with client.stream("POST", server.url + path, json=asked, headers={"x-api-key": KEY}) as answer:
            async for line in answer.aiter_lines():
                if TEXT[:3] in line:
                    break
        await answerer.gone.wait()


async def test_replies_side_by_side_grow_each_at_its_place():
    answerer = TellingAnswerer()
    answerer.go.set()
    async with Server(answerer) as server, httpx.AsyncClient() as client:
        body = {"model": "coder", "messages": HELLO, "n": 3, "stream": True}
        url, headers = f"{server.url}/v1/chat/completions", {"x-api-key": KEY}
        chunks = [data for _, data in events((await client.post(url, json=body, headers=headers)).text)[:-1]]
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [TEXT] * 3
    assert len({chunk["id"] for chunk in chunks}) == 1


# What is certain of a reply that grows.

BITS = [
    "<think>",
    "</think>",
    "<tool_call>",
    '{"name": "add"}',
    "</tool_call>",
    "END",
    "EN",
    "D",
    " ",
    "\n",
    "a",
    "<",
    "\ufffd",
]
replies = st.lists(st.sampled_from(BITS), max_size=12).map("".join)


@given(replies, st.sampled_from([(), ("END",), ("END", "\nEN"), (" ",)]), st.booleans())
def test_what_was_said_is_the_beginning_of_what_is_said_in_the_end(text, stop, with_tools):
    if "</think>" in text and not (text.lstrip().startswith("<think>") and text.count("</think>") == 1):
        return  # what a model closes without having opened it hides what was said already
    call = Call("coder", (), tools=(TOOL,) if with_tools else (), stop=stop)
    ids = tuple(map(ord, text))
    final = read_reply(make_action("coder", text, response_ids=ids), call, CharacterTokenizer()).text
    told = ""
    for length in range(len(text) + 1):
        now = settled(text[:length], call)
        assert now.startswith(told), "what was told is never taken back"
        told = now
        assert final.startswith(told)


@pytest.mark.parametrize(
    ("text", "stop", "with_tools", "certain"),
    [
        ("One two", (), False, "One two"),
        ("One two ", (), False, "One two"),
        ("One two \n", (), True, "One two"),  # a call may follow, and what stands before it is stripped
        ("One EN", ("END",), False, "One"),
        ("One END two", ("END",), False, "One"),
        ("One E", ("END", "ne E!"), False, "O"),  # the longest that may become one
        ("One <tool", (), True, "One"),
        ("One <tool", (), False, "One <tool"),
        ('One <tool_call>{"name"', (), True, "One"),
        ("<thi", (), False, ""),
        ("<think>One", (), False, ""),
        ("<think>One</think> two", (), False, "two"),
        ("One \ufffd", (), False, "One"),
    ],
)
def test_what_is_certain_of_a_reply_that_grows(text, stop, with_tools, certain):
    assert settled(text, Call("coder", (), tools=(TOOL,) if with_tools else (), stop=stop)) == certain


def test_the_beginnings_of_long_stop_texts_are_not_tried_one_by_one():
    """This is done at each token of each reply, and holds up all others meanwhile."""

    class Stop(str):
        pieces = 0

        def __getitem__(self, place):
            Stop.pieces += 1
            return str(self)[place]

    stops = tuple(Stop("END" * 300 + letter) for letter in "abcdefgh")
    assert settled("One two, ENDEN", Call("coder", (), stop=stops)) == "One two,"
    assert Stop.pieces <= 10 * len(stops)


# The engine.


@pytest.fixture(scope="module")
def backend(chat_model):
    made = TorchBackend({"coder": chat_model}, RunConfig(), {"coder": False})
    yield made
    made.close()


def served(backend):
    role = Role("coder", policy="coder", prompt=None, max_new_tokens=400)
    return ServedTeam([role], backend, providers=None, sampling=SamplingParams())


async def test_the_engine_tells_its_tokens_and_the_reply_is_the_same(backend):
    told = []
    call = Call("coder", tuple(HELLO), seed=5, max_tokens=120, stop=("zz",))
    [whole] = await served(backend).answer(call, "")
    [grown] = await served(backend).answer(replace(call, tell=told.append), "")
    assert grown == whole
    assert len(told) > 3 and whole.text.startswith("".join(piece.text for piece in told))
    assert {piece.prompt_tokens for piece in told} == {whole.prompt_tokens}


async def test_a_client_that_leaves_ends_what_the_engine_draws(backend, monkeypatch):
    requests, run = [], backend._generate_batch
    monkeypatch.setattr(backend._batcher, "_run", lambda policy, some: requests.extend(some) or run(policy, some))
    async with asyncio.timeout(60), Server(served(backend)) as server, httpx.AsyncClient(timeout=None) as client:
        body = {"model": "coder", "messages": HELLO, "stream": True, "max_tokens": 3000, "stop": "no such words"}
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
            lines = [line async for line in first(answer.aiter_lines(), 4)]
        assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
        await asyncio.to_thread(requests[0].given_up.wait, 60)
        assert requests[0].given_up.is_set()


async def first(lines, count):
    async for line in lines:
        yield line
        count -= 1
        if not count:
            return
