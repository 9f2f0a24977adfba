"""Properties of generated word problems: answers, levels, splits, determinism, grammar."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachrl.errors import TaskError
from coachrl.tasks.math import word_problems
from coachrl.tasks.math.problems import check_disjoint
from coachrl.tasks.math.word_problems import MAX_LEVEL, count_word_problems, generate_word_problems
from coachrl.types import Task

LEVELS = st.lists(st.integers(1, MAX_LEVEL), min_size=1, max_size=MAX_LEVEL, unique=True)
SPLITS = st.sampled_from(["train", "heldout"])

# Read from the sentences alone, apart from the templates: which operation a phrase stands for.
PHRASES = [
    (r"finds (\d+) more|another (\d+)|buys (\d+) more|puts in (\d+) more|morning and (\d+) in", "+"),
    (r"gives (\d+) to|loses (\d+)|lost (\d+)|sells (\d+)|takes out (\d+)", "-"),
    (r"there are (\d+) times|is (\d+) times", "*"),
    (r"among (\d+) people|into (\d+) equal", "/"),
]


def solve_story(text: str) -> Fraction | None:
    """The answer of a story told step by step, read from its words; None where a product or a comparison is asked."""
    first = re.search(r"(?:has|had|holds|picks up) (\d+)", text)
    if first is None or re.search(r"each|every day|boxes hold|How many more|together", text):
        return None
    quantity = Fraction(int(first.group(1)))
    found = sorted(
        (match.start(), operator, int(next(filter(None, match.groups()))))
        for pattern, operator in PHRASES
        for match in re.finditer(pattern, text)
    )
    for _, operator, operand in found:
        quantity = {
            "+": quantity + operand,
            "-": quantity - operand,
            "*": quantity * operand,
            "/": quantity / operand,
        }[operator]
    return quantity


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+", text))


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(0, 2**32), SPLITS)
def test_answers_follow_from_expression_and_from_words(levels: list[int], seed: int, split: str) -> None:
    for task in generate_word_problems(30, levels, seed, split):
        truth = task.ground_truth
        expression = re.sub(r"(\d+)", r"Fraction(\1)", truth.solution)
        value = eval(expression, {"Fraction": Fraction})
        assert value == Fraction(truth.answer) and value >= 0
        assert numbers(task.prompt) == numbers(truth.solution)
        steps = re.findall(r" ([-+*/]) ", truth.solution)
        named = {"+": "sum", "-": "difference", "*": "product"}
        assert task.category == (named[steps[0]] if len(steps) == 1 else f"{len(steps)}-steps")
        told = solve_story(task.prompt)
        assert told is None or told == value, task.prompt


def test_most_stories_can_be_read_back() -> None:
    tasks = generate_word_problems(500, [1, 2, 3, 4, 5], 0, "train")
    assert sum(solve_story(task.prompt) is not None for task in tasks) > 400


@settings(max_examples=20, deadline=None)
@given(LEVELS, st.integers(0, 1000), st.integers(0, 1000))
def test_splits_never_meet_not_even_under_other_names(levels: list[int], seed: int, other_seed: int) -> None:
    train = generate_word_problems(200, levels, seed, "train")
    heldout = generate_word_problems(200, levels, other_seed, "heldout")
    check_disjoint(train, heldout)
    if levels == [1]:
        assert not {skeleton(task) for task in train} & {skeleton(task) for task in heldout}
    assert len({task.prompt for task in train}) == len({task.id for task in train}) == 200


def skeleton(task: Task) -> str:
    """The problem without its people and things."""
    known = "A There One How In Every"
    words = [word for word in re.findall(r"[A-Za-z]+|\d+", task.prompt) if word in known or not word.istitle()]
    things = set(re.findall(r"\d+ ([a-z]+)", task.prompt)) - {"more", "in", "on", "to", "days", "rows", "bags", "boxes"}
    stems = {thing.rstrip("s") for thing in things}
    return " ".join(word for word in words if not any(word.startswith(stem) for stem in stems))


def test_first_level_is_one_operation_on_digits() -> None:
    tasks = generate_word_problems(600, [1], 3, "train")
    assert {task.ground_truth.solution.split()[1] for task in tasks} == {"+", "-", "*"}
    assert all(1 <= int(number) <= 9 for task in tasks for number in re.findall(r"\d+", task.prompt))
    assert min(int(task.ground_truth.answer) for task in tasks) == 1, "nobody gives all away"
    assert len({re.sub(r"\d+", "", skeleton(task)) for task in tasks}) >= 8


def test_division_is_there_from_the_second_level_on_and_numbers_stay_moderate() -> None:
    tasks = generate_word_problems(400, [2, 3, 4, 5], 1, "train")
    assert {"+", "-", "*", "/"} == {
        sign for task in tasks for sign in re.findall(r" ([-+*/]) ", task.ground_truth.solution)
    }
    assert max(int(task.ground_truth.answer) for task in tasks) <= 200


@settings(max_examples=20, deadline=None)
@given(LEVELS, st.integers(0, 100), SPLITS)
def test_grammar_of_counts(levels: list[int], seed: int, split: str) -> None:
    for task in generate_word_problems(50, levels, seed, split):
        for number, word in re.findall(r"(\d+) ([a-z]+)", task.prompt):
            if word in {"more", "in", "on", "to", "equal", "times", "people"}:
                continue
            assert word.endswith("s") == (number != "1"), task.prompt
        assert "{" not in task.prompt and "  " not in task.prompt


def test_same_seed_same_problems_and_more_begin_with_fewer() -> None:
    few = generate_word_problems(5, [1, 3], 7, "train")
    assert few == generate_word_problems(9, [1, 3], 7, "train")[:5]
    assert few != generate_word_problems(5, [1, 3], 8, "train")
    assert [task.id.rpartition("-")[0] for task in few] == ["1-step", "3-steps", "1-step", "3-steps", "1-step"]


def test_known_problem_on_every_platform() -> None:
    task = generate_word_problems(1, [2], 0, "heldout")[0]
    assert (task.prompt, task.ground_truth.answer) == KNOWN


KNOWN = (
    "Jon has 25 stamps. Jon loses 1 on the way home. Jon finds 1 more. How many stamps does Jon have now?",
    "25",
)


@pytest.mark.parametrize(
    ("count", "levels", "message"),
    [
        (0, [1], "count must be 1 or more"),
        (1, [], "count must be 1 or more"),
        (2, [1, 1], "levels all different"),
        (1, [0], "no level 0; levels go from 1 to 5"),
        (1, [6], "no level 6"),
        (10**6, [1], r"level 1 has \d+ heldout problems; 1000000 were asked for"),
    ],
)
def test_what_cannot_be_generated_is_refused(count: int, levels: list[int], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        generate_word_problems(count, levels, 0, "heldout")


def test_a_level_gives_as_many_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_problems, "_NAMES", ("Ada", "Ben"))
    monkeypatch.setattr(word_problems, "_THINGS", {"leaf": "leaves"})
    stated = count_word_problems(1, "heldout")
    assert len({task.prompt for task in generate_word_problems(stated, [1], 0, "heldout")}) == stated
    with pytest.raises(TaskError, match=f"level 1 has {stated} heldout problems; {stated + 1} were"):
        generate_word_problems(stated + 1, [1], 0, "heldout")
