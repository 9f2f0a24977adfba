"""JSONL files: whole lines are appended, and what can be read is read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic_core import from_json

from coachrl.errors import ConfigError
from coachrl.parsing import parse_json
from coachrl.storage.atomic import fsync, place_aside
from coachrl.storage.files import most_bytes, regular_file, too_large
from coachrl.text import one_line

_T = TypeVar("_T")
_PIECE_BYTES = 65_536
_LOOK_EVERY_S = 0.01  # whether a lock is free
WAIT_S = 5.0
"""How long another process's lock on a file that is appended to is waited for."""


def writable_file(path: Path) -> Path:
    """`path`, where it can be appended to: nothing is there, or a file. Raises ConfigError: a named pipe would wait for
    a reader, and what a link leads to is somebody else's, in a run that was got from others."""
    try:
        if path.is_symlink():
            raise ValueError("it is a link, where a file is needed")
        with contextlib.suppress(FileNotFoundError):
            regular_file(path)
    except ValueError as error:
        raise ConfigError(f"{one_line(str(path))} cannot be written: {error}") from error
    return path


def append_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append whole lines in one write, flushed to disk. Raises OSError that names `path`, and leaves no piece of a line
    then, and ConfigError where something else than a file is there."""
    data = "".join(json_line(record) for record in records).encode()
    try:
        with writable_file(path).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)  # a write that fails for lack of room names no file
        with contextlib.suppress(OSError):
            cut_torn_line(path)
        raise


@contextlib.contextmanager
def alone_with(descriptor: int, most_s: float = math.inf) -> Iterator[bool]:
    """No other process is in such a block for the file, or the folder, meanwhile: a line of megabytes is seen half
    there while it is written. On a file system without locks nobody waits.

    most_s: how long to wait for another process; whoever may read the file may hold its lock for ever, and so may a
    machine that is gone, on a disk that several share. False where one still has it."""
    is_alone = _is_locked(descriptor, most_s)
    try:
        yield is_alone
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_locked(descriptor: int, most_s: float) -> bool:
    ends = time.monotonic() + most_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if most_s < math.inf else 0))
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
            time.sleep(_LOOK_EVERY_S)
        except OSError:
            return True
        else:
            return True


def write_lines(descriptor: int, lines: bytes) -> None:
    """Append to a file that is open for it. What a kill or a full disk left in mid-line, perhaps of another process,
    does not swallow the first line. Raises OSError."""
    size = os.fstat(descriptor).st_size
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    left = memoryview(b"\n" * is_torn + lines)
    while left:
        left = left[os.write(descriptor, left) :]


def own_file(path: Path) -> None:
    """Where the file has further names, as in a copy made of hard links (`cp -al`), give this one a file of its own:
    what is appended from now on is of this run alone. Raises OSError, and ConfigError as `writable_file` does."""
    if not path.is_file() or writable_file(path).stat().st_nlink <= 1:  # some file systems count none
        return
    aside = place_aside(path)
    try:
        shutil.copy2(path, aside)
        fsync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def drop_torn_line(path: Path) -> None:
    """Before a process goes on appending: `cut_torn_line`, in a file that no copy shares. Raises OSError, and
    ConfigError as `writable_file` does."""
    own_file(path)
    cut_torn_line(path)


def cut_torn_line(path: Path) -> None:
    """Cut off a last line that a kill or a full disk left without its end, which takes no room on the disk, and not one
    that another process is writing, as far as it locks the file. The file may be larger than memory. Raises OSError,
    and ConfigError as `writable_file` does."""
    if not path.is_file():
        return
    with writable_file(path).open("rb+") as file, alone_with(file.fileno(), WAIT_S):
        end = size = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _PIECE_BYTES)
            file.seek(begin)
            if (found := file.read(end - begin).rfind(b"\n")) >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def read_jsonl(path: Path, skip_torn: bool = False) -> Iterator[dict[str, Any]]:
    """Records of a JSONL file, empty lines left out; nothing where there is none. Raises ConfigError naming file and
    line, and where something else than a file is there.

    skip_torn: leave out a last line that has no end, as another process or a kill leaves it.
    """
    try:
        for number, line in numbered_lines(path):
            if line.isspace():
                continue
            try:
                record = parse_json(line, f"{path}, line {number}", half_characters=True)
            except ConfigError:
                if skip_torn and not line.endswith(b"\n"):
                    return
                raise
            yield record
    except FileNotFoundError:
        return
    except (OSError, ValueError) as wrong:
        raise ConfigError(f"{path}: {getattr(wrong, 'strerror', wrong)}") from wrong


def readable_jsonl(path: Path, parse: Callable[[Any], _T], problems: list[str]) -> Iterator[_T]:
    """What `parse` makes of each line of a JSONL file; nothing where there is none. Lines that are not JSON, or that
    `parse` refuses (KeyError, TypeError, ValueError, AttributeError), are left out: once the file is read to its end,
    `problems` gets one sentence for all of them."""
    broken: list[tuple[int, str]] = []
    number = 0
    try:
        for number, line in numbered_lines(path):
            try:
                value = parse(_parsed(line))
            except json.JSONDecodeError as error:
                broken.append((number, f"not JSON: {error.msg}" if line.endswith(b"\n") else "cut short"))
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
                lacks = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                broken.append((number, f"not as coachrl writes it: {lacks}"))
            else:
                yield value
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {getattr(error, 'strerror', error)}")
        return
    if broken:
        problems.append(f"{path.name}: {left_out([n for n, _ in broken], number)}: {broken[0][1]}")


def left_out(lines: Sequence[int], count: int) -> str:
    """Which of a file's `count` lines are left out, in one sentence, however many they are."""
    numbers = ", ".join(map(str, lines[:5])) + (", …" if len(lines) > 5 else "")
    return (
        f"line {numbers} is left out" if len(lines) == 1 else f"lines {numbers} ({len(lines)} of {count}) are left out"
    )


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a regular file, from 1. Raises OSError, and ValueError for what is no file, and for a line that is
    longer than a file may be that is read whole."""
    most = most_bytes()
    with regular_file(path).open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, most + 1), b""), start=1):
            if len(line) > most:
                raise too_large(f"line {number:,} has more than {most:,} bytes")
            yield number, line


def _parsed(line: bytes) -> Any:
    """The data of a line. Pydantic's parser is three times as fast as Python's, but takes no halves of characters; what
    it refuses is Python's to read, or to say what is wrong with it."""
    try:
        return from_json(line)
    except ValueError:
        return json.loads(line)


def json_line(record: Mapping[str, Any], half_characters: bool = True) -> str:
    """`record` as one line of JSON, with its line end. half_characters: a reply that was cut may end in one, which
    UTF-8 has no place for: whether it becomes an escape, which not every reader of JSON takes, or a question mark.
    Raises ValueError for a number that JSON does not have."""
    line = json.dumps(record, ensure_ascii=False, default=_plain, allow_nan=False) + "\n"
    return line.encode("utf-8", "backslashreplace" if half_characters else "replace").decode("utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        number = value.item()
        return None if isinstance(number, float) and not math.isfinite(number) else number
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
