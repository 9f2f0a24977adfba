"""What a provider says that a call took, where that can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coachrl.coach.clients.base import Reply

_MOST_TOKENS = 10**9


def with_usage(reply: Reply, tokens_in: Any, tokens_out: Any, thinking: Any, cached: Any) -> Reply:
    """`reply` with what the provider says it took. A prompt of no tokens, or text of none, is nobody's usage: some
    libraries put zeros where the provider said nothing."""
    prompt_tokens = _count(tokens_in)
    reply_tokens = _count(tokens_out)
    if not prompt_tokens or reply_tokens is None or (reply.said and not reply_tokens):
        return replace(reply, usage_known=False)
    usage = replace(
        reply.usage,
        tokens_in=prompt_tokens,
        tokens_out=reply_tokens,
        tokens_thinking=min(reply_tokens, _count(thinking) or 0),
        tokens_cached=min(prompt_tokens, _count(cached) or 0),
    )
    return replace(reply, usage=usage)


def _count(value: Any) -> int | None:
    """A number of tokens, or None where `value` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS else None  # NaN fails this too
