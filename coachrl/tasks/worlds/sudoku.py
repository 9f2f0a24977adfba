"""Sudoku with one solution (Stronger-MAS, App. B.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coachrl.config.tasks import SudokuTasks
from coachrl.errors import TaskError
from coachrl.tasks.split import Split
from coachrl.tasks.worlds.generate import generate_tasks
from coachrl.types import Task

Grid = tuple[tuple[int, ...], ...]  # rows of digits, 0 where empty
Edit = tuple[int, int, int]  # row and column from 0, digit

_BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # rows and columns of a box


@dataclass(frozen=True)
class Sudoku:
    """clues: the given digits, 0 elsewhere."""

    clues: Grid

    @property
    def text(self) -> str:
        return render(self.clues)

    @cached_property
    def _solution(self) -> Grid:
        """The first solution, which is the only one of a generated puzzle; the clues where there is none."""
        return next(iter(solutions(self.clues, 1)), self.clues)

    def distance(self, grid: Grid) -> int:
        """The empty cells, and each wrong one twice, so that guessing brings no grid nearer; 0 for any solved grid."""
        pairs = (pair for rows in zip(grid, self._solution, strict=True) for pair in zip(*rows, strict=True))
        return 0 if self.solved(grid) else sum(1 + (value != 0) for value, digit in pairs if value != digit)

    def changes_clue(self, edit: Edit) -> bool:
        row, column, digit = edit
        return self.clues[row][column] not in (0, digit)

    def solved(self, grid: Grid) -> bool:
        """Full, without duplicates, and every clue kept."""
        cells = ((clue, value) for row in zip(self.clues, grid, strict=True) for clue, value in zip(*row, strict=True))
        kept = all(clue in (0, value) for clue, value in cells)
        return kept and all(0 not in row for row in grid) and not has_duplicates(grid)


def render(grid: Grid) -> str:
    """One line a row, dots where it is empty."""
    return "\n".join(" ".join(str(digit) if digit else "." for digit in row) for row in grid)


def rules(size: int) -> str:
    rows, columns = _BOXES[size]
    return (
        f"Fill the Sudoku: every row, every column and every box of {rows} x {columns} cells holds the digits 1 to "
        f"{size}, each once. A dot is an empty cell; the digits that are given must stay."
    )


def has_duplicates(grid: Grid) -> bool:
    filled = ([digit for digit in unit if digit] for unit in _units(grid))
    return any(len(digits) != len(set(digits)) for digits in filled)


def filled_in(grid: Grid, edit: Edit) -> Grid:
    row, column, digit = edit
    return tuple(
        tuple(digit if (r, c) == (row, column) else value for c, value in enumerate(values))
        for r, values in enumerate(grid)
    )


def read_edits(rows: Grid, grid: Grid) -> tuple[Edit, ...] | None:
    """An answer as edits of `grid`: a whole grid (0 leaves a cell), or steps [row, column, digit] counted from 1. None
    where it is neither, or out of range."""
    size = len(grid)
    if len(rows) == size and all(len(row) == size for row in rows):
        if not all(0 <= value <= size for row in rows for value in row):
            return None
        cells = ((r, c, value) for r, row in enumerate(rows) for c, value in enumerate(row))
        return tuple((r, c, value) for r, c, value in cells if value not in (0, grid[r][c]))
    if all(len(row) == 3 and all(1 <= value <= size for value in row) for row in rows):
        return tuple((row - 1, column - 1, digit) for row, column, digit in rows)
    return None


def solutions(grid: Grid, limit: int = 2) -> list[Grid]:
    """The first `limit` solutions, always trying the cell with the fewest digits left."""
    empty = [(r, c) for r, row in enumerate(grid) for c, value in enumerate(row) if value == 0]
    if not empty:
        return [grid]
    choices = {cell: _choices(grid, cell) for cell in empty}
    cell = min(empty, key=lambda place: len(choices[place]))
    found: list[Grid] = []
    for digit in choices[cell]:
        found += solutions(filled_in(grid, (*cell, digit)), limit - len(found))
        if len(found) >= limit:
            break
    return found


def generate_sudoku(settings: SudokuTasks, seed: int, split: Split) -> list[Task]:
    """Puzzles with exactly one solution. Raises TaskError."""
    size = settings.size
    if size not in _BOXES:
        raise TaskError(f"sudoku: size {size} has no boxes; it must be one of {', '.join(map(str, _BOXES))}")
    wanted = size * size // 2 if settings.blanks is None else settings.blanks
    if not 1 <= wanted < size * size:
        raise TaskError(f"sudoku: {wanted} blanks of {size * size} cells; there must be at least one, and one clue")

    def draw(rng: np.random.Generator) -> Sudoku | None:
        grid = _full_grid(size, rng)
        for place in rng.permutation(size * size):
            row, column = divmod(int(place), size)
            thinner = filled_in(grid, (row, column, 0))
            if len(solutions(thinner)) == 1:
                grid = thinner
            if sum(row.count(0) for row in grid) == wanted:
                return Sudoku(grid)
        return None

    return generate_tasks(draw, lambda _: rules(size), settings.count(split), seed, split, f"sudoku-{size}x{size}")


def _full_grid(size: int, rng: np.random.Generator) -> Grid:
    """A solved grid: the regular one with its digits, bands of rows, stacks of columns, and rows and columns of each
    shuffled."""
    high, wide = _BOXES[size]
    digits = [int(d) + 1 for d in rng.permutation(size)]
    rows = [int(b) * high + int(r) for b in rng.permutation(size // high) for r in rng.permutation(high)]
    columns = [int(s) * wide + int(c) for s in rng.permutation(size // wide) for c in rng.permutation(wide)]
    return tuple(tuple(digits[(wide * (r % high) + r // high + c) % size] for c in columns) for r in rows)


def _choices(grid: Grid, cell: tuple[int, int]) -> list[int]:
    row, column = cell
    high, wide = _BOXES[len(grid)]
    top, left = row // high * high, column // wide * wide
    used = {*grid[row], *(values[column] for values in grid)}
    used |= {grid[r][c] for r in range(top, top + high) for c in range(left, left + wide)}
    return [digit for digit in range(1, len(grid) + 1) if digit not in used]


def _units(grid: Grid) -> Iterable[list[int]]:
    """Rows, columns and boxes."""
    size = len(grid)
    high, wide = _BOXES[size]
    yield from (list(row) for row in grid)
    yield from ([row[c] for row in grid] for c in range(size))
    for top in range(0, size, high):
        for left in range(0, size, wide):
            yield [grid[r][c] for r in range(top, top + high) for c in range(left, left + wide)]
