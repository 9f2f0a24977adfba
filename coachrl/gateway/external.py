"""External roles: calls that a model of some provider answers, passed on through LiteLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, model_validator

from coachrl.coach.clients.base import (
    BROKEN_ENDINGS,
    UNSEEN_TOKENS,
    ChatRequest,
    StreamBroken,
    TransientCoachError,
)
from coachrl.coach.clients.base import Reply as CoachReply
from coachrl.coach.clients.keys import check_address, check_sendable
from coachrl.coach.clients.ledger import Ledger, Message, calls_to
from coachrl.coach.clients.litellm import LiteLLMClient, ending_in, import_litellm
from coachrl.coach.clients.providers import can_stream, longest_reply, price_of, resolve_model
from coachrl.coach.clients.retrying import ChatClientFactory, RetryingClient
from coachrl.coach.clients.secrets import keyless
from coachrl.config import CoachConfig, Section
from coachrl.errors import CoachError, CoachUnavailable, ConfigError, ProviderFailed
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, Piece, Reply, StopReason
from coachrl.gateway.conversation_tokens import as_message, said_in, text_of
from coachrl.gateway.wire.base import arguments_of
from coachrl.text import KEY_CHARS, secrets_of

_TIMEOUT_S = 600.0  # without a byte of an answer
_LONGEST_S = 3600.0  # of one attempt
_MOST_TOKENS = 16_384  # of a reply, where a budget is to be kept and nobody sets a limit: many models could write more
_MOST_STREAMED = 16 * 2**20  # characters of one stream
_OWN_FAULTS = (400, 413, 422)
"""What a provider says of a request that is the app's to mend."""
_ENDINGS: dict[str, StopReason] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


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


@dataclass(frozen=True, kw_only=True)
class _CallRequest(ChatRequest):
    """An app's call as coaches make theirs: all that it says in one message, and room for all of its replies."""

    call: Call


@dataclass(frozen=True)
class _Answer(CoachReply):
    """What came of it. text: of all the replies."""

    replies: tuple[Reply, ...] = ()


class LiteLLMProviders:
    """Answers for external roles, by every provider that LiteLLM reaches. Keys come from the environment. roles: all of
    an app's, by name.

    Calls are made, and made again, as a coach's are. After `connect` they share the limits and the budget of a run's
    coach, and stand in its ledger beside the coach's."""

    def __init__(self, roles: Mapping[str, GatewayRole]) -> None:
        self._roles = {name: role for name, role in roles.items() if role.external}
        self._client_factory = ChatClientFactory()
        self._ledger = Ledger(None)
        self._clients: dict[str, RetryingClient] = {}  # by role
        self._bounds: dict[str, int] = {}  # of a reply's tokens, by role, where no setting does it

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Raises ConfigError where a budget is set, and a model's price or the length of its replies is not known."""
        self._client_factory, self._ledger, self._clients = client_factory, Ledger(ledger), {}
        keeps_budget = client_factory.budget.limit_usd is not None
        for name, role in self._roles.items():
            model = resolve_model(role.external, import_litellm(role.external))
            price_of(model, client_factory.settings, is_needed=keeps_budget)
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
            check_address(role.api_base)
            check_sendable(provider)
            missing = sorted(litellm.validate_environment(model=role.external)["missing_keys"])
            if missing and role.api_base is None:
                raise ConfigError(f"the external model '{role.external}' needs a key: set {' and '.join(missing)}")

    async def complete(self, call: Call) -> Sequence[Reply]:
        """`call.n` replies, without ids. One that the app takes in pieces is told as it comes; several come whole.

        Raises BadRequest where the provider refuses this very call, ProviderFailed where it does not answer or breaks
        off, and BudgetExceeded. What each request took is noted in any case."""
        role = self._roles[call.role]
        call = replace(call, max_tokens=self._longest(role, call))
        try:
            with calls_to(self._ledger.call):
                answer = await self._client(call.role).complete(_request(call))
        except (CoachUnavailable, StreamBroken, TransientCoachError) as error:
            raise ProviderFailed(str(error).removeprefix("coach ")) from None
        except CoachError as error:
            raise BadRequest(str(error).removeprefix("coach ")) from None
        assert isinstance(answer, _Answer)
        return answer.replies

    def _client(self, name: str) -> RetryingClient:
        if name not in self._clients:
            role = self._roles[name]
            model = resolve_model(role.external, import_litellm(role.external))
            provider = _ExternalModel(model, role.api_base, self._client_factory.settings)
            self._clients[name] = self._client_factory.around(provider)
        return self._clients[name]

    def _longest(self, role: GatewayRole, call: Call) -> int | None:
        if call.max_tokens is None:
            bound = self._bounds.get(call.role)
            return role.max_new_tokens or (min(bound, _MOST_TOKENS) if bound is not None else None)
        return min(call.max_tokens, role.max_new_tokens or self._bounds.get(call.role, call.max_tokens))


