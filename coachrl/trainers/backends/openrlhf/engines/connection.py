"""The asking end: all requests of this process to an engine go over one connection, and a quick reply is not held back
by a slow one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ray.exceptions import RayError

from coachrl.errors import BackendError, EngineLost
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import DEATHS
from coachrl.trainers.backends.openrlhf.engines.wire import (
    ANSWERS,
    ENDED,
    Address,
    Prompt,
    Request,
    connect,
    messages,
    send,
)
from coachrl.trainers.backends.vllm.replies import Reply
from coachrl.types import SamplingParams

_LOOK_S = 20.0  # Ray hears of a machine that is gone, where a connection only falls silent
_RAY_S = 30.0  # within which Ray says of a process that has died that it has
_CONNECT_S = 30.0


class EngineDead(Exception):
    """An engine that will not answer, as DEATHS are: vLLM's process in it died, or the connection to it ended."""


class Engine:
    """One engine, by Ray's handle, as this process asks it. It connects with the first request, and again where the
    connection, or the event loop that it belongs to, has ended."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None

    async def ask(self, prompt_ids: Sequence[int], stop_ids: Sequence[int], sampling: SamplingParams) -> Reply:
        """Raises one of DEATHS or EngineDead where the engine died, EngineLost where it cannot be reached, and
        BackendError where it refuses the request."""
        connection = self._connection
        if connection is None or connection.ended:
            connection = await self._connected()
        return await connection.ask(Prompt(list(prompt_ids), list(stop_ids), sampling))

    def close(self) -> None:
        """End the connection. What waits for an answer is told so."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> _Connection:
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)  # others wait for it, where one gives up

    async def _connect(self) -> _Connection:
        address = await self._address()
        try:
            async with asyncio.timeout(_CONNECT_S):
                writer = await connect(address)
        except ENDED as error:
            await self._address()  # raises where it died meanwhile
            raise EngineLost(
                f"an engine listens at {address.host}:{address.port}, which cannot be reached from this machine "
                f"({error or type(error).__name__}); machines of a cluster must reach each other on every port"
            ) from error
        self._connection = _Connection(writer, self._address)
        return self._connection

    async def _address(self) -> Address:
        """By Ray, which raises one of DEATHS where the engine died."""
        address: Address = await self.handle.listen.remote()
        return address


class _Connection(asyncio.Protocol):
    """writer: of a connection that has been opened. look: raises one of DEATHS where Ray knows that the engine died."""

    def __init__(self, writer: asyncio.StreamWriter, look: Callable[[], Awaitable[Address]]) -> None:
        self._writer, self._look = writer, look
        self._arrived = bytearray()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._cut: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.create_task(self._watch())
        writer.transport.set_protocol(self)

    @property
    def ended(self) -> bool:
        return self._cut.done() or self._watching.done()

    async def ask(self, prompt: Prompt) -> Reply:
        if self.ended:
            raise EngineDead("the connection to it ended as it began")
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send(self._writer, Request(number, prompt))
            return await waiting
        except asyncio.CancelledError:
            send(self._writer, Request(number, None))
            raise
        finally:
            del self._waiting[number]

    def close(self) -> None:
        self._watching.cancel()
        self._fail(EngineDead("the connection to it was closed"))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop, without a task in between: so it takes the least time."""
        self._arrived += data
        for answer in messages(self._arrived, ANSWERS):
            waiting = self._waiting.get(answer.number)
            if waiting is None or waiting.done():  # given up
                continue
            if answer.reply is not None:
                waiting.set_result(answer.reply)
            else:
                waiting.set_exception((EngineDead if answer.dead else BackendError)(answer.error))

    def connection_lost(self, error: Exception | None) -> None:
        self._cut.set_result(f"the connection to it ended{f': {error}' if error else ''}")

    async def _watch(self) -> None:
        """Fail what waits where the connection ends, by Ray's own word where the engine died, and where Ray alone has
        heard of that. An engine that hangs is left to the limits of those who wait."""
        lost: Exception | None = None
        try:
            while lost is None:
                await asyncio.wait({self._cut}, timeout=_LOOK_S)
                try:
                    async with asyncio.timeout(_RAY_S):
                        await self._look()
                except DEATHS as death:
                    lost = death
                except (RayError, TimeoutError):
                    pass
                if lost is None and self._cut.done():
                    lost = EngineDead(self._cut.result())
            self._fail(lost)
        finally:  # with the event loop, too
            self._writer.close()

    def _fail(self, error: Exception) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
