"""JSONL files: whole lines are appended, whole files are renamed into place, and what can be read is read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic_core import from_json

from coachrl.errors import ConfigError
from coachrl.files import most_bytes, regular_file, too_large
from coachrl.parsing import parse_json
from coachrl.resources import process_runs
from coachrl.text import one_line

_T = TypeVar("_T")
_PIECE_BYTES = 65_536
_LOOK_EVERY_S = 0.01  # whether a lock is free
_ASIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<pid>\d{1,7})", re.DOTALL)  # as `place_aside` names
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without them answer


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
    """Cut off a last line that a kill or a full disk left without its end, which takes no room on the disk. The file
    may be larger than memory. Raises OSError, and ConfigError as `writable_file` does."""
    if not path.is_file():
        return
    with writable_file(path).open("rb+") as file:
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


def check_place(path: Path, option: str = "") -> None:
    """Raises ConfigError where no file can stand at `path`, before anything is asked or counted. option: what
    the message begins with."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option}{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option}{path} is a folder: name a file")
    if path.exists() and not path.is_file():  # a device, such as /dev/stdout, would be replaced
        raise ConfigError(f"{option}{path} is no plain file: name one")
    if path.suffix == ".gz":  # who reads it would unpack it
        raise ConfigError(f"{option}{path}: files are written as they are, not packed: leave out .gz")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}{path} cannot be written: no permission to write in {path.parent}")


def write_aside(path: Path, text: str | Iterable[str], is_new: bool = False) -> None:
    """Replace `path` whole: the text, or one piece after the other, is written beside it, and renamed once it is on the
    disk. is_new: what is there is not replaced. Raises OSError that names `path`, and leaves nothing then. What a
    process left that was killed over the same file is removed."""
    drop_left_of(path)
    aside = place_aside(path)
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
        fsync(aside)
        name_new(aside, path) if is_new else aside.replace(path)
    except BaseException as error:  # Ctrl-C, too, leaves nothing
        with contextlib.suppress(OSError):  # a disk that may not be written to says so of this, too
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def name_new(aside: Path, path: Path) -> None:
    """Rename the file `aside` to `path`, where nothing has that name: of two commands that write one file at once, the
    later one is told. Raises OSError."""
    try:
        os.link(aside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        aside.rename(path)
    else:
        aside.unlink()


def place_aside(path: Path) -> Path:
    """Where this process makes `path`, to be renamed once it is whole: a name that no other has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}")


def _left_aside(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """What stands at a `place_aside` in `folder`, with the name that it was to have and the process's number."""
    for left in list(folder.iterdir()):
        if match := _ASIDE.fullmatch(left.name):
            yield left, match["name"], int(match["pid"])


def drop_left_of(path: Path) -> None:
    """Remove what stands at a `place_aside` of `path` and was left by a process that was killed: it may be as large as
    a model. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for left, name, pid in _left_aside(path.parent):
            if name != path.name or process_runs(pid):
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def drop_asides(folder: Path) -> None:
    """Remove the files that `write_aside` left in `folder` where its process was killed before it could rename them.
    One that writes now, as a report of a run that is being resumed, keeps what is its own. What cannot be removed
    stays."""
    with contextlib.suppress(OSError):
        for left, _, pid in _left_aside(folder):
            if left.is_file() and (pid == os.getpid() or not process_runs(pid)):
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_aside(folder: Path, may_exist: bool = False) -> Iterator[Path]:
    """A folder to fill. It becomes `folder` when the block ends well and all of it is on the disk, and else is removed.
    may_exist: where another process has made `folder` meanwhile, that one stays. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not may_exist:  # what processes of several machines may be making at once is not told apart by a number
        drop_left_of(folder)
    aside = place_aside(folder)
    aside.mkdir()
    try:
        yield aside
        follow_umask(aside)
        put_on_disk(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not (may_exist and folder.is_dir()):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def follow_umask(folder: Path) -> None:
    """Let those read all files in `folder` who may enter it: safetensors writes weights for their owner alone, which
    nobody else could serve or evaluate."""
    mode = folder.stat().st_mode & 0o666
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # file systems without permissions
                Path(place, name).chmod(mode)


def put_on_disk(folder: Path) -> None:
    """Return once all of `folder` would be there after a loss of power. Raises OSError where the disk did not take it,
    which some file systems say no earlier."""
    for place, _, names in os.walk(folder, onerror=reraise):
        for path in (*(Path(place, name) for name in names), Path(place)):
            fsync(path)


def reraise(error: OSError) -> None:
    """For `os.walk`, which else passes over a folder that cannot be read."""
    raise error


def fsync(path: Path) -> None:
    """Return once the file, or the names in the folder, would be there after a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do it for a folder
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)
