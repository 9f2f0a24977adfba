"""The chat client for every provider that LiteLLM reaches. Its own retries are off: `exchange` makes them."""

from __future__ import annotations

import asyncio
import os
import time
from types import ModuleType
from typing import Any

from coachrl.coach.client import ChatRequest, Reply, TransientCoachError, seconds_of_retry_after, without_secrets
from coachrl.config import nearest
from coachrl.errors import CoachError, CoachUnavailable

# 200 and 422: what LiteLLM says of a body that it could not read.
_RETRY_STATUS = frozenset({200, 408, 409, 422, 425, 429})


class LiteLLMClient:
    """Any model that LiteLLM reaches: "gemini/...", "anthropic/...", "openai/...", "hosted_vllm/...", or a bare
    well-known name. timeout_s bounds one call as a whole.

    Raises CoachUnavailable at once for an unknown model, a missing key or a missing package.
    """

    def __init__(self, model: str, *, api_base: str | None = None, timeout_s: float = 60.0) -> None:
        self._litellm, self._openai = _import_libraries(model)
        self.model = resolve_model(model, self._litellm)
        self._api_base, self._timeout_s = api_base, timeout_s
        self._placeholder_key = _check_key(self.model, api_base, self._litellm)
        self.structured = bool(self._litellm.supports_response_schema(model=self.model))

    async def complete(self, request: ChatRequest) -> Reply:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._litellm.acompletion(**self._arguments(request))
        except TimeoutError:
            raise TransientCoachError(
                f"coach {self.model}: no answer within {self._timeout_s:g} s", answered=False
            ) from None
        except self._openai.OpenAIError as error:
            raise self._explained(error) from None
        return self._read(response, time.monotonic() - began)

    async def close(self) -> None:
        await self._litellm.close_litellm_async_clients()

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "api_base": self._api_base,
            "api_key": self._placeholder_key,
            "timeout": self._timeout_s,
            "num_retries": 0,
            "max_retries": 0,
        }
        if request.schema is not None and self.structured:
            schema = {"name": "reply", "strict": True, "schema": dict(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        return arguments

    def _read(self, response: Any, latency_s: float) -> Reply:
        usage = response.get("usage")
        written, read = (getattr(usage, name, None) for name in ("completion_tokens_details", "prompt_tokens_details"))
        if not response.choices:
            raise CoachError(f"coach {self.model}: the provider sent no candidate")
        return Reply(
            text=response.choices[0].message.content or "",
            model=self.model,
            tokens_in=getattr(usage, "prompt_tokens", None) or 0,
            tokens_out=getattr(usage, "completion_tokens", None) or 0,
            tokens_thinking=getattr(written, "reasoning_tokens", None) or 0,
            tokens_cached=getattr(read, "cached_tokens", None) or 0,
            cost_usd=self._cost(response),
            latency_s=latency_s,
            finish_reason=response.choices[0].finish_reason or "",
        )

    def _cost(self, response: Any) -> float | None:
        """Dollars, or None where LiteLLM's table holds no price for the model."""
        if self.model not in self._litellm.model_cost and self.model.split("/", 1)[1] not in self._litellm.model_cost:
            return None
        return float(self._litellm.completion_cost(response, model=self.model))

    def _explained(self, error: Any) -> CoachError:
        """The provider's exception as one of ours."""
        exceptions, status = self._litellm.exceptions, getattr(error, "status_code", None)
        said = f"coach {self.model}: {without_secrets(str(error))}"
        if isinstance(error, exceptions.AuthenticationError | exceptions.PermissionDeniedError) or status in (
            401,
            402,
            403,
        ):
            return CoachUnavailable(f"{said} (the provider refused the key: check its environment variable)")
        if isinstance(error, exceptions.NotFoundError) or status == 404:
            return CoachUnavailable(f"{said} (the provider knows no such model or address)")
        if isinstance(error, exceptions.UnsupportedParamsError):
            return CoachUnavailable(said)
        connection = isinstance(error, exceptions.Timeout | exceptions.APIConnectionError)
        if connection or status in _RETRY_STATUS or (isinstance(status, int) and status >= 500):
            return TransientCoachError(
                said, _retry_after_s(error), answered=not connection, throttled=status == 429 and not connection
            )
        return CoachError(said)


def resolve_model(name: str, litellm: ModuleType) -> str:
    """`name` as "provider/model". Raises CoachUnavailable that names the nearest known one."""
    providers = {provider.value for provider in litellm.provider_list}
    if "/" in name:
        provider = name.split("/", 1)[0]
        if provider not in providers:
            raise CoachUnavailable(
                f"coach '{name}': no provider '{provider}'{nearest(provider, providers)} (for a server of your own: "
                f"--coach openai/{name} --coach-api-base URL)"
            )
        return name
    chat = {model: entry for model, entry in litellm.model_cost.items() if entry.get("mode") in ("chat", "responses")}
    # LiteLLM sends bare Gemini names to Vertex AI; an API key reaches them at AI Studio.
    if f"gemini/{name}" in chat:
        return f"gemini/{name}"
    provider = chat.get(name, {}).get("litellm_provider", "").split("-")[0]  # "vertex_ai-language-models" is vertex_ai
    if provider in providers:
        return f"{provider}/{name}"
    same = sorted(model for model in chat if model.rsplit("/", 1)[-1] == name)
    hint = f", did you mean '{same[0]}'?" if same else nearest(name, ["rules", *chat])
    raise CoachUnavailable(f"no coach '{name}'{hint} (write rules, or provider/model)")


def _import_libraries(model: str) -> tuple[ModuleType, ModuleType]:
    """LiteLLM, and the OpenAI package whose exceptions LiteLLM's descend from."""
    # LiteLLM otherwise fetches its price table from the network while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
        import openai
    except ImportError as error:
        raise CoachUnavailable(f"coach '{model}' needs {error.name}: pip install 'coachrl[llm]'") from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm, openai


def _check_key(model: str, api_base: str | None, litellm: ModuleType) -> str | None:
    """None where the environment holds what the provider needs, or a placeholder for a server that asks for no key.

    Raises CoachUnavailable that names the missing variables.
    """
    if api_base is not None:
        return "not-needed" if model.startswith("openai/") and not os.environ.get("OPENAI_API_KEY") else None
    found = litellm.validate_environment(model=model)
    if not found["keys_in_environment"]:
        raise CoachUnavailable(
            f"coach '{model}' needs a key: set {' or '.join(sorted(found['missing_keys'])) or 'its variable'} "
            "in the environment"
        )
    return None


def _retry_after_s(error: Any) -> float | None:
    """What the provider asked to wait. LiteLLM keeps the headers in one of two places."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    headers = headers if "retry-after" in headers else getattr(error, "litellm_response_headers", None) or {}
    return seconds_of_retry_after(str(headers.get("retry-after", "")))
