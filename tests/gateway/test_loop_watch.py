"""The watch over waits in the event loop that serves: what it looks at, and when it ends."""

import asyncio
import contextlib
import socket
import sys
import threading

import pytest

from coachrl.gateway import loop_watch
from coachrl.gateway.episode_tokens import SharedServer
from coachrl.gateway.loop_watch import LoopWatch

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")


class Proxy:
    """Stands for something that is not there, as those of web frameworks do outside of a request."""

    @property
    def __dict__(self):
        raise RuntimeError("working outside of request context")

    @property
    def __class__(self):
        raise RuntimeError("working outside of request context")

    def __getattr__(self, name):
        raise RuntimeError("working outside of request context")


class OfItsOwn:
    __dict__ = None


class Held:
    def __init__(self, held):
        self._sock = held


def test_what_stands_in_a_frame_is_looked_at_and_not_run():
    with contextlib.closing(socket.socket()) as one, contextlib.closing(socket.socket()) as other:
        exotic, odd, held, plain, kind = Proxy(), OfItsOwn(), Held(other), one, socket.socket  # noqa: F841
        found = list(loop_watch._sockets(sys._getframe()))
    assert one in found and other in found


def watches():
    return [thread for thread in threading.enumerate() if thread.name == "coachrl-loop-watch"]


async def test_a_wait_on_another_server_or_in_another_thread_is_left_alone(monkeypatch):
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.01)
    ours, another = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    seen = []
    watch = LoopWatch(ours.getsockname()[:2], lambda: seen.append("told"))
    try:
        with socket.create_connection(another.getsockname(), timeout=0.2) as client, pytest.raises(TimeoutError):
            client.recv(1)
        with socket.create_connection(ours.getsockname(), timeout=0.2) as client, pytest.raises(TimeoutError):
            await asyncio.to_thread(client.recv, 1)
        assert not seen
        with socket.create_connection(ours.getsockname(), timeout=60) as client:
            assert client.recv(1) == b""
        assert seen == ["told"]
    finally:
        watch.stop()
        for server in (ours, another):
            server.close()


async def test_a_server_that_nobody_waited_for_leaves_no_watch(monkeypatch):
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.01)
    serving, before = SharedServer("127.0.0.1", 0, 1), set(watches())

    async def uses():
        async with serving.running():
            pass

    using = asyncio.create_task(uses())
    await asyncio.sleep(0)
    using.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await using
    await asyncio.wait({serving._stopping})
    for thread in set(watches()) - before:
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
