"""What tool and planner are paid in planpath, sokoban and sudoku: rewards by hand, and as properties."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.config.tasks import PlanPathTasks, SokobanTasks
from coachrl.pipelines.worlds.planpath import PlanPathEnvironment
from coachrl.pipelines.worlds.sokoban import SokobanEnvironment
from coachrl.pipelines.worlds.sudoku import SudokuEnvironment
from coachrl.tasks.worlds.planpath import Maze, generate_planpath
from coachrl.tasks.worlds.sokoban import Level, Position, generate_sokoban, solve
from coachrl.tasks.worlds.sudoku import Sudoku, filled_in, has_duplicates, solutions
from coachrl.testing.actions import make_action
from coachrl.types import Task

MAZE = Maze(4, frozenset({(1, 0), (1, 1)}), (0, 0), (2, 0))  # A... / ##.. / G... / ....
SHORTEST = "[R,R,D,D,L,L]"
LEVEL = Level(3, frozenset(), frozenset({(1, 2)}), Position((1, 0), frozenset({(1, 1)})))
CLUES = ((1, 0, 0, 0), (0, 0, 3, 0), (0, 4, 0, 0), (0, 0, 0, 2))
MAZES = generate_planpath(PlanPathTasks(train_count=200, size=6, walls=0.25), 5, "train")
TASK = Task("t", "k", "Walk.\n\nmap", ground_truth=MAZE)


def act(environment, role, text):
    return asyncio.run(environment.apply(make_action(role, text), None))


def rewards(make, role, text, **options):
    step = act(make(mover="planner", **options), role, text)
    return pytest.approx((step.reward.team, step.reward.local), abs=1e-9)


def maze(**options):
    return PlanPathEnvironment(MAZE, **options)


def level(**options):
    return SokobanEnvironment(LEVEL, **options)


def grid(**options):
    return SudokuEnvironment(Sudoku(CLUES), **options)


@pytest.mark.parametrize(
    ("role", "text", "team", "local"),
    [
        ("planner", SHORTEST, 1.0, 1.0),
        ("planner", "[R,R,D,D]", 0.0, 0.2 + 0.8 * 4 / 6),  # two down and two right: as far as at the start
        ("planner", "[R,R,D,D,L]", 0.5, 0.2 + 0.8 * 5 / 6),
        ("planner", "[R,L,R,R,D,D,L,L]", 1.0, 0.2 + 0.8 * 6 / 8),  # two moves more than it takes
        ("planner", "[R,L]", 0.0, 0.2),  # walking about
        ("planner", "[D,D]", 0.0, 0.1),
        ("planner", "[]", 0.0, 0.1),
        ("planner", "up", 0.0, 0.0),
        ("planner", "[R,R,D,D,L,L,U,U]", 1.0, 0.1 + 0.1 * 0.75 + 0.8 * 0.75),  # past the goal
        ("planner", f"[{','.join('RL' * 400)}]", 0.0, 0.1 + 0.1 * 12 / 800),  # of which 12 are made
        ("planner", f"[{','.join('RL' * 501)}]", 0.0, 0.0),  # longer than any solution
        ("tool", SHORTEST, 1.0, 1.0),
        ("tool", "[R]", 0.0, 0.2 + 0.8 / 6),  # the first step of six
        ("tool", "[R,L]", 0.0, 0.2),  # no farther, and no nearer
        ("tool", "[R,R,D,D,L,U]", 0.5, 0.1 + 0.8 * 5 / 6),  # the last one hits a wall, after a step nearer: 1 of 2
        ("tool", "[]", 0.0, 0.1),
        ("tool", "no idea", 0.0, 0.0),
    ],
)
def test_planpath_rewards(role, text, team, local):
    assert rewards(maze, role, text) == (team, local)


def blindly_solved(environment, tasks, turns=4):
    """The share of worlds that one list of a thousand moves solves, said in each turn, whatever the map."""
    rng = random.Random(1)
    moves = "".join(rng.choice("UDLR") * rng.choice([1, 1, 2, 3, 5]) for _ in range(1000))[:1000]
    solved = 0
    for task in tasks:
        board = environment(task.ground_truth, mover="planner")
        for _ in range(turns):
            act(board, "planner", f"[{','.join(moves)}]")
        solved += board.solved
    return solved / len(tasks)


def test_a_list_that_looks_at_no_map_solves_few():
    """Of mazes it solved all, and of levels half, while it was carried out to its end."""
    mazes = generate_planpath(PlanPathTasks(heldout_count=100), 0, "heldout")
    levels = generate_sokoban(SokobanTasks(heldout_count=100), 0, "heldout")
    assert blindly_solved(PlanPathEnvironment, mazes) < 0.3
    assert blindly_solved(SokobanEnvironment, levels) < 0.4
    for task in levels:
        assert len(solve(task.ground_truth)) < task.ground_truth.most_moves / 2


def test_the_moves_of_an_episode_are_counted_over_its_turns():
    board = maze(mover="planner")
    said = [act(board, "planner", "[R,L,R,L,R]").text for _ in range(3)]
    assert [" An episode has 12 moves, and no more were made." in words for words in said] == [False, False, True]
    assert board.moves == 12
    assert act(board, "planner", SHORTEST).text.startswith("No move was made.")


@pytest.mark.parametrize("role", ["planner", "tool"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_standing_still_never_pays_as_much_as_the_optimal_path(role, alpha):
    blocked, best = (act(maze(mover="planner"), role, text).reward for text in (f"[{','.join('U' * 400)}]", SHORTEST))
    assert alpha * blocked.team + blocked.local == pytest.approx(0.1)
    assert alpha * best.team + best.local > 0.9


@pytest.mark.parametrize(
    ("role", "text", "team", "local"),
    [
        ("planner", "[R]", 1.0, 1.0),
        ("planner", "[U,R]", 0.0, 0.2),  # walking about
        ("planner", "[L,L,U,U]", 0.0, 0.1 + 0.1 / 4),  # one of four moves
        ("planner", "[D,R,U,U]", 0.0, 0.1 + 0.1 * 0.75),  # the last one pushes at the border, and the box is stuck
        ("planner", f"[{','.join('UD' * 8)},R]", 1.0, 1.0),
        ("planner", f"[{','.join('UD' * 400)},R]", 0.0, 0.1 + 0.1 * 24 / 801),  # of which 24 are made
        ("tool", "[R]", 1.0, 1.0),
        ("tool", "[D,R,U]", 0.0, 0.2),  # legal, but the box is farther from its goal
        ("tool", "[U,D]", 0.0, 0.2),
        ("tool", "[L]", 0.0, 0.1),
        ("tool", "[D,L]", 0.0, 0.1),  # one of two
        ("tool", "[]", 0.0, 0.1),
        ("tool", "nothing", 0.0, 0.0),
    ],
)
def test_sokoban_rewards(role, text, team, local):
    assert rewards(level, role, text) == (team, local)


def test_a_box_nearer_to_its_goal_earns_its_share_unless_one_is_stuck():
    goals = frozenset({(0, 3), (3, 3)})
    two = Level(4, frozenset(), goals, Position((1, 0), frozenset({(1, 1), (2, 2)})))  # 3 and 2 from their goals
    board = SokobanEnvironment(two, mover="planner")
    assert board.copy().carry_out(("R",)).checks["planner"]["gained"] == pytest.approx(1 / 5)
    assert board.copy().carry_out(tuple("RR")).checks["tool"]["gained"] == pytest.approx(2 / 5)
    corner = Level(3, frozenset(), frozenset({(2, 1), (1, 2)}), Position((0, 2), frozenset({(0, 1), (1, 1)})))
    stuck = SokobanEnvironment(corner, mover="planner").carry_out(("L",))
    assert stuck.checks["planner"] == {"legal": 1.0, "gained": 0.0}


def test_sudoku_rewards():
    [solution] = solutions(CLUES)
    whole = str([list(row) for row in solution])
    other = str([[value % 4 + 1 for value in row] for row in solution])
    right = [0, 1, solution[0][1]]
    step = f"[[1,2,{right[2]}]]"
    fitting = [(0, 1, d) for d in (2, 3) if d != right[2] and not has_duplicates(filled_in(CLUES, (0, 1, d)))]
    wrong = f"[[1,2,{fitting[0][2]}]]"
    assert rewards(grid, "planner", whole) == (1.0, 1.0)
    assert rewards(grid, "tool", whole) == (1.0, 1.0)
    assert rewards(grid, "planner", step) == (0.0, 0.1 + 0.1 + 0.8 / 12)
    assert rewards(grid, "tool", step) == (0.0, 0.1 + 0.1 + 0.8 / 12)
    for role in ("planner", "tool"):
        assert rewards(grid, role, wrong) == (0.0, 0.2), "it fits, and is wrong"
        assert rewards(grid, role, "[[1,2,1]]") == (0.0, 0.1)  # a second 1 in the row
        assert rewards(grid, role, "[[1,1,2]]") == (0.0, 0.1)  # a clue
        assert rewards(grid, role, "[[1,1,1]]") == (0.0, 0.1)  # what is there
        assert rewards(grid, role, str([list(row) for row in CLUES])) == (0.0, 0.1)
        assert rewards(grid, role, str([[value or 1 for value in row] for row in CLUES])) == (0.0, 0.1)
    assert rewards(grid, "planner", "[[1,1,2],[1,2,2]]") == (0.0, 0.1)
    assert rewards(grid, "planner", "[[1,1,2]]") == (0.0, 0.1)
    assert rewards(grid, "planner", "[]") == (0.0, 0.1)
    team, _ = (act(grid(mover="planner"), "planner", other).reward.team, None)
    assert team == 0.0  # valid as a grid, but the clues are gone


def test_a_sudoku_that_is_solved_over_turns_keeps_its_clues():
    environment = grid(mover="planner")
    [solution] = solutions(CLUES)
    wrong = solution[0][1] % 4 + 1
    act(environment, "planner", f"[[1,2,{wrong}]]")
    assert environment.state[0][:2] == (1, wrong) and not environment.solved
    act(environment, "planner", str([list(row) for row in solution]))
    assert environment.solved and environment.outcome(2).success


@pytest.mark.parametrize("form", ["grid", "steps", "there and back"])
def test_a_sudoku_answer_that_overwrites_a_clue_fails_as_a_whole(form):
    [solution] = solutions(CLUES)
    cells = [[r + 1, c + 1, value] for r, row in enumerate(solution) for c, value in enumerate(row)]
    answer = {
        "grid": [[4, *solution[0][1:]], *map(list, solution[1:])],
        "steps": [*cells[1:], [1, 1, 4]],
        "there and back": [[1, 1, 4], *cells],
    }[form]
    environment = grid(mover="planner")
    step = act(environment, "planner", str(answer))
    assert not environment.solved and step.reward.team == 0.0 and environment.state == CLUES
    assert step.text == "Refused: it changes 1 given digit. 12 empty cells left."
    act(environment, "planner", str(cells))
    assert environment.solved


def team_total(environment, answers, role="planner"):
    """The team rewards of one role's answers; the episode ends where the environment is solved."""
    total = 0.0
    for moves in answers:
        if not environment.solved:
            total += act(environment, role, f"[{','.join(moves)}]").reward.team
    return total


