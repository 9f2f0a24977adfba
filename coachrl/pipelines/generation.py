"""The part of a backend that pipelines see: chat in, token ids and text out. Needs no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from coachrl.types import Generation, Role, SamplingParams

_listener: ContextVar[Callable[[int], None] | None] = ContextVar("token_listener", default=None)
_OPENING_TOKENS = 16  # more than any template's "<think>" and the line ends after it take

Message = Mapping[str, Any]
"""{"role": "user" | "assistant" | "system", "content": text}. Where a template knows tools, an assistant's message may
have "tool_calls", and there are messages of the role "tool"."""


class PolicyTokenizer(Protocol):
    """Chat text to token ids and back, for one policy. Light: it needs no torch."""

    context_length: int
    knows_tools: bool
    """Whether the chat template has a place for tools."""

    def encode_chat(
        self, messages: Sequence[Message], thinking: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Token ids of the conversation, ending where the assistant's next reply begins. tools: schemas of functions
        that it may call, only where the template has a place for them."""
        ...

    def continue_chat(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        messages: Sequence[Message],
        thinking: bool = False,
    ) -> tuple[int, ...]:
        """`prompt_ids`, then `response_ids` exactly as sampled, then `messages` and the opening of the next reply."""
        ...

    def encode_opening(self, text: str) -> tuple[int, ...]:
        """Token ids of what a reply is made to begin with, to stand at the end of its prompt."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        ...


@contextmanager
def listening(heard: Callable[[int], None]) -> Iterator[None]:
    """Inside, who draws a reply token by token tells `heard` each of them at once, in the thread of the event loop.
    Others tell nothing, and what the reply is in the end is the same."""
    token = _listener.set(heard)
    try:
        yield
    finally:
        _listener.reset(token)


def token_listener() -> Callable[[int], None] | None:
    """Who listens to the reply that is asked for here; mostly nobody."""
    return _listener.get()


def reply_text(
    tokenizer: PolicyTokenizer, prompt_ids: Sequence[int], response_ids: Sequence[int], opening: str = ""
) -> str:
    """Text of a reply, with the `<think>` that some chat templates open at the end of the prompt: without it, thinking
    that was cut off could not be told from an answer. opening: what it was made to begin with."""
    begun = "<think>\n" if opens_thinking(tokenizer, prompt_ids) else opening
    return begun + tokenizer.decode(response_ids)


def opens_thinking(tokenizer: PolicyTokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt ends with a `<think>`."""
    return tokenizer.decode(prompt_ids[-_OPENING_TOKENS:]).rstrip().endswith("<think>")


def stopped_at(reply: Generation, tokenizer: PolicyTokenizer, texts: Sequence[str]) -> Generation:
    """`reply` up to the token that completes the first of `texts` in it: what a policy would have drawn that stops
    there. Its log-probabilities stay what they are, since a token's does not depend on those after it."""

    def has_stopped(length: int) -> bool:
        text = tokenizer.decode(reply.token_ids[:length])
        return any(stop in text for stop in texts)

    whole = len(reply.token_ids)
    if not texts or not has_stopped(whole):
        return reply
    length = bisect_left(range(whole), True, key=has_stopped)
    return replace(reply, token_ids=reply.token_ids[:length], logprobs=reply.logprobs[:length], finish_reason="stop")


def opening(role: Role, user_text: str) -> tuple[Message, ...]:
    """What an agent reads at the start of its part: the role's examples in chat form, then `user_text`."""
    messages: list[Message] = []
    for example in role.examples:
        messages.append({"role": "user", "content": example.user})
        messages.append({"role": "assistant", "content": example.assistant})
    return (*messages, {"role": "user", "content": user_text})


class Generator(Protocol):
    """Generates replies for every policy; many calls are in flight at once."""

    def tokenizer(self, policy: str) -> PolicyTokenizer: ...

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit the model's context: nothing is cut."""
        ...
