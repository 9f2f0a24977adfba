"""Generated worlds: solvable, different, apart; their moves; and what counts as an answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.config import load_config
from coachrl.config.tasks import PlanPathTasks, SokobanTasks, SudokuTasks
from coachrl.errors import ConfigError, TaskError
from coachrl.tasks import load_tasks
from coachrl.tasks.split import split_of
from coachrl.tasks.worlds import generate
from coachrl.tasks.worlds.answers import parse_moves, parse_rows
from coachrl.tasks.worlds.moves import MOVES, walk
from coachrl.tasks.worlds.planpath import Maze, generate_planpath
from coachrl.tasks.worlds.sokoban import Level, Position, generate_sokoban, solve
from coachrl.tasks.worlds.sudoku import Sudoku, filled_in, generate_sudoku, has_duplicates, read_edits, rules, solutions

WORLDS = {
    "planpath": lambda split, seed=3: generate_planpath(
        PlanPathTasks(train_count=12, heldout_count=12, size=6), seed, split
    ),
    "sokoban": lambda split, seed=3: generate_sokoban(
        SokobanTasks(train_count=5, heldout_count=5, size=4), seed, split
    ),
    "sudoku": lambda split, seed=3: generate_sudoku(SudokuTasks(train_count=8, heldout_count=8), seed, split),
}
MAZE = Maze(4, frozenset({(1, 0), (1, 1)}), (0, 0), (2, 0))  # A... / ##.. / G... / ....


@pytest.mark.parametrize("world", WORLDS)
def test_sets_are_reproducible_different_inside_and_apart(world):
    train, heldout = WORLDS[world]("train"), WORLDS[world]("heldout")
    assert [task.prompt for task in train] == [task.prompt for task in WORLDS[world]("train")]
    texts = [task.ground_truth.text for task in (*train, *heldout)]
    assert len(set(texts)) == len(texts) == len({task.id for task in (*train, *heldout)})
    assert {split_of(task.ground_truth.text) for task in train} == {"train"}
    assert {split_of(task.ground_truth.text) for task in heldout} == {"heldout"}
    assert [task.prompt for task in train] != [task.prompt for task in WORLDS[world]("train", seed=4)]
    assert all(task.ground_truth.text in task.prompt for task in train)


@pytest.mark.parametrize("world", ["planpath", "sokoban"])
def test_a_task_says_how_many_moves_an_episode_has(world):
    for task in WORLDS[world]("train"):
        assert f"An episode has {task.ground_truth.most_moves} moves at most." in task.prompt


FIRST = {"planpath": "d64a560211af", "sokoban": "7d04175fee7b", "sudoku": "f7ae733d5eb7"}


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_gives_the_same_worlds_in_every_release(world):
    assert WORLDS[world]("train")[0].id.endswith(FIRST[world])


def test_every_maze_has_a_way_and_the_shortest_one_is_walked():
    for task in generate_planpath(PlanPathTasks(train_count=20, size=7, walls=0.35), 0, "train"):
        maze = task.ground_truth
        path = maze.shortest_path(maze.start)
        walked = walk(maze, maze.start, path)
        assert walked.end == maze.goal and all(walked.legal)
        assert len(path) == maze.steps_to_goal[maze.start] >= maze.manhattan(maze.start)


def test_every_level_is_solved_by_its_solution():
    for task in generate_sokoban(SokobanTasks(heldout_count=4, size=5, boxes=2), 0, "heldout"):
        level = task.ground_truth
        moves = solve(level)
        pushed = walk(level, level.start, moves)
        assert moves and level.solved(pushed.end) and all(pushed.legal)
        assert not level.solved(level.start) and len(level.goals) == len(level.start.boxes) == 2


@pytest.mark.parametrize("size", [4, 6, 9])
def test_every_sudoku_has_one_solution(size):
    for task in generate_sudoku(SudokuTasks(train_count=2, size=size, blanks=size * size // 3), 0, "train"):
        puzzle = task.ground_truth
        [solution] = solutions(puzzle.clues, limit=3)
        assert puzzle.solved(solution) and sum(row.count(0) for row in puzzle.clues) == size * size // 3


def test_the_solver_finds_more_than_one_solution_where_there_are():
    assert len(solutions(((0,) * 4,) * 4, limit=5)) == 5
    assert solutions(((1, 1, 0, 0), *(((0,) * 4,) * 3))) == [] or has_duplicates(((1, 1, 0, 0), *(((0,) * 4,) * 3)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: generate_planpath(PlanPathTasks(train_count=1, size=2, walls=0.9), 0, "train"),
            "no room for start and goal",
        ),
        (
            lambda: generate_planpath(PlanPathTasks(train_count=25, size=2), 0, "train"),
            "25 different solvable train instances were asked for",
        ),
        (lambda: generate_sokoban(SokobanTasks(train_count=1, size=2, boxes=2), 0, "train"), "no room for 2 boxes"),
        (
            lambda: generate_sokoban(SokobanTasks(train_count=1, size=2, boxes=1, walls=0.0), 0, "train"),
            "solvable train instances",
        ),
        (lambda: generate_sudoku(SudokuTasks(train_count=1, size=5), 0, "train"), "size 5 has no boxes"),
        (
            lambda: generate_sudoku(SudokuTasks(train_count=1, size=4, blanks=15), 0, "train"),
            "solvable train instances",
        ),
        (
            lambda: generate_sudoku(SudokuTasks(train_count=1, size=4, blanks=16), 0, "train"),
            "at least one, and one clue",
        ),
    ],
)
def test_worlds_that_cannot_be_solved_are_refused(make, reason, monkeypatch):
    monkeypatch.setattr(generate, "_ATTEMPTS", 8)
    with pytest.raises(TaskError, match=reason):
        make()


def test_the_way_from_every_cell_goes_round_the_walls():
    rows = {0: (6, 5, 4, 5), 1: (None, None, 3, 4), 2: (0, 1, 2, 3), 3: (1, 2, 3, 4)}
    steps = {(row, column): count for row, counts in rows.items() for column, count in enumerate(counts)}
    assert MAZE.steps_to_goal == {cell: count for cell, count in steps.items() if count is not None}
    assert MAZE.manhattan((0, 3)) == 5 and MAZE.manhattan(MAZE.goal) == 0
    assert MAZE.shortest_path((0, 1)) == ("R", "D", "D", "L", "L") and MAZE.shortest_path(MAZE.goal) == ()
    assert MAZE.render((2, 0)) == "....\n##..\nA...\n...."


def test_boxes_are_as_far_as_their_nearest_goals():
    level = Level(5, frozenset(), frozenset({(0, 0), (4, 4)}), Position((2, 2), frozenset({(1, 3), (4, 3)})))
    assert level.distance(level.start) == 4 + 1
    assert level.distance(Position((2, 2), level.goals)) == 0


def test_blocked_moves_do_nothing_and_the_goal_ends_the_walk():
    walked = walk(MAZE, MAZE.start, ["U", "L", "D", "R"])
    assert walked.end == (0, 1) and walked.legal == (False, False, False, True)
    assert walk(MAZE, (2, 1), ["L", "L", "R"]).legal == (True, False, False)
    assert walk(MAZE, (2, 1), ["L", "R"]).end == MAZE.goal


LEVEL = Level(3, frozenset(), frozenset({(1, 2)}), Position((1, 0), frozenset({(1, 1)})))


def test_pushing_by_the_rules():
    assert LEVEL.text == "#####\n#...#\n#ABG#\n#...#\n#####"
    solved = walk(LEVEL, LEVEL.start, ["R", "R", "L"])
    assert LEVEL.solved(solved.end) and solved.legal == (True, False, False)
    assert LEVEL.render(solved.end) == "#####\n#...#\n#.A*#\n#...#\n#####"
    two = Level(4, frozenset(), frozenset({(0, 3), (1, 3)}), Position((0, 0), frozenset({(0, 1), (0, 2)})))
    assert walk(two, two.start, ["R"]).legal == (False,)  # two at once
    corner = walk(LEVEL, Position((1, 1), frozenset({(0, 1)})), ["D", "L", "U", "U", "R"])
    assert corner.legal == (True,) * 5 and LEVEL.is_dead(corner.end)  # (0, 2) is a corner without a goal


def test_a_box_on_its_goal_may_stand_in_a_corner():
    corner = Level(3, frozenset(), frozenset({(0, 2), (2, 1)}), Position((0, 0), frozenset({(0, 1), (1, 1)})))
    assert solve(corner) == ("R", "D")
    placed = [corner.is_dead(Position((1, 0), frozenset({box, (1, 1)}))) for box in ((0, 2), (0, 0), (0, 1), (2, 2))]
    assert placed == [False, True, False, True]


def test_two_hundred_blocked_moves_are_no_success():
    pushed = walk(LEVEL, LEVEL.start, ["L"] * 200)
    assert pushed.end == LEVEL.start and not any(pushed.legal)
    assert not LEVEL.solved(pushed.end)


@given(st.lists(st.sampled_from("UDLR"), max_size=30))
def test_whatever_is_pushed_boxes_stay_apart_and_on_the_floor(moves):
    end = walk(LEVEL, LEVEL.start, moves).end
    assert len(end.boxes) == 1 and end.player not in end.boxes and all(map(LEVEL.is_free, [*end.boxes, end.player]))


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("[U,R,D,L]", "URDL"),
        ("['U', \"R\"]", "UR"),
        ('```json\n["U", "R"]\n```', "UR"),
        ("[`U`]", "U"),
        ("I think [U,U] but no: [R]", "R"),
        ("##### [U,R]\nThat is right, since the wall [see above, at row 2] is free.", "UR"),
        ("##### [U]\n##### [D]", "D"),
        ("[L]\n#####\n[U,\n R]", "UR"),
        ("[U,R,]", "UR"),
        ("[]", ""),
        ("<think>[U]</think>[D]", "D"),
        ("[R] as in figure [1.2]", "R"),
    ],
)
def test_moves_that_are_read(text, moves):
    assert parse_moves(text) == tuple(moves)


@pytest.mark.parametrize(
    "text",
    ["", "U R D", "U,R,D", "[u,r]", "[UP,DOWN]", "[U;R]", "[U,X]", "[U,'R]", "[U] [X]", "[U,R", "(U,R)", "[UR]",
     "[U]\n##### none", "<think>[U]", "{\"moves\": \"U\"}", "[1]"],
)  # fmt: skip
def test_anything_else_is_a_format_fault(text):
    assert parse_moves(text) is None


SMALL = LEVEL.render(LEVEL.start)
WIDE = Level(6, frozenset({(0, 0), (0, 1), (0, 2)}), frozenset({(1, 2)}), Position((1, 0), frozenset({(1, 1)}))).text
WALLED = Maze(5, frozenset((2, c) for c in range(4)) | {(4, 4)}, (0, 0), (4, 0)).render((2, 4))


@pytest.mark.parametrize("drawn", [SMALL, WIDE, WALLED, "#####.\n.....G", "#####\n#####\n#.A*#\n#####"])
def test_a_map_that_an_agent_draws_is_no_mark(drawn):
    assert parse_moves(f"The answer is [R].\nThen it looks like this:\n\n{drawn}\n") == ("R",)
    assert parse_moves(f"[U]\n##### [R]\n```\n{drawn}\n```\nDone.") == ("R",)
    assert parse_moves(f"{drawn}\n\n[U]\n##### [R]") == ("R",)
    assert parse_moves(f"{drawn}\n\n[U]\n#####\nnone\n{drawn}") is None, "the mark beside it stays one"
    assert parse_rows(f"##### [[1,2,3]]\n{drawn}") == ((1, 2, 3),)


ENDLESS = ["[" + "[1] \n" * 500, "[" + " " * 20_000, "[U, " + "\n" * 20_000, "[U" + " " * 20_000 + ";"]


@pytest.mark.parametrize("text", ENDLESS, ids=["rows", "spaces", "lines", "spaces after a move"])
def test_a_list_without_an_end_is_no_answer_and_takes_no_time(text):
    assert parse_rows(text) is None and parse_moves(text) is None


def test_an_answer_longer_than_any_solution_is_none():
    assert len(parse_moves(f"[{','.join('U' * 1000)}]")) == 1000 and parse_moves(f"[{','.join('U' * 1001)}]") is None
    assert len(parse_rows(str([[1, 1, 1]] * 1000))) == 1000 and parse_rows(str([[1, 1, 1]] * 1001)) is None


@given(st.lists(st.sampled_from("UDLR"), max_size=12), st.text(alphabet="abc .,\n'\"#", max_size=20))
def test_a_list_of_moves_survives_prose_around_it(moves, prose):
    assert parse_moves(f"{prose}\n##### [{', '.join(moves)}] {prose.replace('#', '')}") == tuple(moves)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("##### [[1,3,4],[2,1,3]]", ((1, 3, 4), (2, 1, 3))),
        ("[[1,2],[3,4]] no: [[5,6]]", ((5, 6),)),
        ("```\n[[1, 2],\n [3, 4]]\n```\nDone.", ((1, 2), (3, 4))),
        ("[]", ()),
        ("[[1,2],[3,true]]", None),
        ("[[1,2],[3,'4']]", None),
        ("[[1.0]]", None),
        ("[1,2,3]", None),
        ("no grid", None),
        ("[(1,2,3)]", None),
    ],
)
def test_rows_that_are_read(text, rows):
    assert parse_rows(text) == rows


CLUES = ((1, 0, 0, 0), (0, 0, 3, 0), (0, 4, 0, 0), (0, 0, 0, 2))


def test_grids_and_steps_become_edits():
    assert read_edits(((1, 2, 3), (4, 4, 1)), CLUES) == ((0, 1, 3), (3, 3, 1))
    assert read_edits(((1, 2, 0, 0), (0, 0, 3, 0), (0, 4, 0, 0), (0, 0, 0, 2)), CLUES) == ((0, 1, 2),)
    for wrong in [
        ((1, 2),),
        ((0, 1, 1),),
        ((5, 1, 1),),
        ((1, 1, 5),),
        ((5,) + (1,) * 3, *((1,) * 4,) * 3),
        ((1, 2, 3, 4),) * 3,
    ]:
        assert read_edits(wrong, CLUES) is None


def test_a_valid_grid_that_changes_a_clue_is_not_solved():
    [solution] = solutions(CLUES)
    relabelled = tuple(tuple(value % 4 + 1 for value in row) for row in solution)
    puzzle = Sudoku(CLUES)
    assert puzzle.solved(solution) and not has_duplicates(relabelled) and not puzzle.solved(relabelled)


SIX = ((1, 2, 3, 4, 5, 6), (4, 5, 6, 1, 2, 3), (2, 3, 1, 5, 6, 4), (5, 6, 4, 2, 3, 1), (3, 1, 2, 6, 4, 5),
       (6, 4, 5, 3, 1, 2))  # fmt: skip


def test_a_digit_may_come_once_in_a_row_a_column_and_a_box_of_two_rows_and_three_columns():
    empty = ((0,) * 6,) * 6
    assert not has_duplicates(empty) and not has_duplicates(SIX)
    fives = filled_in(empty, (2, 3, 5))
    again = [
        (r, c) for r in range(6) for c in range(6) if (r, c) != (2, 3) and has_duplicates(filled_in(fives, (r, c, 5)))
    ]
    row, column = [(2, c) for c in (0, 1, 2, 4, 5)], [(r, 3) for r in (0, 1, 3, 4, 5)]
    assert again == sorted([*row, *column, (3, 4), (3, 5)])
    assert "every box of 2 x 3 cells holds the digits 1 to 6" in rules(6)


def test_a_sudoku_is_solved_by_a_full_grid_alone_and_wrong_cells_are_farther_than_empty_ones():
    clues = filled_in(filled_in(filled_in(SIX, (0, 0, 0)), (3, 4, 0)), (5, 5, 0))
    puzzle = Sudoku(clues)
    assert solutions(clues) == [SIX]
    one_left = filled_in(SIX, (5, 5, 0))
    assert puzzle.solved(SIX) and not puzzle.solved(one_left)
    wrong = filled_in(one_left, (0, 0, 2))
    assert [puzzle.distance(grid) for grid in (SIX, one_left, wrong, clues)] == [0, 1, 1 + 2, 3]
    assert [puzzle.changes_clue(edit) for edit in ((0, 1, 2), (0, 1, 3), (0, 0, 3))] == [False, True, False]


def test_the_sets_come_by_their_names_and_read_no_setting_of_another():
    config = load_config(None, ["tasks.source=sokoban", "tasks.size=4", "tasks.train_count=3", "tasks.heldout_count=2"])
    train, heldout = load_tasks(config)
    assert (len(train), len(heldout)) == (3, 2) and train[0].category == "sokoban-4x4-1"
    with pytest.raises(ConfigError, match=r"planpath reads no tasks\.boxes"):
        load_tasks(load_config(None, ["tasks.source=planpath", "tasks.boxes=2"]))


def test_moves_are_the_four_neighbours():
    assert sorted(np.abs(list(MOVES.values())).sum(axis=1)) == [1, 1, 1, 1]
