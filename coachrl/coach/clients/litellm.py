"""The chat client for every provider that LiteLLM reaches. Its own retries are off: `retrying` makes them."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from coachrl.coach.clients.base import (
    BROKEN_ENDINGS,
    ChatRequest,
    Provider,
    Reply,
    ReplyType,
    causes,
    ending_of,
    seconds_of_retry_after,
)
from coachrl.coach.clients.keys import address_in_environment
from coachrl.coach.clients.openai_compatible import conversation, reply_of
from coachrl.coach.clients.secrets import without_secrets
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable, KeyMissing, lacking

_NAMES = re.compile(r"\A(?:litellm\.)?(?:\w+(?:Error|Timeout): )*(?:\w+Exception - )?")  # before a message
# Its own, of a body that it cannot read. Blanks are looked at once, however many there are.
_TRACEBACK = re.compile(r"(?<!\s)\s++Traceback \(most recent call last\).*", re.DOTALL)
_ADVICE = re.compile(r"(?<!\s)\s*+To drop\b.*", re.DOTALL)  # for who calls LiteLLM himself
_UNREAD_STATUS = (200, 422)  # what LiteLLM says of a body that it could not read, or
_UNREAD = "Invalid response object"
_UNCONNECTED = "Connection error."  # all that OpenAI's client says


def import_litellm(model: str) -> ModuleType:
    """LiteLLM, quiet and offline. It takes seconds, so that only what needs it imports it."""
    # LiteLLM otherwise fetches its price table from the network while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise CoachUnavailable(f"coach '{model}' needs {lacking(error)}: pip install 'coachrl[llm]'") from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize  # a model in a loop is ended by its limit, as without a stream
    if not os.environ.get("LITELLM_LOG"):  # it prints what providers write as it came, a terminal's orders included
        logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    # They repeat what is odd in an answer, a key too; that it cannot be read, the coach says itself.
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    _one_request_a_call(litellm)
    return litellm


@functools.cache
def _one_request_a_call(litellm: ModuleType) -> None:
    """Let each call of LiteLLM be one request, to the address that was named. No setting of its does: it makes a
    request anew whose connection broke, though the first one may be billed; of some providers (DeepInfra) it drops
    `max_retries`, and OpenAI's client asks twice more; and it follows redirects, with keys that have a header of their
    own."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, HTTPHandler
    from litellm.llms.openai.common_utils import BaseOpenAILLM
    from litellm.llms.openai.openai import OpenAIChatCompletion

    AsyncHTTPHandler.create_client = _to_one_address(AsyncHTTPHandler.create_client)
    if hasattr(HTTPHandler, "create_client"):  # not before 1.100; for providers that it asks in a thread
        HTTPHandler.create_client = _to_one_address(HTTPHandler.create_client)
    BaseOpenAILLM._get_async_http_client = staticmethod(_to_one_address(BaseOpenAILLM._get_async_http_client))
    OpenAIChatCompletion._get_openai_client = _asking_once(OpenAIChatCompletion._get_openai_client)
    litellm.in_memory_llm_clients_cache.flush_cache()  # of clients that were made before


def _asking_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, whose clients of OpenAI's ask no second time."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **{**kwargs, "max_retries": 0})

    return made


