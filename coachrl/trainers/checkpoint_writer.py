"""A checkpoint is put on disk beside the episodes of the next step, and the update after them waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future

from coachrl.text import first_line

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02


class CheckpointWriter:
    """One checkpoint at a time. Whatever writing it raises is raised by `wait` or `written`, once."""

    def __init__(self) -> None:
        self._under_way: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Call `write` in a thread, one that the program does not wait for when it ends: it may wait for a cluster that
        is gone. To be called after `wait`."""
        self._under_way = _in_a_thread(write)  # last: nobody waits for what never began

    def wait(self) -> None:
        """Return once the checkpoint is on disk."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    async def written(self) -> None:
        """The same, while other tasks go on."""
        # Not by asyncio.wrap_future: its future tells of an error a second time, and of an event loop that is closed.
        while self._under_way is not None and not self._under_way.done():
            await asyncio.sleep(_LOOK_EVERY_S)
        self.wait()

    def close(self) -> None:
        """The same where a run fails: what writing raises is logged, since the run's own error is told."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from the disk
            log.warning("the last checkpoint was not written: %s", first_line(error))


def is_done_within(limit_s: float, write: Callable[[], None]) -> bool:
    """Call `write`, and wait for it no longer than that. Raises what it raises."""
    done = _in_a_thread(write)
    if not futures.wait([done], limit_s).done:
        return False
    done.result()
    return True


def _in_a_thread(write: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()

    def work() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    try:
        threading.Thread(target=work, daemon=True, name="checkpoint").start()
    except RuntimeError:  # no thread is to be had
        work()
    return done
