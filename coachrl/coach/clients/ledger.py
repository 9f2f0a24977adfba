"""The append-only record of what coaches were asked and what they said: one JSON object a line.

kind "call": one request to a model, with the rendered messages, the reply or the error, and what it took ("usage").
kind "score": what an action got in the end, and how many calls that took. Rules leave lines of this kind only.
kind "contribution": the same for the retrospective pass of retrospective credit.
kind "resumed": the run was continued after step `after_step`. Later steps begin anew; of the score lines of one action
the last one counts. Calls stand as they were made, and are not made again: their replies come from the cache, which the
new lines say ("usage.calls_from_cache").
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from coachrl.errors import ConfigError
from coachrl.storage.jsonl import WAIT_S, alone_with, left_out, numbered_lines, writable_file, write_lines
from coachrl.types import ONE_ATTEMPT, CoachScore, Usage

log = logging.getLogger(__name__)

_Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _SaidUsage(TypedDict):
    calls_from_cache: int
    cost_usd: _Dollars | None


class _SaidMessage(TypedDict):
    content: str


class _CallLine(TypedDict):
    """What is read of a line, which holds more."""

    action_id: str
    model: str
    reply: str
    messages: list[_SaidMessage]
    usage: _SaidUsage
    reserved_usd: _Dollars


class _SaidCriterion(TypedDict):
    name: str
    weight: Annotated[float, Field(allow_inf_nan=False)]


class _ScoreLine(TypedDict):
    action_id: str
    criteria: NotRequired[list[_SaidCriterion] | None]


_LINES: dict[str, TypeAdapter[Any]] = {"call": TypeAdapter(_CallLine), "score": TypeAdapter(_ScoreLine)}


@dataclass(frozen=True)
class FunctionCall:
    """A function that a model asks for. id: the provider's, which the answer must name. arguments: as it wrote them."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message to a chat model; of role "tool" the answer to a function that it asked for, `answers`.

    native: the reply in the form of its provider, which wants it back as it was: its thoughts may be signed. `content`
    then says it in words, for the ledger, which keeps role and content alone.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    native: Mapping[str, Any] | None = None
    answers: FunctionCall | None = None


@dataclass(frozen=True)
class Call:
    """One request to a model. error is empty where a reply came.

    usage.cost_usd None: the price is not known, or the call was broken off and may be billed; reserved_usd is then what
    it counts in a budget.
    """

    action_id: str
    model: str
    prompt_hash: str
    messages: tuple[Message, ...]
    reply: str = ""
    error: str = ""
    finish_reason: str = ""
    usage: Usage = ONE_ATTEMPT
    reserved_usd: float = 0.0


_listener: ContextVar[Callable[[Call], None] | None] = ContextVar("coachrl_call_listener", default=None)


def record_call(call: Call) -> None:
    """Tell whoever listens of a finished call, as a log record is told; nobody may."""
    listener = _listener.get()
    if listener is not None:
        listener(call)


@contextmanager
def calls_to(listener: Callable[[Call], None]) -> Iterator[None]:
    """Calls that are recorded inside, in tasks started inside too, go to `listener`, and then to whoever listens
    outside."""
    outer = _listener.get()

    def tell(call: Call) -> None:
        listener(call)
        if outer is not None:
            outer(call)

    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


class Ledger:
    """Appends to one file, a whole line at a time. Several processes may share it. Made when the first line comes.
    path None: nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._waits_s = WAIT_S

    def call(self, call: Call) -> None:
        messages = [{"role": message.role, "content": message.content} for message in call.messages]
        self._append("call", lambda: {**asdict(replace(call, messages=())), "messages": messages})

    def score(self, score: CoachScore) -> None:
        self._append("score", lambda: asdict(score))

    def contribution(self, score: CoachScore) -> None:
        self._append("contribution", lambda: asdict(score))

    def resumed(self, step: int) -> None:
        self._append("resumed", lambda: {"after_step": step})

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        if self.path is None:  # then the fields, which take time, are not made either
            return
        if self._descriptor is None:
            self.path.parent.mkdir(exist_ok=True)  # and not the run's: one that was moved away is missed
            self._descriptor = os.open(writable_file(self.path), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        line = json.dumps({"kind": kind, **fields()}, allow_nan=False).encode() + b"\n"
        try:
            # A run does not stand still for a lock that nobody lets go of: it is waited for once.
            with alone_with(self._descriptor, self._waits_s) as is_alone:
                if not is_alone and self._waits_s:
                    log.warning("%s: another process holds its lock, and is not waited for any longer", self.path)
                self._waits_s = WAIT_S if is_alone else 0.0
                write_lines(self._descriptor, line)
        except OSError as error:
            error.filename = str(self.path)  # a write that fails for lack of room names no file
            self.close()
            raise


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger, oldest first. A line that a kill or a full disk cut short, or that coachrl did not write
    so, is left out, with one warning for all. Raises ConfigError where it cannot be read."""
    number, foreign = 0, list[int]()
    try:
        for number, line in numbered_lines(path):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if _is_line(record):
                yield record
            else:
                foreign.append(number)
    except (OSError, ValueError) as wrong:
        raise ConfigError(f"{path}: {getattr(wrong, 'strerror', None) or wrong}") from wrong
    if foreign:
        log.warning("%s: %s: cut short or foreign", path, left_out(foreign, number))


def _is_line(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    try:
        if (kind := _LINES.get(record["kind"])) is not None:
            kind.validate_python(record, strict=True)
    except ValidationError:
        return False
    return True
