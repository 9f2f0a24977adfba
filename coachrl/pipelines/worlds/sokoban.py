"""Sokoban: a tool and a planner push boxes onto goals (Stronger-MAS, App. B.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coachrl.pipelines.worlds.game import MoveGame, Moves, ToolPlanner, Trial, share, told
from coachrl.tasks.worlds.moves import walk
from coachrl.tasks.worlds.sokoban import Level, Position


@dataclass(frozen=True)
class Board:
    """Where everything is on which level."""

    level: Level
    at: Position


class SokobanEnvironment(MoveGame[Board]):
    """Potential: the share of boxes that are on goals. Planner: share of legal moves .1.
    Tool: no illegal move .1. Both: share of the boxes' distance to goals that is gained .8, and none of it where a box
    is stuck in a corner. Walking about earns nothing, and an empty list has its format only."""

    shares: ClassVar = {"planner": {"legal": 0.1, "gained": 0.8}, "tool": {"no_illegal": 0.1, "gained": 0.8}}

    @classmethod
    def first_state(cls, puzzle: Level) -> Board:
        return Board(puzzle, puzzle.start)

    def is_solved(self, state: Board) -> bool:
        return state.level.solved(state.at)

    def potential(self, state: Board) -> float:
        return len(state.at.boxes & state.level.goals) / len(state.level.goals)

    def carry_out(self, answer: Moves) -> Trial[Board]:
        level, start = self.state.level, self.state.at
        pushed = walk(level, start, answer)
        before, after = level.distance(start), level.distance(pushed.end)
        gained = 0.0 if level.is_dead(pushed.end) else share(before - after, before)
        checks = {
            "planner": {"legal": share(sum(pushed.legal), len(answer)), "gained": gained},
            "tool": {"no_illegal": float(bool(answer) and all(pushed.legal)), "gained": gained},
        }
        placed = len(pushed.end.boxes & level.goals)
        words = f"{told(answer, pushed.legal)} Boxes on goals: {placed} of {len(level.goals)}."
        return Trial(Board(level, pushed.end), checks, words, sum(pushed.legal))

    def draw(self, state: Board) -> str:
        return state.level.render(state.at)

    def metrics(self) -> dict[str, float]:
        level, at = self.state.level, self.state.at
        return {"boxes_on_goals": len(at.boxes & level.goals) / len(level.goals), "stuck": float(level.is_dead(at))}


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
