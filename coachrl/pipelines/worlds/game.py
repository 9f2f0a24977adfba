"""A tool and a planner in a small world (Stronger-MAS, App. C.2): what planpath, sokoban and sudoku have in
common.

In each turn the tool acts first; its code runs, and what it prints is its proposal. The planner sees task, state, code,
output and proposal of this turn, and the history; its answer moves the environment. An episode ends when the
environment is solved, or after `turns`. With `only` one role acts alone, and its answer moves the environment.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field

from coachrl.config import PipelineConfig
from coachrl.pipelines.base import AgentTrajectory, Environment, Pipeline, PipelineOptions, StepResult, Team
from coachrl.sandbox.base import Workspace
from coachrl.tasks.worlds.answers import parse_moves
from coachrl.tasks.worlds.moves import walk
from coachrl.text import counted, visible
from coachrl.types import Action, Outcome, Reward, Role, Task, ran

A = TypeVar("A")  # an answer that could be read
S = TypeVar("S")  # a state

Moves = tuple[str, ...]

_SHOWN = 60  # moves or edits of an answer, in prompts
NO_HISTORY = "Nothing has been done yet."


@dataclass(frozen=True)
class Trial(Generic[S]):
    """An answer, carried out. checks: role -> what its own reward is made of, each 0 to 1. words: what happened."""

    state: S
    checks: Mapping[str, Mapping[str, float]]
    words: str
    moves: int = 0


@dataclass
class Game(Environment, Generic[A, S]):
    """A puzzle as far as it has been played, and who may change that.

    shares: role -> weight of each check; with 0.1 for the format they sum to 1.
    mover: the role whose answer moves the environment; another's is tried out on the side and rewarded for what it
    would do. coders: roles whose answer is what their code prints. shaped: rewards of App. B.3 to B.5, else those of
    B.6: success for the team, a readable answer for the agent. reached: role -> potential of the state that its last
    answer led to.

    The team's shaped reward is how much higher an answer gets than the role's answer before it, so that a role's sum
    over an episode is what its last answer reached: no detour and no waiting pays more than being there.
    """

    shares: ClassVar[Mapping[str, Mapping[str, float]]]

    puzzle: Any
    mover: str
    coders: frozenset[str] = frozenset()
    shaped: bool = True
    moves: int = 0
    reached: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.first_state()
        self._first = self.potential(self.state)

    @property
    def solved(self) -> bool:
        return self.is_solved(self.state)

    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """Carry out the answer in `action`. One that cannot be read does nothing: it reaches what is there already."""
        answer = self.answer(action)
        if answer is None:
            gained = self._reach(self.state, action.role) if self.shaped else 0.0
            return StepResult("no answer could be read", Reward(gained, 0.0, {"format": 0.0}), self.render())
        trial = self.carry_out(answer)
        reward = self._reward(trial, action.role)
        if action.role == self.mover:
            self.state, self.moves = trial.state, self.moves + trial.moves
        return StepResult(trial.words, reward, self.draw(trial.state))

    def answer(self, action: Action) -> A | None:
        """The answer that an agent gave, or that its code printed; None where there is none to be read."""
        if action.role not in self.coders:
            return self.read(visible(action.text))
        return self.read(action.execution.stdout) if ran(action.execution) else None

    def copy(self) -> Self:
        """States are never changed, only replaced."""
        return copy.copy(self)

    def outcome(self, turns: int) -> Outcome:
        metrics = {"solved": float(self.solved), "turns": float(turns), "moves": float(self.moves), **self.metrics()}
        reason = "" if self.solved else f"not solved within {counted(turns, 'turn')}"
        return Outcome(self.solved, metrics, reason, summary=f"{reason or 'solved'}; at the end:\n{self.render()}")

    def _reward(self, trial: Trial[S], role: str) -> Reward:
        if not self.shaped:
            return Reward(float(self.is_solved(trial.state)), 1.0, {"format": 1.0})
        checks, weights = {"format": 1.0, **trial.checks[role]}, {"format": 0.1, **self.shares[role]}
        gained = self._reach(trial.state, role)
        return Reward(gained, sum(weights[name] * value for name, value in checks.items()), checks)

    def _reach(self, state: S, role: str) -> float:
        """How much higher `state` is than what the role's answer before reached. It is what has been reached now."""
        before, now = self.reached.get(role, self._first), self.potential(state)
        self.reached = {**self.reached, role: now}
        return now - before

    @abstractmethod
    def first_state(self) -> S:
        """Where an episode on the puzzle begins."""

    @abstractmethod
    def is_solved(self, state: S) -> bool: ...

    @abstractmethod
    def potential(self, state: S) -> float:
        """How near a state is to the solution: 1 where it is solved, and from 0 to less than 1 everywhere else."""

    @abstractmethod
    def read(self, text: str) -> A | None:
        """The answer in `text`, or None where it keeps no form."""

    @abstractmethod
    def carry_out(self, answer: A) -> Trial[S]:
        """What `answer` does from the present state. Changes nothing."""

    @abstractmethod
    def draw(self, state: S) -> str:
        """A state as text, one line a row."""

    @abstractmethod
    def shown(self, item: Any) -> str:
        """One move or edit of an answer, as agents write it."""

    def render(self) -> str:
        return self.draw(self.state)

    def metrics(self) -> dict[str, float]:
        """Of the outcome, beside whether it is solved."""
        return {}


