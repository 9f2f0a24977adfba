"""Runs a test suite on a program that lives in another process. Sent into the sandbox; imports nothing of coachrl.

The process that starts here is the suite's: it holds the assertions and writes the reports, and never runs a line of
the program. A second, fresh interpreter runs the program and knows nothing of the suite. Calls and results pass between
them as lines of JSON, so what the suite compares is made of its own ints, strings, lists: no `__eq__` of the program,
no builtin that it replaced and no frame that it walks can reach the comparison. An object that is no plain value stays
where it was made; the other side gets a handle that can call it, or ask an iterator for what comes next, and nothing
else that the program could answer for.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import importlib
import json
import os
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO

_MOST_BYTES = 64 * 2**20  # of one line
_PR_SET_DUMPABLE = 4
_SERVE = "import sys\nsys.path[:] = [path for path in sys.path if path]\n"  # no module of the workspace is ours
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "keys": lambda items: dict.fromkeys(items).keys(),
    "values": lambda items: dict(enumerate(items)).values(),
    "items": lambda items: dict(items).items(),
}
_LISTED: dict[str, type[Collection[Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "keys": KeysView,
    "values": ValuesView,
    "items": ItemsView,
}


# Name -> a class of values, how one is written for JSON, and how it is read again. Whole numbers are written in
# hexadecimal: decimal digits have a limit.
_PLAIN: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, lambda value: hex(int(value)), lambda held: int(held, 16)),
    "complex": (complex, lambda value: [value.real, value.imag], lambda held: complex(*held)),
    "bytes": (bytes, lambda value: value.hex(), bytes.fromhex),
    "bytearray": (bytearray, lambda value: value.hex(), bytearray.fromhex),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda held: range(*held)),
    "fraction": (
        Fraction,
        lambda value: [hex(value.numerator), hex(value.denominator)],
        lambda held: Fraction(*(int(part, 16) for part in held)),
    ),
    "decimal": (Decimal, Decimal.__str__, Decimal),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),  # what has a time is one too
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda held: datetime.timedelta(*held),
    ),
}


class ProgramEnded(BaseException):
    """The program's process is gone. No `except Exception` of a suite takes it for an error of the program."""


