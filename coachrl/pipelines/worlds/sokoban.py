"""Sokoban: a tool and a planner push boxes onto goals (Stronger-MAS, App. B.5)."""

from __future__ import annotations

from typing import ClassVar

from coachrl.pipelines.worlds.game import MoveGame, ToolPlanner, share
from coachrl.tasks.worlds.sokoban import Level, Position


class SokobanEnvironment(MoveGame[Position]):
    """Where everything is on the level. Potential: the share of boxes that are on goals. Gained: the share of the
    boxes' distance to goals, and none of it where a box is stuck in a corner."""

    puzzle: Level
    faultless = "no_illegal"
    shares: ClassVar = {"planner": {"legal": 0.1, "gained": 0.8}, "tool": {"no_illegal": 0.1, "gained": 0.8}}

    def is_solved(self, state: Position) -> bool:
        return self.puzzle.solved(state)

    def potential(self, state: Position) -> float:
        return len(state.boxes & self.puzzle.goals) / len(self.puzzle.goals)

    def gained(self, end: Position, moves: int) -> float:
        before, after = self.puzzle.distance(self.state), self.puzzle.distance(end)
        return 0.0 if self.puzzle.is_dead(end) else share(before - after, before)

    def progress(self, end: Position) -> str:
        return f"Boxes on goals: {len(end.boxes & self.puzzle.goals)} of {len(self.puzzle.goals)}."

    def metrics(self) -> dict[str, float]:
        return {"boxes_on_goals": self.potential(self.state), "stuck": float(self.puzzle.is_dead(self.state))}


class Sokoban(ToolPlanner):
    """Tasks whose ground truth is a `Level`."""

    name = "sokoban"
    task_sources = ("sokoban",)
    ground_truth = Level
    environment = SokobanEnvironment
    descriptions: ClassVar = {
        "tool": "Writes code that prints a list of moves that brings the boxes to the goals, as a proposal.",
        "planner": "Checks the proposal against the map and states the list of moves that is carried out.",
    }
