"""What the sandbox answers, read as the word of a process that an agent's code may have taken over."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any, cast, get_args

from coachrl.errors import SandboxError
from coachrl.sandbox.inside import files as names
from coachrl.sandbox.inside import wire
from coachrl.text import brief
from coachrl.types import Execution, ExecutionState

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_PART_BYTES = 1024 * 1024 * 1024  # of a file, or of what a program printed
_STATES = frozenset(get_args(ExecutionState)) - {"infrastructure"}  # code cannot claim that it was not its doing
_ENDED_BY_ITSELF = ("ok", "error", "oom")


async def read_header(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = wire.LENGTH.unpack(await reader.readexactly(wire.LENGTH.size))
    if size > _MAX_ANSWER_BYTES:
        raise SandboxError(f"an answer of {size} bytes")
    text = await reader.readexactly(size)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SandboxError(f"an answer that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SandboxError("an answer that is not an object")
    return header


async def read_answer(
    reader: asyncio.StreamReader, header: dict[str, Any], raw_parts: int
) -> tuple[dict[str, Any], list[bytes]]:
    kinds = {"missing": FileNotFoundError, "refused": ValueError, "failed": SandboxError}
    if "error" in header:
        raise kinds.get(str(header["error"]), SandboxError)(str(header.get("message")))
    sizes = header.get("sizes", [])
    if (
        not isinstance(sizes, list)
        or len(sizes) != raw_parts
        or not all(isinstance(size, int) and 0 <= size <= _MAX_PART_BYTES for size in sizes)
    ):
        raise SandboxError("an answer with parts that were not asked for")
    return header, [await reader.readexactly(size) for size in sizes]


def execution_of(header: Mapping[str, Any], stdout: bytes, stderr: bytes) -> Execution:
    """What a report says of an execution. Raises SandboxError for what is none."""
    state, exit_code, wall_s = (header.get(key) for key in ("state", "exit_code", "wall_s"))
    if (
        not isinstance(state, str)
        or state not in _STATES
        or not (exit_code is None or (isinstance(exit_code, int) and -64 <= exit_code <= 255))  # a signal's is negative
        or isinstance(wall_s, bool)
        or not isinstance(wall_s, int | float)
        or not 0 <= wall_s <= sys.float_info.max
    ):
        raise SandboxError("an answer that is not the report of an execution")
    return Execution(
        state=cast(ExecutionState, state),
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        exit_code=exit_code if state in _ENDED_BY_ITSELF else None,
        files_written=checked_names(header.get("files_written")),
        wall_s=float(wall_s),
    )


def checked_names(value: object) -> tuple[str, ...]:
    """File names of a list, as `inside.files.reported`. Raises SandboxError."""
    if not isinstance(value, list):
        raise SandboxError("an answer without file names")
    return tuple(names.reported(map(checked_name, value)))


def checked_name(name: object) -> str:
    """`name` where it is one that `inside.files` could have listed. Raises SandboxError."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > names.MAX_NAME_CHARS:
        raise SandboxError(f"an answer with {brief(name)} in the place of a file name")
    try:
        plain = "/".join(names.parts_of(name)) == name
    except ValueError:
        plain = False
    if not plain:
        raise SandboxError(f"an answer that cannot be: {name!r} is not a plain relative file name")
    return name
