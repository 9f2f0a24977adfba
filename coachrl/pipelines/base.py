"""What a pipeline is: the base class that every pipeline inherits from, shipped or your own.

    class AskTwice(Pipeline):
        name = "ask-twice"
        roles = (Role("first", policy="first", prompt=ASK), Role("second", policy="second", prompt=CHECK))

        class Options(PipelineOptions):
            checks: int = Field(2, ge=1, description="How often the answer is checked.")

        options: Options

        async def run(self, task, team, workspace):
            answer = await team.first.act(problem=task.prompt)
            for _ in range(self.options.checks):
                answer = await team.second.act(problem=task.prompt, draft=answer.text)
            return Outcome(answer.text == task.ground_truth)

It is plain async Python over `team.<role>.act(...)`. This module holds all that its author needs to import, beside the
data of `coachrl.types`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import ClassVar, TypeVar

from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines.options import PipelineOptions, read_options
from coachrl.pipelines.team.adviser import Adviser
from coachrl.pipelines.team.roles import load_team
from coachrl.pipelines.team.state import Environment, StepResult
from coachrl.pipelines.team.team import Agent, Team, together
from coachrl.pipelines.team.trajectory import AgentTrajectory
from coachrl.sandbox.base import Workspace
from coachrl.types import Outcome, Role, Task

__all__ = [
    "Agent",
    "AgentTrajectory",
    "Environment",
    "Pipeline",
    "PipelineOptions",
    "StepResult",
    "Team",
    "together",
]

T = TypeVar("T")


class Pipeline(ABC):
    """Who acts, in which order, and how the result is graded.

    A subclass declares `name` and `roles`, and defines `run`. Everything else has a default.

    Attributes:
        name: what runs, records and error messages call it.
        roles: who acts, in the order in which they first act. Declared on the class; on an object they have their
            prompts and the run's settings (`pipeline.roles.<role>.…`) on top.
        Options: the model of `pipeline.options`. A wrong option is refused with the nearest name.
        environment: the class of the `Environment` that `run` sets, where actions are rewarded by one.
        branches: whether an episode can go on from each of several replies, as tree sampling does.
        patience_s: where replies are drawn in lock-step, others wait so many seconds for each episode that is busy;
            None is as long as it takes, with which a seeded run repeats exactly.
        joint_rewards: whether `run` gives rewards by `team.reward`, for what agents did together.
        needs_workspace: whether `run` needs a workspace though no role runs code.
        asks_external: whether models of providers play those of its roles that have `external`.
        task_sources: the task sets that it takes, the usual one first; empty where it takes any.
        ground_truth: the class of its tasks' ground truths, which tasks of one's own must have too.
        small_model: settings that the bundled model plays it with.
        warm_start: the script that teaches the bundled model the task before a coach can.
        options: what was asked for, as `Options`. A subclass that has options of its own narrows the type.
        adviser: a model that advises agents between their turns, where there is one.
        processes: how many processes play episodes at once.
    """

    name: ClassVar[str] = ""
    roles: tuple[Role, ...] = ()
    Options: ClassVar[type[PipelineOptions]] = PipelineOptions
    environment: ClassVar[type[Environment] | None] = None
    branches: ClassVar[bool] = True
    joint_rewards: ClassVar[bool] = False
    needs_workspace: ClassVar[bool] = False
    asks_external: ClassVar[bool] = False
    task_sources: ClassVar[tuple[str, ...]] = ()
    ground_truth: ClassVar[type] = object
    small_model: ClassVar[PipelineConfig | None] = None
    warm_start: ClassVar[str | None] = None

    options: PipelineOptions
    adviser: Adviser | None = None
    patience_s: float | None = None
    processes: int = 1
    _configured: tuple[Role, ...] | None = None

    def __init__(self, settings: PipelineConfig) -> None:
        """Raises ConfigError for an option or a role that there is not, and for prompts that are missing or ask for
        what they do not get."""
        self.settings = settings
        self.options = read_options(self.Options, settings, self.name)
        self.roles = self._configured = load_team(
            self.members(), settings, self.name, self.prompt_name, self.prompt_fields
        )
        for role in self.roles:
            if role.external and not self.asks_external:
                raise ConfigError(
                    f"pipeline {self.name}, role {role.name}: external is for roles of the pipeline gateway alone, "
                    "whose app asks them; here a policy plays each role: leave external out"
                )

    @abstractmethod
    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. `workspace` is None where no role runs code and `needs_workspace` is False.

        Shipped ones raise TaskError for a task of another kind, and ConfigError where they lack a workspace. What is
        raised here is the run's end, unless it is one of the errors that are an episode's: see
        `coachrl.errors`.
        """

    def place(self) -> AbstractAsyncContextManager[None]:
        """What an episode must have in hand before it begins, where there is not enough for all at once. It waits for
        that here: once it is in flight, others may wait for it."""
        return nullcontext()

    @property
    def rounds(self) -> int:
        """How often each role takes its part at most, for estimates of what a run costs. It may depend on `options`."""
        return 1

    @property
    def rounds_are_known(self) -> bool:
        """Whether `rounds` speaks of this class's `run`. It does not where a `run` of the user's own inherits it: that
        one may let a role act as often as it likes."""
        made_run, made_rounds = _maker(self, "run"), _maker(self, "rounds")
        return made_run.__module__.startswith("coachrl.") or issubclass(made_rounds, made_run)

    def members(self) -> Sequence[tuple[Role, int]]:
        """How many agents of each kind there are; the options are read when this is asked. Two or more of a kind are
        named `<kind>_1`, `<kind>_2`, and so on."""
        if isinstance(self.roles, Role):
            raise ConfigError(f"pipeline {self.name}: `roles` is a tuple: write `roles = (Role(…),)`, with a comma")
        return [(role, 1) for role in self.roles]

    def prompt_name(self, kind: str) -> str:
        """The file that holds the prompt of a kind of role, without its ending. It is read where the role was declared
        without a prompt."""
        return kind

    def prompt_fields(self, kind: str) -> Collection[str] | None:
        """What the prompt of a kind of role may ask for, so that a wrong one is refused before the first episode; None
        leaves that to the first `act`."""
        return None

    def connect(self, client_factory: ChatClientFactory, ledger: Path | None) -> None:
        """Whom the pipeline asks by itself (an adviser) shares the run's limits, budget and ledger from now on. Raises
        CoachUnavailable and ConfigError where that cannot be."""
        if self.adviser is not None:
            self.adviser.connect(client_factory, ledger)

    def share_out(self, processes: int) -> None:
        """Told, before anything starts, that so many processes will play episodes at once. A subclass raises
        ConfigError where they cannot."""
        self.processes = processes

    def check(self) -> None:
        """Raises ConfigError where a subclass keeps the run's settings from its roles, or has none."""
        if self._configured is None or self.roles is not self._configured:
            raise ConfigError(
                f"pipeline {self.name} sets its roles by itself, so that pipeline.roles and pipeline.options would not "
                "reach it: declare `roles` on the class or define `members`, and call super().__init__(settings)"
            )
        if not self.roles:
            raise ConfigError(f"pipeline {self.name} has no roles, so that nobody acts")
        for role in self.roles:
            if hasattr(Team, role.name):
                raise ConfigError(
                    f"pipeline {self.name}: no role can be called '{role.name}', for `team.{role.name}` is"
                )

    def truth(self, task: Task, kind: type[T]) -> T:
        """The ground truth of `task`. Raises TaskError where it is no `kind`: the task is another pipeline's."""
        if not isinstance(task.ground_truth, kind):
            sources = (
                f", as those of tasks.source={' or '.join(self.task_sources)} are"
                if self.task_sources
                else f": give a {kind.__name__} to each Task(ground_truth=…) of tasks.source"
            )
            raise TaskError(
                f"task {task.id}: its ground truth is a {type(task.ground_truth).__name__}, and pipeline {self.name} "
                f"takes a {kind.__name__}{sources}"
            )
        return task.ground_truth

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Raises TaskError for the first of `tasks` that this pipeline cannot play."""
        for task in tasks:
            self.truth(task, self.ground_truth)


def _maker(pipeline: Pipeline, attribute: str) -> type:
    """The class that wrote `attribute` for this pipeline."""
    return next(cls for cls in type(pipeline).__mro__ if attribute in vars(cls))
