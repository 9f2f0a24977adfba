"""Calls of an app to token ids, and token ids to the replies that it reads.

A conversation that goes on from an earlier reply is read with the very ids that were read and written then, and only
what is new is tokenised. One that the app has rewritten is tokenised afresh: only replies are trained on, and those are
always as they were drawn.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coachrl.errors import ContextOverflow, PolicyError
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, NotGiven, Reply, StopReason
from coachrl.gateway.wire.base import asked_function, is_json
from coachrl.parsing import parse_json
from coachrl.pipelines.generation import Message, PolicyTokenizer, opens_thinking
from coachrl.pipelines.team.tools import OPEN, calls_in, told_of, without_calls
from coachrl.pipelines.team.trajectory import ReadPrompt
from coachrl.text import visible
from coachrl.types import Action

_MOST_REMEMBERED = 10_000
_MOST_REMEMBERED_IDS = 25_000_000  # of all together: 100 MB
_LONG_TOKEN_CHARS = 8  # few texts have as many on an average token


class Conversations:
    """The conversations that were led so far, each with its ids. Past `most` of them, or `most_ids` of all together,
    the oldest are forgotten, and tokenised afresh where they go on after all."""

    def __init__(self, most: int = _MOST_REMEMBERED, most_ids: int = _MOST_REMEMBERED_IDS) -> None:
        self._most, self._most_ids = most, most_ids
        self._known: dict[str, tuple[array[int], array[int]]] = {}
        self._ids = 0  # in `_known`

    def prompt(self, call: Call, tokenizer: PolicyTokenizer, thinking: bool = False) -> ReadPrompt:
        """What the role's model reads. Raises BadRequest where its chat template refuses the conversation, and
        ContextOverflow for one of many times the model's context."""
        _check_length(call, tokenizer)
        is_forced = call.tool_choice == "required"
        thinking = thinking and not is_forced  # a reply that begins with a call has no thinking before it
        known = self._continued(call, tokenizer, thinking)
        ids, new = known or (_encoded(call, tokenizer, thinking), call.messages)
        opening = _opening_of_a_call(call, tokenizer, ids) if is_forced else ""
        return ReadPrompt((*ids, *tokenizer.encode_opening(opening)), text_of(new), call.max_tokens, call.stop, opening)

    def remember(self, call: Call, reply: Reply, prompt_ids: tuple[int, ...]) -> None:
        """Keep the ids of `call` and of one reply to it, for when the app goes on from there."""
        key = _digests(call, (*call.messages, as_message(reply)))[-1]
        self._forget(key)
        self._known[key] = (array("i", prompt_ids), array("i", reply.token_ids))  # a tenth of what tuples take
        self._ids += len(prompt_ids) + len(reply.token_ids)
        while len(self._known) > self._most or self._ids > self._most_ids:
            self._forget(next(iter(self._known)))

    def _forget(self, key: str) -> None:
        if known := self._known.pop(key, None):
            self._ids -= sum(map(len, known))

    def _continued(
        self, call: Call, tokenizer: PolicyTokenizer, thinking: bool
    ) -> tuple[tuple[int, ...], Sequence[Mapping[str, Any]]] | None:
        """Ids that go on from the latest reply that is known, and the messages after that; None where there is none."""
        digests = _digests(call, call.messages)
        for length in range(len(call.messages) - 1, 0, -1):
            if known := self._known.get(digests[length - 1]):
                new = call.messages[length:]
                try:
                    return tokenizer.continue_chat(*known, templated(new, tokenizer), thinking=thinking), new
                except PolicyError:  # what is new begins with what this template takes at no such place
                    break
        return None


def templated(messages: Sequence[Mapping[str, Any]], tokenizer: PolicyTokenizer) -> list[Message]:
    """The messages in the form that the chat template takes. Where it knows no tools, calls and their results stand in
    the text."""
    if tokenizer.knows_tools:
        return list(messages)
    plain: list[Message] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "assistant":
            content = said_in(message)
        if role == "tool":
            role = "user"
            if plain and plain[-1]["role"] == "user":  # results of one reply stand in one message
                content = f"{plain.pop()['content']}\n{content}"
        plain.append({"role": role, "content": content})
    return plain


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a role reads, as people and coaches are shown it."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return str(messages[0]["content"])
    return "\n\n".join(f"[{message['role']}]\n{said_in(message)}" for message in messages)


