"""What goes between a process that asks and an engine: messages over a TCP connection, in place of a call of Ray's for
each request, which takes more than a millisecond of either's processor.

Messages are read as the types below and nothing else: no byte that arrives is run. Who connects proves that it knows
the engine's secret, which it has by Ray. What is sent is not encrypted, as Ray's and NCCL's own is not.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from coachrl.trainers.backends.vllm.replies import Reply
from coachrl.types import SamplingParams

_LENGTH = 4  # bytes before each message that say how many it has
_NONCE, _DIGEST = 32, "sha256"  # whose digests are as long


@dataclass(frozen=True)
class Prompt:
    """What is to be answered."""

    token_ids: list[int]
    stop_ids: list[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class Request:
    """number: by which the asking process knows the answer. prompt: None where nobody waits for the answer any more."""

    number: int
    prompt: Prompt | None


@dataclass(frozen=True)
class Answer:
    """reply: None where there is an error in its place. dead: vLLM's own process has died, or draws from logits that
    are no numbers, so that nothing more is to be asked of the engine."""

    number: int
    reply: Reply | None
    error: str = ""
    dead: bool = False


ENDED = (OSError, EOFError, msgspec.DecodeError)  # how a connection ends, one that sends what is no message included
REQUESTS, ANSWERS = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int
    secret: bytes = field(repr=False)


def send(writer: asyncio.StreamWriter, message: Request | Answer) -> None:
    """Nothing where the connection has ended: who waits for an answer hears of that as it reads."""
    if not writer.is_closing():
        body = _ENCODER.encode(message)
        writer.write(len(body).to_bytes(_LENGTH, "big") + body)


async def receive(reader: asyncio.StreamReader, decoder: Any) -> Any:
    """The next message, as `decoder` reads it. Raises one of ENDED."""
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    return decoder.decode(await reader.readexactly(length))


def messages(arrived: bytearray, decoder: Any) -> Iterator[Any]:
    """Those that have arrived whole, which are taken out."""
    while len(arrived) >= _LENGTH:
        end = _LENGTH + int.from_bytes(arrived[:_LENGTH], "big")
        if len(arrived) < end:
            return
        body = bytes(arrived[_LENGTH:end])
        del arrived[:end]
        yield decoder.decode(body)


async def connect(address: Address) -> asyncio.StreamWriter:
    """A connection over which nothing comes that was not asked for. Raises one of ENDED."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(hmac.digest(address.secret, await reader.readexactly(_NONCE), _DIGEST))
    return writer


async def is_known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> bool:
    """Whether who has connected knows the secret; `connect` is the other end."""
    nonce = secrets.token_bytes(_NONCE)
    writer.write(nonce)
    expected = hmac.digest(secret, nonce, _DIGEST)
    return hmac.compare_digest(await reader.readexactly(len(expected)), expected)


def listening_socket(host: str) -> socket.socket:
    """On a free port. host: this machine's address, of the network that Ray uses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)
