"""Plan-Path: a tool and a planner walk through a maze (Stronger-MAS, App. B.4 and D)."""

from __future__ import annotations

from typing import ClassVar

from coachrl.pipelines.worlds.game import MoveGame, ToolPlanner, share
from coachrl.tasks.worlds.moves import Cell
from coachrl.tasks.worlds.planpath import Maze
from coachrl.text import counted


class PlanPathEnvironment(MoveGame[Cell]):
    """Where the agent is in the maze. Potential: 1 at the goal, else the share of the first distance that is gained
    (Manhattan). Gained: steps of the shortest way, as a share of that way or of the moves, of whichever there are
    more."""

    puzzle: Maze
    faultless = "no_invalid"
    shares: ClassVar = {"planner": {"legal": 0.1, "gained": 0.8}, "tool": {"no_invalid": 0.1, "gained": 0.8}}

    def is_solved(self, state: Cell) -> bool:
        return state == self.puzzle.goal

    def potential(self, state: Cell) -> float:
        maze = self.puzzle
        return max(0.0, 1 - maze.manhattan(state) / max(1, maze.manhattan(maze.start)))

    def gained(self, end: Cell, moves: int) -> float:
        before, after = self.puzzle.steps_to_goal[self.state], self.puzzle.steps_to_goal[end]
        return share(before - after, max(before, moves))

    def progress(self, end: Cell) -> str:
        return f"Now {counted(self.puzzle.manhattan(end), 'step')} from the goal, walls aside."

    def metrics(self) -> dict[str, float]:
        return {"distance_left": float(self.puzzle.steps_to_goal[self.state])}


class PlanPath(ToolPlanner):
    """Tasks whose ground truth is a `Maze`."""

    name = "planpath"
    task_sources = ("planpath",)
    ground_truth = Maze
    environment = PlanPathEnvironment
    descriptions: ClassVar = {
        "tool": "Writes code that prints a list of moves from the agent's cell to the goal, as a proposal.",
        "planner": "Checks the proposal against the map and states the list of moves that is carried out.",
    }
