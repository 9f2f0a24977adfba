"""External roles: calls that a model of some provider answers, passed on through LiteLLM."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from coachrl.coach.clients.base import ChatRequest, without_secrets
from coachrl.coach.clients.budget import Budget, Price
from coachrl.coach.clients.ledger import Call as LedgerCall
from coachrl.coach.clients.ledger import Ledger, Message, record_call
from coachrl.coach.clients.litellm import import_litellm
from coachrl.coach.clients.providers import price_of, resolve_model
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.errors import ConfigError, ProviderFailed
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, Reply, StopReason
from coachrl.gateway.conversations import as_message, said_in, text_of
from coachrl.types import Usage

_TIMEOUT_S = 600.0
_RETRIES = 4
_MOST_TOKENS = 16_384  # of a reply, where a budget is to be kept and the app sets no limit
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
    later. api_bases: model -> where it is served, where that is not the provider's own address.

    After `connect` calls count in the run's budget, and stand in its ledger beside the coach's."""

    def __init__(self, api_bases: Mapping[str, str]) -> None:
        self._api_bases = api_bases
        self._budget = Budget()
        self._ledger: Ledger | None = None
        self._prices: dict[str, Price | None] = {}

    def connect(self, models: Sequence[str], client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Raises ConfigError where a budget is set and the price of one of the models is not known."""
        settings, self._budget = client_factory.settings, client_factory.budget
        self._ledger = Ledger(ledger) if ledger is not None else None
        for model in models:
            self._prices[model] = price_of(resolve_model(model, import_litellm(model)), settings)
            if self._prices[model] is None and self._budget.limit_usd is not None:
                raise ConfigError(
                    f"coach.budget_usd: the price of the external model '{model}' is not known; state it as "
                    "coach.usd_per_million_tokens=[input, output]"
                )

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
        """See `Providers`. Raises BudgetExceeded too."""
        if self._budget.limit_usd is not None:
            call = replace(call, max_tokens=call.max_tokens or _MOST_TOKENS)
        price, request, began = self._prices.get(model), _request(call), time.monotonic()
        noted = LedgerCall("", model, "", request.messages)
        async with self._budget.reserved(price.most(request) * call.n if price is not None else 0.0) as reservation:
            try:
                answer = await self._ask(model, call)
            except (BadRequest, ProviderFailed) as error:
                if isinstance(error, BadRequest):  # else it may be billed
                    reservation.usd = 0.0
                usage = Usage(attempts=1, cost_usd=reservation.usd or 0.0, latency_s=time.monotonic() - began)
                self._note(replace(noted, error=str(error), usage=usage, reserved_usd=reservation.usd))
                raise
            replies = [_reply(choice, answer) for choice in answer.choices]
            usage = _usage(answer, price, time.monotonic() - began)
            if usage.cost_usd is not None:
                reservation.usd = usage.cost_usd
            said = "\n\n".join(said_in(as_message(reply)) for reply in replies)
            self._note(replace(noted, reply=said, usage=usage, reserved_usd=reservation.usd))
        return replies

    def _note(self, call: LedgerCall) -> None:
        record_call(call)
        if self._ledger is not None:
            self._ledger.call(call)

    async def _ask(self, model: str, call: Call) -> Any:
        import openai  # LiteLLM's exceptions descend from its

        litellm = import_litellm(model)
        try:
            return await litellm.acompletion(
                model=model,
                api_base=self._api_bases.get(model),
                timeout=_TIMEOUT_S,
                num_retries=_RETRIES,
                _skip_mcp_handler=True,  # else tools of any kind ask for a package that only its own kind needs
                **_asked(call),
            )
        except openai.OpenAIError as error:
            said = f"{model}: {without_secrets(str(error))}"
            if getattr(error, "status_code", None) in _OWN_FAULTS:
                raise BadRequest(said) from None
            raise ProviderFailed(said) from None


def _request(call: Call) -> ChatRequest:
    """The call as coaches make it: all that it says in one message."""
    tools = json.dumps([dict(tool) for tool in call.tools]) if call.tools else ""
    text = "\n\n".join(part for part in (tools, text_of(call.messages)) if part)
    return ChatRequest((Message("user", text),), 0.0, call.max_tokens or _MOST_TOKENS, None, 0, "")


def _usage(answer: Any, price: Price | None, latency_s: float) -> Usage:
    """What the answer took. Its cost is not known where the price is not, or the provider tells of no tokens."""
    given = answer.get("usage")
    read, written = getattr(given, "prompt_tokens", 0) or 0, getattr(given, "completion_tokens", 0) or 0
    usage = Usage(attempts=1, tokens_in=read, tokens_out=written, cost_usd=None, latency_s=latency_s)
    return replace(usage, cost_usd=price.of(usage)) if price is not None and read else usage


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