class _ExternalModel(LiteLLMClient):
    """A model that is asked what an app asks, and no more: what `settings` say of a coach's replies is not for it."""

    def __init__(self, model: str, api_base: str | None, settings: CoachConfig) -> None:
        of_coaches = {"thinking_budget": None, "reasoning_effort": None, "timeout_s": _LONGEST_S}
        super().__init__(model, api_base, settings.model_copy(update=of_coaches))
        self._can_stream = can_stream(model)

    async def complete(self, request: ChatRequest) -> CoachReply:
        """What an app has read the beginning of is not asked for again, whatever ended it."""
        assert isinstance(request, _CallRequest)
        call, telling = request.call, None
        if call.tell is not None and call.n == 1 and self._can_stream:  # LiteLLM's streams hold one reply
            telling = _Telling(call.tell)
        try:
            return await super().complete(replace(request, call=replace(call, tell=telling)))
        except CoachError as error:
            if telling is not None and telling.has_begun:
                raise StreamBroken(str(error)) from None
            raise

    async def _answer(self, request: ChatRequest) -> Any:
        assert isinstance(request, _CallRequest)
        arguments = {
            "model": self.model,
            "api_base": self.api_base,
            "api_key": self._placeholder_key,
            "timeout": _TIMEOUT_S,
            "num_retries": 0,
            "max_retries": 0,
            "_skip_mcp_handler": True,  # else tools of any kind have it look for an MCP server
            **_asked(request.call),
        }
        if request.call.tell is None:
            return await self._litellm.acompletion(**arguments)
        return await self._streamed(arguments, request.call.tell, request.max_tokens + UNSEEN_TOKENS)

    async def _streamed(self, arguments: Mapping[str, Any], tell: Callable[[Piece], None], most_chunks: int) -> Any:
        """An answer whose text is told as it comes. Who gives up ends the provider's call with it."""
        stream = await self._litellm.acompletion(stream=True, stream_options={"include_usage": True}, **arguments)
        chunks = None
        if isinstance(stream.completion_stream, AsyncIterable):
            chunks = stream.completion_stream = _Chunks(stream.completion_stream, most_chunks)
        async with contextlib.aclosing(stream):
            try:
                async for chunk in stream:
                    for choice in chunk.choices:
                        if choice.delta.content:
                            tell(Piece(0, choice.delta.content, 0))  # how much was read, the provider says in the end
            except self._litellm.exceptions.MidStreamFallbackError:  # of LiteLLM 1.110, as we ended it
                if chunks is None or not chunks.problem:
                    raise
            if chunks is not None and chunks.problem:
                raise self._unreadable(ValueError(chunks.problem))
            # LiteLLM, up to 1.109, makes an ending of its own for a stream that has none.
            if not (stream.received_finish_reason or stream.intermittent_finish_reason):
                raise self._broken_off("its stream ended in the middle of a reply")
            answer = self._litellm.stream_chunk_builder(stream.chunks)
            if not any(chunk.get("usage") for chunk in stream.chunks):
                answer.usage = None  # what is there now is LiteLLM's own count
        return answer

    def _read(self, answer: Any, request: ChatRequest) -> _Answer:
        """At most so many replies as were asked for. One count is given for all of them, and stands with the first."""
        assert isinstance(request, _CallRequest)
        if not answer.choices:
            raise self._broken_off("the provider sent no candidate")
        choices = answer.choices[: request.call.n]
        replies = [_reply(choice) for choice in choices]
        said = "\n\n".join(said_in(as_message(reply)) for reply in replies)
        broken = next((ending for ending in map(ending_in, choices) if ending in BROKEN_ENDINGS), "stop")
        counted = self._with_usage(_Answer(said, self.model, finish_reason=broken), request, answer)
        usage = counted.usage
        first, *others = (replace(reply, prompt_tokens=usage.tokens_in) for reply in replies)
        return replace(counted, replies=(replace(first, unseen_tokens=usage.tokens_out), *others))

    def _refused(self, status: int | None, *said: Any, **more: Any) -> CoachError:
        refused = super()._refused(status, *said, **more)
        if status in _OWN_FAULTS or isinstance(refused, TransientCoachError):
            return refused
        return CoachUnavailable(str(refused))

    def _explained(self, error: Any) -> CoachError:
        explained = super()._explained(error)
        if isinstance(error, self._litellm.exceptions.UnsupportedParamsError):  # which are the app's
            return CoachError(str(explained))
        return explained