class MoveGame(Game[Moves, S]):
    """A game whose answers are moves of one figure. Planner: share of legal moves. Tool: `faultless`, no move that is
    not legal. Both: what is `gained`. Walking about earns nothing, and an empty list has its format only.

    The figure makes as many moves in an episode as the puzzle can take (`most_moves`), and those that an answer names
    beyond that are not legal: a list of a thousand moves that looks at no map would come by the goal of almost any."""

    faultless: ClassVar[str]

    def first_state(self) -> S:
        start: S = self.puzzle.start
        return start

    @abstractmethod
    def gained(self, end: S, moves: int) -> float:
        """How much of the way to the solution lies between the present state and `end`, as a share."""

    @abstractmethod
    def progress(self, end: S) -> str:
        """How far it is from `end` to the solution, in words."""

    def read(self, text: str) -> Moves | None:
        return parse_moves(text)

    def carry_out(self, answer: Moves) -> Trial[S]:
        made = answer[: self.puzzle.most_moves - self.moves]
        walked = walk(self.puzzle, self.state, made)
        gained, legal = self.gained(walked.end, len(answer)), sum(walked.legal)
        checks = {
            "planner": {"legal": share(legal, len(answer)), "gained": gained},
            "tool": {self.faultless: float(0 < len(answer) == legal), "gained": gained},
        }
        words = f"{told(made, walked.legal)} {self.progress(walked.end)}"
        if len(made) < len(answer):
            words += f" An episode has {self.puzzle.most_moves} moves, and no more were made."
        return Trial(walked.end, checks, words, legal)

    def draw(self, state: S) -> str:
        drawn: str = self.puzzle.render(state)
        return drawn

    def shown(self, item: str) -> str:
        return item


def share(part: float, whole: float) -> float:
    """`part` of `whole`; 0 where it is less than nothing, or of nothing."""
    return max(0.0, part / whole) if whole else 0.0


def told(moves: Moves, legal: tuple[bool, ...]) -> str:
    """What the moves did, in words: the first of them where they are many, since this stands in later prompts."""
    if not moves:
        return "No move was made."
    done = [move if ok else f"{move}(blocked)" for move, ok in zip(moves, legal, strict=True)]
    return f"Moves: {' '.join(done[:_SHOWN])}{_more(done)}."


class GameOptions(PipelineOptions):
    """Of planpath, sokoban and sudoku."""

    turns: int = Field(4, ge=1, description="Turns at most, each of the tool and then the planner.")
    only: Literal["tool", "planner"] | None = Field(None, description="This role acts alone: the single-agent variant.")
    rewards: Literal["shaped", "outcome"] = Field(
        "shaped", description="outcome: success for the team, a readable answer for the agent, nothing in between."
    )


# What a prompt may ask for; it gets the fields that it declares. code: what the tool wrote; output: what that printed;
# proposal: the tool's answer, as the environment reads it.
_FIELDS = {
    "tool": {"task", "state", "history"},
    "planner": {"task", "state", "history", "code", "output", "proposal"},
}


class ToolPlanner(Pipeline):
    """Base of the pipelines. A subclass names itself, its game and what its roles do."""

    environment: ClassVar[type[Game[Any, Any]]]
    descriptions: ClassVar[Mapping[str, str]]
    small_model = PipelineConfig(max_new_tokens=128)
    Options = GameOptions
    options: GameOptions

    def members(self) -> list[tuple[Role, int]]:
        names = (self.options.only,) if self.options.only else ("tool", "planner")
        return [(Role(name, name, description=self.descriptions[name], python=name == "tool"), 1) for name in names]

    def prompt_name(self, kind: str) -> str:
        return "planner.alone" if self.options.only == "planner" else kind

    def prompt_fields(self, kind: str) -> Collection[str]:
        return _FIELDS["tool" if self.options.only else kind]

    @property
    def rounds(self) -> int:
        return self.options.turns

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        game = self.environment
        team.environment = game(
            self.truth(task, self.ground_truth),
            mover=self.roles[-1].name,
            coders=frozenset(role.name for role in self.roles if role.python),
            shaped=self.options.rewards == "shaped",
        )
        history: list[str] = []
        for turn in range(1, self.options.turns + 1):
            part = await self._take_turn(task, team, "\n".join(history) or NO_HISTORY)
            history.append(f"Turn {turn}: {part.result}")
            if team.environment_as(game).solved:
                break
        return team.environment_as(game).outcome(len(history))

    async def _take_turn(self, task: Task, team: Team, history: str) -> AgentTrajectory:
        """The last agent's part, which moves the environment."""
        state = team.environment_as(self.environment).render()
        known = {"task": task.prompt.split("\n\n")[0], "state": state, "history": history}
        for role in self.roles:
            part = await team[role.name].act_on(known)
            last = part.actions[-1]
            answer = team.environment_as(self.environment).answer(last)
            known["code"] = last.code or part.text or "(nothing)"
            known["output"] = part.output or "(nothing)"
            known["proposal"] = self._proposal(answer, team)
        return part

    def _proposal(self, answer: tuple[Any, ...] | None, team: Team) -> str:
        """An answer in the form that agents write, the first of it where it is long."""
        if answer is None:
            return "none that can be read"
        shown = map(team.environment_as(self.environment).shown, answer[:_SHOWN])
        return f"[{','.join(shown)}]{_more(answer)}"


def _more(items: Sequence[Any]) -> str:
    return f" and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
