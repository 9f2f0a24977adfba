"""A call and its replies in no provider's form: what the endpoints of `wire/` read, and what an `Answerer` answers.

The errors say by `status`, `kind` and `code` what the client is told; the endpoints give them the provider's own form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from coachrl.errors import CoachrlError
from coachrl.text import brief

StopReason = Literal["stop", "length", "tool_calls", "content_filter"]  # the last of a provider's model alone
ToolChoice = Literal["auto", "none", "required"]

_WORDS_OF_NAME = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")


@dataclass(frozen=True)
class Piece:
    """What one reply goes on with while it is drawn. place: which of the replies to a call. text: what is certain to
    come next in the text that the app reads. prompt_tokens: how many ids the model read; 0 where nobody knows yet."""

    place: int
    text: str
    prompt_tokens: int


@dataclass(frozen=True)
class Call:
    """One request of an app: a conversation for a role to answer.

    role: what the app gave as the model's name. messages: in the form that chat templates take: "role" (system, user,
    assistant, tool) and "content" (always text); an assistant's message may have "tool_calls", each
    `{"id", "type": "function", "function": {"name", "arguments"}}` with the arguments as an object (as text where they
    are not one); a tool's message has "tool_call_id"; any may have the "name" of who speaks. tools: schemas of
    functions, `{"type": "function", "function": {"name", "description", "parameters"}}`. tool_name: the one function
    that tool_choice "required" asks for; empty where any will do. parallel_tool_calls: whether one reply may ask for
    several; where not, the app is shown the first alone. n: how many replies. stop: texts that end a reply, and are no
    part of it. seed, max_tokens, temperature, top_p: None where the app leaves them to the role. logprobs: whether the
    app wants those of each token. stream: whether it takes the reply in pieces. tell: is given them while the reply is
    drawn, by engines that can; None where nobody listens.
    """

    role: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    tool_name: str = ""
    parallel_tool_calls: bool = True
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool = False
    stream: bool = False
    tell: Callable[[Piece], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class FunctionCall:
    """A function that a reply asks for. id: unique in its conversation. arguments: as the model gave them, by name."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """One reply. text: what the app reads: without special tokens, function calls and the stop text.

    stop_text: which of `Call.stop` ended it. prompt_tokens: how many ids the model read. token_ids, logprobs,
    token_texts: of each token that the model wrote; a token that holds a part of a character alone has the text U+FFFD.
    unseen_tokens: how many a provider's model wrote, which tells no ids.
    """

    text: str
    finish_reason: StopReason
    prompt_tokens: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    token_texts: tuple[str, ...] = ()
    tool_calls: tuple[FunctionCall, ...] = ()
    stop_text: str | None = None
    unseen_tokens: int = 0

    @property
    def written_tokens(self) -> int:
        """How many tokens the model wrote."""
        return len(self.token_ids) + self.unseen_tokens


class Answerer(Protocol):
    """Who is behind an endpoint. token: what the client gave as its API key, empty where it gave none."""

    def models(self, token: str) -> Sequence[str]:
        """The names that a call may give as its model. Raises WrongToken, EpisodeEnded."""
        ...

    async def answer(self, call: Call, token: str) -> Sequence[Reply]:
        """`call.n` replies. It is cancelled where the client goes away. Raises CallError, and ContextOverflow where
        prompt and reply do not fit the model's context."""
        ...

    def refused(self, error: CallError, token: str) -> None:
        """Told of a request that never became a call: one that cannot be read, or asks for what is not given here."""
        ...


class CallError(CoachrlError):
    """A call that gets an error for an answer. status: of HTTP; kind: OpenAI's type of error; code: what programs test;
    param: the field of the request that is wrong. is_apps: whether agents, whose words an app passes on, cannot be why,
    if they did not write what is in `written`."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None
    is_apps: ClassVar[bool] = False

    def __init_subclass__(cls, status: int = 400, code: str | None = None, kind: str | None = None) -> None:
        super().__init_subclass__()
        cls.status, cls.code, cls.kind = status, code, kind or cls.kind

    def __init__(self, message: str, param: str | None = None, written: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.param, self.written = param, written


class BadRequest(CallError):
    """A request that cannot be read, or asks for what this endpoint does not give. It may be what an agent wrote that
    made it so: arguments of a call, a reply without words, a number, or so much that it is too much."""


class NotGiven(BadRequest):
    """A request for what this endpoint gives nobody, in a place where no reply stands."""

    is_apps = True


def parts_of_name(name: str, known: Sequence[str]) -> list[str]:
    """A name, and each of its words that none of the known ones has, or all where they have all of them: an app may
    have made it of what an agent said. Of a name like no known one (gpt-4o), single letters and digits do not count:
    they stand in many a reply by chance."""
    words = _WORDS_OF_NAME.findall(name)
    ours = {word.casefold() for one in known for word in _WORDS_OF_NAME.findall(one)}
    foreign = [word for word in words if word.casefold() not in ours]
    if len(foreign) == len(words):
        return [name, *(word for word in words if len(word) > 1)]
    return [name, *(foreign or words)]


class RequestTooLarge(CallError, status=413, code="request_too_large"):
    """A request with a body beyond what the server takes."""


class WrongToken(CallError, status=401, code="invalid_api_key", kind="authentication_error"):
    """No API key, or none of this server's."""


class EpisodeEnded(CallError, status=403, code="episode_ended", kind="permission_error"):
    """A call with the token of an episode that is over."""


class UnknownModel(CallError, status=404, code="model_not_found"):
    """A model's name that is no role's. The message lists the roles."""

    is_apps = True

    def __init__(self, name: str, known: Sequence[str]) -> None:
        said = f"there is no model {brief(name)}; the models are the roles {', '.join(known)}"
        super().__init__(said, "model", parts_of_name(name, known))


class HeldUp(CallError):
    """A call that is made in the event loop of the run, which cannot answer it."""

    is_apps = True


class EngineFailed(CallError, status=500, code="engine_failed", kind="server_error"):
    """The machinery failed: nothing that the app or its agents did."""
