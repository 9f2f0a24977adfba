"""What a team acts on: an environment of the pipeline's own, and a workspace."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from coachrl.errors import ConfigError, SandboxError
from coachrl.pipelines.checked import check_texts, checked_reward
from coachrl.sandbox.base import Workspace
from coachrl.text import brief
from coachrl.types import Action, Execution, Reward


@dataclass(frozen=True)
class StepResult:
    """What an environment did in answer to an action, in words, and what it gives for it (None: nothing, or later).
    rendering: the state that the action led to, drawn as text, for reports."""

    text: str
    reward: Reward | None = None
    rendering: str = ""


class Environment(ABC):
    """The state that a team changes, and may be rewarded by. Where a pipeline sets `team.environment`, every action
    goes to it."""

    @abstractmethod
    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """Change the state as `action` says. Never raises for what an agent wrote: that is a fault of form, which the
        agent is told of and paid for."""

    def copy(self) -> Self:
        """An independent copy: what is done to it leaves this one as it is. An environment that does not define this
        method cannot be sampled as a tree."""
        raise NotImplementedError(f"{type(self).__name__} has no copy()")

    @abstractmethod
    def render(self) -> str:
        """The state as text, for prompts and for people: the same text as long as the state is the same."""


class CurrentWorkspace(Workspace):
    """The present workspace of an episode: what a pipeline holds while branches come and go beneath it."""

    def __init__(self, find: Callable[[], Workspace | None]) -> None:
        self._find = find

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        return await self._present.run(code, timeout_s)

    async def files(self) -> tuple[str, ...]:
        return await self._present.files()

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        return await self._present.read(name, max_bytes)

    async def copy(self) -> Workspace:
        return await self._present.copy()

    async def close(self) -> None:
        await self._present.close()

    @property
    def _present(self) -> Workspace:
        workspace = self._find()
        if workspace is None:
            raise SandboxError("this episode has no workspace")
        return workspace


@dataclass
class TeamState:
    """Workspace and environment together: what an action changes, and what tree sampling branches."""

    workspace: Workspace | None = None
    environment: Environment | None = None

    async def apply(self, action: Action) -> Action:
        """`action` with what the environment did in answer. An action that broke is not the environment's to answer."""
        if self.environment is None or action.infra_error is not None:
            return action
        who = f"environment {type(self.environment).__name__}: apply()"
        answer = self.environment.apply(action, self.workspace)
        if not inspect.isawaitable(answer):
            raise ConfigError(f"{who} is a plain function: it must be `async def`")
        step = _checked_step(await answer, who)
        return replace(action, result=step.text, rendering=step.rendering, reward=step.reward)

    async def branch(self) -> TeamState:
        """A copy to try one candidate in. Raises ConfigError where the environment's `copy` gives no other one."""
        environment = self.environment
        if environment is not None:  # first, since what it raises would leave a copy of the workspace behind
            environment = _checked_copy(environment)
        return TeamState(await self.workspace.copy() if self.workspace is not None else None, environment)

    def rendered(self) -> str | None:
        """The environment as text; None where there is none, or it cannot be drawn."""
        try:
            return None if self.environment is None else self.environment.render()
        except NotImplementedError:  # it need not be, where no prompt shows it
            return None

    def check_unmoved(self, before: str | None) -> None:
        """Raises ConfigError where the environment is no longer drawn as `before`, though only copies of it were acted
        on since: every candidate would be paid for what the others did too."""
        after = self.rendered()
        if after != before and after == self.rendered():  # one that is drawn otherwise each time tells nothing
            raise ConfigError(
                f"environment {type(self.environment).__name__}: copy() shares its state: an action on copies changed "
                f"the original from {brief(before)} to {brief(after)}; copy what apply() changes, as copy.deepcopy does"
            )

    async def close(self) -> None:
        if self.workspace is not None:
            await self.workspace.close()


def checked_environment(environment: object, who: str) -> Environment:
    """An environment of one's own. who: what messages begin with. Raises ConfigError where it is none."""
    if inspect.iscoroutine(environment):
        environment.close()
        raise ConfigError(f"{who} is `async def`: it must be a plain function")
    if not isinstance(environment, Environment):
        raise ConfigError(f"{who} gave {brief(environment)}, where it must be an Environment")
    return environment


def _checked_copy(environment: Environment) -> Environment:
    """A copy of an environment of one's own. Raises ConfigError where it is none, or the environment itself."""
    who = f"environment {type(environment).__name__}: copy()"
    copied = checked_environment(environment.copy(), who)
    if copied is environment:
        raise ConfigError(f"{who} gave the environment itself, where it must be another one: copy.deepcopy makes one")
    return copied


def _checked_step(step: object, who: str) -> StepResult:
    """What an environment of one's own gives. who: what messages begin with. Raises ConfigError where it is none."""
    if not isinstance(step, StepResult):
        raise ConfigError(f"{who} gave {brief(step)}, where it must return a StepResult")
    check_texts(step, ("text", "rendering"), f"{who} gave a StepResult")
    return replace(step, reward=None if step.reward is None else checked_reward(step.reward, who))
