"""What agents answer in worlds: lists of moves, Sudoku grids and edits. Strict: anything else is a format fault.

The last answer wins. Text around it, quotes around moves and code fences are tolerated. Where a line begins with #####,
only what comes after the last such mark counts.
"""

from __future__ import annotations

import json
import re

from coachrl.text import visible

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}

_MARK = re.compile(r"^#####", re.MULTILINE)
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
    matches = [_MOVE.fullmatch(item) for item in items]
    return None if None in matches else tuple(match["move"] for match in matches if match)


def parse_rows(text: str) -> tuple[tuple[int, ...], ...] | None:
    """The rows of whole numbers of the last bracketed list of lists in `text`; None where there is none."""
    found = _ROWS.findall(_answer(text))
    if not found:
        return None
    try:
        rows = json.loads(found[-1])
    except ValueError:
        return None
    if not all(isinstance(row, list) and all(type(value) is int for value in row) for row in rows):
        return None
    return tuple(tuple(row) for row in rows)


def _answer(text: str) -> str:
    return _MARK.split(visible(text))[-1]
