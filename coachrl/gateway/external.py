"""External roles: calls that a model of some provider answers, passed on through LiteLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from coachrl.coach.clients.base import without_secrets
from coachrl.coach.clients.litellm import import_litellm
from coachrl.errors import ConfigError, ProviderFailed
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, Reply, StopReason

_TIMEOUT_S = 600.0
_RETRIES = 4
_ENDINGS: dict[str, StopReason] = {"length": "length", "tool_calls": "tool_calls"}
_OWN_FAULTS = (400, 413, 422)
"""What a provider says of a request that is the app's to mend."""


class Providers(Protocol):
    """Who answers for external roles."""

    async def complete(self, model: str, call: Call) -> Sequence[Reply]:
        """`call.n` replies, without ids. Raises BadRequest where the provider refuses this very call, ProviderFailed
        where it does not answer."""
        ...


class LiteLLMProviders:
    """Every provider that LiteLLM reaches. Keys come from the environment; LiteLLM repeats a call that may go well
    later. api_bases: model -> where it is served, where that is not the provider's own address."""

    def __init__(self, api_bases: Mapping[str, str]) -> None:
        self._api_bases = api_bases

    def check(self, model: str) -> None:
        """Raises ConfigError where the package, the provider or its key is missing."""
        litellm = import_litellm(model)
        try:
            litellm.get_llm_provider(model=model, api_base=self._api_bases.get(model))
        except litellm.exceptions.BadRequestError:
            raise ConfigError(
                f"no provider is known for the external model '{model}': name it as LiteLLM does, provider/model"
            ) from None
        if model in self._api_bases:
            return
        missing = sorted(litellm.validate_environment(model=model)["missing_keys"])
        if missing:
            raise ConfigError(f"the external model '{model}' needs a key: set {' and '.join(missing)}")

    async def complete(self, model: str, call: Call) -> Sequence[Reply]:
        import openai  # LiteLLM's exceptions descend from its

        litellm = import_litellm(model)
        try:
            answer = await litellm.acompletion(
                model=model,
                api_base=self._api_bases.get(model),
                timeout=_TIMEOUT_S,
                num_retries=_RETRIES,
                _skip_mcp_handler=True,  # else tools of any kind ask for a package that only its own kind needs
                **_asked(call),
            )
            return [_reply(choice, answer) for choice in answer.choices]
        except openai.OpenAIError as error:
            said = f"{model}: {without_secrets(str(error))}"
            if getattr(error, "status_code", None) in _OWN_FAULTS:
                raise BadRequest(said) from None
            raise ProviderFailed(said) from None


def _asked(call: Call) -> dict[str, Any]:
    """The call as OpenAI's clients make it: what the app left open stays so."""
    given = {
        "messages": [_message(message) for message in call.messages],
        "n": call.n if call.n > 1 else None,
        "stop": list(call.stop) or None,
        "seed": call.seed,
        "max_tokens": call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "tools": [dict(tool) for tool in call.tools] or None,
        "tool_choice": _tool_choice(call),
    }
    return {name: value for name, value in given.items() if value is not None}


def _tool_choice(call: Call) -> str | dict[str, Any] | None:
    if not call.tools:
        return None
    return {"type": "function", "function": {"name": call.tool_name}} if call.tool_name else call.tool_choice


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Providers take arguments of functions as text, which those that an app wrote may be already."""
    calls = [
        {**asked, "function": {**asked["function"], "arguments": _as_text(asked["function"]["arguments"])}}
        for asked in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _reply(choice: Any, answer: Any) -> Reply:
    calls = tuple(
        FunctionCall(asked.id, asked.function.name, _arguments(asked.function.arguments))
        for asked in choice.message.tool_calls or ()
    )
    return Reply(
        text=choice.message.content or "",
        finish_reason=_ENDINGS.get(choice.finish_reason, "stop"),
        prompt_tokens=getattr(answer.get("usage"), "prompt_tokens", 0) or 0,
        token_ids=(),
        tool_calls=calls,
    )


def _arguments(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {"arguments": text}
