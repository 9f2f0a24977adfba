"""The chat client for servers that speak OpenAI's protocol at an address of the user's own: vLLM, `transformers serve`.

A thousand calls may be in flight to one's own server, and general libraries take milliseconds of processor time for
each; this takes a fraction of one (benchmarks/coach_overlap.py). It knows nothing of single models.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from coachrl.coach.clients.base import (
    ChatRequest,
    Reply,
    TransientCoachError,
    ending_of,
    is_throttle,
    seconds_of_retry_after,
    text_of,
    with_usage,
    without_secrets,
)
from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.providers import ClientSettings
from coachrl.errors import CoachError, CoachUnavailable

_CONNECT_S = 15.0  # for a connection, within the time of an attempt
_RETRY_STATUS = frozenset({408, 409, 425, 429})
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "hosted_vllm": "HOSTED_VLLM_API_KEY"}


class ServerClient:
    """One model ("hosted_vllm/...", "openai/...") of the server at `settings.api_base`."""

    price: Price | None = None

    def __init__(self, model: str, settings: ClientSettings) -> None:
        import aiohttp

        if settings.thinking_budget is not None:
            raise CoachUnavailable(f"coach '{model}' takes no coach.thinking_budget")
        self._aiohttp, self._settings = aiohttp, settings
        self.model, self.structured = model, bool(settings.structured)
        provider, self._name = model.split("/", 1)
        self._address = f"{(settings.api_base or '').rstrip('/')}/chat/completions"
        key = os.environ.get(_KEY_VARIABLES[provider])
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.options = {"api_base": settings.api_base, "reasoning_effort": settings.reasoning_effort}
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: ChatRequest) -> Reply:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                async with self._open().post(self._address, json=self._body(request), headers=self._headers) as got:
                    status, headers, body = got.status, got.headers, await got.read()
        except self._aiohttp.ServerTimeoutError:
            said = f"{self._address}: no connection within {_CONNECT_S:g} s"
            raise TransientCoachError(f"coach {self.model}: {said}", answered=False) from None
        except TimeoutError:
            raise TransientCoachError(
                f"coach {self.model}: no answer within {self._settings.timeout_s:g} s", answered=False
            ) from None
        except self._aiohttp.InvalidURL:
            raise CoachUnavailable(f"coach {self.model}: '{self._settings.api_base}' is not a URL") from None
        except (self._aiohttp.ClientError, OSError) as error:
            said = without_secrets(str(error)) or type(error).__name__
            raise TransientCoachError(f"coach {self.model}: {self._address}: {said}", answered=False) from None
        if status != 200:
            raise self._refused(status, headers, body)
        try:
            return self._read(json.loads(body), time.monotonic() - began)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            said = f"coach {self.model}: the server's answer cannot be read: {without_secrets(str(error))}"
            raise TransientCoachError(said, answered=False) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> Any:
        if self._session is None:  # it belongs to the running loop
            connector = self._aiohttp.TCPConnector(limit=0)  # the client_factory sets the limit
            timeout = self._aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            self._session = self._aiohttp.ClientSession(
                connector=connector, timeout=timeout, trust_env=bool(urllib.request.getproxies())
            )
        return self._session

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._name,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
        }
        if request.schema is not None and self.structured:
            schema = {"name": "reply", "strict": True, "schema": dict(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._settings.reasoning_effort is not None:
            body["reasoning_effort"] = self._settings.reasoning_effort
        return body

    def _read(self, answer: Any, latency_s: float) -> Reply:
        if not answer.get("choices"):
            raise TransientCoachError(f"coach {self.model}: the server sent no candidate", answered=False)
        choice = answer["choices"][0]
        text, ending = text_of(choice["message"].get("content")), ending_of(choice.get("finish_reason"))
        usage = _section(answer, "usage")
        return with_usage(
            Reply(text, self.model, latency_s=latency_s, finish_reason=ending),
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            _section(usage, "completion_tokens_details").get("reasoning_tokens"),
            _section(usage, "prompt_tokens_details").get("cached_tokens"),
        )

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> CoachError:
        said = f"coach {self.model}: {status} {without_secrets(_message(body))}"
        if status == 401 and not self._headers:
            variable = _KEY_VARIABLES[self.model.split("/", 1)[0]]
            return CoachUnavailable(f"{said} (the server wants a key: set {variable} in the environment)")
        if status in (401, 402, 403):
            return CoachUnavailable(f"{said} (the server refused the key: check its environment variable)")
        if status == 404:
            return CoachUnavailable(f"{said} (the server knows no such model or address)")
        if status in _RETRY_STATUS or status >= 500:
            return TransientCoachError(
                said, seconds_of_retry_after(headers.get("Retry-After", "")), throttled=is_throttle(status, said)
            )
        return CoachError(said)


def _section(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = answer.get(key)
    return found if isinstance(found, dict) else {}


def _message(body: bytes) -> str:
    """What the server said, from `{"error": {"message": ...}}`, `{"message": ...}`, or as it stands."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
        return str(answer.get("error", answer)["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return text
