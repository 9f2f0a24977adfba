"""The chat client for Gemini by Google's own library: API key or Vertex AI, thinking budget, thoughts counted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import replace
from typing import Any

from coachrl.coach.clients.base import (
    ChatRequest,
    Reply,
    TransientCoachError,
    ending_of,
    is_throttle,
    seconds_of_retry_after,
    with_usage,
    without_secrets,
)
from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.providers import ClientSettings
from coachrl.errors import CoachError, CoachUnavailable

_BLOCKED = frozenset(
    {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "IMAGE_SAFETY"}
)
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_RETRY_STATUS = frozenset({408, 409, 425, 429, 499})
_KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_VERTEX_VARIABLES = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
_HOW = (
    "set GEMINI_API_KEY, or for Vertex AI GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and Google credentials "
    "(gcloud auth application-default login)"
)


class GeminiClient:
    """One Gemini model ("gemini/..."; "vertex_ai/gemini-..." always goes to Vertex AI).

    Vertex AI is asked where the environment says so, or where it holds a project and no API key.
    Raises CoachUnavailable at once where there is neither a key nor credentials.
    """

    def __init__(self, model: str, settings: ClientSettings, price: Price | None) -> None:
        from google import genai
        from google.auth.exceptions import GoogleAuthError
        from google.genai import errors, types

        self._errors, self._types, self._settings = errors, types, settings
        self.model, self.price = model, price
        self._name = model.split("/", 1)[1]
        self.structured = settings.structured is not False
        self._vertex = _wants_vertex(model)
        self.options = {
            "api_base": settings.api_base,
            "thinking_budget": settings.thinking_budget,
            "reasoning_effort": settings.reasoning_effort,
        }
        access = self._access()
        if not self._vertex and access["api_key"] is None:
            raise CoachUnavailable(f"coach '{model}' needs a key: {_HOW}")
        try:
            self._client = genai.Client(http_options=self._http_options(), **access)
        except (ValueError, GoogleAuthError) as error:
            raise CoachUnavailable(f"coach '{model}' cannot be asked: {without_secrets(str(error))} ({_HOW})") from None

    async def complete(self, request: ChatRequest) -> Reply:
        import aiohttp
        from google.auth.exceptions import GoogleAuthError

        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                response = await self._client.aio.models.generate_content(
                    model=self._name, contents=self._contents(request), config=self._config(request)
                )
        except TimeoutError:
            raise TransientCoachError(
                f"coach {self.model}: no answer within {self._settings.timeout_s:g} s", answered=False
            ) from None
        except self._errors.APIError as error:
            raise self._explained(error) from None
        except GoogleAuthError as error:
            raise self._without_credentials(error) from None
        except (aiohttp.ClientError, OSError) as error:
            said = without_secrets(str(error)) or type(error).__name__
            raise TransientCoachError(f"coach {self.model}: connection broken: {said}", answered=False) from None
        except _UNREADABLE as error:  # JSON, UTF-8 and pydantic's errors, and Google's own where an object is missing
            raise self._unreadable(error) from None
        try:
            return self._read(response, request, time.monotonic() - began)
        except _UNREADABLE as error:
            raise self._unreadable(error) from None

    async def close(self) -> None:
        await self._client.aio.aclose()

    def _http_options(self) -> Any:
        options: dict[str, Any] = {"retry_options": {"attempts": 1}}  # without it, one more attempt after seconds
        if self._settings.api_base is not None:
            base, version = re.fullmatch(r"(.*?)/*(?:/(v\d\w*))?/*", self._settings.api_base).groups()  # type: ignore[union-attr]
            options["base_url"] = base
            if version:
                options["api_version"] = version
        return self._types.HttpOptions(**options)

    def _access(self) -> dict[str, Any]:
        if self._vertex:
            location = os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
            return {"vertexai": True, "project": os.environ.get("GOOGLE_CLOUD_PROJECT"), "location": location}
        key = next((value for name in _KEY_VARIABLES if (value := os.environ.get(name))), None)
        if key is None and self._settings.api_base is not None:
            key = "not-needed"
        return {"vertexai": False, "api_key": key}

    def _contents(self, request: ChatRequest) -> list[Any]:
        types = self._types
        return [
            types.Content(
                role="model" if message.role == "assistant" else "user", parts=[types.Part(text=message.content)]
            )
            for message in request.messages
            if message.role != "system"
        ]

    def _config(self, request: ChatRequest) -> Any:
        settings, types = self._settings, self._types
        system = "\n\n".join(message.content for message in request.messages if message.role == "system")
        config: dict[str, Any] = {
            "temperature": request.temperature,
            "max_output_tokens": request.max_tokens,
            "system_instruction": system or None,
            "automatic_continuation": False,  # the limit of tokens is meant
        }
        if request.schema is not None and self.structured:
            config |= {"response_mime_type": "application/json", "response_json_schema": dict(request.schema)}
        if settings.thinking_budget is not None:
            config["thinking_config"] = types.ThinkingConfig(thinking_budget=settings.thinking_budget)
        elif settings.reasoning_effort is not None:
            level = types.ThinkingLevel(settings.reasoning_effort.upper())
            config["thinking_config"] = types.ThinkingConfig(thinking_level=level)
        return types.GenerateContentConfig(**config)

    def _read(self, response: Any, request: ChatRequest, latency_s: float) -> Reply:
        usage, blocked = response.usage_metadata, getattr(response.prompt_feedback, "block_reason", None)
        if not response.candidates and blocked is None:
            raise TransientCoachError(f"coach {self.model}: the provider sent no candidate", answered=False)
        thoughts = getattr(usage, "thoughts_token_count", None) or 0
        written = getattr(usage, "candidates_token_count", None) or 0
        negative = min(thoughts, written) < 0
        return with_usage(
            self._said(response, request, thoughts, Reply("", self.model, latency_s=latency_s)),
            getattr(usage, "prompt_token_count", None),
            None if negative else written + thoughts,
            thoughts,
            getattr(usage, "cached_content_token_count", None),
        )

    def _said(self, response: Any, request: ChatRequest, thoughts: int, reply: Reply) -> Reply:
        """`reply` with the text of the answer and how it ended."""
        if not response.candidates:
            return _ended(
                reply, "content_filter", f"the prompt was blocked: {response.prompt_feedback.block_reason.value}"
            )
        candidate = response.candidates[0]
        parts = getattr(candidate.content, "parts", None) or ()
        text = "".join(part.text for part in parts if part.text and not part.thought)
        reason = candidate.finish_reason.value if candidate.finish_reason is not None else "STOP"
        if reason in _BLOCKED:
            return _ended(reply, "content_filter", f"the reply was blocked: {reason}", text)
        if reason == "MAX_TOKENS":
            return _ended(reply, "length", f"{thoughts} of {request.max_tokens} tokens went to thinking", text)
        return _ended(reply, ending_of(reason), "", text)

    def _unreadable(self, error: Exception) -> TransientCoachError:
        said = f"coach {self.model}: the provider's answer cannot be read: {without_secrets(str(error))}"
        return TransientCoachError(said, answered=False)

    def _explained(self, error: Any) -> CoachError:
        """The provider's exception as one of ours."""
        said = f"coach {self.model}: {error.code} {without_secrets(str(error.message or error.details))}"
        if error.code in (401, 402, 403) or "API_KEY_INVALID" in str(error.details):
            return CoachUnavailable(f"{said} (the provider refused the key: {_HOW})")
        if error.code == 404:
            return CoachUnavailable(f"{said} (the provider knows no such model or address)")
        if error.code in _RETRY_STATUS or error.code >= 500:
            return TransientCoachError(said, _retry_after_s(error), throttled=is_throttle(error.code, said))
        return CoachError(said)

    def _without_credentials(self, error: Any) -> CoachError:
        said = f"coach {self.model}: no access to Vertex AI: {without_secrets(str(error))}"
        if getattr(error, "retryable", False):
            return TransientCoachError(said)
        return CoachUnavailable(f"{said} ({_HOW})")


def _wants_vertex(model: str) -> bool:
    if model.startswith("vertex_ai/"):
        return True
    if any(os.environ.get(name, "").lower() in ("1", "true") for name in _VERTEX_VARIABLES):
        return True
    has_key = any(os.environ.get(name) for name in _KEY_VARIABLES)
    return bool(os.environ.get("GOOGLE_CLOUD_PROJECT")) and not has_key


def _ended(reply: Reply, finish_reason: str, detail: str, text: str = "") -> Reply:
    return replace(reply, text=text, finish_reason=finish_reason, detail=detail)


def _retry_after_s(error: Any) -> float | None:
    """What the provider asked to wait: a header, or `RetryInfo` among the error's details ("retryDelay": "34s")."""
    headers = getattr(error.response, "headers", None) or {}
    asked = seconds_of_retry_after(str(headers.get("Retry-After", "")))
    if asked is not None:
        return asked
    found = re.search(r'"retryDelay":\s*"([\d.]+)s"', json.dumps(error.details, default=str))
    return seconds_of_retry_after(found[1]) if found else None
