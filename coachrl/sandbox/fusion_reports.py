"""What a SandboxFusion server answers: read as the word of a machine that may be broken, or another's.

The report in it is that of `inside/remote.py`, which the code that it ran may have ended, and taken the place of. The
program prints who it is when it begins, and what its report is (a digest) when it has left that: so what a server lost,
cut or mixed up is told apart from what code spoilt, and an agent answers for its own doing alone.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coachrl.errors import SandboxError
from coachrl.sandbox.answers import checked_name, execution_of
from coachrl.sandbox.inside import remote, wire
from coachrl.sandbox.inside.jail import Limits
from coachrl.text import one_line
from coachrl.types import Execution

logger = logging.getLogger(__name__)

REPORT = "coachrl-report"
_WORDS_BYTES = 16 * 2**20  # of a server, beside the report
_ANSWER_VALUES = 100_000  # in an answer, whose few fields hold text
_UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError)  # raised by what is no report
_NAME_BYTES, _PATH_BYTES = 255, 4096  # the most that a system takes, the latter with a byte that ends it
_VALUES_A_FILE = 64  # in a report: its name in several lists, with commas of its own


@dataclass(frozen=True)
class Contents:
    """What a workspace holds: file name -> data, and -> permissions where they are known; folders (parents first);
    links as (name, target)."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def most_answer_bytes(limits: Limits) -> int:
    """No answer with a report within `limits` is larger."""
    return 4 * _most_report_bytes(limits) // 3 + _WORDS_BYTES  # base64


def _most_report_bytes(limits: Limits) -> int:
    return limits.disk_mb * 2**20 + wire.MAX_REQUEST_BYTES + 2 * (limits.output_kb + 1) * 1024 + wire.LENGTH.size


def read_report(answer: bytes, begun: str, limits: Limits) -> tuple[Execution, Contents | None]:
    """How the code ended, and what its workspace holds then; None where that is as it was. begun: what the program
    prints first. Raises SandboxError, in words that follow the server's name, for what is not the code's doing."""
    found = _answer_of(answer)
    result = found.get("run_result")
    if found["status"] == "SandboxError" or not isinstance(result, dict):
        raise SandboxError(f"says {_words(found, 'status')}: {_words(found, 'message')}")
    status, printed = _words(result, "status"), result.get("stdout")
    printed = printed if isinstance(printed, str) else ""
    if begun not in printed and not printed.startswith("[DecodeError]"):
        if printed.startswith(begun.partition(" ")[0]):
            raise SandboxError("answered with what belongs to another request")
        raise SandboxError(f"could not begin ({status}): {_words(result, 'stderr')}")
    if status == "TimeLimitExceeded":  # the unpacking program keeps the limit; the code has stopped it
        return Execution("timeout", wall_s=limits.timeout_s), None
    if status != "Finished":
        raise SandboxError(f"says {status}: {_words(result, 'stderr')}")
    _, left, digest = printed.rpartition(remote.said_of_report(begun, ""))
    # Once the program has begun, only the code that it runs can end it before its report, by what it leaves as well, or
    # forge one.
    why = "the code ended the process that ran it, or left some that could not be ended"
    spoilt = Execution("error", stderr=why, exit_code=-9), None
    if not left:
        return spoilt
    packed = _packed_of(found)
    if remote.digest_of(packed) != digest.partition("\n")[0]:
        raise SandboxError("answered with another report than the one that was left there")
    try:
        return _unpack(packed, limits)
    except (SandboxError, wire.Disconnected, *_UNREADABLE) as error:
        logger.debug("a report that cannot be read: %s", error)
        return spoilt


def _answer_of(answer: bytes) -> dict[str, Any]:
    try:
        found = _json_of(answer, _ANSWER_VALUES)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "status" not in found:
        shown = one_line(answer[:1024].decode(errors="replace"))
        raise SandboxError(f"answered with something that is no RunCodeResponse: {shown}")
    return found


def _json_of(text: bytes, most_values: int) -> Any:
    """Raises ValueError for what is not JSON, or holds more values than `most_values`: each takes tens of bytes."""
    if sum(map(text.count, (b",", b"[", b"{"))) > most_values:
        raise ValueError(f"more than {most_values:,} values")
    return json.loads(text)


def _words(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return one_line(value[-2000:]) if isinstance(value, str) else f"{key} of type {type(value).__name__}"


def _packed_of(found: Mapping[str, Any]) -> bytes:
    fetched = found.get("files")
    text = fetched.get(REPORT) if isinstance(fetched, dict) else None
    if not isinstance(text, str):
        raise SandboxError("answered without the report that was left there")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise SandboxError("answered with a report that is not base64") from None


def _unpack(packed: bytes, limits: Limits) -> tuple[Execution, Contents | None]:
    """Raises an error of its caller's list for anything but a report within `limits`."""
    if len(packed) > _most_report_bytes(limits):
        raise ValueError("more than a workspace holds")
    stream = io.BytesIO(packed)
    (size,) = wire.LENGTH.unpack(wire.read_exactly(stream, wire.LENGTH.size))
    header = _json_of(wire.read_exactly(stream, size), _ANSWER_VALUES + _VALUES_A_FILE * limits.max_files)
    stdout, stderr = (wire.read_exactly(stream, _size(size)) for size in header["sizes"])
    most = (limits.output_kb + 1) * 1024
    execution = execution_of(header, stdout[:most], stderr[:most])
    execution = replace(execution, files_written=execution.files_written[: limits.max_files])
    return execution, _contents(header, stream, limits) if "files" in header else None


def _contents(header: Mapping[str, Any], stream: io.BytesIO, limits: Limits) -> Contents:
    if len(wire.pack(dict(header))) > wire.MAX_REQUEST_BYTES // 2:
        raise ValueError("more names than the next order holds")
    files = {checked_name(name): wire.read_exactly(stream, _size(size)) for name, size in header["files"]}
    modes = {checked_name(name): _size(mode) & 0o777 for name, mode in header["modes"] if name in files}
    folders = tuple(checked_name(name) for name in header["folders"])
    links = tuple((checked_name(name), _target(target)) for name, target in header["links"])
    held = sum(map(len, files.values()))
    if max(len(files), len(folders), len(links)) > limits.max_files or held > limits.disk_mb * 2**20:
        raise ValueError("more files than a workspace holds")
    _require_places([*files, *(name for name, _ in links)], folders)
    return Contents(files, modes, folders, links)


def _require_places(leaves: Sequence[str], folders: Sequence[str]) -> None:
    """Raises ValueError where no folder can hold all of them: the next execution could not begin, as if the server were
    to blame."""
    ends, names = set(leaves), [*leaves, *folders]
    if len(set(names)) < len(names):
        raise ValueError("two of one name")
    for parts in (name.split("/") for name in names):
        if any(len(os.fsencode(part)) > _NAME_BYTES for part in parts):
            raise ValueError("a name that is too long")
        if any("/".join(parts[:depth]) in ends for depth in range(1, len(parts))):
            raise ValueError("a name below what is no folder")


def _target(value: object) -> str:
    if not isinstance(value, str) or "\0" in value or not 0 < len(os.fsencode(value)) < _PATH_BYTES:
        raise ValueError(f"{value!r} is nothing that a link leads to")
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value
