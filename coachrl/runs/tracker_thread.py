"""A tracker in a thread of its own: a server that hangs, or is away, holds up no step of a run."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Literal, Protocol

from coachrl.text import said

log = logging.getLogger(__name__)

_Line = tuple[int, Mapping[str, float]]
_TRIES = 10  # in a row; MLflow tries for minutes, each time
_LAST_WORDS_S = 60.0
_HURRIED_S = 5.0  # schedulers end a process half a minute after they ask it to
_LOOK_EVERY_S = 0.1


Ending = Literal["finished", "interrupted", "failed"]
"""How a run ended."""


class _Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, ending: Ending) -> None: ...


class InThread:
    """A tracker that is made and called in one thread: MLflow and trackio know their run by the thread. A line that it
    does not take is kept, and tried again with the next one; after several in a row it is left out, with a warning.

    Raises what `make` raises."""

    def __init__(self, name: str, make: Callable[[], _Tracker]) -> None:
        self._name = name
        self._lines = queue.SimpleQueue[_Line | None]()
        made = Future[None]()
        self._thread = threading.Thread(
            target=self._live, args=(make, made), name=f"coachrl tracker {name}", daemon=True
        )
        self._ends_at = math.inf
        self._ending: Ending = "finished"
        self._thread.start()
        try:
            if not _waited(lambda seconds: bool(wait([made], seconds).done)):
                raise asyncio.CancelledError  # as the loop would, once it goes on
            made.result()
        except BaseException:  # a Ctrl-C, too: what is made all the same is closed
            self._lines.put(None)
            raise

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lines.put((step, metrics))

    def end(self, ending: Ending) -> None:
        """What `close` waits for, and its time, begin: seconds at most where the run was interrupted. What is said
        first of how it ended counts."""
        if self._ends_at < math.inf:
            return
        self._ending = ending
        self._ends_at = time.monotonic() + (_HURRIED_S if ending == "interrupted" else _LAST_WORDS_S)
        self._lines.put(None)

    def close(self) -> None:
        """Returns once the tracker has taken everything, or after a minute, or a Ctrl-C."""
        self.end("finished")
        if not _waited(self._has_ended, self._ends_at):
            log.warning(
                "tracker %s does not answer, and may lack the last steps: metrics.jsonl has all of them", self._name
            )

    def _has_ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _live(self, make: Callable[[], _Tracker], made: Future[None]) -> None:
        try:
            tracker = make()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            made.set_exception(error)
            return
        made.set_result(None)
        waiting, failed, line = deque[_Line](), 0, self._lines.get()
        while line is not None:
            if failed < _TRIES:
                waiting.append(line)
                failed = self._hand_over(tracker, waiting, failed)
            line = self._lines.get()
        try:
            if failed < _TRIES and self._hand_over(tracker, waiting, failed):
                lacking = "tracker %s lacks what came from step %d on: metrics.jsonl has it"
                log.warning(lacking, self._name, waiting[0][0])
            tracker.close(self._ending)
        except BaseException as error:  # noqa: BLE001  as below
            log.warning("tracker %s did not end well: %s", self._name, _said(error))

    def _hand_over(self, tracker: _Tracker, waiting: deque[_Line], failed: int) -> int:
        """How often in a row it has failed by now, with `failed` times before."""
        while waiting:
            try:
                tracker.log(*waiting[0])
            except BaseException as error:  # noqa: BLE001  the boundary to others' code, which may raise anything
                if failed + 1 >= _TRIES:
                    log.warning("tracker %s is left out from now on: %s", self._name, _said(error))
                elif failed == 0:
                    again = "it is tried again with the next one"
                    log.warning(
                        "tracker %s has not taken step %d, %s: %s", self._name, waiting[0][0], again, _said(error)
                    )
                return failed + 1
            waiting.popleft()
            failed = 0
        return 0


def _said(error: BaseException) -> str:
    return " ".join(said(error).split()) or type(error).__name__


def _waited(is_so: Callable[[float], bool], until: float = math.inf) -> bool:
    """Whether it became so, which `is_so` waits for in the seconds that it is given: by this time, and before the task
    that runs was cancelled, as it is by the first Ctrl-C, of which it hears nothing while its loop stands still."""
    cancelled = _cancelled()
    while not is_so(max(0.0, min(_LOOK_EVERY_S, until - time.monotonic()))):
        if time.monotonic() >= until or _cancelled() > cancelled:
            return False
    return True


def _cancelled() -> int:
    """How often the task that runs was."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return 0
    return 0 if task is None else task.cancelling()
