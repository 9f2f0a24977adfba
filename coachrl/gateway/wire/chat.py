"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from coachrl.gateway.calls import Call, Piece, Reply, ToolChoice
from coachrl.gateway.wire import base
from coachrl.gateway.wire.base import MOST_REPLIES, CommonFields, Content, Each, Function, Part

# Value that asks for nothing, by field.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "top_k": (-1, 0),
    # vLLM's own.
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "echo": (False,),
    "chat_template": (),
    "continue_final_message": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    # SGLang's and llama.cpp's.
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "grammar": ("",),
}


class _AskedFunction(Part):
    name: str
    arguments: str


class _AskedCall(Part):
    id: str
    function: _AskedFunction
    type: Literal["function"] = "function"


class _Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: Each[_AskedCall] | None = None
    tool_call_id: str | None = None


class _Tool(Part):
    type: Literal["function"]
    function: Function


class _NamedTool(Part):
    type: Literal["function"]
    function: Function


class _StreamOptions(Part):
    include_usage: bool | None = None


class _Body(CommonFields):
    messages: Each[_Message] = Field(min_length=1)
    n: int | None = Field(None, ge=1, le=MOST_REPLIES)
    stop: str | Each[str] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1, le=base.MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=base.MOST_TOKENS)
    logprobs: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: Each[_Tool] | None = None
    tool_choice: ToolChoice | _NamedTool | None = None
    parallel_tool_calls: bool | None = None


def read(body: Any) -> ChatExchange:
    """Raises BadRequest."""
    given = base.read_part(_Body, body)
    base.refuse_fields(body, _REFUSED)
    base.check_arguments(asked.function.arguments for message in given.messages for asked in message.tool_calls or ())
    tools = tuple(
        base.function_schema(tool.function, f"tools[{place}].function") for place, tool in enumerate(given.tools or ())
    )
    choice = given.tool_choice or "auto"
    first_reply = base.first_of((message.role for message in given.messages), ("assistant", "tool"))
    call = base.call_of(
        given,
        [
            _message(message, f"messages[{place}]", is_apps=place < first_reply)
            for place, message in enumerate(given.messages)
        ],
        tools,
        choice="required" if isinstance(choice, _NamedTool) else choice,
        named=choice.function.name if isinstance(choice, _NamedTool) else None,
        parallel_tool_calls=given.parallel_tool_calls is not False,
        n=given.n or 1,
        stop=base.check_stops([given.stop] if isinstance(given.stop, str) else given.stop or (), "stop"),
        seed=given.seed,
        max_tokens=given.max_completion_tokens or given.max_tokens,
        logprobs=bool(given.logprobs),
    )
    options = given.stream_options
    return ChatExchange(call, sends_usage=options is not None and options.include_usage is True)


def _message(message: _Message, field: str, is_apps: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    text = base.text_of(message.content, f"{field}.content", is_apps) or message.refusal or ""
    found: dict[str, Any] = {"role": role, "content": text}
    if message.name is not None:
        found["name"] = message.name
    if role == "tool":
        if message.tool_call_id is None:
            raise base.refuse(f"{field}.tool_call_id", "a tool's message must say which call it answers")
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            base.asked_function(asked.id, asked.function.name, base.arguments_of(asked.function.arguments))
            for asked in message.tool_calls
        ]
    return found


@dataclass(frozen=True)
class ChatExchange:
    """A chat completion. sends_usage: whether a stream ends with a count of its tokens. sent: the texts that went out
    already, by the place of their reply."""

    call: Call
    sends_usage: bool = False
    id: str = field(default_factory=lambda: base.unique("chatcmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))
    sent: dict[int, str] = field(default_factory=dict)

    def body(self, replies: Sequence[Reply]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _written_message(reply),
                "finish_reason": reply.finish_reason,
                "logprobs": self._logprobs(reply),
            }
            for index, reply in enumerate(replies)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage(replies)}

    def more(self, piece: Piece) -> Iterator[str]:
        if piece.place not in self.sent:
            yield self._chunk(piece.place, {"role": "assistant", "content": ""})
        self.sent[piece.place] = self.sent.get(piece.place, "") + piece.text
        yield self._chunk(piece.place, {"content": piece.text})

    def rest(self, replies: Sequence[Reply]) -> Iterator[str]:
        for index, reply in enumerate(replies):
            for delta in _deltas(reply, self.sent.get(index)):
                yield self._chunk(index, delta)
            yield self._chunk(index, {}, finish_reason=reply.finish_reason, logprobs=self._logprobs(reply))
        if self.sends_usage:
            yield base.event({**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(replies)})
        yield base.event("[DONE]")

    def _chunk(self, index: int, delta: dict[str, Any], **ended: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **ended}
        usage = {"usage": None} if self.sends_usage else {}  # as OpenAI has it of all chunks but the last
        return base.event({**self._head("chat.completion.chunk"), **usage, "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.call.role}

    def _logprobs(self, reply: Reply) -> dict[str, Any] | None:
        if not self.call.logprobs:
            return None
        return {"content": base.token_logprobs(reply, None), "refusal": None}


def _written_message(reply: Reply) -> dict[str, Any]:
    content = None if reply.tool_calls and not reply.text else reply.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = [
            base.asked_function(asked.id, asked.name, base.arguments_text(asked.arguments))
            for asked in reply.tool_calls
        ]
    return message


def _deltas(reply: Reply, sent: str | None) -> Iterator[dict[str, Any]]:
    """What the chunks of a reply add to its message, one after another. sent: of its text; None before the first."""
    if sent is None:
        yield {"role": "assistant", "content": None if reply.tool_calls and not reply.text else ""}
    for piece in base.pieces(base.rest_of(reply.text, sent or "")):
        yield {"content": piece}
    for place, asked in enumerate(reply.tool_calls):
        yield {"tool_calls": [{"index": place, **base.asked_function(asked.id, asked.name, "")}]}
        for piece in base.pieces(base.arguments_text(asked.arguments)):
            yield {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}


def _usage(replies: Sequence[Reply]) -> dict[str, int]:
    """The prompt counts once, however many replies it has."""
    prompt = replies[0].prompt_tokens
    written = sum(reply.written_tokens for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
