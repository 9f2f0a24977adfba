"""Planted faults in chains of arithmetic: word problems solved by MathChat and by Math Duo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from operator import add, mul, sub, truediv

import numpy as np

from coachrl.audit.faults.planted import Place, PlantedFault, Replies, fenced, in_turn, planted
from coachrl.pipelines.base import Pipeline
from coachrl.seeding import generator
from coachrl.tasks.math.problems import MathTruth
from coachrl.tasks.math.word_problems import generate_word_problems
from coachrl.types import Task

LEVELS = (3, 4, 5)  # so many steps: a fault in one of several
_TRIES = 40
_OPERATIONS: dict[str, Callable[[Fraction, int], Fraction]] = {"+": add, "-": sub, "*": mul, "/": truediv}


@dataclass(frozen=True)
class Chain:
    """A number and the steps that are taken from it. slip: a step (counted from 0) whose result is stated wrong by so
    much, and is gone on from."""

    first: int
    steps: tuple[tuple[str, int], ...]
    slip: tuple[int, int] | None = None

    @classmethod
    def of(cls, task: Task) -> Chain:
        """From the solution of a word problem: "((12 + 4) / 8) * 3"."""
        assert isinstance(task.ground_truth, MathTruth)
        first, *rest = re.findall(r"\d+|[-+*/]", task.ground_truth.solution)
        return cls(int(first), tuple((rest[i], int(rest[i + 1])) for i in range(0, len(rest), 2)))

    @property
    def values(self) -> list[Fraction]:
        """What each step comes to, as it is stated."""
        found, value = [], Fraction(self.first)
        for place, (operator, b) in enumerate(self.steps):
            value = _OPERATIONS[operator](value, b)
            if self.slip is not None and self.slip[0] == place:
                value += self.slip[1]
            found.append(value)
        return found

    @property
    def result(self) -> int:
        return int(self.values[-1])

    @property
    def is_plain(self) -> bool:
        """Whether it has steps, and all that is stated is a whole number above 0: no fault shows by a fraction."""
        return bool(self.steps) and all(value.denominator == 1 and value > 0 for value in self.values)

    def draft(self) -> str:
        lines, value = [], Fraction(self.first)
        for (operator, b), stated in zip(self.steps, self.values, strict=True):
            lines.append(f"{value} {operator} {b} = {stated}")
            value = stated
        return "We go step by step.\n" + "\n".join(lines)

    def program(self) -> str:
        """Computes the chain; a step whose result is wrong is taken over as it was stated."""
        lines = [f"x = {self.first}"]
        for place, (operator, b) in enumerate(self.steps):
            lines.append(f"x = x {'//' if operator == '/' else operator} {b}")
            if self.slip is not None and self.slip[0] == place:
                lines = [f"x = {self.values[place]}"]
        return "\n".join([*lines, "print(x)"])


def _a_sign(chain: Chain, rng: np.random.Generator) -> Chain:
    places = [place for place, (operator, _) in enumerate(chain.steps) if operator in "+-"]
    if not places:
        return chain
    return _changed(chain, int(rng.choice(places)), lambda operator, b: ({"+": "-", "-": "+"}[operator], b))


def _a_unit(chain: Chain, rng: np.random.Generator) -> Chain:
    return _changed(chain, int(rng.integers(len(chain.steps))), lambda operator, b: (operator, 12 * b))


def _off_by_one(chain: Chain, rng: np.random.Generator) -> Chain:
    place, by = int(rng.integers(len(chain.steps))), int(rng.choice([-1, 1]))
    return _changed(chain, place, lambda operator, b: (operator, max(1, b + by)))


def _left_out(chain: Chain, rng: np.random.Generator) -> Chain:
    place = int(rng.integers(len(chain.steps)))
    return replace(chain, steps=chain.steps[:place] + chain.steps[place + 1 :])


def _a_slip(chain: Chain, rng: np.random.Generator) -> Chain:
    """Not in the last step: those after it are right by themselves."""
    return replace(chain, slip=(int(rng.integers(max(1, len(chain.steps) - 1))), int(rng.choice([-2, -1, 1, 2]))))


def _changed(chain: Chain, place: int, change: Callable[[str, int], tuple[str, int]]) -> Chain:
    """The chain with one other step."""
    return replace(chain, steps=(*chain.steps[:place], change(*chain.steps[place]), *chain.steps[place + 1 :]))


Spoiler = Callable[[Chain, np.random.Generator], Chain]
SPOILERS: dict[str, Spoiler] = {
    "a sign": _a_sign,
    "a unit: dozens for pieces": _a_unit,
    "off by one in a step": _off_by_one,
    "a step left out": _left_out,
}
DRAFTED = {**SPOILERS, "a first error in a chain of steps": _a_slip}


def spoiled(
    chain: Chain, spoilers: dict[str, Spoiler], number: int, rng: np.random.Generator
) -> tuple[str, Chain] | None:
    """A fault that changes the result and nothing else that would show; None where none does."""
    for name in in_turn(list(spoilers), number):
        for _ in range(_TRIES):
            found = spoilers[name](chain, rng)
            if found.is_plain and found.result != chain.result:
                return name, found
    return None


def _misread(value: int, chain: Chain, number: int) -> tuple[str, int]:
    """A result as it is easily got wrong when it is only copied."""
    swapped = int(str(value)[::-1])
    options = [("off by one", value + 1), ("an earlier step's result", int([Fraction(chain.first), *chain.values][-2]))]
    if swapped != value and not str(value).endswith("0"):
        options.append(("digits swapped", swapped))
    return next(option for option in in_turn(options, number) if option[1] != value)


def mathchat_faults(seed: int) -> Iterator[list[PlantedFault]]:
    """For one word problem after another: a fault of each action of the team, and one of two agents at once."""
    for number, (task, chain, rng) in enumerate(_problems(seed)):
        yield list(_mathchat_faults_of(number, task, chain, rng))


def _mathchat_faults_of(number: int, task: Task, chain: Chain, rng: np.random.Generator) -> Iterator[PlantedFault]:
    plant = partial(planted, task, _mathchat(chain))
    if (slip := spoiled(chain, DRAFTED, number, rng)) is not None:
        name, wrong = slip
        yield plant(f"draft: {name}", _mathchat(wrong), ("problem_solver", 0))
        if (second := spoiled(wrong, SPOILERS, number + 1, rng)) is not None and second[1].result != chain.result:
            places: list[Place] = [("problem_solver", 0), ("code_executor", 0)]
            yield plant("draft and code, each with a fault of its own", _mathchat(wrong, second[1]), *places)
    if (slip := spoiled(chain, SPOILERS, number + 2, rng)) is not None:
        yield plant(f"code: {slip[0]}", _mathchat(chain, slip[1]), ("code_executor", 0))
    name, said = _misread(chain.result, chain, number)
    yield plant(f"report: {name}", _mathchat(chain, reported=said), ("code_executor", 1))
    name, said = _misread(chain.result, chain, number + 1)
    yield plant(f"a right answer overruled: {name}", _mathchat(chain, answered=said), ("verifier", 0))


def _mathchat(
    drafted: Chain, computed: Chain | None = None, reported: int | None = None, answered: int | None = None
) -> Replies:
    """What the team says. Whoever is given nothing of its own goes on with what it was handed."""
    computed = drafted if computed is None else computed
    reported = computed.result if reported is None else reported
    answered = reported if answered is None else answered
    overruled = "" if answered == reported else f"The code gives {reported}, but going through the problem again, "
    return {
        "problem_solver": (drafted.draft(),),
        "code_executor": (fenced(computed.program()), f"The program gives {reported}."),
        "verifier": (f"{overruled}the answer is \\boxed{{{answered}}}",),
    }


def math_duo_faults(pipeline: Pipeline, seed: int) -> Iterator[list[PlantedFault]]:
    """For one word problem after another: a wrong first answer of the reasoner and of the tool user, each given up when
    the other's work is seen; and a right one given up for the other's wrong one, in the second turn."""
    has_judge = any(role.name == "judge" for role in pipeline.roles)
    for number, (task, chain, rng) in enumerate(_problems(seed)):
        yield list(_math_duo_faults_of(number, task, chain, rng, has_judge))


def _math_duo_faults_of(
    number: int, task: Task, chain: Chain, rng: np.random.Generator, has_judge: bool
) -> Iterator[PlantedFault]:
    right, right_code = _argued(chain), fenced(chain.program())
    sound: dict[str, tuple[str, ...]] = {"reasoner": (right,), "tool_user": (right_code,)}
    if has_judge:
        sound["judge"] = (f"Both agree: \\boxed{{{chain.result}}}",)
    plant = partial(planted, task, sound)
    if (slip := spoiled(chain, DRAFTED, number, rng)) is not None:
        name, wrong = slip
        faulty = {**sound, "reasoner": (_argued(wrong), right)}
        yield plant(f"reasoning: {name}", faulty, ("reasoner", 0))
        faulty = {**faulty, "tool_user": (right_code, fenced(wrong.program()), right_code)}
        yield plant("a right program given up for a wrong argument", faulty, ("reasoner", 0), ("tool_user", 1))
    if (slip := spoiled(chain, SPOILERS, number + 1, rng)) is not None:
        name, wrong = slip
        faulty = {**sound, "tool_user": (fenced(wrong.program()), right_code)}
        yield plant(f"code: {name}", faulty, ("tool_user", 0))
        faulty = {**faulty, "reasoner": (right, _argued(wrong), right)}
        yield plant("a right argument given up for a wrong program", faulty, ("tool_user", 0), ("reasoner", 1))
    if has_judge:
        name, said = _misread(chain.result, chain, number)
        faulty = {**sound, "judge": (f"Going through the problem again: \\boxed{{{said}}}",)}
        yield plant(f"a right answer overruled: {name}", faulty, ("judge", 0))


def _argued(chain: Chain) -> str:
    return f"{chain.draft()}\n\\boxed{{{chain.result}}}"


def _problems(seed: int) -> Iterator[tuple[Task, Chain, np.random.Generator]]:
    """Word problems without end, each with the chain that solves it."""
    count = 64
    done = 0
    while True:
        for task in generate_word_problems(count, LEVELS, seed, "heldout")[done:]:
            yield task, Chain.of(task), generator(seed, "planted faults", task.id)
        done, count = count, 2 * count
