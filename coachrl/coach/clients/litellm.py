"""The chat client for every provider that LiteLLM reaches. Its own retries are off: `client_factory` makes them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from types import ModuleType
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

_NAMES = re.compile(r"\A(?:litellm\.)?(?:\w+(?:Error|Timeout): )*(?:\w+Exception - )?")  # before a message
# 200 and 422: what LiteLLM says of a body that it could not read.
_RETRY_STATUS = frozenset({200, 408, 409, 422, 425, 429})


class LiteLLMClient:
    """One model through LiteLLM ("anthropic/...", "openai/...", "hosted_vllm/...").

    Raises CoachUnavailable at once for a missing key, and for settings that the model does not take.
    """

    def __init__(self, model: str, settings: ClientSettings, price: Price | None, litellm: ModuleType) -> None:
        import openai  # LiteLLM's exceptions descend from its

        self._litellm, self._openai = litellm, openai
        self.model, self.price, self._settings = model, price, settings
        self._placeholder_key = _check_key(model, settings.api_base, litellm)
        self._thinking = _thinking(model, settings, litellm)
        known = bool(litellm.supports_response_schema(model=model))
        self.structured = known if settings.structured is None else settings.structured
        self.options = {"api_base": settings.api_base, **self._thinking}

    async def complete(self, request: ChatRequest) -> Reply:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                response = await self._litellm.acompletion(**self._arguments(request))
        except TimeoutError:
            raise TransientCoachError(
                f"coach {self.model}: no answer within {self._settings.timeout_s:g} s", answered=False
            ) from None
        except self._openai.OpenAIError as error:
            raise self._explained(error) from None
        except Exception as error:  # noqa: BLE001 - the boundary to LiteLLM: for an odd body it raises anything
            raise self._unreadable(error) from None
        try:
            return self._read(response, time.monotonic() - began)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._unreadable(error) from None

    async def close(self) -> None:
        await self._litellm.close_litellm_async_clients()
        self._litellm.in_memory_llm_clients_cache.flush_cache()  # else the next client to this address is a closed one

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "api_base": self._settings.api_base,
            "api_key": self._placeholder_key,
            "timeout": self._settings.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            **self._thinking,
        }
        if request.schema is not None and self.structured:
            schema = {"name": "reply", "strict": True, "schema": dict(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        return arguments

    def _read(self, response: Any, latency_s: float) -> Reply:
        usage = response.get("usage")
        written, read = (getattr(usage, name, None) for name in ("completion_tokens_details", "prompt_tokens_details"))
        if not response.choices:
            raise TransientCoachError(f"coach {self.model}: the provider sent no candidate", answered=False)
        choice = response.choices[0]
        text, ending = text_of(choice.message.content), ending_of(choice.finish_reason)
        return with_usage(
            Reply(text, self.model, latency_s=latency_s, finish_reason=ending),
            getattr(usage, "prompt_tokens", None),
            getattr(usage, "completion_tokens", None),
            getattr(written, "reasoning_tokens", None),
            getattr(read, "cached_tokens", None),
        )

    def _unreadable(self, error: Exception) -> TransientCoachError:
        said = f"coach {self.model}: the provider's answer cannot be read: {without_secrets(str(error))}"
        return TransientCoachError(said, answered=False)

    def _explained(self, error: Any) -> CoachError:
        """The provider's exception as one of ours."""
        exceptions, status = self._litellm.exceptions, getattr(error, "status_code", None)
        said = f"coach {self.model}: {without_secrets(_NAMES.sub('', str(error)))}"
        if isinstance(error, exceptions.AuthenticationError | exceptions.PermissionDeniedError) or status in (
            401,
            402,
            403,
        ):
            missing = _missing_keys(self.model, self._litellm)
            if missing:
                return CoachUnavailable(_needs(self.model, missing))
            return CoachUnavailable(f"{said} (the provider refused the key: check its environment variable)")
        if isinstance(error, exceptions.NotFoundError) or status == 404:
            return CoachUnavailable(f"{said} (the provider knows no such model or address)")
        if isinstance(error, exceptions.UnsupportedParamsError):
            return CoachUnavailable(said)
        connection = isinstance(error, exceptions.Timeout | exceptions.APIConnectionError)
        if connection or status in _RETRY_STATUS or (isinstance(status, int) and status >= 500):
            return TransientCoachError(
                said,
                _retry_after_s(error),
                answered=not connection,
                throttled=isinstance(status, int) and not connection and is_throttle(status, said),
            )
        return CoachError(said)


def _thinking(model: str, settings: ClientSettings, litellm: ModuleType) -> dict[str, Any]:
    """The arguments that set how much the model thinks."""
    arguments: dict[str, Any] = {}
    if settings.thinking_budget is not None:
        budget = settings.thinking_budget
        arguments["thinking"] = {"type": "enabled", "budget_tokens": budget} if budget else {"type": "disabled"}
    if settings.reasoning_effort is not None:
        arguments["reasoning_effort"] = settings.reasoning_effort
    taken = litellm.get_supported_openai_params(model=model) or ()
    for name, key in (("thinking", "thinking_budget"), ("reasoning_effort", "reasoning_effort")):
        if name in arguments and name not in taken:
            raise CoachUnavailable(f"coach '{model}' takes no coach.{key}")
    return arguments


def _check_key(model: str, api_base: str | None, litellm: ModuleType) -> str | None:
    """None where the environment holds what the provider needs, or a placeholder for a server that asks for no key.

    Raises CoachUnavailable that names the missing variables; what a server at `api_base` needs, it says itself.
    """
    if api_base is not None:
        return "not-needed" if model.startswith("openai/") and not os.environ.get("OPENAI_API_KEY") else None
    missing = _missing_keys(model, litellm)
    if missing:
        raise CoachUnavailable(_needs(model, missing))
    return None


def _missing_keys(model: str, litellm: ModuleType) -> list[str]:
    """Environment variables that the model's provider needs and that are not set. Empty where no key is among them:
    LiteLLM has its own values for addresses and regions (Ollama's port on this machine)."""
    missing = sorted(litellm.validate_environment(model=model)["missing_keys"])
    return missing if any(word in name for name in missing for word in ("KEY", "TOKEN")) else []


def _needs(model: str, variables: list[str]) -> str:
    joint = " or " if model.startswith("gemini/") else " and "
    return f"coach '{model}' needs a key: set {joint.join(variables)} in the environment"


def _retry_after_s(error: Any) -> float | None:
    """What the provider asked to wait. LiteLLM keeps the headers in one of two places."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    headers = headers if "retry-after" in headers else getattr(error, "litellm_response_headers", None) or {}
    return seconds_of_retry_after(str(headers.get("retry-after", "")))
