"""Word problems for small models, generated from a seed, in graded levels: level n takes n steps of arithmetic.

Level 1 asks for one sum, difference or product of single digits. From level 2 on, a story of n steps moves one quantity
between 1 and 200 by +, -, * and exact division. Answers are whole numbers, never negative.

Whether a problem is for training or held out hangs on its opening (template and numbers, whatever the names), so no
held-out problem is a training problem under other names, for any counts and seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import add, floordiv, mul, sub
from typing import TypeVar

import numpy as np

from coachrl.errors import TaskError
from coachrl.seeding import generator
from coachrl.tasks.math.problems import MathTruth
from coachrl.tasks.split import Split, split_of
from coachrl.types import Task

T = TypeVar("T")

MAX_LEVEL = 5
_LARGEST = 200  # of the running quantity, from level 2 on

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jon", "Kim", "Liam", "Mona", "Nils")
_THINGS = {
    "apple": "apples",
    "book": "books",
    "button": "buttons",
    "card": "cards",
    "cherry": "cherries",
    "coin": "coins",
    "leaf": "leaves",
    "marble": "marbles",
    "peach": "peaches",
    "pencil": "pencils",
    "shell": "shells",
    "stamp": "stamps",
    "strawberry": "strawberries",
    "toy": "toys",
}
_OTHER_NAME = {name: _NAMES[(index + 5) % len(_NAMES)] for index, name in enumerate(_NAMES)}

# {name} (in every problem), {other}: people; {a}, {b}: numbers; {a_things}, {b_things}: numbers with their nouns.
_ONE_STEP = (
    ("+", "{name} has {a_things} and finds {b} more. How many {things} does {name} have now?"),
    ("+", "{name} picks up {a_things} in the morning and {b} in the evening. How many {things} is that in all?"),
    ("+", "{name} has {a_things}. {other} has {b_things}. How many {things} do they have together?"),
    ("+", "A jar holds {a_things}. {name} puts in {b} more. How many {things} are in the jar now?"),
    ("-", "{name} has {a_things} and gives {b} to {other}. How many {things} does {name} have left?"),
    ("-", "{name} had {a_things} but lost {b} on the way. How many {things} does {name} still have?"),
    ("-", "A basket holds {a_things}. {name} takes out {b}. How many {things} stay in the basket?"),
    ("-", "{name} has {a_things} and {other} has {b_things}. How many more {things} does {name} have?"),
    ("*", "{name} fills {a} bags with {b_things} each. How many {things} is that in all?"),
    ("*", "{name} lays out {a} rows with {b_things} in each row. How many {things} are there?"),
    ("*", "{name} gets {b_things} every day for {a} days. How many {things} does {name} get in all?"),
    ("*", "{name} has boxes that hold {b_things} each. How many {things} fit in {a} boxes?"),
)
_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul, "/": floordiv}
_RESULTS = {"+": "sum", "-": "difference", "*": "product"}
_START = "{name} has {a_things}."
_STEPS = (
    ("+", "{name} finds {b} more."),
    ("+", "{other} gives {name} another {b}."),
    ("+", "{name} buys {b} more at the market."),
    ("-", "{name} gives {b} to {other}."),
    ("-", "{name} loses {b} on the way home."),
    ("-", "{name} sells {b}."),
    ("*", "{name} goes on collecting until there are {b} times as many."),
    ("*", "In a game, {name} wins until the pile is {b} times as big."),
    ("/", "{name} shares them out equally among {b} people, {name} being one of them, and keeps one share."),
    ("/", "{name} sorts them into {b} equal heaps and keeps only one heap."),
)
_QUESTION = "How many {things} does {name} have now?"


@dataclass(frozen=True)
class _Step:
    """One operation with the operand `b`, as a sentence of its own from level 2 on."""

    operator: str
    text: str
    b: int

    def apply(self, quantity: int) -> int:
        return _OPERATIONS[self.operator](quantity, self.b)


@dataclass(frozen=True)
class _Opening:
    """What decides the split: the first number and the first step."""

    a: int
    step: _Step

    @property
    def split(self) -> Split:
        return split_of(f"{self.step.text}|{self.a}|{self.step.b}")


def generate_word_problems(count: int, levels: Sequence[int], seed: int, split: Split) -> list[Task]:
    """`count` different problems, the levels taken in turn; category "sum", "difference" or "product" at level 1, then
    "2-steps", "3-steps", ...

    The same arguments give the same tasks everywhere, and a larger count begins with those of a smaller one. Raises
    TaskError for a level that does not exist, or where a level has fewer problems than asked for.
    """
    if count < 1 or not levels or len(set(levels)) != len(levels):
        raise TaskError(f"word problems: count must be 1 or more and levels all different; got {count} and {levels}")
    for place, level in enumerate(levels):
        if not 1 <= level <= MAX_LEVEL:
            raise TaskError(f"word problems: there is no level {level}; levels go from 1 to {MAX_LEVEL}")
        wanted, available = len(range(place, count, len(levels))), count_word_problems(level, split)
        if wanted > available:
            raise TaskError(f"word problems: level {level} has {available} {split} problems; {wanted} were asked for")
    streams = [_problems(level, seed, split) for level in levels]
    return [next(streams[index % len(levels)]) for index in range(count)]


def count_word_problems(level: int, split: Split) -> int:
    """How many different problems a level has."""
    stories = sum(_continuations(opening.step.apply(opening.a), level - 1) for opening in _openings(level, split))
    return stories * len(_NAMES) * len(_THINGS)


@cache
def _continuations(quantity: int, steps: int) -> int:
    if steps == 0:
        return 1
    return sum(_continuations(step.apply(quantity), steps - 1) for step in _possible_steps(quantity))


@cache
def _openings(level: int, split: Split) -> tuple[_Opening, ...]:
    digits = range(1, 10)
    if level == 1:
        openings = [
            _Opening(a, _Step(operator, text, b))
            for (operator, text), a, b in product(_ONE_STEP, digits, digits)
            if {"+": True, "-": a > b, "*": min(a, b) > 1}[operator]
        ]
    else:
        openings = [_Opening(a, step) for a in range(2, 31) for step in _possible_steps(a)]
    return tuple(opening for opening in openings if opening.split == split)


@cache
def _possible_steps(quantity: int) -> tuple[_Step, ...]:
    """Steps that keep the quantity whole and between 1 and the largest."""
    fits = {
        "+": lambda b: quantity + b <= _LARGEST,
        "-": lambda b: quantity > b,
        "*": lambda b: 2 <= b <= 5 and quantity * b <= _LARGEST,
        "/": lambda b: b >= 2 and quantity % b == 0,
    }
    return tuple(_Step(operator, text, b) for operator, text in _STEPS for b in range(1, 13) if fits[operator](b))


def _draw(rng: np.random.Generator, options: Sequence[T], template: Callable[[T], str]) -> T:
    """The template first, then its numbers: division, which few numbers allow, is not rarer than addition."""
    groups: dict[str, list[T]] = {}
    for option in options:
        groups.setdefault(template(option), []).append(option)
    return _pick(rng, _pick(rng, list(groups.values())))


def _pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


def _problems(level: int, seed: int, split: Split) -> Iterator[Task]:
    """Endless stream of different problems of one level (as long as it has any left)."""
    rng = generator(seed, "word problems", level, split)
    openings = _openings(level, split)
    seen: set[str] = set()
    while True:
        opening = _draw(rng, openings, lambda option: option.step.text)
        steps = [opening.step]
        quantity = opening.step.apply(opening.a)
        for _ in range(level - 1):
            steps.append(_draw(rng, _possible_steps(quantity), lambda step: step.text))
            quantity = steps[-1].apply(quantity)
        text = _tell(opening.a, steps, _pick(rng, _NAMES), _pick(rng, list(_THINGS)))
        if text in seen:
            continue
        seen.add(text)
        graded = "1-step" if level == 1 else f"{level}-steps"
        yield Task(
            id=f"{graded}-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
            category=_RESULTS[opening.step.operator] if level == 1 else graded,
            prompt=text,
            ground_truth=MathTruth(str(quantity), solution=_expression(opening.a, steps)),
        )


def _tell(a: int, steps: Sequence[_Step], name: str, thing: str) -> str:
    people = {"name": name, "other": _OTHER_NAME[name], "things": _THINGS[thing]}
    told = [(step.text, step.b) for step in steps]
    if len(steps) > 1:
        told = [(_START, 0), *told, (_QUESTION, 0)]
    return " ".join(
        sentence.format(**people, a=a, b=b, a_things=_number_of(a, thing), b_things=_number_of(b, thing))
        for sentence, b in told
    )


def _number_of(number: int, thing: str) -> str:
    return f"{number} {thing if number == 1 else _THINGS[thing]}"


def _expression(a: int, steps: Sequence[_Step]) -> str:
    """Python arithmetic, steps in order from the left: "((12 + 4) / 8) * 3"."""
    text = str(a)
    for index, step in enumerate(steps):
        text = f"{f'({text})' if index else text} {step.operator} {step.b}"
    return text