def said_in(message: Mapping[str, Any]) -> str:
    """What a message says, and the functions that it asks for as models write them."""
    return "\n".join(part for part in (message["content"], *map(_written, message.get("tool_calls", ()))) if part)


def as_message(reply: Reply) -> dict[str, Any]:
    """A reply as the conversation goes on from it."""
    calls = [asked_function(function.id, function.name, function.arguments) for function in reply.tool_calls]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls}


def read_reply(action: Action, call: Call, tokenizer: PolicyTokenizer) -> Reply:
    """What the app is answered. Calls of functions that it did not offer, or that cannot be read, stay text."""
    text, stop_text = before_stop(action.text, call.stop)
    asked = asked_functions(text, call, action)
    ending: StopReason = "tool_calls" if asked else action.finish_reason
    return Reply(
        text=without_calls(text) if asked else visible(text),
        finish_reason=ending,
        prompt_tokens=len(action.prompt_ids),
        token_ids=action.response_ids,
        logprobs=action.logprobs,
        token_texts=tuple(tokenizer.decode([token]) for token in action.response_ids) if call.logprobs else (),
        tool_calls=asked,
        stop_text=stop_text,
    )


def with_own_ids(reply: Reply, given: Counter[str]) -> Reply:
    """An equal reply to an equal call is another one: its functions are told apart, as their results are. given: how
    often each id was made before; it is counted on."""
    own = []
    for function in reply.tool_calls:
        made = function.id
        while given[made]:  # an id that was given may look like one that was made
            given[function.id] += 1
            made = f"{function.id}_{given[function.id]}"
        given[made] += 1
        own.append(replace(function, id=made))
    return replace(reply, tool_calls=tuple(own))


def asked_functions(text: str, call: Call, action: Action) -> tuple[FunctionCall, ...]:
    """The functions that the text of an action asks for: all of its calls, or none where one of them cannot be made."""
    if not offered(call):
        return ()
    names = {tool["function"]["name"] for tool in call.tools}
    found = []
    for place, asked in enumerate(calls_in(text)):
        read = _parsed(asked)
        if read is None or read[0] not in names:
            return ()
        # Unique in a conversation, which only ever grows; made of what was read and written, so that a run repeats.
        digest = hashlib.sha256(repr((action.prompt_ids, action.response_ids, place)).encode())
        found.append(FunctionCall(f"call_{digest.hexdigest()[:24]}", *read))
    return tuple(found if call.parallel_tool_calls else found[:1])


def offered(call: Call) -> tuple[Mapping[str, Any], ...]:
    """The tools that the model is told of."""
    return call.tools if call.tool_choice != "none" else ()


def _parsed(asked: str) -> tuple[str, dict[str, Any]] | None:
    """(name, arguments) of a call as the model wrote it; None where it is none."""
    try:
        read = parse_json(asked, "the call", BadRequest)
    except BadRequest:
        return None
    if not isinstance(read, dict) or not isinstance(read.get("name"), str) or not is_json(read):
        return None
    arguments = read.get("arguments", read.get("parameters", {}))
    return (read["name"], arguments) if isinstance(arguments, dict) else None


def _encoded(call: Call, tokenizer: PolicyTokenizer, thinking: bool) -> tuple[int, ...]:
    messages, tools = templated(call.messages, tokenizer), offered(call)
    if tools and not tokenizer.knows_tools:
        first = messages[0]
        messages[0] = {**first, "content": f"{told_of(tools)}\n\n{first['content']}"}
        tools = ()
    try:
        return tokenizer.encode_chat(messages, thinking=thinking, tools=tools)
    except PolicyError as error:
        if _takes_a_beginning(call, tokenizer):
            raise BadRequest(str(error), "messages") from error
        raise NotGiven(str(error), "messages") from error


def _takes_a_beginning(call: Call, tokenizer: PolicyTokenizer) -> bool:
    """Whether the chat template takes a user's message, after a system's where the conversation has that, whatever they
    say. Where it does, it may be agents who made it refuse the whole: by a reply so empty that the app left it out, or
    by a call of a function."""
    shape = ["system", "user"] if call.messages[0]["role"] == "system" else ["user"]
    try:
        tokenizer.encode_chat([{"role": role, "content": "?"} for role in shape])
    except PolicyError:
        return False
    return True


