"""The chat client for Gemini by Google's own library: API key or Vertex AI, thinking budget, thoughts counted."""

from __future__ import annotations

import json
import os
import re
import warnings
from typing import Any

from coachrl.coach.clients.base import (
    UNREADABLE,
    ChatRequest,
    Provider,
    Reply,
    TransientCoachError,
    ending_of,
    seconds_of_retry_after,
)
from coachrl.coach.clients.keys import GEMINI_ACCESS, key_of, needs_key, wants_vertex
from coachrl.coach.clients.ledger import FunctionCall, Message
from coachrl.coach.clients.secrets import without_secrets
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable, lacking

_BLOCKED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MODEL_ARMOR",
        "IMAGE_SAFETY",
    }
)
_CANCELLED_STATUS = 499  # Google's "the client closed the request", which may pass


class GeminiClient(Provider):
    """One Gemini model ("gemini/..."; "vertex_ai/gemini-..." always goes to Vertex AI).

    Vertex AI is asked where the environment says so, or where it holds a project and no API key.
    """

    def __init__(self, model: str, api_base: str | None, settings: CoachConfig) -> None:
        """Raises CoachUnavailable where there is neither a key nor credentials."""
        try:
            import aiohttp
            import google.genai  # noqa: F401  names itself where it is missing and other packages of google's are not
            from google import genai
            from google.auth.exceptions import GoogleAuthError
            from google.genai import errors, types
        except ImportError as error:
            raise CoachUnavailable(f"coach '{model}' needs {lacking(error)}: pip install 'coachrl[llm]'") from error

        super().__init__(model, api_base, settings)
        if settings.thinking_budget is not None and settings.reasoning_effort is not None:
            raise CoachUnavailable(f"coach '{model}' takes one of coach.thinking_budget and coach.reasoning_effort")
        # Of a word that it does not know it says on the terminal how the provider wrote it.
        warnings.filterwarnings("ignore", "(?s).* is not a valid ", UserWarning, r"google\.genai\.")
        self._errors = errors
        self._types = types
        self._auth_error = GoogleAuthError
        self._connection_error = aiohttp.ClientError
        self._name = model.split("/", 1)[1]
        self._vertex = wants_vertex(model)
        self.structured = settings.structured is not False
        self.calls_functions = settings.tools.native is not False
        self.options = {
            "api_base": api_base or os.environ.get(f"GOOGLE_{'VERTEX' if self._vertex else 'GEMINI'}_BASE_URL") or None,
            "thinking_budget": settings.thinking_budget,
            "reasoning_effort": settings.reasoning_effort,
        }
        access = self._access()
        if not self._vertex and access["api_key"] is None:
            raise needs_key(model, google_library=True)
        try:
            self._client = genai.Client(http_options=self._http_options(), **access)
        except (ValueError, GoogleAuthError) as error:
            raise CoachUnavailable(
                f"coach '{model}' cannot be asked: {without_secrets(str(error))} ({GEMINI_ACCESS})"
            ) from None
        except Exception as error:  # noqa: BLE001  of the library's HTTP client, whose proxy the environment names
            raise CoachUnavailable(f"coach '{model}' cannot be asked: {without_secrets(str(error))}") from None

    async def close(self) -> None:
        await self._client.aio.aclose()

    async def _answer(self, request: ChatRequest) -> Any:
        return await self._client.aio.models.generate_content(
            model=self._name, contents=self._contents(request), config=self._config(request)
        )

    def _explained(self, error: Any) -> CoachError | None:
        if isinstance(error, self._errors.APIError):
            return self._explained_status(error)
        if isinstance(error, self._auth_error):
            said = f"coach {self.model}: no access to Vertex AI: {without_secrets(str(error))}"
            passes = getattr(error, "retryable", False)
            return TransientCoachError(said) if passes else CoachUnavailable(f"{said} ({GEMINI_ACCESS})")
        if isinstance(error, self._connection_error | OSError):
            said = without_secrets(str(error)) or type(error).__name__
            return self._broken_off(f"connection broken: {said}", error=error)
        # JSON, UTF-8 and pydantic's errors, and Google's own where an object is missing.
        return self._unreadable(error) if isinstance(error, UNREADABLE) else None

    def _http_options(self) -> Any:
        options: dict[str, Any] = {
            "retry_options": {"attempts": 1},  # without it, one more attempt after seconds
            "async_client_args": {"allow_redirects": False},  # they would take the key along
        }
        if self.api_base is not None:
            base, version = re.fullmatch(r"(.*?)/*(?:/(v\d\w*))?/*", self.api_base).groups()  # type: ignore[union-attr]
            options["base_url"] = base
            if version:
                options["api_version"] = version
        return self._types.HttpOptions(**options)

    def _access(self) -> dict[str, Any]:
        if self._vertex:
            location = os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
            return {"vertexai": True, "project": os.environ.get("GOOGLE_CLOUD_PROJECT"), "location": location}
        key = key_of("gemini")
        if key is None and self.api_base is not None:
            key = "not-needed"
        return {"vertexai": False, "api_key": key}

    def _contents(self, request: ChatRequest) -> list[Any]:
        """Answers to functions that were asked for together stand together."""
        contents: list[Any] = []
        for message in request.messages:
            if message.role == "tool" and contents[-1].parts[0].function_response is not None:
                contents[-1].parts.append(self._part(message))
            elif message.native is not None:
                contents.append(self._types.Content.model_validate_json(json.dumps(message.native)))
            elif message.role != "system":
                role = "model" if message.role == "assistant" else "user"
                contents.append(self._types.Content(role=role, parts=[self._part(message)]))
        return contents

    def _part(self, message: Message) -> Any:
        call = message.answers
        if call is None:
            return self._types.Part(text=message.content)
        response = {"output": message.content}
        return self._types.Part(
            function_response=self._types.FunctionResponse(id=call.id or None, name=call.name, response=response)
        )

    def _config(self, request: ChatRequest) -> Any:
        settings, types = self.settings, self._types
        system = "\n\n".join(message.content for message in request.messages if message.role == "system")
        config: dict[str, Any] = {
            "temperature": request.temperature,
            "max_output_tokens": request.max_tokens,
            "system_instruction": system or None,
            "automatic_continuation": False,  # the limit of tokens is meant
        }
        if request.schema is not None and self.structured:
            config |= {"response_mime_type": "application/json", "response_json_schema": dict(request.schema)}
        if (function := request.function) is not None:
            declared = types.FunctionDeclaration(
                name=function.name, description=function.description, parameters_json_schema=dict(function.parameters)
            )
            calling = types.FunctionCallingConfig(mode="AUTO" if function.open else "NONE")
            config["tools"] = [types.Tool(function_declarations=[declared])]
            config["tool_config"] = types.ToolConfig(function_calling_config=calling)
        if settings.thinking_budget is not None:
            config["thinking_config"] = types.ThinkingConfig(thinking_budget=settings.thinking_budget)
        elif settings.reasoning_effort is not None:
            level = types.ThinkingLevel(settings.reasoning_effort.upper())
            config["thinking_config"] = types.ThinkingConfig(thinking_level=level)
        return types.GenerateContentConfig(**config)

    def _read(self, answer: Any, request: ChatRequest) -> Reply:
        usage = answer.usage_metadata
        blocked = getattr(answer.prompt_feedback, "block_reason", None)
        thoughts = getattr(usage, "thoughts_token_count", None) or 0
        written = getattr(usage, "candidates_token_count", None) or 0
        if answer.candidates:
            reply = self._said(answer.candidates[0], request, thoughts)
        elif blocked is not None:
            detail = f"the prompt was blocked: {without_secrets(blocked.value)}"
            reply = Reply("", self.model, finish_reason="content_filter", detail=detail)
        else:
            raise self._broken_off("the provider sent no candidate")
        return self._counted(
            reply,
            request,
            getattr(usage, "prompt_token_count", None),
            None if min(thoughts, written) < 0 else written + thoughts,
            thoughts,
            getattr(usage, "cached_content_token_count", None),
        )

    def _said(self, candidate: Any, request: ChatRequest, thoughts: int) -> Reply:
        """The text of a candidate, the functions that it asks for, and how it ended."""
        parts = getattr(candidate.content, "parts", None) or ()
        text = "".join(part.text for part in parts if part.text and not part.thought)
        asked = [part.function_call for part in parts if part.function_call is not None]
        calls = tuple(FunctionCall(call.id or "", call.name, json.dumps(call.args)) for call in asked)
        native = candidate.content.model_dump(mode="json", exclude_none=True) if asked else None
        reason = candidate.finish_reason.value if candidate.finish_reason is not None else "STOP"
        ending, detail = ending_of(reason), ""
        if reason in _BLOCKED:
            ending, detail = "content_filter", f"the reply was blocked: {reason}"
        elif reason == "MAX_TOKENS":
            ending, detail = "length", f"{thoughts} of {request.max_tokens} tokens went to thinking"
        return Reply(text, self.model, finish_reason=ending, detail=detail, calls=calls, native=native)

    def _explained_status(self, error: Any) -> CoachError:
        wrong_key = "API_KEY_INVALID" in str(error.details)  # it comes with status 400
        return self._refused(
            401 if wrong_key else error.code,
            f"{error.code} {without_secrets(str(error.message or error.details))}",
            _retry_after_s(error),
            f"the provider refused the key: {GEMINI_ACCESS}",
            passing=error.code == _CANCELLED_STATUS,
        )


def _retry_after_s(error: Any) -> float | None:
    """What the provider asked to wait: a header, or `RetryInfo` among the error's details ("retryDelay": "34s")."""
    headers = getattr(error.response, "headers", None) or {}
    asked = seconds_of_retry_after(str(headers.get("Retry-After", "")), str(headers.get("Date", "")))
    if asked is not None:
        return asked
    found = re.search(r'"retryDelay":\s*"([\d.]+)s"', json.dumps(error.details, default=str))
    return seconds_of_retry_after(found[1]) if found else None
