"""What a chat client is: one `ChatRequest` in, one `Reply` out, or an exception that says whether to try again.

`exchange` makes clients: retries, limits, budget and cache around a provider (`providers`). Keys come from the
environment, and stand in no message.
"""

from __future__ import annotations

import email.utils
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from coachrl.coach.ledger import Message
from coachrl.errors import CoachError, CoachUnavailable

_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SHOWN_CHARS = 300
_NOISE = re.compile(r" ssl:(?:<[^>]*>|\w+)")  # aiohttp's, after an address


class TransientCoachError(CoachError):
    """A call that may go well when it is made again.

    retry_after_s: how long the provider asked to wait, if it did. answered: False where no HTTP status came back (a
    time-out, a cut connection), so that nobody knows whether the call was billed. throttled: the provider asked for
    fewer calls (`is_throttle`).
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
