"""Files that people or others wrote: whether a path can be one, whether it is a file that ends, and how much of it is
read. What is packed is unpacked as far as a file of its size should go."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coachrl.errors import CoachrlError, ConfigError
from coachrl.text import brief, one_line

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095  # what Linux takes
MOST_MB = "COACHRL_MAX_FILE_MB"
"""The environment variable that says how large a file may be that is read whole. Configurations are such files, too."""
_USUAL_UNPACKED_BYTES, _MOST_TIMES = 1 << 26, 200  # more only of a file that is not packed so many times smaller
_COPIES_OF_TEXT = 4  # its bytes, its characters, and the values that they stand for
# Each value of a file takes some 64 bytes in memory, and each line a table's row, or an object: of a file that is made
# to do harm, far more than its text. Where a file of people's is that large, it has one value in 16 bytes at most.
_MOST_VALUES, _BYTES_A_VALUE, _VALUES_A_LINE, _BEGIN_VALUES = 1 << 26, 16, 8, (b",", b";", b"\t", b"[", b"{")
_PARQUET_ROWS = 64  # that are unpacked at once


def read_text(path: Path, where: str, error: type[CoachrlError] = ConfigError) -> str:
    """The text of a UTF-8 file, unpacked where its name ends in .gz. where: what the message calls it. Raises
    `error`."""
    try:
        return whole_text(path)
    except UnicodeDecodeError as wrong:
        raise error(f"{where}: not UTF-8 text: {wrong}; save it as UTF-8") from wrong
    except (EOFError, zlib.error, gzip.BadGzipFile) as wrong:
        raise error(f"{where}: not a whole gzip file: {wrong}") from wrong
    except OSError as wrong:
        raise error(f"{where}: {wrong.strerror or wrong}") from wrong
    except ValueError as wrong:
        raise error(f"{where}: {wrong}") from wrong


def most_bytes() -> int:
    """Of a file that is read whole. Raises ConfigError for a limit that is none."""
    given = os.environ.get(MOST_MB, "1024")
    if not re.fullmatch("[1-9][0-9]{0,8}", given):
        raise ConfigError(f"{MOST_MB} is {brief(given)}, not a number of MiB")
    return int(given) << 20


def whole_text(path: Path) -> str:
    """The text of a UTF-8 file, unpacked where its name ends in .gz. Raises OSError, and ValueError, also for what is
    larger than files may be."""
    data = _unpacked(regular_file(path)) if path.suffix == ".gz" else bounded_file(path).read_bytes()
    values = _VALUES_A_LINE * data.count(b"\n") + sum(map(data.count, _BEGIN_VALUES))
    if values > max(_MOST_VALUES, most_bytes() // _BYTES_A_VALUE):
        raise too_large(f"it holds {values:,} lines and values")
    return data.decode("utf-8-sig")


def bounded_file(path: Path, times: int = 1) -> Path:
    """`path`, where a regular file is there that is no larger than files may be that are read whole. times: so many
    times larger, where that much of it is left out. Raises OSError and ValueError."""
    size = regular_file(path).stat().st_size
    if size > times * most_bytes():
        raise too_large(f"it has {size:,} bytes")
    return path


def too_large(what: str) -> ValueError:
    """The error that says how to raise the limit. what: that is beyond it, as in "it has 9 bytes"."""
    return ValueError(
        f"{what}, more than is read of a file of {most_bytes() >> 20:,} MiB; {MOST_MB} sets a higher limit"
    )


def _unpacked(path: Path) -> bytes:
    most = min(_most_unpacked(path), most_bytes())
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most == most_bytes():
        raise too_large(f"it unpacks to more than {most:,} bytes")
    if len(data) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes; where it is meant to, unpack it and name that file")
    return data


def _most_unpacked(path: Path) -> int:
    """Bytes in memory that a packed file may stand for: a kilobyte of one that is made to do harm stands for many
    megabytes."""
    return min(_COPIES_OF_TEXT * most_bytes(), max(_USUAL_UNPACKED_BYTES, _MOST_TIMES * path.stat().st_size))


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file. Raises ImportError where pyarrow is missing, OSError or ValueError (pyarrow's own are
    among them) where the file is none, or stands for more than one of its size should."""
    import pyarrow.parquet

    size, most = 0, _most_unpacked(path)
    with pyarrow.parquet.ParquetFile(path) as file:
        twice = [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]
        if twice:  # of which a row would hold the last alone
            raise ValueError(f"the column {brief(twice[0])} stands twice")
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if (unpacked := max((group.total_byte_size for group in groups), default=0)) > most:
            raise ValueError(f"it unpacks to {unpacked:,} bytes and more; at most {most:,} are held")
        for batch in file.iter_batches(_PARQUET_ROWS):
            for row in batch.to_pylist():
                size += _size_of(row)
                if size > most:
                    raise ValueError(f"it unpacks to more than {most:,} bytes")
                yield row


def _size_of(value: Any) -> int:
    """Bytes that plain data takes in memory, about."""
    if isinstance(value, dict):
        return 64 + sum(16 + _size_of(item) for item in value.values())
    if isinstance(value, list):
        return 64 + sum(8 + _size_of(item) for item in value)
    return 32 + (len(value) if isinstance(value, str | bytes) else 0)


def current_folder() -> str:
    """Its path; empty where it was removed, as under a run whose own folder lies elsewhere."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def regular_file(path: Path) -> Path:
    """`path`, where a file can be read there to its end: a named pipe waits for a writer, and a device, or what the
    kernel shows in /proc, may have no end. Raises ValueError that says what is there instead, and OSError."""
    found = usable_path(path).stat()
    mode = found.st_mode
    if stat.S_ISREG(mode) and _is_of_proc(found):
        raise ValueError("it is a view of the kernel in /proc, where a file is needed")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a folder says by itself that it is one
        kind = "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise ValueError(f"it is {kind}, where a file is needed")
    return path


def _is_of_proc(found: os.stat_result) -> bool:
    try:
        return found.st_dev == Path("/proc/self").stat().st_dev
    except OSError:  # none is mounted
        return False


def at_home(path: str | Path) -> Path:
    """A path of the settings, with the home in place of a `~` at its beginning: a shell leaves it in `--out=~/runs`,
    and a file always holds it."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser() raises for a user that does not exist


def usable_path(path: Path) -> Path:
    """`path`, where a file system could hold it. Raises ValueError that says why not."""
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as wrong:
        raise ValueError("a path cannot hold half a character") from wrong
    if "\0" in str(path):
        raise ValueError("a path cannot hold a NUL character")
    if size > MAX_PATH_BYTES or any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in path.parts):
        raise ValueError(
            f"a path has at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} in each name; this one has {size}"
        )
    return path


def named_path(path: Path, what: str, error: type[CoachrlError] = ConfigError) -> Path:
    """As `usable_path`. Raises `error` that calls the path `what`."""
    try:
        return usable_path(path)
    except ValueError as wrong:
        raise error(f"{what} {one_line(str(path))}: {wrong}") from wrong
