"""Faults on cue, around real parts: a sandbox that breaks or hangs where a test says so.

sandbox = FaultySandbox(make_sandbox(SandboxConfig()), lambda n: "broken" if n % 4 == 0 else None)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from coachrl.errors import SandboxError
from coachrl.sandbox.base import Sandbox, Workspace
from coachrl.sandbox.inside.jail import Limits
from coachrl.types import Execution

Fault = Literal["gone", "broken", "hang"]


class FaultySandbox:
    """`inner`, with a fault in the n-th workspace (from 0): "gone" opens none, "broken" fails each execution as a
    sandbox that died does, "hang" never answers. `faults` counts those that came up."""

    def __init__(self, inner: Sandbox, fault: Callable[[int], Fault | None]) -> None:
        self._inner, self._fault = inner, fault
        self.limits: Limits | None = getattr(inner, "limits", None)
        self.opened = self.faults = 0

    async def start(self) -> None:
        await self._inner.start()

    async def open(self, files: Mapping[str, Path]) -> Workspace:
        fault = self._fault(self.opened)
        self.opened += 1
        if fault is not None:
            self.faults += 1
        if fault == "gone":
            raise SandboxError("no workspace could be made: scripted")
        workspace = await self._inner.open(files)
        return workspace if fault is None else _FaultyWorkspace(workspace, fault)

    async def close(self) -> None:
        await self._inner.close()


class _FaultyWorkspace:
    def __init__(self, inner: Workspace, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        if self._fault == "hang":
            await asyncio.Event().wait()
        return Execution("infrastructure", stderr="the sandbox failed, not the code: scripted")

    async def files(self) -> tuple[str, ...]:
        return await self._inner.files()

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        return await self._inner.read(name, max_bytes)

    async def copy(self) -> Workspace:
        return _FaultyWorkspace(await self._inner.copy(), self._fault)

    async def close(self) -> None:
        await self._inner.close()
