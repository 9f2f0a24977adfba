"""The thread that an engine lives in. Who waits for it waits for one move of it no longer than a limit says."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from coachrl.errors import EngineStuck
from coachrl.resources import ENGINE_THREAD

log = logging.getLogger(__name__)
T = TypeVar("T")

_LOOK_EVERY_S = 1.0
_END_S = 30.0


@dataclass(frozen=True, eq=False)
class Move:
    """One thing that the engine is at: a pass, new weights. setting: which says how long it may take."""

    what: str
    limit_s: float
    setting: str

    def overrun(self) -> str:
        """What is wrong where it has taken longer."""
        return f"vLLM's engine does not answer: {self.what} has taken longer than {self.limit_s:g} s ({self.setting})"


class EngineThread:
    """Does one thing after another. The program does not wait for this thread when it ends: nothing ends a call into
    CUDA that hangs.

    A limit is for one move and not for all that somebody waits for, so that many requests are no silence. It is counted
    in looks of those who wait: a process that was stopped (Ctrl-Z, a laptop's lid) takes no engine for silent when it
    goes on.
    """

    def __init__(self, first: Move) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._move = first
        self._overrun: str | None = None  # once somebody has waited too long, whatever the thread does later
        self._thread = threading.Thread(target=self._work, name=ENGINE_THREAD, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do this once all that was submitted before is done."""
        done: Future[T] = Future()
        self._jobs.put(partial(_do, done, function, arguments))
        return done

    def begin(self, move: Move) -> None:
        """Called in the thread: what it is at from now on."""
        self._move = move

    def wait(self, done: Future[T]) -> T:
        """Its result. Raises EngineStuck, and what the function raises."""
        for look_s in self._looks():
            if futures.wait([done], look_s).done:
                break
        return done.result()

    async def answer(self, done: Future[T]) -> T:
        """The same, while other tasks go on. Who stops waiting for it cancels it."""
        waiting = asyncio.wrap_future(done)
        try:
            for look_s in self._looks():
                if (await asyncio.wait([waiting], timeout=look_s))[0]:
                    break
        except BaseException:
            waiting.cancel()
            raise
        return waiting.result()

    def end(self, last: Callable[[], None]) -> None:
        """Do this last, once what the thread is at is done: for which nobody waits that has waited too long already."""
        done = self.submit(last)
        self._jobs.put(None)
        if self._overrun is None:
            self._thread.join(_END_S)
            if self._thread.is_alive():
                log.warning("vLLM's engine has not ended within %g s: %s", _END_S, self._move.what)
        if done.done():
            done.result()

    def leave(self) -> None:
        """The same for a thread that nobody waits for."""
        self._jobs.put(None)

    def _looks(self) -> Iterator[float]:
        """Seconds until the next look at what the thread is at. Raises EngineStuck where that takes too long."""
        move, waited_s = self._move, 0.0
        while self._overrun is None:
            look_s = min(_LOOK_EVERY_S, move.limit_s / 10)
            yield look_s
            waited_s = waited_s + look_s if move is self._move else 0.0
            move = self._move
            if waited_s >= move.limit_s:
                self._overrun = move.overrun()
        raise EngineStuck(self._overrun)

    def _work(self) -> None:
        while self._overrun is None and (job := self._jobs.get()) is not None:
            job()
            del job  # else what it holds lives on until the next one comes


def _do(done: Future[T], function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        done.set_exception(error)
    else:
        done.set_result(result)
