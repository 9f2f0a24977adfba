"""Keeps a room still while somebody looks at it for long.

A look at what processes hold takes the locks of their memory, piece by piece, and the processes may fight for these: a
few that fork with ten thousands of mapped areas make a look take many seconds, in which nobody keeps their limits. So
they are stopped once a look takes long, and go on after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

_LONG_S = 0.5
_EVERY_S = 0.1  # a process may have been forked since the others were stopped


class Stillness:
    """To be made before the room: a process whose children are in other namespaces than itself starts no thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._members: Callable[[], list[int]] | None = None  # while somebody looks
        self._since = 0.0
        self._is_still = False
        while not self._start():
            time.sleep(_EVERY_S)  # programs may have all threads that there may be, and they end

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._keep, daemon=True).start()
        except RuntimeError:
            return False
        return True

    @contextlib.contextmanager
    def after_a_while(self, members: Callable[[], list[int]]) -> Iterator[None]:
        """If the block takes long, `members`, the processes that are there at any time, stand still until it ends."""
        with self._turn:
            self._members, self._since = members, time.monotonic()
        try:
            yield
        finally:
            with self._turn:
                if self._is_still:
                    _send(signal.SIGCONT, members())
                self._members, self._is_still = None, False

    def _keep(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            with self._turn:
                if self._members is not None and time.monotonic() - self._since > _LONG_S:
                    self._is_still = True
                    _send(signal.SIGSTOP, self._members())


def _send(signal_number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
