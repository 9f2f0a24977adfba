"""What a chat client is: one `ChatRequest` in, one `Reply` out, or an exception that says whether to try again.

`retrying.ChatClientFactory` makes clients: retries, limits, budget and cache around a `Provider`, of which there is one
class for each library that reaches models. Keys come from the environment, and stand in no message.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from coachrl.coach.clients.ledger import FunctionCall, Message
from coachrl.coach.clients.secrets import keyless, without_secrets
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.parsing import is_number
from coachrl.resources import allow_open_files, ask_this_machine_directly
from coachrl.text import brief
from coachrl.types import ONE_ATTEMPT, Usage

log = logging.getLogger(__name__)

UNSEEN_TOKENS = 131_072
"""What a provider may add on its own: a prompt before ours, thoughts beyond the limit."""
_AROUND_A_MESSAGE = 32  # tokens
_LONGEST_ASKED_S = 86_400.0
_RETRY_STATUS = frozenset({408, 409, 425, 429})
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What an answer raises, while it is read, that is not what it should be."""
_ENDINGS = {
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("refusal", "safety", "content_filtered", "blocked"), "content_filter"),
}
BROKEN_ENDINGS = frozenset({"abort", "error", "network_error", "malformed_response", "other"})
"""Words of providers (vLLM, SGLang, OpenRouter, Gemini) for a reply that something broke off: "PROCESS_SCORE: 1" may
have been going to be a 10. "other" is Gemini's for a reason that it does not know."""
_NO_MONEY = re.compile(r"insufficient_quota|billing_hard_limit|billing_not_active|credit balance is too low")


