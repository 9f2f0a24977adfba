"""Texts as a page shows them, and an environment's state, drawn: its text as an SVG of colored cells."""

from __future__ import annotations

from markupsafe import Markup, escape

from coachrl.text import printable

_SHOWN_CHARACTERS = 20_000  # of one text; the rest stays in the episode file
_CELL = 18  # pixels
_MOST_CELLS = 32  # of a side; a larger state stays text
# Mark -> fill, and what is written on it. Every other mark is written as it is, on an empty cell.
_MARKS = {
    "#": ("#6b7280", ""),
    ".": ("none", ""),
    "A": ("#0072b2", "A"),
    "+": ("#0072b2", "A"),
    "G": ("#f0e442", "G"),
    "B": ("#d55e00", "B"),
    "*": ("#009e73", "B"),
}


def cut(text: str, limit: int = _SHOWN_CHARACTERS) -> Markup:
    """A text as a page shows it, escaped: not too long, and without what would turn round, hide or colour words."""
    more = len(text) - limit
    shown = printable(text[:limit])
    return escape(shown if more <= 0 else f"{shown}\n[… {more:,} more characters are in the episode file]")


def rendering_svg(text: str) -> Markup:
    """An SVG where `text` is a grid of single marks (spaces between them or none), else the text itself, escaped."""
    lines = printable(text).splitlines() if len(text) <= _SHOWN_CHARACTERS else []
    rows = [line.split(" ") if " " in line else list(line) for line in lines]
    if not rows or len(rows) > _MOST_CELLS or len(rows[0]) > _MOST_CELLS or not _is_grid(rows):
        return Markup("<pre>\n{}</pre>").format(cut(text))
    wide, high = len(rows[0]) * _CELL, len(rows) * _CELL
    cells = Markup("".join(_cell(r, c, mark) for r, row in enumerate(rows) for c, mark in enumerate(row)))
    label = escape(printable(text)).replace("\n", " / ")
    return Markup(
        '<svg class="board" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">{}</svg>'
    ).format(label, wide, high, wide, high, cells)


def _is_grid(rows: list[list[str]]) -> bool:
    return len({len(row) for row in rows}) == 1 and all(len(mark) == 1 for row in rows for mark in row)


def _cell(row: int, column: int, mark: str) -> str:
    """Markup of one cell; plain formatting, since a page holds tens of thousands."""
    fill, shown = _MARKS.get(mark, ("none", mark))
    x, y = column * _CELL, row * _CELL
    box = f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{fill}" stroke="#9ca3af" stroke-width=".5"/>'
    if not shown:
        return box
    ink = "currentColor" if fill == "none" else "#000" if mark == "G" else "#fff"
    at = f'x="{x + _CELL / 2:g}" y="{y + _CELL - 5}" fill="{ink}" font-size="11" text-anchor="middle"'
    return f"{box}<text {at}>{escape(shown)}</text>"
