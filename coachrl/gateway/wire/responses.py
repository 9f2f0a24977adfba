"""OpenAI's responses: `POST /v1/responses`. Nothing is stored: a conversation is sent whole with each request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field

from coachrl.gateway.calls import Call, Piece, Reply, ToolChoice
from coachrl.gateway.wire import base
from coachrl.gateway.wire.base import Block, CommonFields, Content, Each, Function, Part

_REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "top_logprobs": (0,),
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_Event = tuple[str, dict[str, Any]]
"""Its type, and its fields."""
_MOST_METADATA = 16  # as OpenAI has it
_STORED = "nothing is stored here: send the whole conversation as `input`"


class _Item(Part):
    """A message, or a call of a function, or its result; a message may lack its type."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Each[Block] | None = None


class _Tool(Function):
    name: str = ""
    type: str


class _NamedTool(Part):
    type: Literal["function"]
    name: str


class _Format(Part):
    type: str


class _Text(Part):
    format: _Format | None = None


class _Body(CommonFields):
    input: str | Each[_Item]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=base.MOST_TOKENS)
    previous_response_id: str | None = None
    include: Each[str] | None = None
    tools: Each[_Tool] | None = None
    tool_choice: ToolChoice | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    metadata: dict[str, Any] | None = Field(None, max_length=_MOST_METADATA)


def read(body: Any) -> ResponsesExchange:
    """Raises BadRequest."""
    given = base.read_part(_Body, body)
    base.refuse_fields(body, _REFUSED)
    if given.previous_response_id is not None:
        raise base.not_given("previous_response_id", _STORED)
    if not all(isinstance(value, str) for value in (given.metadata or {}).values()):
        raise base.refuse("metadata", "its values should be texts")
    if given.text is not None and given.text.format is not None and given.text.format.type != "text":
        raise base.not_given("text.format", "replies are not held to a form here; leave it out")
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given.tools or ()))
    choice = given.tool_choice or "auto"
    call = base.call_of(
        given,
        _messages(given),
        tools,
        choice="required" if isinstance(choice, _NamedTool) else choice,
        named=choice.name if isinstance(choice, _NamedTool) else None,
        parallel_tool_calls=given.parallel_tool_calls is not False,
        max_tokens=given.max_output_tokens,
        logprobs="message.output_text.logprobs" in (given.include or ()),
    )
    return ResponsesExchange(call, given.instructions, given.metadata or {})


def _tool(tool: _Tool, field: str) -> dict[str, Any]:
    if tool.type != "function":
        raise base.not_given(f"{field}.type", "the provider's own tools are not here: give functions of the app")
    return base.function_schema(tool, f"{field}.name")


