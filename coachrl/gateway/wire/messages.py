"""Anthropic's messages: `POST /v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field

from coachrl.gateway.calls import BadRequest, Call, CallError, Piece, Reply, ToolChoice
from coachrl.gateway.wire import base
from coachrl.gateway.wire.base import Block, CommonFields, Each, Function, Part

_REFUSED: dict[str, tuple[Any, ...]] = {"top_k": (), "container": (), "mcp_servers": ([],), "output_format": ()}
_STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CHOICE: dict[str, ToolChoice] = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
_KIND = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}


class _Block(Block):
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    content: str | Each[Block] | None = None


class _Message(Part):
    role: Literal["user", "assistant", "system"]
    content: str | Each[_Block]


class _Tool(Function):
    parameters: dict[str, Any] | None = Field(None, alias="input_schema")
    type: str | None = None


class _Choice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _OutputConfig(Part):
    format: Any = None


class _Body(CommonFields):
    max_tokens: int = Field(ge=1, le=base.MOST_TOKENS)
    messages: Each[_Message] = Field(min_length=1)
    system: str | Each[Block] | None = None
    stop_sequences: Each[str] | None = None
    tools: Each[_Tool] | None = None
    tool_choice: _Choice | None = None
    output_config: _OutputConfig | None = None


def error(error: CallError) -> dict[str, Any]:
    """An error's body in Anthropic's form."""
    return {"type": "error", "error": {"type": _KIND.get(error.status, "api_error"), "message": str(error)}}


def read(body: Any) -> MessagesExchange:
    """Raises BadRequest."""
    given = base.read_part(_Body, body)
    base.refuse_fields(body, _REFUSED)
    if given.output_config is not None and given.output_config.format is not None:
        raise base.not_given("output_config.format", "replies are not held to a form here; leave it out")
    if given.messages[-1].role == "assistant":
        raise base.refuse(
            "messages", "the last one is the assistant's: a reply that was begun is not gone on with here"
        )
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(given.tools or ()))
    choice = given.tool_choice or _Choice(type="auto")
    if choice.type == "tool" and choice.name is None:
        raise base.refuse("tool_choice.name", "say which tool")
    system = base.text_of(given.system, "system", is_apps=True)
    messages = [{"role": "system", "content": system}] if system else []
    first_reply = base.first_of((message.role for message in given.messages), ("assistant",))
    for place, message in enumerate(given.messages):
        messages += _messages(message, f"messages[{place}].content", is_apps=place < first_reply)
    call = base.call_of(
        given,
        messages,
        tools,
        choice=_CHOICE[choice.type],
        named=choice.name if choice.type == "tool" else None,
        parallel_tool_calls=choice.disable_parallel_tool_use is not True,
        stop=base.check_stops(given.stop_sequences or (), "stop_sequences"),
        max_tokens=given.max_tokens,
    )
    return MessagesExchange(call)


def _tool(tool: _Tool, field: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise base.not_given(f"{field}.type", "the provider's own tools are not here: give functions of the app")
    return base.function_schema(tool, f"{field}.name")


def _messages(message: _Message, field: str, is_apps: bool) -> list[dict[str, Any]]:
    """A message as chat templates take it: results of tools are messages of their own, before the text that came with
    them. Thinking is left out, as the provider leaves that of earlier turns out."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    texts: list[Block] = []
    asked: list[dict[str, Any]] = []
    for block in message.content:
        match block.type:
            case "tool_result" if message.role == "user":
                text = base.text_of(block.content, f"{field}.content")
                results.append({"role": "tool", "content": text, "tool_call_id": block.tool_use_id})
            case "tool_use" if message.role == "assistant":
                asked.append(base.asked_function(block.id, block.name, block.input))
            case "thinking" | "redacted_thinking":
                pass
            case _:
                texts.append(block)
    if not texts and not asked:
        if not results:
            raise BadRequest(f"{field}: there is nothing in it", field)
        return results
    found = {"role": message.role, "content": base.text_of(texts, field, is_apps and not results)}
    return [*results, {**found, "tool_calls": asked} if asked else found]


@dataclass(frozen=True)
class MessagesExchange:
    """A message, which has one reply. sent: the pieces of its text that went out already."""

    call: Call
    id: str = field(default_factory=lambda: base.unique("msg_"))
    sent: list[str] = field(default_factory=list)

    def body(self, replies: Sequence[Reply]) -> dict[str, Any]:
        [reply] = replies
        return {**self._head(), "content": _blocks(reply), **_ending(reply), "usage": _usage(reply)}

    def more(self, piece: Piece) -> Iterator[str]:
        if not self.sent:
            yield self._start(piece.prompt_tokens)
            yield _event("content_block_start", index=0, content_block=_text_block(""))
        self.sent.append(piece.text)
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece.text})

    def rest(self, replies: Sequence[Reply]) -> Iterator[str]:
        [reply] = replies
        sent = "".join(self.sent)
        if not sent:
            yield self._start(reply.prompt_tokens)
        blocks = _blocks(replace(reply, text=reply.text or sent))
        for index, block in enumerate(blocks):
            yield from _block_events(index, block, sent if index == 0 else "")
        yield _event("message_delta", delta=_ending(reply), usage=_usage(reply))
        yield _event("message_stop")

    def _start(self, prompt_tokens: int) -> str:
        opened: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        return _event("message_start", message={**self._head(), **opened, "usage": usage})

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.call.role}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    asked = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in reply.tool_calls
    ]
    return [*([_text_block(reply.text)] if reply.text else []), *asked]


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _block_events(index: int, block: dict[str, Any], sent: str) -> Iterator[str]:
    """The events of a block, less what was `sent` of its text."""
    if block["type"] == "text":
        opened, kind, key, whole = {**block, "text": ""}, "text_delta", "text", base.rest_of(block["text"], sent)
    else:
        whole = base.arguments_text(block["input"])
        opened, kind, key = {**block, "input": {}}, "input_json_delta", "partial_json"
    if not sent:
        yield _event("content_block_start", index=index, content_block=opened)
    for piece in base.pieces(whole):
        yield _event("content_block_delta", index=index, delta={"type": kind, key: piece})
    yield _event("content_block_stop", index=index)


def _ending(reply: Reply) -> dict[str, Any]:
    reason = "stop_sequence" if reply.stop_text is not None else _STOP_REASON[reply.finish_reason]
    return {"stop_reason": reason, "stop_sequence": reply.stop_text}


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.written_tokens}


def _event(kind: str, **fields: Any) -> str:
    return base.event({"type": kind, **fields}, kind)
