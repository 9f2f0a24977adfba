"""Ends a wait that would have no end: that of an app, in the event loop of the run, for a reply which that loop is to
give it. Nothing else could end it: time limits and signals are the loop's to heed."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_EVERY_S = 1.0
_FRAMES = 4  # from the innermost: libraries read from their sockets in one of those


class LoopWatch:
    """Made in the thread whose event loop serves at `address`, and at work until `stop`. tell: called, in a thread of
    its own, before a call is broken off; the loop stands still then."""

    def __init__(self, address: tuple[str, int], tell: Callable[[], None]) -> None:
        self._address, self._tell = address, tell
        self._watched = threading.get_ident()
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="coachrl-loop-watch").start()

    def stop(self) -> None:
        """There is nothing to watch over any more."""
        self._over.set()

    def _watch(self) -> None:
        before = None
        while not self._over.wait(_EVERY_S):
            waited_for = self._waited_for()
            if waited_for is not None and waited_for is before:  # seen once, it may be about to be closed
                self._tell()
                _shut(waited_for)
            before = waited_for

    def _waited_for(self) -> socket.socket | None:
        """A connection to the server on which the thread that serves is held up. Those of the loop's own never are."""
        frame = sys._current_frames().get(self._watched)
        for found in _sockets(frame):
            try:
                if found.gettimeout() != 0 and found.getpeername()[:2] == self._address:
                    return found
            except OSError:  # it is no connection any more
                continue
        return None


def _sockets(frame: FrameType | None) -> Iterator[socket.socket]:
    for _ in range(_FRAMES):
        if frame is None:
            return
        for value in list(frame.f_locals.values()):
            for each in (value, _attribute(value, "_sock")):
                if issubclass(type(each), socket.socket):  # isinstance would ask proxies for what they stand for
                    yield each
        frame = frame.f_back


def _attribute(value: Any, name: str) -> Any:
    """Of an object's own, without what its class would do to give it."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except Exception:  # noqa: BLE001  the boundary to any object: one without, or that makes it of something else
        return None


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has been answered after all
        return
