"""Sudoku: a tool and a planner fill a grid (Stronger-MAS, App. B.3)."""

from __future__ import annotations

from typing import ClassVar

from coachrl.pipelines.worlds.game import Game, ToolPlanner, Trial, share
from coachrl.tasks.worlds.answers import parse_rows
from coachrl.tasks.worlds.sudoku import Edit, Grid, Sudoku, filled_in, has_duplicates, read_edits, render
from coachrl.text import counted

Edits = tuple[Edit, ...]


class SudokuEnvironment(Game[Edits, Grid]):
    """The grid as far as it has been filled. Potential: 1 where it is solved with every clue kept. Planner: no
    duplicates and no clue touched. Tool: every edit is legal. Both: cells that the answer sets right, less those that
    it sets wrong, as a share of those that were not right. Where nothing is changed there is the format only.

    An answer that changes a clue fails as a whole: nothing of it is done. An edit that makes a duplicate is illegal,
    but done: a later turn may mend it."""

    puzzle: Sudoku
    shares: ClassVar = {"planner": {"no_duplicates": 0.1, "right": 0.8}, "tool": {"legal": 0.1, "right": 0.8}}

    def first_state(self) -> Grid:
        return self.puzzle.clues

    def is_solved(self, state: Grid) -> bool:
        return self.puzzle.solved(state)

    def potential(self, state: Grid) -> float:
        return float(self.is_solved(state))

    def read(self, text: str) -> Edits | None:
        rows = parse_rows(text)
        return None if rows is None else read_edits(rows, self.puzzle.clues)

    def carry_out(self, answer: Edits) -> Trial[Grid]:
        puzzle, grid = self.puzzle, self.state
        touched = sum(puzzle.changes_clue(edit) for edit in answer)
        legal: list[bool] = []
        for edit in () if touched else answer:
            grid = filled_in(grid, edit)
            legal.append(not has_duplicates(grid))
        changed, after = grid != self.state, sum(row.count(0) for row in grid)
        before = puzzle.distance(self.state)
        right = share(before - puzzle.distance(grid), before)
        checks = {
            "planner": {"no_duplicates": float(changed and not has_duplicates(grid)), "right": right},
            "tool": {"legal": float(changed and all(legal)), "right": right},
        }
        words = f"{sum(legal)} of {counted(len(answer), 'edit')} legal; {counted(after, 'empty cell')} left."
        if touched:
            words = f"Refused: it changes {counted(touched, 'given digit')}. {counted(after, 'empty cell')} left."
        return Trial(grid, checks, words, len(legal))

    def shown(self, item: Edit) -> str:
        row, column, digit = item
        return f"[{row + 1},{column + 1},{digit}]"

    def draw(self, state: Grid) -> str:
        return render(state)

    def metrics(self) -> dict[str, float]:
        return {"empty_cells": float(sum(row.count(0) for row in self.state))}


class SudokuPipeline(ToolPlanner):
    """Tasks whose ground truth is a `Sudoku`."""

    name = "sudoku"
    task_sources = ("sudoku",)
    ground_truth = Sudoku
    environment = SudokuEnvironment
    descriptions: ClassVar = {
        "tool": "Writes code that prints the completed grid, or steps to fill it, as a proposal.",
        "planner": "Checks the proposal against the rules and states the grid or the steps that are carried out.",
    }
