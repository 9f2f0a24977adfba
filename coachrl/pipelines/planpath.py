"""Plan-Path: a tool and a planner walk through a maze (Stronger-MAS, App. B.4 and D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coachrl.pipelines.games import Game, ToolPlanner, Trial
from coachrl.tasks.worlds.answers import parse_moves
from coachrl.tasks.worlds.planpath import Cell, Maze, walk
from coachrl.text import counted

Moves = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where the agent is in which maze."""

    maze: Maze
    cell: Cell


class PlanPathEnvironment(Game[Moves, Place]):
    """Potential: 1 at the goal, else the share of the first distance that is gained (Manhattan). Planner: share of
    legal moves .1, of moves on a shortest path .8. Tool: no invalid move .1, no farther from the goal .8, if it moved
    at all: standing still earns nothing. An empty list has its format only."""

    def is_solved(self, state: Place) -> bool:
        return state.cell == state.maze.goal

    def potential(self, state: Place) -> float:
        maze = state.maze
        return max(0.0, 1 - maze.manhattan(state.cell) / max(1, maze.manhattan(maze.start)))

    def read(self, text: str) -> Moves | None:
        return parse_moves(text)

    def carry_out(self, answer: Moves) -> Trial[Place]:
        maze, start = self.state.maze, self.state.cell
        walked = walk(maze, start, answer)
        before, after = maze.manhattan(start), maze.manhattan(walked.end)
        moved = any(walked.legal)
        checks = {
            "planner": {"legal": share(walked.legal), "shortest": share(walked.shortest)},
            "tool": {"no_invalid": float(moved and all(walked.legal)), "no_farther": float(moved and after <= before)},
        }
        words = f"{told(answer, walked.legal)} Now {counted(after, 'step')} from the goal, walls aside."
        return Trial(Place(maze, walked.end), checks, words, sum(walked.legal))

    def shares(self) -> dict[str, dict[str, float]]:
        return {"planner": {"legal": 0.1, "shortest": 0.8}, "tool": {"no_invalid": 0.1, "no_farther": 0.8}}

    def draw(self, state: Place) -> str:
        return state.maze.render(state.cell)

    def metrics(self) -> dict[str, float]:
        return {"distance_left": float(self.state.maze.steps_to_goal[self.state.cell])}


class PlanPath(ToolPlanner):
    """Tasks whose ground truth is a `Maze`."""

    name = "planpath"
    task_sources = ("planpath",)
    environment = PlanPathEnvironment
    description: ClassVar = {
        "tool": "Writes code that prints a list of moves from the agent's cell to the goal, as a proposal.",
        "planner": "Checks the proposal against the map and states the list of moves that is carried out.",
    }

    def begin(self, instance: Any, **settings: Any) -> PlanPathEnvironment:
        if not isinstance(instance, Maze):
            raise TypeError("not a maze")
        return PlanPathEnvironment(Place(instance, instance.start), **settings)


def share(checks: tuple[bool, ...]) -> float:
    """Of moves that pass; 0 for an empty list."""
    return sum(checks) / len(checks) if checks else 0.0


def told(moves: Moves, legal: tuple[bool, ...]) -> str:
    """What the moves did, in words."""
    if not moves:
        return "No move was made."
    done = " ".join(move if ok else f"{move}(blocked)" for move, ok in zip(moves, legal, strict=True))
    return f"Moves: {done}."