class TransientCoachError(CoachError):
    """A call that may go well when it is made again.

    retry_after_s: how long the provider asked to wait, if it did. answered: False where nobody knows whether the call
    was billed: no HTTP status came back (a time-out, a cut connection), or an answer that cannot be read. Where no
    connection was made, it was not.
    throttled: the provider asked for fewer calls (`is_throttle`). took: tokens of a reply that broke off, where the
    provider told them.
    """

    took: Usage | None = None

    def __init__(
        self, message: str, retry_after_s: float | None = None, answered: bool = True, throttled: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.answered = answered
        self.throttled = throttled


class StreamBroken(CoachError):
    """A reply that broke off when its beginning had been passed on: it may be billed, and is not asked for again."""


class CoachUnreachable(CoachUnavailable):
    """The provider did not answer as it should before the first rollout (no connection, time-out, 5xx). Unlike a wrong
    key or an unknown model, this may pass."""


@dataclass(frozen=True)
class Function:
    """A function that a model may ask for. parameters: JSON schema of its arguments. open: False where the conversation
    has calls of it and the model may make no further one."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    open: bool = True


@dataclass(frozen=True)
class ChatRequest:
    """One request to a model.

    max_tokens: of the reply, thinking included. schema: JSON schema of the reply, for clients that are `structured`.
    repeat: tells deliberate repeats of one request apart, which the cache would otherwise answer with one reply.
    prompt_hash: of the prompt file, for the ledger. function: for clients that call functions. instead_of: the member
    of an ensemble that another model stands in for: where two of them fall back to one model, it is asked twice.
    """

    messages: tuple[Message, ...]
    temperature: float = 0.0
    max_tokens: int = 8192
    schema: Mapping[str, Any] | None = None
    repeat: int = 0
    prompt_hash: str = ""
    function: Function | None = None
    instead_of: str = ""

    @property
    def most_tokens_in(self) -> int:
        """As how many tokens a model can read what is written here: a token holds a byte or more."""
        said = (self.schema, self.function, *(message.native or message.content for message in self.messages))
        size = sum(len(str(data).encode("utf-8", "replace")) for data in said if data)
        return size + len(self.messages) * _AROUND_A_MESSAGE


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    model: the one that answered. usage: what the call took; of a reply from the cache what it took then. usage_known:
    False where the provider did not say how many tokens it took, or named what cannot be. finish_reason: "stop",
    "length" (the limit was reached), "content_filter" (blocked), or the provider's own word; detail: what it said
    besides. fallbacks: models that failed before this one. calls: the functions that it asks for; native:
    such a reply in the provider's own form, which the next request holds.
    """

    text: str
    model: str
    usage: Usage = ONE_ATTEMPT
    usage_known: bool = True
    finish_reason: str = "stop"
    detail: str = ""
    fallbacks: int = 0
    calls: tuple[FunctionCall, ...] = ()
    native: Mapping[str, Any] | None = None

    @property
    def said(self) -> str:
        """The text, and the functions that it asks for in words."""
        return "\n\n".join(filter(None, (self.text, *(f"{call.name}({call.arguments})" for call in self.calls))))

    @property
    def from_cache(self) -> bool:
        """Whether the reply was made, and paid for, earlier."""
        return self.usage.calls_from_cache > 0


ReplyType = TypeVar("ReplyType", bound=Reply)


class ChatClient(Protocol):
    """What a coach asks: one model or a chain of them."""

    model: str

    @property
    def structured(self) -> bool:
        """Whether it can be held to a JSON schema."""
        ...

    @property
    def calls_functions(self) -> bool:
        """Whether it takes `ChatRequest.function`."""
        ...

    def ask_in_plain_words(self, model: str) -> None:
        """`model`, one of the chain, answered nothing where it was held to a schema, and well where it was not. From
        now on it is not, unless it has answered something there more often: an agent may have brought that about."""
        ...

    async def complete(self, request: ChatRequest) -> Reply:
        """Raises CoachUnavailable where no call can go well (key, model, parameters), TransientCoachError where a later
        one may, CoachError where this very request is refused, BudgetExceeded where there is no money left for it."""
        ...

    async def check(self, request: ChatRequest) -> None:
        """A call past any cache, given up after seconds. Raises CoachUnavailable where it shows that no call can go
        well, and of these CoachUnreachable where a later one may."""
        ...

    async def close(self) -> None: ...


class Provider(ABC):
    """One model at one provider, asked without retries: what is the same whichever library reaches it.

    structured: it can be held to a JSON schema. calls_functions: it takes `ChatRequest.function`. options: what, beside
    the request, a reply depends on.
    """

    structured: bool
    calls_functions: bool
    options: Mapping[str, Any]

    def __init__(self, model: str, api_base: str | None, settings: CoachConfig) -> None:
        """Raises CoachUnavailable for a missing key or package, and for settings that the model does not take."""
        import httpcore  # noqa: F401  for `_reached_nobody`: out of open files it would be too late to load it

        ask_this_machine_directly()
        allow_open_files()  # a call in flight holds one
        self.model = model
        self.api_base = api_base
        self.settings = settings
        self._doubted = False
        self.has_answered = False

    async def complete(self, request: ChatRequest) -> Reply:
        """One call; its price is left open. Raises what `ChatClient.complete` raises for a provider's doing."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                answer = await self._answer(request)
        except CoachError:
            raise
        except TimeoutError:
            raise self._broken_off(f"no answer within {self.settings.timeout_s:g} s") from None
        except Exception as error:  # the boundary to the library: what it does not explain is raised as it is
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from None
        try:
            reply = keyless(self._read(answer, request))
        except UNREADABLE as error:
            raise self._unreadable(error) from None
        usage = replace(reply.usage, latency_s=time.monotonic() - began)
        if reply.finish_reason in BROKEN_ENDINGS:
            broken = self._broken_off(f"the reply broke off: '{reply.finish_reason}'")
            broken.took = usage if reply.usage_known else None
            raise broken
        self.has_answered = True
        return replace(reply, usage=usage)

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def _answer(self, request: ChatRequest) -> Any:
        """What the library returns."""

    @abstractmethod
    def _read(self, answer: Any, request: ChatRequest) -> Reply:
        """The reply in what the library returned. Raises any of `UNREADABLE` for an answer that is none."""

    def _counted(
        self, reply: ReplyType, request: ChatRequest, tokens_in: Any, tokens_out: Any, thinking: Any, cached: Any
    ) -> ReplyType:
        """`reply` with what the provider says that it took. What cannot be is said once."""
        most_in, most_out = request.most_tokens_in + UNSEEN_TOKENS, request.max_tokens + UNSEEN_TOKENS
        counted = with_usage(reply, tokens_in, tokens_out, thinking, cached, most_in, most_out)
        if not counted.usage_known and (tokens_in or tokens_out) and not self._doubted:
            self._doubted = True
            claim = without_secrets(f"{brief(tokens_in)} tokens read and {brief(tokens_out)} written")
            log.warning(
                "%s claims %s, where %d and %d could be at most: such a call counts as the most that it may cost",
                self.model,
                claim,
                most_in,
                most_out,
            )
        return counted

    @abstractmethod
    def _explained(self, error: Exception) -> CoachError | None:
        """The library's exception as one of ours; None where it is not its own."""

    def _broken_off(
        self, said: str, retry_after_s: float | None = None, error: BaseException | None = None
    ) -> TransientCoachError:
        """A call of which nobody knows whether it will be billed, unless `error` says that it reached nobody."""
        return TransientCoachError(f"coach {self.model}: {said}", retry_after_s, answered=_reached_nobody(error))

    def _unreadable(self, error: Exception) -> TransientCoachError:
        return self._broken_off(f"the provider's answer cannot be read: {without_secrets(str(error))}")

    def _refused(
        self, status: int | None, said: str, retry_after_s: float | None, about_the_key: str, passing: bool = False
    ) -> CoachError:
        """What an HTTP status of refusal means. about_the_key: what a refused key is told. passing: this refusal may
        pass, though not every status of its kind does."""
        said = f"coach {self.model}: {said}"
        if status == 402 or (status in (400, 429) and _NO_MONEY.search(said)):
            return CoachUnavailable(f"{said} (the account has no money left: waiting would not help)")
        if status == 403 and self.has_answered:  # a filter's, of a text that an agent wrote (OpenRouter, firewalls)
            return CoachError(f"{said} (the provider has answered before: this very request is refused)")
        if status in (401, 403):
            return CoachUnavailable(f"{said} ({about_the_key})")
        if status == 404:
            return CoachUnavailable(f"{said} (the provider knows no such model or address{self._where()})")
        if status is not None and 300 <= status < 400:
            return CoachUnavailable(f"{said} (it leads on to another address, which is not asked: name that one)")
        if passing or (status is not None and (status in _RETRY_STATUS or status >= 500)):
            return TransientCoachError(said, retry_after_s, throttled=status is not None and is_throttle(status, said))
        return CoachError(said)

    def _where(self) -> str:
        """Where a server of one's own was asked, if that looks like a mistake."""
        base = (self.api_base or "").rstrip("/")
        if not base or base.endswith("/v1") or not self.model.startswith(("openai/", "hosted_vllm/")):
            return ""
        return f": it was asked under {without_secrets(base)}, and most such addresses end in /v1"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, the first cause last, each once: a library that raises its first error
    again, behind another one that came of it, makes a circle of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _reached_nobody(error: BaseException | None) -> bool:
    """Whether no connection was made, by what the HTTP libraries raise: clients give it names of their own, under which
    a connection that broke goes too."""
    if error is None:
        return False
    import aiohttp
    import httpcore

    unconnected = (aiohttp.ClientConnectorError, httpcore.ConnectError, httpcore.ConnectTimeout)
    return any(isinstance(cause, unconnected) for cause in causes(error))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, None, or OpenAI's list of parts, without thoughts (Mistral has them as
    a part). Raises ValueError for all else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"the content of its message is no text but {type(content).__name__}")
    said = [part for part in content if not (isinstance(part, dict) and part.get("type") == "thinking")]
    parts = [part.get("text") if isinstance(part, dict) else part for part in said]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError("a part of its message holds no text")
    return "".join(texts)


