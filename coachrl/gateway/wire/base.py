"""What the wire formats have in common: bodies are read strictly, and texts are sent in pieces.

A field that would change the reply in a way that is not given here is refused; one that is known to nobody is ignored,
as clients send ever new hints.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coachrl.gateway.calls import BadRequest, Call, CallError, NotGiven, Piece, Reply, ToolChoice
from coachrl.parsing import check_few_values, count_values, parse_json
from coachrl.text import nearest, one_line

MOST_VALUES = 100_000
"""Of the JSON in a body: thousands of messages with their calls. While they are read, the event loop stands still."""
MOST_REPLIES = 128  # of one call, as OpenAI has it
MOST_STOPS, MOST_STOP_CHARS = 64, 1000  # the end of a reply that is sent as it grows is held against each of them
MOST_TOKENS = 2**31 - 1  # of a reply: no model writes so many, and no engine counts further
_NAMED_CHARS, _NAMED_STEP = 2000, 4  # of a URL; the rest may be a picture
_SETTINGS = ("type", "detail", "format", "media_type")  # of a picture: words that anybody says
PIECE = 24  # characters, about: what is sent at a time of a reply that is there as a whole

_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TOOL_TYPE = re.compile(r"tools\[\d+\]\.type")  # of a provider's own tool
_STEP = re.compile(r"[.\[]")  # into a place, as of messages[0].content
_SHOULD_BE = "Input should be "
_WORDS = re.compile(rf"\s*\S{{1,{PIECE}}}|\s+")


class Exchange(Protocol):
    """One request that was read, and how its answer is written."""

    @property
    def call(self) -> Call: ...

    def body(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The whole answer."""
        ...

    def more(self, piece: Piece) -> Iterator[str]:
        """What a reply goes on with, as server-sent events."""
        ...

    def rest(self, replies: Sequence[Reply]) -> Iterator[str]:
        """All that was not sent yet: the whole answer where no piece came."""
        ...


@dataclass(frozen=True)
class Wire:
    """A provider's way to write: how a request is read, which raises BadRequest, and how an error looks."""

    read: Callable[[Any], Exchange]
    error: Callable[[CallError], dict[str, Any]]


Item = TypeVar("Item")
Each = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first wrong item ends its reading: a body may hold a million of them, and the event loop would stand
still for all."""


class Part(BaseModel):
    """A part of a request's body. Types are taken at their word: "3" is no number."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Block(Part):
    """A piece of a message's content. What else stands in it is kept: a picture's URL may be an agent's."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class Function(Part):
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CommonFields(Part):
    """The fields that every format has: who is asked, and how replies are sampled."""

    model: str = Field(min_length=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stream: bool | None = None


Content = str | Each[Block] | None
Read = TypeVar("Read", bound=Part)


def read_part(kind: type[Read], body: Any) -> Read:
    """`body` as a part of this kind. Raises BadRequest that names the first field that is wrong."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        place, what = _wrong(error)
        kind_ = NotGiven if _TOOL_TYPE.fullmatch(place) else BadRequest
        raise kind_(f"{place}: {one_line(what)}", place) from None


def _wrong(error: ValidationError) -> tuple[str, str]:
    """A field, and what is wrong with it. Of one that may be several things, pydantic says of each why it is not that:
    what it was meant to be, it is to its deepest place."""
    found: dict[str, list[str]] = {}
    for wrong in error.errors(include_url=False, include_context=False, include_input=False):
        what = f"{_SHOULD_BE}an object" if wrong["type"] == "model_type" else wrong["msg"]
        found.setdefault(_place(wrong["loc"]), []).append(what)
    deepest = max(found, key=lambda place: len(_STEP.findall(place)))
    first, *others = found[deepest]
    return deepest, " or ".join([first, *(other.removeprefix(_SHOULD_BE) for other in others)])


def _place(location: Sequence[str | int]) -> str:
    """A field as OpenAI names it: messages[0].content. What pydantic says of a union's members is left out."""
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        elif re.fullmatch(r"[a-z_]+", part) and part not in ("str", "bool", "dict", "list"):
            place += f".{part}" if place else part
    return one_line(place)


def refuse(field: str, why: str) -> BadRequest:
    return BadRequest(f"{field}: {why}", field)


def not_given(field: str, why: str, written: Sequence[str] = ()) -> NotGiven:
    return NotGiven(f"{field}: {why}", field, written)