def test_a_detour_pays_no_more_than_the_direct_way():
    near = Maze(10, frozenset(), (0, 0), (0, 2))
    environment = PlanPathEnvironment(near, mover="planner")
    assert team_total(environment, ["D" * 9, "U" * 8 + "R"]) == 0.0, "as far as at the start"
    assert team_total(environment, ["U", "R"]) == 1.0 and environment.solved
    assert team_total(PlanPathEnvironment(near, mover="planner"), ["RR"]) == 1.0


def test_who_says_nothing_that_can_be_read_is_paid_less_than_who_goes_a_part_of_the_way():
    worth = {}
    for text in ("nothing", "[]", "[R,R,D]", SHORTEST):
        environment = maze(mover="planner")
        act(environment, "tool", SHORTEST)  # and the planner does not move
        reward = act(environment, "tool", text).reward
        worth[text] = reward.team + reward.local
    assert list(worth.values()) == sorted(worth.values()) and len(set(worth.values())) == len(worth)
    assert act(maze(mover="planner"), "tool", "nothing").reward.team == 0.0


TURNS = st.lists(st.lists(st.sampled_from("UDLR"), max_size=14), min_size=1, max_size=6)


@given(st.integers(0, 199), TURNS, st.booleans(), st.sampled_from(["planner", "tool"]))
def test_no_walk_pays_the_team_more_than_the_shortest_and_reaching_more_than_not(place, turns, finish, role):
    found = MAZES[place].ground_truth
    environment = PlanPathEnvironment(found, mover="planner")
    total = team_total(environment, turns, role)
    if finish and not environment.solved:
        total += team_total(environment, [found.shortest_path(environment.state)], role)
    at_goal = environment.reached.get(role) == 1.0
    assert total == pytest.approx(1.0) if at_goal else total < 1.0 - 1e-9
    assert at_goal == environment.solved or role == "tool"
    direct = PlanPathEnvironment(found, mover="planner")
    assert team_total(direct, [found.shortest_path(found.start)], role) == pytest.approx(1.0)


