"""Plan-Path: walk from A to G on a grid with walls (Stronger-MAS, App. B.4)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coachrl.config.tasks import PlanPathTasks
from coachrl.errors import TaskError
from coachrl.tasks.split import Split
from coachrl.tasks.worlds.generate import generate_tasks
from coachrl.tasks.worlds.moves import MOVES, Cell, Map, shifted
from coachrl.types import Task

_RULES = (
    "Move the agent A to the goal G. The moves are U (up), D (down), L (left), R (right), one cell each. "
    "# is a wall, . is free; a move into a wall or off the map does nothing."
)


@dataclass(frozen=True)
class Maze(Map):
    """A map with a way to find on it."""

    start: Cell
    goal: Cell

    @property
    def text(self) -> str:
        return self.render(self.start)

    def render(self, agent: Cell) -> str:
        """One line a row: # wall, . free, A agent, G goal; only A where the agent is at the goal."""
        marks = {**dict.fromkeys(self.walls, "#"), self.goal: "G", agent: "A"}
        rows = ("".join(marks.get((row, column), ".") for column in range(self.size)) for row in range(self.size))
        return "\n".join(rows)

    def step(self, at: Cell, move: str) -> Cell | None:
        """The cell after a move, or None where it is blocked. Nobody leaves the goal."""
        target = shifted(at, move)
        return target if at != self.goal and self.is_free(target) else None

    def manhattan(self, cell: Cell) -> int:
        return abs(cell[0] - self.goal[0]) + abs(cell[1] - self.goal[1])

    @cached_property
    def steps_to_goal(self) -> dict[Cell, int]:
        """Length of a shortest path to the goal, for every cell that has one (breadth first)."""
        steps, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            cell = queue.popleft()
            for move in MOVES:
                neighbour = shifted(cell, move)
                if self.is_free(neighbour) and neighbour not in steps:
                    steps[neighbour] = steps[cell] + 1
                    queue.append(neighbour)
        return steps

    @property
    def most_moves(self) -> int:
        """There and back from wherever a shortest path is longest."""
        return 2 * max(self.steps_to_goal.values())

    def shortest_path(self, cell: Cell) -> tuple[str, ...]:
        """Moves of one shortest path to the goal."""
        path: list[str] = []
        while cell != self.goal:
            move = next(m for m in MOVES if self.steps_to_goal.get(shifted(cell, m)) == self.steps_to_goal[cell] - 1)
            path.append(move)
            cell = shifted(cell, move)
        return tuple(path)


def rules(maze: Maze) -> str:
    return f"{_RULES} An episode has {maze.most_moves} moves at most."


def generate_planpath(settings: PlanPathTasks, seed: int, split: Split) -> list[Task]:
    """Mazes with a path from start to goal. Raises TaskError for a world without one."""
    size = settings.size
    wall_count = round(settings.walls * size * size)
    if size < 2 or wall_count > size * size - 2:
        raise TaskError(f"planpath: size {size} with {wall_count} walls leaves no room for start and goal")

    def draw(rng: np.random.Generator) -> Maze | None:
        order = [divmod(int(place), size) for place in rng.permutation(size * size)]
        maze = Maze(size, frozenset(order[2 : 2 + wall_count]), order[0], order[1])
        return maze if maze.start in maze.steps_to_goal else None

    return generate_tasks(draw, rules, settings.count(split), seed, split, f"planpath-{size}x{size}")