def _to_one_address(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, whose HTTP clients follow no redirects, and which makes none to repeat a request that failed."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.exception(), httpx.TransportError):  # LiteLLM makes it to ask again
            raise
        client = make(*args, **kwargs)
        if client is not None:
            client.follow_redirects = False
        return client

    return made


class LiteLLMClient(Provider):
    """One model through LiteLLM ("anthropic/...", "openai/...", "hosted_vllm/...")."""

    def __init__(self, model: str, api_base: str | None, settings: CoachConfig) -> None:
        import openai  # LiteLLM's exceptions descend from its

        super().__init__(model, api_base, settings)
        self._litellm = litellm = import_litellm(model)
        self._openai = openai
        self._placeholder_key = _check_key(model, api_base, litellm)
        self._thinking = _thinking(model, settings, litellm)
        known = bool(litellm.supports_response_schema(model=model))
        self.structured = known if settings.structured is None else settings.structured
        taken = set(litellm.get_supported_openai_params(model=model) or ())
        calls = bool(litellm.supports_function_calling(model=model)) and {"tools", "tool_choice"} <= taken
        self.calls_functions = calls if settings.tools.native is None else settings.tools.native
        self.options = {"api_base": api_base or _environments_address(model, litellm), **self._thinking}

    async def close(self) -> None:
        await self._litellm.close_litellm_async_clients()
        self._litellm.in_memory_llm_clients_cache.flush_cache()  # else the next client to this address is a closed one

    async def _answer(self, request: ChatRequest) -> Any:
        arguments: dict[str, Any] = {
            "model": self.model,
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "api_base": self.api_base,
            "api_key": self._placeholder_key,
            "timeout": self.settings.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            **self._thinking,
            **conversation(request, self.structured),
        }
        handler = Path(self._litellm.__file__ or "").parent / "responses" / "mcp" / "chat_completions_handler.py"
        if request.function is not None and handler.is_file():
            arguments["_skip_mcp_handler"] = True  # else any function has it look for an MCP server
        return await self._litellm.acompletion(**arguments)

    def _read(self, answer: Any, request: ChatRequest) -> Reply:
        if not answer.choices:
            raise self._broken_off("the provider sent no candidate")
        choice = answer.choices[0]
        reply = reply_of(self.model, request, choice.message.model_dump(), ending_in(choice))
        return self._with_usage(reply, request, answer)

    def _with_usage(self, reply: ReplyType, request: ChatRequest, answer: Any) -> ReplyType:
        usage = answer.get("usage")
        written = getattr(usage, "completion_tokens_details", None)
        read = getattr(usage, "prompt_tokens_details", None)
        return self._counted(
            reply,
            request,
            getattr(usage, "prompt_tokens", None),
            getattr(usage, "completion_tokens", None),
            getattr(written, "reasoning_tokens", None),
            getattr(read, "cached_tokens", None),
        )

    def _explained(self, error: Any) -> CoachError:
        if not isinstance(error, self._openai.OpenAIError):  # for an odd body LiteLLM raises anything
            return self._unreadable(error)
        exceptions = self._litellm.exceptions
        # What the provider calls the error ("insufficient_quota"), its body says; LiteLLM's text leaves it out.
        body = getattr(error, "body", None)
        code = body.get("code") if isinstance(body, dict) else None
        said = _TRACEBACK.sub("", _NAMES.sub("", str(error)))
        said = without_secrets(f"{said} ({code})" if isinstance(code, str) else said)
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        # Its classes say more than the status that it puts beside them.
        answered = _answered_status(error)
        if isinstance(error, exceptions.AuthenticationError | exceptions.PermissionDeniedError):
            status = 403 if answered == 403 or isinstance(error, exceptions.PermissionDeniedError) else 401
        if isinstance(error, exceptions.NotFoundError):
            status = 404
        if isinstance(error, exceptions.UnsupportedParamsError):
            remedy = "; set coach.temperature=1" if "temperature=1 " in said else ""
            return CoachUnavailable(f"coach {self.model}: {_ADVICE.sub('', said).rstrip('.')}{remedy}")
        if answered is not None and 300 <= answered < 400:
            return self._refused(answered, f"{answered} {said}".rstrip(), None, "")
        if (status in _UNREAD_STATUS and answered is None) or _UNREAD in said:
            return self._unreadable(ValueError(said))
        if status in (401, 402, 403) and (missing := _missing_key(self.model, self._litellm)) is not None:
            return missing
        if isinstance(error, exceptions.Timeout | exceptions.APIConnectionError):
            broken_off = status not in (401, 402, 403, 404)
        else:
            broken_off = (status or 0) >= 500 and answered is None
        if broken_off:
            if said == _UNCONNECTED:
                *_, first = causes(error)
                said = f"{said[:-1]}: {without_secrets(str(first))}"
            return self._broken_off(said, _retry_after_s(error), error)
        about_the_key = "the provider refused the key: check its environment variable"
        return self._refused(status, said, _retry_after_s(error), about_the_key)


def ending_in(choice: Any) -> Any:
    """How a reply ended, in the provider's word where something broke it off: to LiteLLM it has stopped."""
    said = ending_of((getattr(choice, "provider_specific_fields", None) or {}).get("native_finish_reason"))
    return said if said in BROKEN_ENDINGS else choice.finish_reason


def _thinking(model: str, settings: CoachConfig, litellm: ModuleType) -> dict[str, Any]:
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
    if (missing := _missing_key(model, litellm)) is not None:
        raise missing
    return None


def _environments_address(model: str, litellm: ModuleType) -> str | None:
    try:
        _, provider, *_ = litellm.get_llm_provider(model=model)
    except litellm.BadRequestError:  # it will say so of the first call
        return None
    return address_in_environment(provider)


def _missing_key(model: str, litellm: ModuleType) -> KeyMissing | None:
    """What is said of variables that the model's provider needs and that are not set. None where no key is among them:
    LiteLLM has its own values for addresses and regions (Ollama's port on this machine)."""
    missing = sorted(litellm.validate_environment(model=model)["missing_keys"])
    if not any(word in name for name in missing for word in ("KEY", "TOKEN")):
        return None
    joint = " or " if model.startswith("gemini/") else " and "
    return KeyMissing(f"coach '{model}' needs a key: set {joint.join(missing)} in the environment")


def _answered_status(error: BaseException | None) -> int | None:
    """The status of refusal that came back, or None where none did: to LiteLLM a broken connection is a 500, and so is
    half an answer."""
    answers = (cause.response for cause in causes(error) if isinstance(cause, httpx.HTTPStatusError))
    return next((answer.status_code for answer in answers), None)


def _retry_after_s(error: Any) -> float | None:
    """What the provider asked to wait. LiteLLM keeps the headers in one of two places."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    headers = headers if "retry-after" in headers else getattr(error, "litellm_response_headers", None) or {}
    return seconds_of_retry_after(str(headers.get("retry-after", "")), str(headers.get("date", "")))