def test_a_box_that_stays_on_its_goal_is_paid_once():
    two = Level(4, frozenset(), frozenset({(0, 3), (3, 3)}), Position((0, 1), frozenset({(0, 2), (2, 2)})))
    environment = SokobanEnvironment(two, mover="planner")
    assert team_total(environment, ["R", "L", "R", "L"]) == 0.5
    assert team_total(environment, ["LR"]) == 0.0 and environment.reached["planner"] == 0.5


def test_what_the_worlds_say_counts_one_as_one():
    assert act(maze(mover="planner"), "planner", SHORTEST[:-3] + "]").text.endswith(
        " Now 1 step from the goal, walls aside."
    )
    assert act(maze(mover="planner"), "planner", "[]").text.endswith(" Now 2 steps from the goal, walls aside.")
    assert act(level(mover="planner"), "planner", "[R]").text.endswith(" Boxes on goals: 1 of 1.")
    almost = [list(row) for row in solutions(CLUES)[0]]
    almost[0][1] = 0
    environment = grid(mover="planner")
    assert act(environment, "planner", str(almost)).text == "11 of 11 edits legal; 1 empty cell left."
    [solution] = solutions(CLUES)
    assert act(environment, "planner", f"[[1,2,{solution[0][1]}]]").text == "1 of 1 edit legal; 0 empty cells left."
    assert grid(mover="planner").outcome(1).reason == "not solved within 1 turn"