class _Part(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class _AskedFunction(_Part):
    """Its arguments are text, or data from servers that have it so."""

    name: StrictStr | None = None


class _Asked(_Part):
    index: StrictInt | None = None
    id: StrictStr | None = None
    function: _AskedFunction | None = None


class _Delta(_Part):
    """What a chunk of a stream adds to a reply."""

    content: StrictStr | None = None
    tool_calls: list[_Asked] | None = None


class _Chunks:
    """A provider's stream as LiteLLM goes through it: of the reply that was asked for alone, which OpenAI's clients
    tell from others by its number, and up to a chunk that cannot be read, or to what no reply is as long as. LiteLLM
    would make one reply of all, pass over what it cannot read, and keep what has no end. problem: what that was."""

    def __init__(self, chunks: AsyncIterable[Any], most: int) -> None:
        self._chunks, self._iterator, self.problem = chunks, aiter(chunks), ""
        self._chunks_left, self._characters_left = most, _MOST_STREAMED

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chunks, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self.problem:
            await asyncio.sleep(0)  # others' turn: thousands may come at once, and LiteLLM takes a millisecond for each
            chunk = await anext(self._iterator)
            choices = getattr(chunk, "choices", None)
            self._chunks_left -= 1
            self._characters_left -= sum(map(_characters, choices or ()))
            if min(self._chunks_left, self._characters_left) < 0:
                self.problem = "its stream goes on for longer than any reply"
                break
            if not choices:
                return chunk
            chunk.choices = [choice for choice in choices if _is_first(choice)]
            self.problem = _problem(chunk.choices)
            if not self.problem and (chunk.choices or getattr(chunk, "usage", None)):
                return chunk
        raise StopAsyncIteration


def _characters(choice: Any) -> int:
    """Of what a chunk adds to a reply, about."""
    delta = getattr(choice, "delta", None)
    return sum(len(str(getattr(delta, part, None) or "")) for part in ("content", "reasoning_content", "tool_calls"))


def _is_first(choice: Any) -> bool:
    """Some servers give no number."""
    index = getattr(choice, "index", 0)
    return not (isinstance(index, int) and index > 0)


def _problem(choices: Sequence[Any]) -> str:
    """Why a chunk cannot be read; empty where it can."""
    try:
        for choice in choices:
            if choice.delta is not None:
                _Delta.model_validate(choice.delta)
    except ValidationError as error:
        wrong = error.errors(include_input=False)[0]
        return f"delta.{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
    return ""


class _Telling:
    """Tells an app what a stream says, without keys: what may be the beginning of one waits for what comes next."""

    def __init__(self, tell: Callable[[Piece], None]) -> None:
        self._tell, self._keys, self._held = tell, tuple(secrets_of(KEY_CHARS)), ""
        self.has_begun = False

    def __call__(self, piece: Piece) -> None:
        text = self._held + piece.text
        waits = max((size for key in self._keys for size in range(1, len(key)) if text.endswith(key[:size])), default=0)
        self._held = text[len(text) - waits :]
        if told := text[: len(text) - waits]:
            self.has_begun = True
            self._tell(replace(piece, text=keyless(told)))


def _request(call: Call) -> _CallRequest:
    tools = json.dumps([dict(tool) for tool in call.tools]) if call.tools else ""
    text = "\n\n".join(part for part in (tools, text_of(call.messages)) if part)
    most = call.n * (call.max_tokens or _MOST_TOKENS)
    return _CallRequest((Message("user", text),), max_tokens=most, call=call)


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


def _reply(choice: Any) -> Reply:
    calls = tuple(
        FunctionCall(str(asked.id), asked.function.name or "", _arguments(asked.function.arguments))
        for asked in choice.message.tool_calls or ()
    )
    return Reply(
        text=choice.message.content or "",
        finish_reason=_ENDINGS.get(choice.finish_reason, "stop"),
        prompt_tokens=0,
        token_ids=(),
        tool_calls=calls,
    )


def _arguments(text: str) -> dict[str, Any]:
    read = arguments_of(text or "{}")
    return read if isinstance(read, dict) else {"arguments": text}
