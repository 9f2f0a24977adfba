"""How the command line prints: nothing that a model, a task file or a server wrote gives orders to the terminal."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
import sys
import threading
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coachrl.text import logged, one_line, printable, said, unbroken


class Waiting:
    """A line on a terminal that says what a command is at, with the seconds that it has taken, until the command itself
    prints something: imports alone may take seconds, in which nothing else would be seen. A pipe gets no such line."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, what: str) -> None:
        """Say `what` from now on, in the place of what was said before."""
        self.stop()
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, args=(what, self._ended), name="waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the line away: something is printed."""
        _open_closed_streams()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()

    def _show(self, what: str, ended: threading.Event) -> None:
        if ended.wait(_PATIENCE_S):  # a command that answers at once needs no such line
            return
        seconds = 0
        while True:
            sys.stderr.write(f"\r\x1b[2K{what} … {seconds} s")
            sys.stderr.flush()
            if ended.wait(1):
                break
            seconds += 1
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def _open_closed_streams() -> None:
    """Code of the user's own may have closed the standard streams, or put nothing in their place. Python leaves the
    files open that they write to."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            with contextlib.suppress(OSError):
                setattr(sys, name, open(number, "w", errors="backslashreplace", closefd=False))  # noqa: SIM115


waiting = Waiting()
_USUAL_WIDTH = 80
_PIPE_WIDTH = 10_000


def has_no_size() -> bool:
    """Whether the terminal is said to have no columns: rich would print nothing."""
    return not os.environ.get("COLUMNS", "any").strip("0")


class PlainConsole(Console):
    """Prints text as it is: nothing that a model, a task file or a server wrote is markup, an emoji's name, or an order
    to the terminal. Whatever it prints or draws ends the line that says what is waited for."""

    def __init__(self, **settings: Any) -> None:
        if has_no_size():
            settings.setdefault("width", _USUAL_WIDTH)
        super().__init__(markup=False, highlight=False, emoji=False, **settings)

    def print(self, *objects: Any, **settings: Any) -> None:
        waiting.stop()
        super().print(*objects, **settings)

    def set_live(self, live: Live) -> bool:
        waiting.stop()
        return super().set_live(live)

    def on_broken_pipe(self) -> None:
        """Nobody reads any more. A command ends with its output, as others do, and not with its warnings."""
        if not self.stderr:
            super().on_broken_pipe()
        self._fall_silent()

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO or stat.S_ISREG(os.fstat(self.file.fileno()).st_mode):  # a disk that fails
                raise
            self._fall_silent()  # the terminal was closed, and what it was told to outlive it goes on

    def _fall_silent(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)

    def render_str(self, text: str, **settings: Any) -> Text:
        # Every string comes through here: those that are printed, cells of tables, titles of rules.
        return super().render_str(printable(text), **settings)


out = PlainConsole(soft_wrap=True)
err = PlainConsole(stderr=True, soft_wrap=True)

_PATIENCE_S = 0.5
_ERROR_CHARS = 4000
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of the disk that stderr was sent to


class Rows(Table):
    """A table under headings, of strings: a name with a line end begins no row of its own."""

    def __init__(self, *headings: str) -> None:
        super().__init__(*map(unbroken, headings), box=None)

    def add(self, *cells: str) -> None:
        self.add_row(*map(unbroken, cells))


def print_table(table: Rows) -> None:
    """As wide as the terminal; in a pipe each row is one line, so that `grep` finds rows."""
    # FORCE_COLOR, as CI sets it, makes a pipe pass for a terminal.
    console = out if out.is_terminal and out.file.isatty() else PlainConsole(width=_PIPE_WIDTH)
    console.print(table)


def print_json(value: Any, indent: int | None = None, sort_keys: bool = False) -> None:
    """In ASCII: as JSON's own escapes, what agents wrote reaches a terminal as text and a program whole."""
    print_text(json.dumps(value, indent=indent, sort_keys=sort_keys))


def print_text(text: str) -> None:
    """Just as it is, and the end of a line: for other programs, and files of the user's own."""
    waiting.stop()
    try:
        typer.echo(text)
    except BrokenPipeError:
        out.on_broken_pipe()


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """A table of names and values, in the order of the names."""
    table = Rows("metric", "value")
    for key, value in sorted(metrics.items()):
        table.add(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    print_table(table)


def print_error(error: BaseException | str, instead: str = "") -> None:
    """One line, whatever stands in the message, and one for each note that an error has, such as how to go on. instead:
    what is said in the place of its message."""
    words = instead or (error if isinstance(error, str) else said(error))
    err.print(f"error: {one_line(words, _ERROR_CHARS)}", style="bold red")
    for note in getattr(error, "__notes__", ()):
        err.print(one_line(note, _ERROR_CHARS))


class ConsoleHandler(logging.Handler):
    """Log records on stderr, each on a line of its own however narrow the terminal is."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = logged(self.format(record))
        except (TypeError, ValueError):  # arguments that do not fit their message are a bug, and end no run
            self.handleError(record)
            return
        try:
            err.print(f"{record.levelname.lower()}: {line}", style="yellow")
        except OSError as error:
            if error.errno not in _FULL:
                raise  # else the run goes on without a warning's words