def _check_length(call: Call, tokenizer: PolicyTokenizer) -> None:
    """Raises ContextOverflow for a conversation of which the beginning alone is twice as long as the context: to count
    the tokens of some megabytes, which an app may hand over by mistake, holds up everybody for a minute."""
    _check_beginning(_sure_to_be_read(call), call, tokenizer)
    size = sum(len(text) for message in call.messages for text in _left_out_by_some(message).values())
    if size > _LONG_TOKEN_CHARS * 2 * tokenizer.context_length:
        _check_beginning("".join(_kept(call, tokenizer)), call, tokenizer)


def _check_beginning(read: str, call: Call, tokenizer: PolicyTokenizer) -> None:
    most = 2 * tokenizer.context_length
    size = _LONG_TOKEN_CHARS * most
    while size < len(read):
        if (found := len(tokenizer.encode_opening(read[:size]))) > most:
            raise ContextOverflow(
                f"the conversation has more than {found} tokens, and {call.role}'s context is "
                f"{tokenizer.context_length} tokens"
            )
        size *= 2


def _sure_to_be_read(call: Call) -> str:
    """What of the call no chat template leaves out."""
    tools = (json.dumps(tool, ensure_ascii=False) for tool in offered(call))
    said = (said_in({**message, "content": _without_thoughts(message)}) for message in call.messages)
    return "".join((*tools, *said))


def _thoughts(message: Mapping[str, Any]) -> str:
    return str(message["content"].rpartition("</think>")[0]) if message["role"] == "assistant" else ""


def _without_thoughts(message: Mapping[str, Any]) -> str:
    content: str = message["content"]
    return content.rpartition("</think>")[2] if message["role"] == "assistant" else content


def _left_out_by_some(message: Mapping[str, Any]) -> dict[str, str]:
    """What of a message some chat templates leave out: thoughts of earlier replies, and names."""
    found = {"thoughts": _thoughts(message), "name": str(message.get("name", ""))}
    return {part: text for part, text in found.items() if text}


def _kept(call: Call, tokenizer: PolicyTokenizer) -> list[str]:
    """What of that this chat template keeps: it is asked with a word in the place of each."""
    said = json.dumps(call.messages, default=str)
    word = next(word for number in itertools.count() if (word := f"kept{number}x") not in said)
    texts: list[str] = []
    marked = []
    for message in call.messages:
        changed = dict(message)
        for part, text in _left_out_by_some(message).items():
            mark = f"{word}{len(texts)}x"
            texts.append(text)
            changed |= (
                {"name": mark} if part == "name" else {"content": f"<think>{mark}</think>{_without_thoughts(message)}"}
            )
        marked.append(changed)
    read = tokenizer.decode(_encoded(replace(call, messages=tuple(marked)), tokenizer, thinking=False))
    places = {int(place) for place in re.findall(f"{word}([0-9]+)x", read)}
    return [text for place, text in enumerate(texts) if place in places]


def before_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """`text` up to the first of the stop texts in it, and which that is."""
    found = [(text.find(one), one) for one in stop if one in text]
    if not found:
        return text, None
    place, one = min(found)
    return text[:place], one


def _digests(call: Call, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """One for each beginning of the conversation. Equal ones are the same to the role's model; white space at the ends
    of a message, ids of calls, and a name beside a reply are what clients change on the way."""
    digest = hashlib.sha256(_canonical([call.role, offered(call)]))
    found = []
    for message in messages:
        calls = [_function(asked) for asked in message.get("tool_calls", ())]
        name = message.get("name") if message["role"] != "assistant" else None
        digest.update(_canonical([message["role"], name, message["content"].strip(), calls]))
        found.append(digest.hexdigest())
    return found


def _function(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {key: asked["function"][key] for key in ("name", "arguments")}


def _opening_of_a_call(call: Call, tokenizer: PolicyTokenizer, ids: Sequence[int]) -> str:
    """What makes a reply ask for a function: the beginning of a call as the model writes it, up to where the model has
    something to choose. It ends where tokens do."""
    names = [call.tool_name] if call.tool_name else [tool["function"]["name"] for tool in call.tools]
    known = f' {json.dumps(names[0])}, "arguments":' if len(names) == 1 else ""
    space = "\n" if tokenizer.knows_tools else ""
    thought = "\n</think>\n\n" if opens_thinking(tokenizer, ids) else ""
    return f'{thought}{OPEN}{space}{{"name":{known}'


def _written(asked: Mapping[str, Any]) -> str:
    """A call as models write it."""
    return f"<tool_call>{json.dumps(_function(asked), ensure_ascii=False)}</tool_call>"


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
