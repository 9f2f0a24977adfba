"""Chat clients: one request in, one `Reply` out, and an exception that says whether trying again can help.

Retries are not made here (`pool` makes them), and a provider's own are switched off. Keys come from the environment,
and stand in no message: what a provider says is cleared of them first.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Protocol

from coachrl.coach.ledger import Message
from coachrl.config import nearest
from coachrl.errors import CoachError, CoachUnavailable

# 200 and 422: what LiteLLM says of a body that it could not read.
_RETRY_STATUS = frozenset({200, 408, 409, 422, 425, 429})
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHOWN_CHARS = 300


class TransientCoachError(CoachError):
    """A call that may go well when it is made again.

    retry_after_s: how long the provider asked to wait, if it did. answered: False where no HTTP status came back (a
    time-out, a cut connection), so that nobody knows whether the call was billed.
    """

    def __init__(self, message: str, retry_after_s: float | None = None, answered: bool = True) -> None:
        super().__init__(message)
        self.retry_after_s, self.answered = retry_after_s, answered


@dataclass(frozen=True)
class Reply:
    """What a model answered. tokens_out includes tokens_thinking. cost_usd None: the price is not known."""

    text: str
    tokens_in: int
    tokens_out: int
    tokens_thinking: int
    cost_usd: float | None
    latency_s: float
    model: str
    finish_reason: str


class ChatClient(Protocol):
    """One model at one provider."""

    model: str

    async def complete(self, messages: Sequence[Message], *, temperature: float, max_tokens: int) -> Reply:
        """One call, not repeated. Raises CoachUnavailable where no call can go well (key, model, parameters),
        TransientCoachError where a later one may, CoachError where this very request is refused."""
        ...

    async def close(self) -> None: ...


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

    async def complete(self, messages: Sequence[Message], *, temperature: float, max_tokens: int) -> Reply:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._litellm.acompletion(
                    model=self.model,
                    messages=[{"role": message.role, "content": message.content} for message in messages],
                    temperature=temperature,
                    max_tokens=max_tokens,
                    api_base=self._api_base,
                    api_key=self._placeholder_key,
                    timeout=self._timeout_s,
                    num_retries=0,
                    max_retries=0,
                )
        except TimeoutError:
            raise TransientCoachError(
                f"coach {self.model}: no answer within {self._timeout_s:g} s", answered=False
            ) from None
        except self._openai.OpenAIError as error:
            raise self._explained(error) from None
        return self._read(response, time.monotonic() - began)

    async def close(self) -> None:
        await self._litellm.close_litellm_async_clients()

    def _read(self, response: Any, latency_s: float) -> Reply:
        usage = response.get("usage")
        details = getattr(usage, "completion_tokens_details", None)
        if not response.choices:
            raise CoachError(f"coach {self.model}: the provider sent no candidate")
        return Reply(
            text=response.choices[0].message.content or "",
            tokens_in=getattr(usage, "prompt_tokens", None) or 0,
            tokens_out=getattr(usage, "completion_tokens", None) or 0,
            tokens_thinking=getattr(details, "reasoning_tokens", None) or 0,
            cost_usd=self._cost(response),
            latency_s=latency_s,
            model=self.model,
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
        said = f"coach {self.model}: {_without_secrets(str(error))}"
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
            return TransientCoachError(said, _retry_after_s(error), answered=not connection)
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
    """Seconds of a Retry-After header (a number or a date), or None where there is none to be read."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    headers = headers if "retry-after" in headers else getattr(error, "litellm_response_headers", None) or {}
    value = str(headers.get("retry-after", ""))
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _without_secrets(text: str) -> str:
    """`text` on one line, cut, with the value of every secret-looking environment variable replaced."""
    for name, value in os.environ.items():
        if len(value) >= 8 and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, f"[{name}]")
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "..."
