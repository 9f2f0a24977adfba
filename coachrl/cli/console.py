"""How the command line prints: nothing that a model, a task file or a server wrote gives orders to the terminal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coachrl.text import one_line, printable


class PlainConsole(Console):
    """Prints text as it is: nothing that a model, a task file or a server wrote is markup, an emoji's name, or an order
    to the terminal."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        # Every string comes through here: those that are printed, cells of tables, titles of rules.
        return super().render_str(printable(text), **settings)


out = PlainConsole(soft_wrap=True)
err = PlainConsole(stderr=True, soft_wrap=True)

_PIPE_WIDTH = 10_000
_ERROR_CHARS = 4000


def print_table(table: Table) -> None:
    """As wide as the terminal; in a pipe each row is one line, so that `grep` finds rows."""
    console = out if out.is_terminal else PlainConsole(width=_PIPE_WIDTH)
    console.print(table)


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """A table of names and values, in the order of the names."""
    table = Table("metric", "value", box=None)
    for key, value in sorted(metrics.items()):
        table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    print_table(table)


def print_error(error: BaseException) -> None:
    """One line, whatever stands in the message."""
    err.print(f"error: {one_line(str(error), _ERROR_CHARS)}", style="bold red")


class ConsoleHandler(logging.Handler):
    """Log records on stderr, each on a line of its own however narrow the terminal is."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"{record.levelname.lower()}: {self.format(record)}", style="yellow")