def with_usage(
    reply: ReplyType, tokens_in: Any, tokens_out: Any, thinking: Any, cached: Any, most_in: int, most_out: int
) -> ReplyType:
    """`reply` with what the provider says it took. A prompt of no tokens, or text of none, is nobody's usage: some
    libraries put zeros where the provider said nothing. Nor is more than the call could have taken."""
    prompt_tokens = _count(tokens_in, most_in)
    reply_tokens = _count(tokens_out, most_out)
    if not prompt_tokens or reply_tokens is None or (reply.said and not reply_tokens):
        return replace(reply, usage_known=False)
    usage = replace(
        reply.usage,
        tokens_in=prompt_tokens,
        tokens_out=reply_tokens,
        tokens_thinking=min(reply_tokens, _count(thinking, most_out) or 0),
        tokens_cached=_count(cached, prompt_tokens) or 0,
    )
    return replace(reply, usage=usage)


def _count(value: Any, most: int) -> int | None:
    """A number of tokens, or None where `value` is none."""
    return int(value) if is_number(value) and 0 <= value <= most else None  # NaN fails this too


def ending_of(reason: Any) -> str:
    """`Reply.finish_reason` of a provider's word for it."""
    said = without_secrets(reason).lower() if isinstance(reason, str) else ""
    return _ENDINGS.get(said, said)


def is_throttle(status: int, said: str) -> bool:
    """Whether a provider that answers so takes fewer calls than it is sent: 429, Anthropic's 529, and what says of
    itself that it is overloaded (Gemini with 503)."""
    return status in (429, 529) or (status >= 500 and "overloaded" in said.lower())


def seconds_of_retry_after(value: str, sent: str = "") -> float | None:
    """Seconds of a Retry-After header's value (a number or a date), or None where it is neither, or of more than a day:
    no quota is counted for so long, and all calls would be given up for what is a slip of a unit or of a clock. sent:
    the answer's Date header. The two dates are of one clock, which may be an hour before or behind ours."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(value)
            seconds = (until - (_moment(sent) or datetime.now(UTC))).total_seconds()
        except (ValueError, TypeError, OverflowError):  # the last of a day or a zone of twenty digits
            return None
    return max(0.0, seconds) if seconds <= _LONGEST_ASKED_S else None


def _moment(date: str) -> datetime | None:
    """What an HTTP date says; None where it is none, or names no zone."""
    try:
        moment = email.utils.parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else None
