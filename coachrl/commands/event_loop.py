"""The event loop that a command runs in. Code of the user's own shares it, and may do to it what it likes."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console

from coachrl.errors import ConfigError, Preempted
from coachrl.resources import never_ends

log = logging.getLogger(__name__)
T = TypeVar("T")

_ENDING_S = 10.0
_MOST_EXITS = 1000


def run_in_loop(work: Coroutine[Any, Any, T], stays: Callable[[], str] | None = None) -> T:
    """As `asyncio.run`, but for what users' own code does: to end the program, the loop or the run's tasks is an error
    of one line, and tasks that it leaves behind are waited for no longer than some seconds. Raises ConfigError, and
    Preempted after a SIGTERM that Ray heard, whose handler is there while nothing trains.

    stays: what is kept of the work and how to go on, for these messages."""
    begun: set[asyncio.Task[Any]] = set()

    def told(what: str) -> str:
        return what if stays is None else f"{what}; {stays()}"

    async def main() -> T:
        begun.update(filter(None, [asyncio.current_task()]))
        return await work

    with _interrupts_as_before(), asyncio.Runner() as runner:
        try:
            return runner.run(main())
        except SystemExit as error:
            if _is_of_console(error):  # who read what it prints has left
                raise
            if error.code == signal.SIGTERM:
                raise Preempted(told("the process was asked to end")) from error
            raise ConfigError(
                told(f"code that the run calls, or a handler of a signal, has ended the program: exit({error})")
            ) from error
        except asyncio.CancelledError as error:
            raise ConfigError(told("code that the run calls has cancelled tasks that are not its own")) from error
        except RuntimeError as error:
            if all(task.done() for task in begun):
                raise
            raise ConfigError(told("code that the run calls has stopped the event loop")) from error
        finally:
            if begun:  # else another loop runs in this thread
                _end_tasks(runner.get_loop(), begun)


def _is_of_console(end: SystemExit) -> bool:
    """Whether a console of Rich ended the program, as it does where nobody reads any more. Code of the user's own may
    end it for a broken pipe too, of its own making."""
    place = end.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is Console.on_broken_pipe.__code__


@contextmanager
def _interrupts_as_before() -> Iterator[None]:
    """A program that is ended in the midst of the loop leaves the loop's own handler of Ctrl-C behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:  # set by Python
            signal.signal(signal.SIGINT, before)


def _end_tasks(loop: asyncio.AbstractEventLoop, begun: set[asyncio.Task[Any]]) -> None:
    """Those that are left. Of what ends the program or stops the loop meanwhile there may be more than one."""
    ending = loop.create_task(_let_go(begun))
    for attempt in range(_MOST_EXITS):
        try:
            loop.run_until_complete(ending)
            return
        except (SystemExit, RuntimeError) as error:
            if attempt == 0:
                log.warning("code that the run calls has tried to end the program while its tasks end: %r", error)


async def _let_go(begun: set[asyncio.Task[Any]]) -> None:
    """Cancel what is left. The work itself ends in its own time: it may be writing."""
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    _, still = await asyncio.wait(others, timeout=_ENDING_S) if others else ((), ())
    for task in still:
        log.warning("task %s does not end though it was told to; nobody waits for it any longer", task.get_name())
        asyncio._unregister_task(task)
        never_ends(task)