class Handle:
    """An object of the other side: it can be called, and its public attributes asked for. It equals itself alone."""

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer, self._number = peer, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._peer.call(self._number, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask({"do": "attribute", "of": self._number, "name": name})


class Peer:
    """One end of the line. While it waits for an answer it answers what the other end asks.

    attributes: whether the other end may look into what it holds a handle of, or only call it. A suite that hands out a
    function must not hand out that function's globals. stops: whether a StopIteration of the other end is raised here
    as one: it ends whatever loop it meets, and with it an assertion such as `all(map(candidate, cases))`.
    """

    def __init__(self, reads: BinaryIO, writes: BinaryIO, attributes: bool, stops: bool) -> None:
        self._reads, self._writes, self._attributes, self._stops = reads, writes, attributes, stops
        self._kept: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, Handle] = {}
        self.ended = False

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The other end's answer. Raises what was raised there, and ProgramEnded."""
        self._send(request)
        while "do" in (message := self._receive()):
            self._send(self.answer(message))
        if "raised" in message:
            error = _error(message["raised"], self.decode(message["arguments"]))
            if isinstance(error, StopIteration) and not self._stops:
                raise RuntimeError(f"the program raised {type(error).__name__}")  # as where a generator raises one
            raise error
        if "changed" in message:
            return self.decode(message["value"]), self.decode(message["changed"])
        return self.decode(message["value"])

    def call(self, number: int, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call an object of the other end; lists, dicts and sets that it changed in place change here too."""
        request = {"do": "call", "of": number, "arguments": self.encode(arguments), "named": self.encode(dict(named))}
        value, changed = self.ask(request)
        changed_arguments, changed_named = changed
        for mine, theirs in zip((*arguments, *named.values()), (*changed_arguments, *changed_named), strict=True):
            _take_over(mine, theirs)
        return value

    def serve(self, names: Mapping[str, Any]) -> None:
        """Answer until the other end is gone."""
        with contextlib.suppress(ProgramEnded):
            while True:
                self._send(self.answer(self._receive(), names))

    def answer(self, message: Mapping[str, Any], names: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            if message["do"] == "call":
                arguments = self.decode(message["arguments"])
                named = self.decode(message["named"])
                value = self._kept[message["of"]](*arguments, **named)
                return {"value": self.encode(value), "changed": self.encode((arguments, list(named.values())))}
            if message["do"] == "next":
                end = object()
                item = next(self._kept[message["of"]], end)
                return {"value": self.encode([] if item is end else [item])}
            if message["do"] == "attribute" and self._attributes:
                return {"value": self.encode(getattr(self._kept[message["of"]], message["name"]))}
            if message["do"] == "name" and names is not None:
                return {"value": self.encode(names[message["name"]])}
            raise TypeError("it can be called, and no more")
        except BaseException as error:  # noqa: BLE001  whatever a program raises is its answer
            return self._failure(error)

    def _failure(self, error: BaseException) -> dict[str, Any]:
        try:
            arguments = self.encode(tuple(error.args))
        except Exception:  # noqa: BLE001  arguments may be anything
            arguments = self.encode(())
        return {"raised": [category.__name__ for category in type(error).__mro__], "arguments": arguments}

    def encode(self, value: Any) -> Any:
        """As JSON. Subclasses of plain types travel as what they hold; anything else stays here, under a number."""
        if value is None or isinstance(value, (bool, str, float)):
            return value  # JSON writes what a subclass of them holds
        for name, (kind, write, _) in _PLAIN.items():
            if isinstance(value, kind):
                return {name: write(value)}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        for name, kind in _LISTED.items():
            if isinstance(value, kind):
                return {name: [self.encode(item) for item in value]}
        if isinstance(value, Handle):
            return {"yours": value._number}
        if hasattr(type(value), "__next__"):
            return {"iterator": self._number_of(value)}
        if hasattr(type(value), "tolist"):  # numbers, arrays and tables' columns of numpy and pandas
            return self.encode(value.tolist())
        return {"mine": self._number_of(value)}

    def _number_of(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept[number] = value  # so that no later object has its id
        return number

    def _items(self, number: int) -> Iterator[Any]:
        """Of an iterator of the other end, one by one: it may have no end, and fail on the way."""
        while item := self.ask({"do": "next", "of": number}):
            yield item[0]

    def decode(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        [(category, held)] = data.items()
        if category in _CONTAINERS:
            return _CONTAINERS[category]([self.decode(item) for item in held])
        if category == "dict":
            return {self.decode(key): self.decode(item) for key, item in held}
        if category in _PLAIN:
            return _PLAIN[category][2](held)
        if category == "iterator":
            return self._items(held)
        if category == "mine":
            return self._handles.setdefault(held, Handle(self, held))
        return self._kept[held]

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._writes.write(json.dumps(message).encode() + b"\n")
            self._writes.flush()
        except OSError:
            self._end()

    def _receive(self) -> dict[str, Any]:
        line = self._reads.readline(_MOST_BYTES)
        if not line.endswith(b"\n"):
            self._end()
        message = json.loads(line)
        return message if isinstance(message, dict) else {}

    def _end(self) -> None:
        self.ended = True
        raise ProgramEnded("the program ended before the tests did")


def _take_over(mine: Any, theirs: Any) -> None:
    if mine == theirs or type(mine) is not type(theirs):
        return
    if isinstance(mine, (list, bytearray)):
        mine[:] = theirs
    elif isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, deque):
        mine.clear()
        mine.extend(theirs)


def _error(categories: Sequence[str], arguments: tuple[Any, ...]) -> Exception:
    """An error of the other end: of its name, and of the nearest builtin class, so that a suite can catch it."""
    known = (getattr(builtins, category, None) for category in categories)
    base = next(
        (category for category in known if isinstance(category, type) and issubclass(category, Exception)), Exception
    )
    made: Exception = type(str(categories[0]), (base,), {"__init__": lambda self, *_: None})(*arguments)
    return made


def serve_program(reads: int, writes: int) -> None:
    """The program's process: its source is the first line, then come calls."""
    peer = Peer(os.fdopen(reads, "rb"), os.fdopen(writes, "wb"), attributes=True, stops=True)
    source = peer._receive()["program"]
    random.seed(0)
    space = _module("solution")
    try:
        _run(source, "solution.py", space)
        loaded: dict[str, Any] = {"value": None}
    except BaseException as error:  # noqa: BLE001  whatever a program raises, an exit() too, is told to the suite
        loaded = peer._failure(error)
    peer._send(loaded)
    peer.serve(space)


def _module(name: str) -> dict[str, Any]:
    """The names of a new module, which is where classes that are made in it look for theirs (dataclasses do)."""
    sys.modules[name] = types.ModuleType(name)
    return vars(sys.modules[name])


def _run(source: str, name: str, space: dict[str, Any]) -> None:
    """Run a source in `space`. What this file imports from __future__ is not the source's. Where an error or a warning
    asks for a line of it, Python looks for a file of its name: the workspace may have one, there it can have none."""
    exec(compile(source, f"/dev/null/{name}", "exec", dont_inherit=True), space)


@contextlib.contextmanager
def _program(own_source: str, stops: bool) -> Any:
    """A fresh interpreter with the program in it, and the line to it. Nothing of this process is in its memory."""
    import ctypes  # here, for the program's process has no use for it and is to start soon
    import subprocess

    with contextlib.suppress(OSError, AttributeError):  # the program may not look into this process either
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    (their_reads, our_writes), (our_reads, their_writes) = os.pipe(), os.pipe()
    code = f"{_SERVE}exec({own_source!r})\nserve_program({their_reads}, {their_writes})\n"
    process = subprocess.Popen(
        [sys.executable, "-s", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(their_reads, their_writes),
    )
    os.close(their_reads)
    os.close(their_writes)
    try:
        yield Peer(os.fdopen(our_reads, "rb"), os.fdopen(our_writes, "wb"), attributes=False, stops=stops)
    finally:
        process.kill()
        process.wait()


def judge(
    own_source: str,
    program: str,
    given: str,
    suite: str,
    names: Sequence[str],
    entry_point: str,
    mark: str,
    tools: tuple[str, str, str],
    chars: int,
    most_entered: int,
) -> None:
    """Report on standard output which assertions of `suite` held, each line behind `mark`. given: the task's own
    definitions, which the suite finds under their names whatever the program has under them. names: that it reads."""
    out = sys.stdout
    sys.stdout = sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def tell(category: str, *words: object) -> None:
        line = " ".join([mark, category, *(" ".join(str(word).split()) for word in words)])
        out.write(line.encode("utf-8", "backslashreplace").decode() + "\n")  # an error's text may hold half a character
        out.flush()

    def name(error: BaseException) -> str:
        return f"{type(error).__name__}: {error}"[:chars]

    with _program(own_source, stops="StopIteration" in names) as peer:
        try:
            peer.ask({"program": program})
            candidate = peer.ask({"do": "name", "name": entry_point})
            tell("loaded")
        except BaseException as error:  # noqa: BLE001  the boundary to the program: whatever it raises is its problem
            if not peer.ended:
                tell("problem", "the program cannot be run:", name(error))
            return
        try:
            space = _suite_space(peer, given, names) | {entry_point: candidate}
            _run_suite(space, suite, candidate, _reports(tell, name, tools, chars, most_entered))
        except BaseException as error:  # noqa: BLE001  the boundary to the task's tests, which may exit() too
            if not peer.ended:
                tell("problem", "the tests stopped:", name(error))
            return
        if not peer.ended:
            tell("done")


def _suite_space(peer: Peer, given: str, names: Sequence[str]) -> dict[str, Any]:
    """What the suite finds: the task's own definitions; modules of the standard library, the real ones; then what the
    program defines. Nothing that the program calls `len` or `math` gets between the suite and its comparison."""
    space = _module("tests")
    _run(given, "given.py", space)
    for name in names:
        if name in space or hasattr(builtins, name):
            continue
        with contextlib.suppress(KeyError, ImportError):
            found = peer.ask({"do": "name", "name": name})
            space[name] = importlib.import_module(name) if name in sys.stdlib_module_names else found
    return space


def _reports(
    tell: Callable[..., None],
    name: Callable[[BaseException], str],
    tools: tuple[str, str, str],
    chars: int,
    most_entered: int,
) -> dict[str, Callable[..., None]]:
    """What each rewritten assertion calls, under the names `tools`: as it begins, with what it found, as it raised."""
    told: dict[int, object] = {}
    entered: list[int] = []

    def enter(place: int) -> None:
        if entered[-1:] != [place] and len(entered) < most_entered:
            entered.append(place)
            tell("enter", place)

    def report(place: int, held: object, *left: object) -> None:
        holds = bool(held)
        if told.setdefault(place, True) and not holds:
            tell("fail", place, "got " + repr(left[0])[:chars] if left else "is not true")
            told[place] = False
        elif holds and told[place] is True:
            tell("pass", place)
            told[place] = "passed"

    def failed(place: int, error: BaseException) -> None:
        if told.get(place) is not False:
            tell("crash", place, name(error))
            told[place] = False

    return dict(zip(tools, (enter, report, failed), strict=True))


def _run_suite(space: dict[str, Any], suite: str, candidate: Any, tools: Mapping[str, Callable[..., None]]) -> None:
    space.update(tools)
    before = dict(space)
    _run(suite, "tests.py", space)
    # The program may define tests of the same names, which are not these.
    made = {name: value for name, value in space.items() if value is not before.get(name)}
    if "check" in made:
        made["check"](candidate)
    for name, test in made.items():
        if name.startswith("test") and callable(test):
            test()
