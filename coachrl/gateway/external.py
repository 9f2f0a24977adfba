"""External roles: calls that a model of some provider answers, passed on through LiteLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field, model_validator

from coachrl.coach.clients.base import UNREADABLE, ChatRequest, with_usage, without_keys, without_secrets
from coachrl.coach.clients.base import Reply as Counted
from coachrl.coach.clients.budget import Budget, Price
from coachrl.coach.clients.keys import check_sendable
from coachrl.coach.clients.ledger import Call as LedgerCall
from coachrl.coach.clients.ledger import Ledger, Message, record_call
from coachrl.coach.clients.litellm import import_litellm
from coachrl.coach.clients.providers import longest_reply, price_of, resolve_model
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.config import Section
from coachrl.errors import ConfigError, ProviderFailed
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, Piece, Reply, StopReason
from coachrl.gateway.conversation_tokens import as_message, said_in, text_of
from coachrl.gateway.wire.base import arguments_of
from coachrl.pipelines.team.team import GIVEN_UP
from coachrl.types import Usage

_TIMEOUT_S = 600.0
_RETRIES = 4
_MOST_TOKENS = 16_384  # of a reply, where a budget is to be kept and nobody sets a limit: many models could write more
_ENDINGS: dict[str, StopReason] = {"length": "length", "tool_calls": "tool_calls"}
_OWN_FAULTS = (400, 413, 422)
"""What a provider says of a request that is the app's to mend."""


class GatewayRole(Section):
    """One role of an app: what the app gives as the model's name."""

    policy: str | None = Field(None, description="The policy that it plays with. By default it is the role's name.")
    description: str = Field("", description="One sentence for the coach; without it, the system prompt says enough.")
    max_new_tokens: int | None = Field(None, ge=1, description="One reply has at most this many tokens.")
    thinking: bool = Field(False, description="The model thinks before it answers.")
    external: str = Field("", description="A provider's model that plays it, as LiteLLM names it. It is never trained.")
    api_base: str | None = Field(None, description="Where the external model is served, if not by its provider.")
    scored: bool = Field(True, description="The coach is asked about what the role does.")

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> GatewayRole:
        if self.external and (self.policy or self.thinking):
            raise ValueError("an external role has no policy or thinking of ours")
        if self.api_base and not self.external:
            raise ValueError("api_base is for external roles alone")
        return self


class LiteLLMProviders:
    """Answers for external roles, by every provider that LiteLLM reaches. Keys come from the environment; LiteLLM
    repeats a call that may go well later. roles: all of an app's, by name.

    After `connect` calls count in the run's budget, and stand in its ledger beside the coach's."""

    def __init__(self, roles: Mapping[str, GatewayRole]) -> None:
        self._roles = {name: role for name, role in roles.items() if role.external}
        self._budget = Budget()
        self._ledger = Ledger(None)
        self._prices: dict[str, Price | None] = {}
        self._bounds: dict[str, int] = {}  # of a reply's tokens, by role, where no setting does it

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Raises ConfigError where a budget is set, and a model's price or the length of its replies is not known."""
        settings, self._budget = client_factory.settings, client_factory.budget
        self._ledger = Ledger(ledger)
        for name, role in self._roles.items():
            model = resolve_model(role.external, import_litellm(role.external))
            keeps_budget = self._budget.limit_usd is not None
            self._prices[role.external] = price_of(model, settings, is_needed=keeps_budget)
            if keeps_budget and role.max_new_tokens is None:  # the most that a reply may cost is reserved first
                longest = longest_reply(model)
                if longest is None:
                    raise ConfigError(
                        f"coach.budget_usd: how long a reply of the external model '{model}' may be is not known; "
                        f"state it as pipeline.options.roles.{name}.max_new_tokens"
                    )
                self._bounds[name] = longest

    def check(self) -> None:
        """Raises ConfigError where the package, a provider or its key is missing."""
        for role in self._roles.values():
            litellm = import_litellm(role.external)
            try:
                _, provider, *_ = litellm.get_llm_provider(model=role.external, api_base=role.api_base)
            except litellm.exceptions.BadRequestError:
                raise ConfigError(
                    f"no provider is known for the external model '{role.external}': name it as LiteLLM does, "
                    "provider/model"
                ) from None
            check_sendable(provider)
            missing = sorted(litellm.validate_environment(model=role.external)["missing_keys"])
            if missing and role.api_base is None:
                raise ConfigError(f"the external model '{role.external}' needs a key: set {' and '.join(missing)}")

    async def complete(self, call: Call) -> Sequence[Reply]:
        """`call.n` replies, without ids. One that the app takes in pieces is told as it comes; several come whole.

        Raises BadRequest where the provider refuses this very call, ProviderFailed where it does not answer or breaks
        off, and BudgetExceeded. What it took is noted in any case."""
        role = self._roles[call.role]
        call = replace(call, max_tokens=self._longest(role, call))
        price, request, began = self._prices.get(role.external), _request(call), time.monotonic()
        noted = LedgerCall("", role.external, "", request.messages)
        async with self._budget.reserved(price.most(request) * call.n if price is not None else 0.0) as reservation:
            try:
                replies, counted = await self._ask(role, call)
            except (BadRequest, ProviderFailed, asyncio.CancelledError) as error:
                may_be_billed = not isinstance(error, BadRequest)
                took_s = time.monotonic() - began
                self._note(reservation.failed(noted, str(error) or GIVEN_UP, took_s, may_be_billed))
                raise
            usage = _usage(counted, price, time.monotonic() - began)
            if usage.cost_usd is not None:
                reservation.usd = usage.cost_usd
            self._note(replace(noted, reply=counted.text, usage=usage, reserved_usd=reservation.usd))
        return replies

    def _longest(self, role: GatewayRole, call: Call) -> int | None:
        if call.max_tokens is None:
            bound = self._bounds.get(call.role)
            return role.max_new_tokens or (min(bound, _MOST_TOKENS) if bound is not None else None)
        return min(call.max_tokens, role.max_new_tokens or self._bounds.get(call.role, call.max_tokens))

    def _note(self, call: LedgerCall) -> None:
        record_call(call)
        self._ledger.call(call)

    async def _ask(self, role: GatewayRole, call: Call) -> tuple[list[Reply], Counted]:
        """The replies, and what the provider says that they took."""
        import openai  # LiteLLM's exceptions descend from its

        litellm, begun = import_litellm(role.external), False

        def tell(text: str) -> None:
            nonlocal begun
            begun = True
            if call.tell is not None:
                call.tell(Piece(0, _whole(text), 0))  # how much the model read, the provider says in the end

        arguments = {
            "model": role.external,
            "api_base": role.api_base,
            "timeout": _TIMEOUT_S,
            "num_retries": _RETRIES,
            "_skip_mcp_handler": True,  # else tools of any kind ask for a package that only its own kind needs
            **_asked(call),
        }
        try:
            if call.tell is None or call.n > 1:  # LiteLLM's streams hold one reply
                answer = await litellm.acompletion(**arguments)
            else:
                answer = await _streamed(litellm, arguments, tell)
            if not answer.choices:
                raise ProviderFailed(f"{role.external}: its answer holds no reply")
            return _read(answer, role.external, call.n)
        except openai.OpenAIError as error:
            said = f"{role.external}: {without_secrets(str(error).partition(' Traceback')[0])}"
            if getattr(error, "status_code", None) in _OWN_FAULTS and not begun:
                raise BadRequest(said) from None
            raise ProviderFailed(said) from None
        except UNREADABLE as error:  # for an odd body LiteLLM raises anything
            said = without_secrets(str(error))
            raise ProviderFailed(f"{role.external}: its answer cannot be read: {said}") from None


