"""An event loop whose clock jumps to the next timer: minutes of waiting pass in milliseconds, and always alike."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Sleeps no longer than it takes to look whether a file is ready."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits, and for nothing that time would bring")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
