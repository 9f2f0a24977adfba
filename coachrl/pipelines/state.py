"""What a team acts on: a workspace, a environment, or both, and how tree sampling branches them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from coachrl.errors import SandboxError
from coachrl.sandbox.base import Workspace
from coachrl.types import Action, Execution, Reward


@dataclass(frozen=True)
class StepResult:
    """What a environment did in answer to an action, in words, and what it gives for it (None: nothing, or later).
    rendering: the state that the action led to, drawn as text, for reports."""

    text: str
    reward: Reward | None = None
    rendering: str = ""


class Environment(Protocol):
    """The state that a team changes, and may be rewarded by. Where a pipeline sets `team.environment`, every action
    goes to it."""

    @property
    def solved(self) -> bool: ...

    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """Change the state as `action` says. Never raises for what an agent wrote: that is a format fault."""
        ...

    def copy(self) -> Environment:
        """An independent copy. A environment without this method cannot be sampled as a tree."""
        ...

    def render(self) -> str:
        """The state as text, for prompts and for people."""
        ...


@dataclass
class EpisodeState:
    """An episode's workspace and environment as they are now. `turn` is held by whoever changes them."""

    workspace: Workspace | None = None
    environment: Environment | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def branch(self) -> EpisodeState:
        """A copy to try one candidate in. Close it, or `adopt` it."""
        workspace = await self.workspace.copy() if self.workspace is not None else None
        return EpisodeState(workspace, self.environment.copy() if self.environment is not None else None)

    async def adopt(self, branch: EpisodeState) -> None:
        """Go on from `branch`; what was here before is closed with it."""
        self.workspace, branch.workspace = branch.workspace, self.workspace
        self.environment = branch.environment
        await branch.close()

    async def close(self) -> None:
        if self.workspace is not None:
            await self.workspace.close()


class CurrentWorkspace:
    """The state's present workspace: what a pipeline holds while branches come and go beneath it."""

    def __init__(self, state: EpisodeState) -> None:
        self._state = state

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        """See `Workspace.run`."""
        return await self._present.run(code, timeout_s)

    async def files(self) -> tuple[str, ...]:
        """See `Workspace.files`."""
        return await self._present.files()

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """See `Workspace.read`."""
        return await self._present.read(name, max_bytes)

    async def copy(self) -> Workspace:
        """See `Workspace.copy`."""
        return await self._present.copy()

    async def close(self) -> None:
        """See `Workspace.close`."""
        await self._present.close()

    @property
    def _present(self) -> Workspace:
        if self._state.workspace is None:
            raise SandboxError("this episode has no workspace")
        return self._state.workspace
