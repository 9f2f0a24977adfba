"""Moves of one figure on a map, and what becomes of a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Cell = tuple[int, int]  # row, column, from 0 at the top left
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}

P = TypeVar("P")  # a position in a world


@dataclass(frozen=True)
class Map:
    """`size` x `size` cells, some of which are walls."""

    size: int
    walls: frozenset[Cell]

    def is_free(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.size and 0 <= cell[1] < self.size and cell not in self.walls


class World(Protocol[P]):
    """A map on which moves lead from one position to another."""

    def step(self, at: P, move: str) -> P | None:
        """The position after a move, or None where it is blocked, or where the world is solved already."""
        ...


@dataclass(frozen=True)
class Walk(Generic[P]):
    """A list of moves, carried out. legal: of each move; what comes after the solution is not."""

    end: P
    legal: tuple[bool, ...]


def walk(world: World[P], start: P, moves: Sequence[str]) -> Walk[P]:
    """Carry out `moves` from `start`: blocked ones do nothing, and nothing moves once the world is solved."""
    at, legal = start, []
    for move in moves:
        after = world.step(at, move)
        legal.append(after is not None)
        at = at if after is None else after
    return Walk(at, tuple(legal))


def shifted(cell: Cell, move: str) -> Cell:
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