def measured(environment, *said):
    """Metrics of the outcome after answers of (role, text)."""
    for role, text in said:
        act(environment, role, text)
    return environment.outcome(2).metrics


def test_the_outcome_counts_the_moves_that_were_done_and_what_is_left():
    walked = measured(maze(mover="planner"), ("tool", SHORTEST), ("planner", "[R,U]"), ("planner", "[R,R,U]"))
    assert walked == {"solved": 0.0, "turns": 2.0, "moves": 3.0, "distance_left": 5.0}  # two of walls, one of the map
    assert measured(maze(mover="planner"), ("planner", SHORTEST))["distance_left"] == 0.0
    goals = frozenset({(0, 2), (3, 3)})
    two = Level(4, frozenset(), goals, Position((0, 0), frozenset({(0, 1), (1, 0)})))
    pushed = measured(SokobanEnvironment(two, mover="planner"), ("planner", "[R,U,L,D,D,D]"))
    assert pushed == {"solved": 0.0, "turns": 2.0, "moves": 4.0, "boxes_on_goals": 0.5, "stuck": 1.0}
    filled = measured(grid(mover="planner"), ("tool", "[[4,4,2]]"), ("planner", "[[1,2,1],[1,3,2]]"))
    assert filled == {"solved": 0.0, "turns": 2.0, "moves": 2.0, "empty_cells": 10.0}


def test_a_report_shows_what_each_answer_would_lead_to_and_each_role_is_paid_for_its_own():
    environment = maze(mover="planner")
    proposed = act(environment, "tool", "[R,R,D,D,L]")
    assert proposed.rendering == "....\n##..\nGA..\n...." and environment.render() == MAZE.render((0, 0))
    assert act(environment, "planner", "[R,R,D,D,L]").reward.team == 0.5, "what the tool proposed is not its own"
    assert act(environment, "tool", "[L]").reward.team == 0.5 and act(environment, "planner", "?").rendering


@pytest.mark.parametrize(("make", "text"), [(maze, SHORTEST), (level, "[R]")])
def test_outcome_only_rewards(make, text):
    for role in ("tool", "planner"):
        assert rewards(make, role, text, shaped=False) == (1.0, 1.0)
        assert rewards(make, role, "[L]", shaped=False) == (0.0, 1.0)
        assert rewards(make, role, "?", shaped=False) == (0.0, 0.0)


def test_the_tool_proposes_and_the_planner_moves():
    environment = maze(mover="planner")
    proposed = act(environment, "tool", SHORTEST)
    assert proposed.reward.team == 1.0 and not environment.solved and environment.state == MAZE.start
    copied = environment.copy()
    act(copied, "planner", SHORTEST)
    assert copied.solved and copied.moves == 6 and not environment.solved and environment.moves == 0


@pytest.mark.parametrize("role", ["planner", "tool"])
@pytest.mark.parametrize(
    ("make", "text"),
    [(maze, f"[{','.join('RL' * 400)}]"), (level, f"[{','.join('UD' * 400)}]"), (grid, str([[1, 1, 1]] * 900))],
)
def test_many_moves_that_lead_nowhere_earn_nothing_and_fill_no_prompt(make, text, role):
    environment = make(mover="planner")
    step = act(environment, role, text)
    assert step.reward.team == 0.0 and step.reward.local <= 0.2 and len(step.text) < 400
    assert act(environment, role, f"{text[:-1]}, {text[1:]}").reward.local == 0.0, "longer than any solution"


def test_text_is_no_proposal_where_code_is_to_print_it():
    environment = maze(mover="planner", coders=frozenset({"tool"}))
    assert act(environment, "tool", SHORTEST).reward.local == 0.0
