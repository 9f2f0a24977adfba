"""Signals to a run that trains: Ctrl-C is answered at once, however long what is under way takes to end; SIGTERM has
the run write a checkpoint first, and so do a terminal that closes (SIGHUP) and a notice file."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from types import FrameType

from coachrl.config import RunConfig
from coachrl.runs.folder import Run
from coachrl.runs.records import step_of

_TWICE_S = 1.0  # `timeout` sends each signal to a process, and then to its group
_LOOK_EVERY_S = 1.0  # for the notice file: schedulers leave half a minute or more


@contextmanager
def interrupts_acknowledged(what: Callable[[], str]) -> Iterator[None]:
    """The first Ctrl-C says `what` stays, and then does what it would have done; a second one does that at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def acknowledge(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        # Not by print: the signal may come in the middle of a print, whose buffer cannot be entered twice.
        with suppress(OSError):  # the same Ctrl-C has ended the `tee` that read it
            os.write(2, f"\r\ninterrupted; {what()}\n".encode())
        before(number, frame)

    signal.signal(signal.SIGINT, acknowledge)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is acknowledge:
            signal.signal(signal.SIGINT, before)


@contextmanager
def asked_to_end(end: Callable[[], None], notice: Path | None = None, earlier: int | None = None) -> Iterator[None]:
    """A SIGTERM, which schedulers send some time before they end a process, calls `end` in the event loop, and so do a
    SIGHUP and the file `notice` when it appears or is written anew. A second SIGTERM does at once, whatever keeps the
    loop busy, what the first would have done, but for one that comes along with the first.

    earlier: `written_at(notice)` before anything was loaded. Such a file ended an earlier part of the run, and says
    nothing to this one."""
    watch = asyncio.get_running_loop().create_task(_await_notice(notice, earlier, end)) if notice is not None else None
    try:
        with _heeding_signals(end):
            yield
    finally:
        if watch is not None:
            watch.cancel()


async def _await_notice(notice: Path, earlier: int | None, end: Callable[[], None]) -> None:
    while not is_written_anew(notice, earlier):
        await asyncio.sleep(_LOOK_EVERY_S)
    end()


def is_written_anew(notice: Path | None, earlier: int | None) -> bool:
    """Whether the file is there, and is another one than at `earlier`."""
    return written_at(notice) not in (None, earlier)


def written_at(notice: Path | None) -> int | None:
    """When the file was written; None where there is none, or none that can be seen."""
    if notice is None:
        return None
    try:
        return notice.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def _heeding_signals(end: Callable[[], None]) -> Iterator[None]:
    """A terminal that closes sends SIGHUP, often more than once. It stays ignored where `nohup` has set it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if (of_terminal := signal.getsignal(signal.SIGHUP)) is not signal.SIG_IGN:
        before[signal.SIGHUP] = of_terminal
    loop = asyncio.get_running_loop()
    first: float | None = None

    # Not by the loop's own handlers, which wait for the loop: code of the user's own may keep it busy for hours.
    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            loop.call_soon_threadsafe(end)
        elif number == signal.SIGTERM and now - first >= _TWICE_S:
            signal.signal(signal.SIGTERM, before[signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)

    for each in before:
        signal.signal(each, heard)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is heard:
                signal.signal(each, handler)


def what_stays(config: RunConfig, run: Run) -> str:
    """What an interrupted run has saved, and how to go on with it."""
    if not (run.folder / "metrics.jsonl").exists():
        return "nothing had been trained yet, and nothing is kept"
    if not config.train.keep_checkpoints:
        return "no checkpoint is kept, so it cannot be continued"
    checkpoints = run.checkpoints()
    # One that is being written when the signal comes is written to its end.
    saved = f"{checkpoints[-1].name} is saved" if checkpoints else "no checkpoint was whole yet"
    how = f"coachrl train --resume {quote(str(run.folder))}"
    if checkpoints and step_of(checkpoints[-1]) == config.train.steps:
        return f"{saved}, and no step is left; the report, and an evaluation that is missing, come with: {how}"
    return f"{saved}; continue with: {how}"
