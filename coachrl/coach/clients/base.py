"""What a chat client is: one `ChatRequest` in, one `Reply` out, or an exception that says whether to try again.

`client_factory` makes clients: retries, limits, budget and cache around a provider (`providers`). Keys come from the
environment, and stand in no message.
"""

from __future__ import annotations

import email.utils
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from coachrl.coach.clients.ledger import Message
from coachrl.errors import CoachError, CoachUnavailable

_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHOWN_CHARS = 300
_MOST_TOKENS = 10**9
_ENDINGS = {
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("refusal", "safety", "content_filtered", "blocked"), "content_filter"),
}
_NOISE = re.compile(r" ssl:(?:<[^>]*>|\w+)")  # aiohttp's, after an address


class TransientCoachError(CoachError):
    """A call that may go well when it is made again.

    retry_after_s: how long the provider asked to wait, if it did. answered: False where nobody knows whether the call
    was billed: no HTTP status came back (a time-out, a cut connection), or an answer that cannot be read.
    throttled: the provider asked for fewer calls (`is_throttle`).
    """

    def __init__(
        self, message: str, retry_after_s: float | None = None, answered: bool = True, throttled: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s, self.answered, self.throttled = retry_after_s, answered, throttled


class CoachUnreachable(CoachUnavailable):
    """The provider did not answer as it should before the first rollout (no connection, time-out, 5xx). Unlike a wrong
    key or an unknown model, this may pass."""


@dataclass(frozen=True)
class ChatRequest:
    """One request to a model.

    max_tokens: of the reply, thinking included. schema: JSON schema of the reply, for clients that are `structured`.
    repeat: tells deliberate repeats of one request apart, which the cache would otherwise answer with one reply.
    prompt_hash: of the prompt file, for the ledger.
    """

    messages: tuple[Message, ...]
    temperature: float = 0.0
    max_tokens: int = 8192
    schema: Mapping[str, Any] | None = None
    repeat: int = 0
    prompt_hash: str = ""


@dataclass(frozen=True)
class Reply:
    """What a model answered. tokens_in includes tokens_cached (what the provider read from its own cache); tokens_out
    includes tokens_thinking. cost_usd None: the price is not known.

    model: the one that answered. finish_reason: "stop", "length" (the limit was reached), "content_filter" (blocked),
    or the provider's own word; detail: what it said besides. fallbacks: models that were asked in vain before this one.
    usage_known: False where the provider did not say, or not in numbers that can be, how many tokens it took.
    from_cache: the reply was paid for earlier; cost and latency are those of then.
    """

    text: str
    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thinking: int = 0
    tokens_cached: int = 0
    cost_usd: float | None = None
    latency_s: float = 0.0
    finish_reason: str = "stop"
    detail: str = ""
    usage_known: bool = True
    fallbacks: int = 0
    from_cache: bool = False


class ChatClient(Protocol):
    """What a coach asks: one model or a chain of them. structured: it can be held to a JSON schema."""

    model: str
    structured: bool

    async def complete(self, request: ChatRequest) -> Reply:
        """Raises CoachUnavailable where no call can go well (key, model, parameters), TransientCoachError where a later
        one may, CoachError where this very request is refused, BudgetExceeded where there is no money left for it."""
        ...

    async def check(self, request: ChatRequest) -> None:
        """A call past any cache, given up after seconds. Raises CoachUnavailable where it shows that no call can go
        well, and of these CoachUnreachable where a later one may."""
        ...

    async def close(self) -> None: ...


def with_usage(reply: Reply, tokens_in: Any, tokens_out: Any, thinking: Any, cached: Any) -> Reply:
    """`reply` with what the provider says it took. A prompt of no tokens, or text of none, is nobody's usage: some
    libraries put zeros where the provider said nothing."""
    into, out = _count(tokens_in), _count(tokens_out)
    if not into or out is None or (reply.text and not out):
        return replace(reply, usage_known=False)
    return replace(
        reply,
        tokens_in=into,
        tokens_out=out,
        tokens_thinking=min(out, _count(thinking) or 0),
        tokens_cached=min(into, _count(cached) or 0),
    )


def _count(value: Any) -> int | None:
    """A number of tokens, or None where `value` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS else None  # NaN fails this too


def text_of(content: Any) -> str:
    """The text of a message's content: a string, None, or OpenAI's list of parts. Raises ValueError for all else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"the content of its message is no text but {type(content).__name__}")
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError("a part of its message holds no text")
    return "".join(texts)


def ending_of(reason: Any) -> str:
    """`Reply.finish_reason` of a provider's word for it."""
    said = reason.lower() if isinstance(reason, str) else ""
    return _ENDINGS.get(said, said)


def is_throttle(status: int, said: str) -> bool:
    """Whether a provider that answers so takes fewer calls than it is sent: 429, Anthropic's 529, and what says of
    itself that it is overloaded (Gemini with 503)."""
    return status in (429, 529) or (status >= 500 and "overloaded" in said.lower())


def seconds_of_retry_after(value: str) -> float | None:
    """Seconds of a Retry-After header's value (a number or a date), or None where it is neither."""
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def without_secrets(text: str) -> str:
    """`text` on one line, cut, with the value of every secret-looking environment variable replaced."""
    for name, value in os.environ.items():
        if len(value) >= 8 and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, f"[{name}]")
    line = " ".join(_NOISE.sub("", text).split())
    return line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "..."