def refuse_fields(body: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises BadRequest for a field that asks for what is not given here. refused: field -> the values besides null
    that ask for nothing."""
    for field, harmless in refused.items():
        value = body.get(field)
        if value is not None and value not in harmless:
            raise not_given(field, "this is not supported here; leave it out")


def text_of(content: Content, field: str, is_apps: bool = False) -> str:
    """The text of a message. Its parts are set apart by a line end, as other servers of open models do. is_apps:
    whether no reply stands before it, or in it, so that other parts are no answer to one. Raises BadRequest for images,
    sound and files."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for block in content:
        text = block.text if block.text is not None else block.refusal
        if text is None or block.type not in ("text", "input_text", "output_text", "refusal"):
            why = f"a part of type {one_line(block.type)!r} cannot be read here: text alone is"
            raise not_given(field, why, [*_named_in(block.model_extra)]) if is_apps else refuse(field, why)
        texts.append(text)
    return "\n".join(texts)


def first_of(kinds: Iterable[str], looked_for: Sequence[str]) -> int:
    """The place of the first that is one of these, or the end."""
    place = -1
    for place, kind in enumerate(kinds):
        if kind in looked_for:
            return place
    return place + 1


def _named_in(value: Any) -> Iterator[str]:
    """The texts in a part of a body, and the steps of those that are URLs or paths."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield from (step for step in value[:_NAMED_CHARS].split("/") if len(step) >= _NAMED_STEP)
        elif isinstance(value, Mapping):
            waiting += [part for key, part in value.items() if key not in _SETTINGS]
        elif isinstance(value, list):
            waiting += value


def function_schema(function: Function, field: str) -> dict[str, Any]:
    """A function as chat templates take it. Raises BadRequest for a name that no reply could be read with."""
    if not _FUNCTION_NAME.fullmatch(function.name):
        raise refuse(field, "the name of a function has letters, digits, '_', '.' and '-', 128 at most")
    parameters = function.parameters or {"type": "object", "properties": {}}
    if not is_json(parameters):
        raise refuse(field, "NaN and Infinity are no JSON")
    named = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": named}


def is_json(value: Any) -> bool:
    """Whether what Python read as JSON is some: it takes NaN, and 1e999 for Infinity, which no client does."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def asked_function(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    """A function that an earlier reply asked for, as chat templates take it."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def check_arguments(texts: Iterable[str]) -> None:
    """Raises BadRequest where the arguments of earlier calls hold more values, all together, than a body may: in that
    they are texts, into which nobody has looked."""
    left = MOST_VALUES
    for text in texts:
        left -= count_values(text.encode(), left)
        if left < 0:
            raise BadRequest(f"arguments of functions hold more than {MOST_VALUES:,} values, the most that are read")


def arguments_of(text: str) -> Any:
    """The arguments of an earlier call: an object, or the text as it is where somebody wrote something else, or more
    than is read."""
    try:
        check_few_values(text.encode("utf-8", "replace"), MOST_VALUES, "arguments", BadRequest)
        arguments = parse_json(text, "arguments", BadRequest)
    except BadRequest:
        return text
    return arguments if isinstance(arguments, dict) and is_json(arguments) else text


def check_stops(stops: Sequence[str], field: str) -> tuple[str, ...]:
    """Raises BadRequest."""
    if len(stops) > MOST_STOPS or not all(0 < len(stop) <= MOST_STOP_CHARS for stop in stops):
        raise refuse(field, f"at most {MOST_STOPS} texts, none of them empty or of over {MOST_STOP_CHARS:,} characters")
    return tuple(stops)


def call_of(
    given: CommonFields,
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice,
    named: str | None,
    **fields: Any,
) -> Call:
    """The call that a body asks for. named: the one tool that must be called. fields: what not every format has.

    Raises BadRequest where a tool must be called, and there is none, or none of that name."""
    names = [str(tool["function"]["name"]) for tool in tools]
    if named is not None and named not in names:
        raise refuse("tool_choice", f"no tool is called {one_line(named)!r}{nearest(named, names)}")
    if choice == "required" and not tools:
        raise refuse("tool_choice", "a tool is required, and there are no tools")
    return Call(
        role=given.model,
        messages=tuple(messages),
        tools=tuple(tools),
        tool_choice=choice,
        tool_name=named or "",
        temperature=given.temperature,
        top_p=given.top_p,
        stream=bool(given.stream),
        **fields,
    )


def rest_of(text: str, sent: str) -> str:
    """What of a reply's text was not sent yet. Nothing where it begins otherwise, as after thinking that a model closed
    without having opened it: what was sent cannot be taken back."""
    return text[len(sent) :] if text.startswith(sent) else ""


def pieces(text: str) -> list[str]:
    """The text in pieces of a word, or a part of a long one; joined they are the text."""
    return _WORDS.findall(text)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def unique(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def event(data: Any, name: str = "") -> str:
    """A server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def token_logprobs(reply: Reply, no_bytes: list[int] | None) -> list[dict[str, Any]]:
    """The log-probability of each token, as both of OpenAI's endpoints have it. no_bytes: what stands for the bytes of
    a token that holds a part of a character alone; they are not known from its text."""
    tokens = []
    for text, logprob in zip(reply.token_texts, reply.logprobs, strict=True):
        bytes_ = no_bytes if "\ufffd" in text else list(text.encode())
        tokens.append({"token": text, "logprob": logprob, "bytes": bytes_, "top_logprobs": []})
    return tokens


def openai_error(error: CallError) -> dict[str, Any]:
    """An error's body as both of OpenAI's endpoints have it."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}}
