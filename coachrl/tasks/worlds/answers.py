"""What agents answer in worlds: lists of moves, Sudoku grids and edits. Strict: anything else is a format fault.

The last answer wins. One of more than a thousand moves or rows is none: no solution is that long. Text around it,
quotes around moves and code fences are tolerated. Where a line begins with #####, only what comes after the last such
mark counts. Walls are drawn with # too: rows of a map are no marks.
"""

from __future__ import annotations

import json
import re

from coachrl.text import visible

MOST = 1000  # moves or rows of one answer

_MARK = re.compile(r"^#####(?=\s|\[|\Z)", re.MULTILINE)
_MAP_ROW = re.compile(r"[#.ABG*+]{3,}")
# A bracketed list of single words or quoted words; other brackets are prose. Agents write these texts: no white space
# may be matched in two ways, for each would double the time that a list without an end takes.
_LIST = re.compile(r"\[\s*(?:((?:[\"'`]?\w+[\"'`]?\s*,\s*)*[\"'`]?\w+[\"'`]?)\s*)?(?:,\s*)?\]")
_MOVE = re.compile(r"(?P<quote>[\"'`]?)(?P<move>[UDLR])(?P=quote)")
_ROWS = re.compile(r"\[\s*(?:\[[^\[\]]*\]\s*(?:,\s*)?)*\]")


def parse_moves(text: str) -> tuple[str, ...] | None:
    """The moves (U, D, L, R) of the last bracketed list in `text`; None where it is none, or holds anything else."""
    lists = _LIST.findall(_answer(text))
    if not lists:
        return None
    items = [item.strip() for item in lists[-1].split(",")] if lists[-1] else []
    matches = [_MOVE.fullmatch(item) for item in items[: MOST + 1]]
    return None if None in matches or len(items) > MOST else tuple(match["move"] for match in matches if match)


def parse_rows(text: str) -> tuple[tuple[int, ...], ...] | None:
    """The rows of whole numbers of the last bracketed list of lists in `text`; None where there is none."""
    found = _ROWS.findall(_answer(text))
    if not found:
        return None
    try:
        rows = json.loads(found[-1])
    except ValueError:
        return None
    if len(rows) > MOST or not all(isinstance(row, list) and all(type(value) is int for value in row) for row in rows):
        return None
    return tuple(tuple(row) for row in rows)


def _answer(text: str) -> str:
    return _MARK.split(_without_maps(visible(text)))[-1]


def _without_maps(text: str) -> str:
    """The text without maps: lines of map signs alone, as wide as a neighbour that is one too. Five # alone on a line
    are the border of a small Sokoban beside its rows, and a mark anywhere else."""
    lines = text.splitlines()
    rows = [line.strip() if _MAP_ROW.fullmatch(line.strip()) else "" for line in lines]
    neighbours = zip(["", *rows], rows, [*rows[1:], ""], strict=False)
    drawn = [bool(row) and len(row) in (len(above), len(below)) for above, row, below in neighbours]
    return "\n".join(line for line, is_map in zip(lines, drawn, strict=True) if not is_map)