def _messages(body: _Body) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = [_Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    base.check_arguments(item.arguments or "" for item in items)
    first_reply = base.first_of((_kind(item) for item in items), ("assistant", "function_call", "function_call_output"))
    for place, item in enumerate(items):
        _add(messages, item, f"input[{place}]", is_apps=place < first_reply)
    if not messages or not items:  # nothing, or reasoning alone
        raise base.refuse("input", "there is nothing in it")
    return messages


def _kind(item: _Item) -> str:
    return item.role or item.type


def _add(messages: list[dict[str, Any]], item: _Item, field: str, is_apps: bool) -> None:
    """Add an item to the conversation. Functions that one reply asked for are items of their own here, and one message
    in a chat template."""
    match item.type:
        case "message" if item.role is not None:
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": base.text_of(item.content, f"{field}.content", is_apps)})
        case "function_call" if item.call_id and item.name and item.arguments is not None:
            asked = base.asked_function(item.call_id, item.name, base.arguments_of(item.arguments))
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(asked)
        case "function_call_output" if item.call_id:
            text = base.text_of(item.output, f"{field}.output")
            messages.append({"role": "tool", "content": text, "tool_call_id": item.call_id})
        case "reasoning":
            pass  # as the provider leaves that of earlier turns out
        case "item_reference":
            raise base.not_given(field, _STORED)
        case "message" | "function_call" | "function_call_output":
            raise base.refuse(field, f"a field of this {item.type} is missing")
        case _:
            raise base.refuse(f"{field}.type", "items are messages, function_call and function_call_output")


@dataclass(frozen=True)
class ResponsesExchange:
    """A response, which has one reply: an item for its text, and one for each function that it asks for.

    sent: the pieces of the text that went out already. numbers: of the events."""

    call: Call
    instructions: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: base.unique("resp_"))
    created: int = field(default_factory=lambda: int(time.time()))
    message_id: str = field(default_factory=lambda: base.unique("msg_"))
    sent: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def body(self, replies: Sequence[Reply]) -> dict[str, Any]:
        [reply] = replies
        return self._ended(reply, self._items(reply))

    def more(self, piece: Piece) -> Iterator[str]:
        if not self.sent:
            yield from self._numbered(self._opening())
            yield from self._numbered(_opened_message(0, self._message("", "in_progress", [])))
        self.sent.append(piece.text)
        yield from self._numbered([_text_delta(0, self.message_id, piece.text)])

    def rest(self, replies: Sequence[Reply]) -> Iterator[str]:
        [reply] = replies
        sent = "".join(self.sent)
        if not sent:
            yield from self._numbered(self._opening())
        items = self._items(replace(reply, text=reply.text or sent))
        for index, item in enumerate(items):
            yield from self._numbered(_item_events(index, item, sent if index == 0 else ""))
        ended = self._ended(reply, items)
        yield from self._numbered([(f"response.{ended['status']}", {"response": ended})])

    def _numbered(self, events: Iterable[_Event]) -> Iterator[str]:
        for kind, fields in events:
            yield base.event({"type": kind, "sequence_number": next(self.numbers), **fields}, kind)

    def _opening(self) -> Iterator[_Event]:
        opened = {**self._head(), "status": "in_progress", "output": [], "usage": None}
        yield "response.created", {"response": opened}
        yield "response.in_progress", {"response": opened}

    def _ended(self, reply: Reply, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        incomplete = _INCOMPLETE.get(reply.finish_reason)
        return {
            **self._head(),
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "output": list(items),
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": reply.written_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.written_tokens,
            },
        }

    def _head(self) -> dict[str, Any]:
        call = self.call
        named = {"type": "function", "name": call.tool_name} if call.tool_name else call.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": call.role,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "metadata": dict(self.metadata),
            "parallel_tool_calls": call.parallel_tool_calls,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "max_output_tokens": call.max_tokens,
            "previous_response_id": None,
            "tool_choice": named,
            "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in call.tools],
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
        }

    def _items(self, reply: Reply) -> list[dict[str, Any]]:
        status = "incomplete" if reply.finish_reason in _INCOMPLETE else "completed"
        items: list[dict[str, Any]] = []
        if reply.text or not reply.tool_calls:
            logprobs = base.token_logprobs(reply, []) if self.call.logprobs else []
            items.append(self._message(reply.text, status, logprobs))
        for asked in reply.tool_calls:
            written = {"call_id": asked.id, "name": asked.name, "arguments": base.arguments_text(asked.arguments)}
            items.append({"type": "function_call", "id": base.unique("fc_"), **written, "status": status})
        return items

    def _message(self, text: str, status: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        head = {"type": "message", "id": self.message_id, "role": "assistant"}
        return {**head, "status": status, "content": [part]}


def _item_events(index: int, item: dict[str, Any], sent: str) -> Iterator[_Event]:
    """The events of an item, less what was `sent` of its text."""
    if item["type"] == "message":
        part = item["content"][0]
        if not sent:
            yield from _opened_message(index, item)
        for piece in base.pieces(base.rest_of(part["text"], sent)):
            yield _text_delta(index, item["id"], piece)
        where = {"output_index": index, "item_id": item["id"], "content_index": 0}
        yield "response.output_text.done", {**where, "text": part["text"], "logprobs": part["logprobs"]}
        yield "response.content_part.done", {**where, "part": part}
    else:
        yield _added(index, {**item, "arguments": ""})
        where = {"output_index": index, "item_id": item["id"]}
        for piece in base.pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**where, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", {**where, **done}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _added(index: int, item: dict[str, Any]) -> _Event:
    return "response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress"}}


def _opened_message(index: int, item: dict[str, Any]) -> Iterator[_Event]:
    yield _added(index, {**item, "content": []})
    part = {**item["content"][0], "text": "", "logprobs": []}
    yield (
        "response.content_part.added",
        {"output_index": index, "item_id": item["id"], "content_index": 0, "part": part},
    )


def _text_delta(index: int, item_id: str, text: str) -> _Event:
    where = {"output_index": index, "item_id": item_id, "content_index": 0}
    return "response.output_text.delta", {**where, "delta": text, "logprobs": []}
