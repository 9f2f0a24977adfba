"""Sokoban: push every box onto a goal (Stronger-MAS, App. B.5)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from coachrl.config.tasks import SokobanTasks
from coachrl.errors import TaskError
from coachrl.tasks.split import Split
from coachrl.tasks.worlds.generate import generate_tasks
from coachrl.tasks.worlds.moves import MOVES, Cell, Map, shifted
from coachrl.types import Task

_RULES = (
    "Push every box B onto a goal G. You are A; the moves are U (up), D (down), L (left), R (right). Moving into a box "
    "pushes it, if the cell behind it is free; boxes cannot be pulled, and two cannot be pushed at once. # is a wall, "
    ". is free, * is a box on a goal, + is you on a goal."
)

_STEPS_BACKWARDS = 24  # steps for each box
_SOLVER_STATES = 100_000


@dataclass(frozen=True)
class Position:
    """Where the player and the boxes are."""

    player: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True)
class Level(Map):
    """A map inside a border of walls; `walls` are those inside."""

    goals: frozenset[Cell]
    start: Position

    @property
    def text(self) -> str:
        return self.render(self.start)

    def render(self, at: Position) -> str:
        """One line a row, with the border."""
        rows = ("".join(self._mark((row, column), at) for column in range(self.size)) for row in range(self.size))
        edge = "#" * (self.size + 2)
        return "\n".join([edge, *(f"#{row}#" for row in rows), edge])

    def _mark(self, cell: Cell, at: Position) -> str:
        on_goal = cell in self.goals
        if cell in self.walls:
            return "#"
        if cell in at.boxes:
            return "*" if on_goal else "B"
        if cell == at.player:
            return "+" if on_goal else "A"
        return "G" if on_goal else "."

    def solved(self, at: Position) -> bool:
        return at.boxes == self.goals

    def step(self, at: Position, move: str) -> Position | None:
        """The position after a move, or None where it is blocked. Nothing moves once the level is solved."""
        target = shifted(at.player, move)
        if self.solved(at) or not self.is_free(target):
            return None
        if target not in at.boxes:
            return Position(target, at.boxes)
        behind = shifted(target, move)
        if not self.is_free(behind) or behind in at.boxes:
            return None
        return Position(target, at.boxes - {target} | {behind})

    @property
    def most_moves(self) -> int:
        """A generated level is no more steps away from its solution; one of your own that is larger gets more."""
        return max(_STEPS_BACKWARDS, 4 * self.size) * len(self.goals)

    def is_dead(self, at: Position) -> bool:
        """Whether a box that is on no goal stands in a corner, where nothing can move it any more."""
        return any(self._is_corner(box) for box in at.boxes - self.goals)

    def _is_corner(self, cell: Cell) -> bool:
        blocked = {move: not self.is_free(shifted(cell, move)) for move in MOVES}
        return (blocked["U"] or blocked["D"]) and (blocked["L"] or blocked["R"])

    def distance(self, at: Position) -> int:
        """Sum of the Manhattan distances of the boxes to their nearest goals; 0 where the level is solved alone."""
        return sum(min(abs(b[0] - g[0]) + abs(b[1] - g[1]) for g in self.goals) for b in at.boxes)


def solve(level: Level) -> tuple[str, ...] | None:
    """A shortest solution, or None where there is none among the first 100,000 positions (breadth first)."""
    paths: dict[Position, tuple[str, ...]] = {level.start: ()}
    queue = deque([level.start])
    while queue and len(paths) < _SOLVER_STATES:
        at = queue.popleft()
        if level.solved(at):
            return paths[at]
        for move in MOVES:
            after = level.step(at, move)
            if after is not None and after not in paths and not level.is_dead(after):
                paths[after] = (*paths[at], move)
                queue.append(after)
    return None


def rules(level: Level) -> str:
    return f"{_RULES} An episode has {level.most_moves} moves at most."


def generate_sokoban(settings: SokobanTasks, seed: int, split: Split) -> list[Task]:
    """Levels made by playing backwards from the solution, and solved by `solve`. Raises TaskError where none fits."""
    size, boxes = settings.size, settings.boxes
    wall_count = round(settings.walls * size * size)
    if size * size - wall_count < 2 * boxes + 1:
        raise TaskError(f"sokoban: size {size} with {wall_count} walls leaves no room for {boxes} boxes, goals and you")

    def draw(rng: np.random.Generator) -> Level | None:
        order = [divmod(int(place), size) for place in rng.permutation(size * size)]
        goals, player = frozenset(order[:boxes]), order[boxes]
        empty = Level(size, frozenset(order[boxes + 1 : boxes + 1 + wall_count]), goals, Position(player, goals))
        level = Level(size, empty.walls, goals, _play_backwards(empty, rng, _STEPS_BACKWARDS * boxes))
        return level if not level.solved(level.start) and solve(level) else None

    return generate_tasks(draw, rules, settings.count(split), seed, split, f"sokoban-{size}x{size}-{boxes}")


def _play_backwards(level: Level, rng: np.random.Generator, steps: int) -> Position:
    """Walk at random from the solved position, and pull the boxes that one walks away from, three times out of four."""
    at = level.start
    for _ in range(steps):
        move = "UDLR"[int(rng.integers(4))]
        target, behind = shifted(at.player, move), shifted(at.player, {"U": "D", "D": "U", "L": "R", "R": "L"}[move])
        if not level.is_free(target) or target in at.boxes:
            continue
        pulls = behind in at.boxes and rng.random() < 0.75
        at = Position(target, at.boxes - {behind} | {at.player} if pulls else at.boxes)
    return at
