"""Plan-Path: a tool and a planner walk through a maze (Stronger-MAS, App. B.4 and D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coachrl.pipelines.worlds.game import MoveGame, Moves, ToolPlanner, Trial, share, told
from coachrl.tasks.worlds.moves import Cell, walk
from coachrl.tasks.worlds.planpath import Maze
from coachrl.text import counted


@dataclass(frozen=True)
class Place:
    """Where the agent is in which maze."""

    maze: Maze
    cell: Cell


class PlanPathEnvironment(MoveGame[Place]):
    """Potential: 1 at the goal, else the share of the first distance that is gained (Manhattan). Planner: share of
    legal moves .1. Tool: no invalid move .1. Both: steps of the shortest way that are gained .8, as a share of that way
    or of the moves, of whichever there are more. Walking about earns nothing, and an empty list has its format only."""

    shares: ClassVar = {"planner": {"legal": 0.1, "gained": 0.8}, "tool": {"no_invalid": 0.1, "gained": 0.8}}

    @classmethod
    def first_state(cls, puzzle: Maze) -> Place:
        return Place(puzzle, puzzle.start)

    def is_solved(self, state: Place) -> bool:
        return state.cell == state.maze.goal

    def potential(self, state: Place) -> float:
        maze = state.maze
        return max(0.0, 1 - maze.manhattan(state.cell) / max(1, maze.manhattan(maze.start)))

    def carry_out(self, answer: Moves) -> Trial[Place]:
        maze, start = self.state.maze, self.state.cell
        walked = walk(maze, start, answer)
        before, after = maze.steps_to_goal[start], maze.steps_to_goal[walked.end]
        gained = share(before - after, max(before, len(answer)))
        checks = {
            "planner": {"legal": share(sum(walked.legal), len(answer)), "gained": gained},
            "tool": {"no_invalid": float(bool(answer) and all(walked.legal)), "gained": gained},
        }
        far = counted(maze.manhattan(walked.end), "step")
        words = f"{told(answer, walked.legal)} Now {far} from the goal, walls aside."
        return Trial(Place(maze, walked.end), checks, words, sum(walked.legal))

    def draw(self, state: Place) -> str:
        return state.maze.render(state.cell)

    def metrics(self) -> dict[str, float]:
        return {"distance_left": float(self.state.maze.steps_to_goal[self.state.cell])}


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