async def _streamed(litellm: ModuleType, arguments: Mapping[str, Any], tell: Callable[[str], None]) -> Any:
    """An answer whose text is told as it comes. Who gives up ends the provider's call with it."""
    stream = await litellm.acompletion(stream=True, stream_options={"include_usage": True}, **arguments)
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.delta.content:
                    tell(choice.delta.content)
        # LiteLLM makes an ending of its own for a stream that has none.
        if not (stream.received_finish_reason or stream.intermittent_finish_reason):
            raise ProviderFailed(f"{arguments['model']}: its stream ended in the middle of a reply")
        answer = litellm.stream_chunk_builder(stream.chunks)
        if not any(chunk.get("usage") for chunk in stream.chunks):
            answer.usage = None  # what is there now is LiteLLM's own count
    return answer


def _request(call: Call) -> ChatRequest:
    """The call as coaches make it: all that it says in one message."""
    tools = json.dumps([dict(tool) for tool in call.tools]) if call.tools else ""
    text = "\n\n".join(part for part in (tools, text_of(call.messages)) if part)
    return ChatRequest((Message("user", text),), 0.0, call.max_tokens or _MOST_TOKENS, None, 0, "")


def _usage(counted: Counted, price: Price | None, latency_s: float) -> Usage:
    """What an answer took. Its cost is not known where the price is not, or the provider tells of no tokens."""
    cost_usd = price.of(counted.usage) if price is not None and counted.usage_known else None
    return replace(counted.usage, cost_usd=cost_usd, latency_s=latency_s)


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
    calls = []
    for asked in message.get("tool_calls", ()):
        function = asked["function"]
        arguments = function["arguments"]
        as_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append({**asked, "function": {**function, "arguments": as_text}})
    return {**message, "tool_calls": calls} if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def _read(answer: Any, model: str, most: int) -> tuple[list[Reply], Counted]:
    """At most so many replies, and what they took. Raises any of `UNREADABLE`."""
    replies = [_reply(choice) for choice in answer.choices[:most]]
    said = "\n\n".join(said_in(as_message(reply)) for reply in replies)
    given = answer.get("usage")
    read, written = getattr(given, "prompt_tokens", None), getattr(given, "completion_tokens", None)
    counted = with_usage(Counted(said, model), read, written, None, None)
    # One count is given for all of them.
    tokens_in, tokens_out = counted.usage.tokens_in, counted.usage.tokens_out
    replies = [replace(reply, prompt_tokens=tokens_in) for reply in replies]
    return [replace(replies[0], unseen_tokens=tokens_out), *replies[1:]], counted


def _reply(choice: Any) -> Reply:
    calls = tuple(
        FunctionCall(_whole(str(asked.id)), _whole(asked.function.name or ""), _arguments(asked.function.arguments))
        for asked in choice.message.tool_calls or ()
    )
    return Reply(
        text=_whole(choice.message.content or ""),
        finish_reason=_ENDINGS.get(choice.finish_reason, "stop"),
        prompt_tokens=0,
        token_ids=(),
        tool_calls=calls,
    )


def _whole(text: str) -> str:
    """The text without halves of characters, which JSON can spell and no client is sent, and without keys."""
    return re.sub("[\ud800-\udfff]", "\ufffd", without_keys(text))


def _arguments(text: str) -> dict[str, Any]:
    read = arguments_of(without_keys(text or "{}"))
    return read if isinstance(read, dict) else {"arguments": _whole(text)}
