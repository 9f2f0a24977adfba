"""Frames between the host and a supervisor: a 4-byte length, a JSON object, then the raw bytes it announces."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, BinaryIO

LENGTH = struct.Struct("!I")
MAX_REQUEST_BYTES = 64 * 1024 * 1024
BEGUN = {"begun": True}  # goes ahead of the answer to "run": the agent's code runs from now on


class Disconnected(Exception):
    """The other side hung up in the middle of a frame."""


def pack(header: dict[str, Any]) -> bytes:
    """The frame of `header`, without the raw bytes that may follow it."""
    body = json.dumps(header).encode()
    return LENGTH.pack(len(body)) + body


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """`size` bytes, or Disconnected."""
    data = stream.read(size)
    if len(data) != size:
        raise Disconnected
    return data


def receive(stream: BinaryIO) -> dict[str, Any]:
    """The next header. Raises Disconnected at the end of the stream, ValueError for a frame that is too long."""
    (size,) = LENGTH.unpack(read_exactly(stream, LENGTH.size))
    if size > MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {size} bytes; at most {MAX_REQUEST_BYTES} are taken")
    header: dict[str, Any] = json.loads(read_exactly(stream, size))
    return header


def send(stream: BinaryIO, header: dict[str, Any], payload: Iterable[bytes] = ()) -> None:
    """Write one frame and its raw bytes."""
    stream.write(pack(header))
    for part in payload:
        stream.write(part)
    stream.flush()
