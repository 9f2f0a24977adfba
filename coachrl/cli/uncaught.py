"""What Python itself tells of errors that nobody catches: in threads, in tasks that nobody awaits, while it tidies up.
Code of the user's own raises them too, with keys of the environment in them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coachrl.text import logged

_AGAIN_S = 0.05  # by then Python has tidied up


class _WithoutKeys(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return logged(super().format(record))


@contextmanager
def uncaught_told_without_keys() -> Iterator[None]:
    """A Ctrl-C that came while Python tidied up is raised again."""
    in_threads, unraisable, last = threading.excepthook, sys.unraisablehook, logging.lastResort
    formatter = last.formatter if last is not None else None
    threading.excepthook, sys.unraisablehook = _tell_of_thread, _tell_of_unraisable
    if last is not None:  # the handler of records that nobody else handles, asyncio's among them
        last.setFormatter(_WithoutKeys())
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = in_threads, unraisable
        if last is not None:
            last.setFormatter(formatter)


def _tell_of_thread(lost: Any) -> None:
    if not issubclass(lost.exc_type, SystemExit):
        name = lost.thread.name if lost.thread is not None else "?"
        _tell(f"Exception in thread {name}:", lost)


def _tell_of_unraisable(lost: Any) -> None:
    """Send a Ctrl-C again that came while Python tidied up, as it does after each import: it could be raised to nobody.
    A thread sends it, since it would be lost in here as well."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        _tell(lost.err_msg or "Exception ignored:", lost)
        return
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


def _tell(what: str, lost: Any) -> None:
    if sys.stderr is None:  # the process ends
        return
    raised = traceback.format_exception(lost.exc_type, lost.exc_value, lost.exc_traceback)
    sys.stderr.write(logged(f"{what}\n{''.join(raised)}"))
    sys.stderr.flush()
