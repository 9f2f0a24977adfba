"""A loopback HTTP server that speaks the OpenAI and Gemini wire formats and fails on cue: test coaches on real sockets.

    async with ScriptedServer([status(429, retry_after_s=1), say("PROCESS_SCORE: 8")]) as server:
        client = make_client("openai/judge", api_base=server.openai_base)

Each request takes the next step of the script; the last step serves all further ones. A function of the request may
stand in place of the list. aiohttp, on which it runs, comes with the `llm` extra.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loopback import LoopbackServer, web

Behavior = Literal["reply", "hang", "cut", "reset", "end", "malformed"]


@dataclass(frozen=True)
class Step:
    """What the server does with one request, after latency_s.

    reply: text None is a reply without any candidate; with finish_reason "content_filter" the prompt was blocked. hang:
    nothing, until the server closes. cut: the connection is broken off; reset: as by a crash, which clients tell apart.
    malformed: status 200 and a body that is not JSON. body: this very body, whatever it is; packed: sent in gzip's
    form. place: where a redirect leads to. calls: of functions, each by name and JSON arguments.

    To a request for a stream a reply's text goes out word by word, and deltas in place of it where there are some; what
    comes after the first waits for `go`, as a whole reply does. cut: the connection is broken off in the middle of it.
    end: it ends there as if it were whole, after `last` where it is given. is_counted: whether the stream tells what it
    took.
    """

    behavior: Behavior = "reply"
    text: str | None = ""
    finish_reason: str = "stop"
    http_status: int = 200
    message: str = ""
    tokens_thinking: int = 0
    tokens_cached: int = 0
    retry_after_s: float | None = None
    latency_s: float = 0.0
    body: str | None = None
    packed: bool = False
    place: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    deltas: tuple[Mapping[str, Any], ...] = ()
    go: asyncio.Event | None = None
    is_counted: bool = True
    last: Mapping[str, Any] | None = None
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Received:
    """One request as it came in."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """Text of the last message."""
        if "messages" in self.body:
            return str(self.body["messages"][-1]["content"])
        return "".join(map(_text_of_part, self.body["contents"][-1]["parts"]))


SIGNATURE = "c2lnbmVk"  # of a thought, which Gemini wants back with the call that came of it
HANG = Step("hang")
CUT = Step("cut")
RESET = Step("reset")
MALFORMED = Step("malformed")
NO_CANDIDATE = Step(text=None)
BLOCKED = Step(text=None, finish_reason="content_filter")


def say(
    text: str,
    *,
    latency_s: float = 0.0,
    finish_reason: str = "stop",
    tokens_thinking: int = 0,
    tokens_cached: int = 0,
    calls: Sequence[tuple[str, str]] = (),
) -> Step:
    """A reply that went well; finish_reason "length" cut short, "content_filter" blocked."""
    return Step(
        text=text,
        calls=tuple(calls),
        latency_s=latency_s,
        finish_reason=finish_reason,
        tokens_thinking=tokens_thinking,
        tokens_cached=tokens_cached,
    )


def status(
    number: int, message: str = "scripted error", retry_after_s: float | None = None, code: str | None = None
) -> Step:
    """An error with its HTTP status. retry_after_s: a header on the OpenAI wire, `RetryInfo` in Gemini's error. code:
    what OpenAI calls the error."""
    return Step(http_status=number, message=message, retry_after_s=retry_after_s, code=code)


class ScriptedServer(LoopbackServer):
    """Serves while it is used as an async context manager. `requests` holds what came in, in order.

    port: 0 takes a free one. POST /token answers as Google's OAuth does, for tests of Vertex AI credentials.
    """

    def __init__(self, script: Sequence[Step] | Callable[[Received], Step], port: int = 0) -> None:
        super().__init__({"/token": self._token, "/{path:.*}": self._serve}, port)
        self.script = script
        self.requests: list[Received] = []
        self.most_at_once = 0
        self.left = asyncio.Event()
        """Set once a client has gone away in the middle of a stream."""
        self._at_once = 0

    @property
    def openai_base(self) -> str:
        return f"{self.address}/v1"

    @property
    def gemini_base(self) -> str:
        return f"{self.address}/v1beta"

    async def _token(self, _: web.Request) -> web.Response:
        return web.json_response({"access_token": "scripted-token", "expires_in": 3600, "token_type": "Bearer"})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        received = Received(request.path, dict(request.headers), await request.json())
        step = self._next(received)
        self.requests.append(received)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(step.latency_s)
            if step.go is not None and not received.body.get("stream"):
                await self._may_go_on(request, step.go)
            if received.body.get("stream") and step.http_status == 200:
                return await self._streamed(request, received, step)
            if step.behavior == "hang":
                await self._closing.wait()
            if step.behavior in ("hang", "cut", "reset"):
                if request.transport is not None:
                    if step.behavior == "reset":
                        at_once = struct.pack("ii", 1, 0)
                        request.transport.get_extra_info("socket").setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, at_once
                        )
                    request.transport.abort()
                return web.Response()
            return _response(received, step)
        finally:
            self._at_once -= 1

    async def _streamed(self, request: web.Request, received: Received, step: Step) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        deltas = step.deltas or [{"content": word} for word in re.findall(r"\s*\S+", step.text or "")]
        for place, delta in enumerate(deltas):
            await answer.write(_chunk(delta))
            if place == 0 and step.go is not None and not await self._may_go_on(request, step.go):
                return answer
        if step.last is not None:
            await answer.write(_event(step.last))
        if step.behavior == "cut" and request.transport is not None:
            request.transport.abort()
        if step.behavior == "reply":
            await answer.write(_chunk({}, step.finish_reason))
            if step.is_counted:
                await answer.write(_event({**_CHUNK, "choices": [], "usage": _openai(received, step)["usage"]}))
            await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _may_go_on(self, request: web.Request, go: asyncio.Event) -> bool:
        while not go.is_set():
            if request.transport is None or request.transport.is_closing():
                self.left.set()
                return False
            await asyncio.sleep(0.01)
        return True

    def _next(self, received: Received) -> Step:
        if callable(self.script):
            return self.script(received)
        return self.script[min(len(self.requests), len(self.script) - 1)]


def _response(received: Received, step: Step) -> web.Response:
    if step.behavior == "malformed":
        return web.Response(text='{"choices": [{"mess', content_type="application/json")
    if step.packed:
        return web.Response(
            body=gzip.compress((step.body or "").encode()),
            headers={"Content-Encoding": "gzip"},
            content_type="application/json",
        )
    if step.body is not None:
        return web.Response(status=step.http_status, text=step.body, content_type="application/json")
    if step.place:
        return web.Response(status=step.http_status, headers={"Location": step.place})
    gemini = received.path.endswith(":generateContent")
    if step.http_status != 200:
        return _error(step, gemini)
    return web.json_response(_gemini(received, step) if gemini else _openai(received, step))


def _error(step: Step, gemini: bool) -> web.Response:
    name = "UNAUTHENTICATED" if step.http_status == 401 else "SCRIPTED"
    error: dict[str, Any] = {
        "message": step.message,
        "code": step.code or step.http_status,
        "status": name,
        "type": "scripted",
    }
    headers = dict(step.headers)
    if step.retry_after_s is not None and gemini:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        error["details"] = [{"@type": kind, "retryDelay": f"{step.retry_after_s:g}s"}]
    elif step.retry_after_s is not None:
        headers["Retry-After"] = f"{step.retry_after_s:g}"
    body = json.dumps({"error": error})
    return web.Response(status=step.http_status, text=body, headers=headers, content_type="application/json")


def _openai(received: Received, step: Step) -> dict[str, Any]:
    tokens_in, tokens_out = _words(received.prompt), _words(step.text or "") + step.tokens_thinking
    message: dict[str, Any] = {"role": "assistant", "content": step.text or ""}
    if step.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(step.calls)
        ]
    ending = "tool_calls" if step.calls and step.finish_reason == "stop" else step.finish_reason
    choice = {"index": 0, "message": message, "finish_reason": ending}
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": received.body["model"],
        "choices": [] if step == NO_CANDIDATE else [choice],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
            "completion_tokens_details": {"reasoning_tokens": step.tokens_thinking},
            "prompt_tokens_details": {"cached_tokens": step.tokens_cached},
        },
    }


def _gemini(received: Received, step: Step) -> dict[str, Any]:
    tokens_in, tokens_out = _words(received.prompt), _words(step.text or "")
    usage = {
        "promptTokenCount": tokens_in,
        "candidatesTokenCount": tokens_out,
        "thoughtsTokenCount": step.tokens_thinking,
        "cachedContentTokenCount": step.tokens_cached,
        "totalTokenCount": tokens_in + tokens_out + step.tokens_thinking,
    }
    if step.text is None:
        blocked = {"promptFeedback": {"blockReason": "SAFETY"}} if step.finish_reason == "content_filter" else {}
        return {**blocked, "usageMetadata": usage}
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}[step.finish_reason]
    parts: list[dict[str, Any]] = [{"text": step.text}] if step.text else []
    for name, arguments in step.calls:
        parts.append({"functionCall": {"name": name, "args": json.loads(arguments)}, "thoughtSignature": SIGNATURE})
    content = {"role": "model", "parts": parts}
    return {"candidates": [{"index": 0, "content": content, "finishReason": reason}], "usageMetadata": usage}


_CHUNK = {"id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": "judge"}


def _chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    delta, choice = dict(delta), {"index": 0, "finish_reason": finish_reason}
    choice |= delta.pop("of_choice", {})
    return _event({**_CHUNK, "choices": [{**choice, "delta": delta}]})


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _text_of_part(part: Mapping[str, Any]) -> str:
    answer = part.get("functionResponse", {}).get("response", {})
    return str(part.get("text") or answer.get("output", ""))


def _words(text: str) -> int:
    return len(text.split())
