"""The chat client for servers that speak OpenAI's protocol at an address of the user's own: vLLM, `transformers serve`.

A thousand calls may be in flight to one's own server, and general libraries take milliseconds of processor time for
each; this takes a fraction of one (benchmarks/coach_overlap.py). It knows nothing of single models.
"""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from coachrl.coach.clients.base import (
    UNREADABLE,
    ChatRequest,
    Provider,
    Reply,
    TransientCoachError,
    ending_of,
    is_throttle,
    seconds_of_retry_after,
    text_of,
)
from coachrl.coach.clients.keys import SENT_VARIABLES
from coachrl.coach.clients.ledger import FunctionCall, Message
from coachrl.coach.clients.secrets import without_secrets
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.parsing import check_few_values
from coachrl.text import brief

_CONNECT_S = 15.0  # for a connection, within the time of an attempt
# An idle connection is kept. Servers close theirs after 5 s (uvicorn, on which vLLM runs) or 2 s (gunicorn); what is
# sent into one that is closing may have been read, so that it would count as the most that it may cost.
_KEPT_S = 0.5
_MOST_BYTES = 16 * 2**20  # of an answer, unpacked: many times the longest reply
_MOST_ERROR_BYTES = 2**20  # of an error that is read for what it says
_MOST_VALUES = 100_000  # of the JSON in an answer, which has some thirty: the event loop waits while they are made
_SENT_BACK = ("role", "content", "tool_calls", "reasoning_content", "thinking_blocks")


class ServerClient(Provider):
    """One model ("hosted_vllm/...", "openai/...") of the server at `api_base`."""

    def __init__(self, model: str, api_base: str | None, settings: CoachConfig) -> None:
        import aiohttp

        super().__init__(model, api_base, settings)
        if settings.thinking_budget is not None:
            raise CoachUnavailable(f"coach '{model}' takes no coach.thinking_budget")
        self.structured = bool(settings.structured)
        self.calls_functions = bool(settings.tools.native)
        self.options = {"api_base": api_base, "reasoning_effort": settings.reasoning_effort}
        provider, self._name = model.split("/", 1)
        self._address = f"{(api_base or '').rstrip('/')}/chat/completions"
        self._shown = without_secrets(self._address)
        self._proxy = _proxy_for(self._address)
        [self._key_variable] = SENT_VARIABLES[provider]
        key = os.environ.get(self._key_variable)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._aiohttp = aiohttp
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: ChatRequest) -> bytes:
        try:
            async with self._open().post(
                self._address,
                json=self._body(request),
                headers=self._headers,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                body = await self._bounded(response.content)
        except self._aiohttp.ServerTimeoutError:
            unreached = f"coach {self.model}: {self._shown}: no connection within {_CONNECT_S:g} s"
            raise TransientCoachError(unreached) from None
        if 300 <= response.status < 400:  # what is asked, and the key, are for the one address that the user has named
            place = without_secrets(response.headers.get("Location", "nowhere"))
            raise CoachUnavailable(f"coach {self.model}: {self._shown} leads on to {place}: name that as api_base")
        if not 200 <= response.status < 300:
            about_the_key = "the server refused the key: check its environment variable"
            if response.status == 401 and not self._headers:
                about_the_key = f"the server wants a key: set {self._key_variable} in the environment"
            said = f"{response.status} {without_secrets(_message(body[:_MOST_ERROR_BYTES]))}"
            headers = response.headers
            retry_after_s = seconds_of_retry_after(headers.get("Retry-After", ""), headers.get("Date", ""))
            raise self._refused(response.status, said, retry_after_s, about_the_key)
        return body

    async def _bounded(self, content: Any) -> bytes:
        """All of an answer, which may be without an end, or a small one that unpacks to gigabytes. Raises
        TransientCoachError where it is larger than any reply."""
        body = bytearray()
        async for part in content.iter_any():
            body += part
            if len(body) > _MOST_BYTES:
                raise self._broken_off(f"{self._shown}: its answer has more than {_MOST_BYTES:,} bytes")
        return bytes(body)

    def _explained(self, error: Exception) -> CoachError | None:
        if isinstance(error, self._aiohttp.InvalidURL):
            wrong = self.api_base if str(error.url) == self._address else str(error.url)  # or that of a proxy
            return CoachUnavailable(f"coach {self.model}: '{without_secrets(wrong or '')}' is not a URL")
        if isinstance(error, self._aiohttp.ClientError | OSError):
            said = without_secrets(str(error)) or type(error).__name__
            return self._broken_off(f"{self._shown}: {said}", error=error)
        if isinstance(error, ValueError):  # before anything was sent
            return CoachUnavailable(f"coach {self.model}: {self._shown} cannot be asked: {without_secrets(str(error))}")
        return None

    def _open(self) -> Any:
        if self._session is None:  # it belongs to the running loop
            # coach.concurrency is the limit
            connector = self._aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S)
            timeout = self._aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            self._session = self._aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._name,
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            **conversation(request, self.structured),
        }
        if self.settings.reasoning_effort is not None:
            body["reasoning_effort"] = self.settings.reasoning_effort
        return body

    def _read(self, answer: bytes, request: ChatRequest) -> Reply:
        try:
            check_few_values(answer, _MOST_VALUES, "it", CoachError)
        except CoachError as error:
            raise self._unreadable(error) from None
        found = json.loads(answer)
        if not found.get("choices"):
            said = f": {without_secrets(_message(answer))}" if found.get("error") else ""
            code = _section(found, "error").get("code")
            if isinstance(code, int) and is_throttle(code, said):  # OpenRouter, with a status of 200
                raise self._refused(code, f"{code}{said}", None, "")
            raise self._broken_off(f"the server sent no candidate{said}")
        choice = found["choices"][0]
        usage = _section(found, "usage")
        return self._counted(
            reply_of(self.model, request, choice["message"], choice.get("finish_reason")),
            request,
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            _section(usage, "completion_tokens_details").get("reasoning_tokens"),
            _section(usage, "prompt_tokens_details").get("cached_tokens"),
        )


