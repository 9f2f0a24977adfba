"""A run's log.txt: what the program logs while the run goes on, fit to be read in a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coachrl.errors import ConfigError
from coachrl.storage.jsonl import own_file, writable_file
from coachrl.text import logged


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Copies the program's log records to `path` while the block runs. Raises ConfigError where it cannot."""
    try:
        own_file(path)
        handler = _LogFile(writable_file(path), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"run folder {path.parent} cannot be written: {error.strerror}") from error
    handler.setFormatter(_LoggedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("coachrl")
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class _LogFile(logging.FileHandler):
    """What a full disk does not take costs the log, and hides nothing of what ends the run."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _LoggedFormatter(logging.Formatter):
    """For a file that people read with `cat` and pass on: what agents and servers wrote gives their terminal no orders,
    and a traceback no keys."""

    def format(self, record: logging.LogRecord) -> str:
        return logged(super().format(record))
