"""A real HTTP server on loopback, which serves while it is used as an async context manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self
from unittest import SkipTest

try:
    from aiohttp import web
except ModuleNotFoundError as missing:  # tests that import this are skipped
    raise SkipTest("needs aiohttp, of the llm extra") from missing


class LoopbackServer:
    """Answers POST requests, each path with its handler. port: 0 takes a free one."""

    host = "127.0.0.1"

    def __init__(
        self, handlers: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]], port: int = 0
    ) -> None:
        self._handlers, self._port = handlers, port
        self._closing = asyncio.Event()

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self._port}"

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1024 * 1024 * 1024)
        for path, handler in self._handlers.items():
            application.router.add_post(path, handler)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()