def conversation(request: ChatRequest, structured: bool) -> dict[str, Any]:
    """The messages of a request as OpenAI's protocol has them, with what the reply may be: words, a JSON object, a call
    of a function."""
    fields: dict[str, Any] = {"messages": [_message_to(message) for message in request.messages]}
    if request.schema is not None and structured:
        schema = {"name": "reply", "strict": True, "schema": dict(request.schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if (function := request.function) is not None:
        described = {
            "name": function.name,
            "description": function.description,
            "parameters": dict(function.parameters),
        }
        fields["tools"] = [{"type": "function", "function": described}]
        fields["tool_choice"] = "auto" if function.open else "none"
    return fields


def reply_of(model: str, request: ChatRequest, message: Mapping[str, Any], finish_reason: Any) -> Reply:
    """The reply in a message of OpenAI's protocol. Calls of functions that nobody offered are not read. Raises any of
    `UNREADABLE` for a message that is none."""
    asked = message.get("tool_calls") if request.function is not None else None
    calls = tuple(
        FunctionCall(str(call["id"]), str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in asked or ()
    )
    native = {key: message[key] for key in _SENT_BACK if key in message} if calls else None
    text, ending, detail = text_of(message.get("content")), ending_of(finish_reason), ""
    # LiteLLM keeps what it does not know in a section of its own.
    refusal = message.get("refusal") or _section(message, "provider_specific_fields").get("refusal")
    if refusal:  # else it would pass for a model that answers nothing where it is held to a schema
        ending, detail = "content_filter", f"the model refused: {without_secrets(brief(refusal))}"
    return Reply(text, model, finish_reason=ending, detail=detail, calls=calls, native=native)


def _message_to(message: Message) -> dict[str, Any]:
    if message.native is not None:
        return dict(message.native)
    answered = {"tool_call_id": message.answers.id} if message.answers is not None else {}
    return {"role": message.role, "content": message.content, **answered}


def _proxy_for(address: str) -> str | None:
    """The proxy that the environment names for an address. aiohttp would find it too, but then also sends the server
    what stands for it in ~/.netrc, or fails over it where there is a key."""
    parts = urllib.parse.urlsplit(address)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _section(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = answer.get(key)
    return found if isinstance(found, dict) else {}


def _message(body: bytes) -> str:
    """What the server said, from `{"error": {"message": ..., "code": ...}}`, `{"message": ...}`, or as it stands."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
        error = answer.get("error", answer)
        code = error.get("code")
        return f"{error['message']} ({code})" if isinstance(code, str) else str(error["message"])
    except UNREADABLE:
        return text
