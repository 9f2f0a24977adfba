"""`local-unsafe`: plain subprocesses in temporary folders. It isolates nothing; for trusted code only.

Agents' code runs as the user who runs coachrl, sees the host's files, processes and network, and keeps only the limits
that a process can be given: time, memory and file size of each process, output.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.machine import machine_cpus
from coachrl.sandbox.answers import execution_of
from coachrl.sandbox.base import Sandbox, Workspace, limits_of, read_host_files, to_its_end
from coachrl.sandbox.bubblewrap import environment
from coachrl.sandbox.inside import files as inside_files
from coachrl.sandbox.inside import plain
from coachrl.sandbox.inside.jail import Limits
from coachrl.sandbox.inside.supervisor import Report
from coachrl.storage.temporary import LockedFolder, drop_left
from coachrl.types import Execution

logger = logging.getLogger(__name__)

_PREFIX = "coachrl-local-unsafe-"


class UnsafeSandbox(Sandbox):
    """See the module. The interface and the states are those of `LocalSandbox`, the isolation is not."""

    def __init__(self, settings: SandboxConfig) -> None:
        self.limits = limits_of(settings)
        self.free = asyncio.Semaphore(settings.concurrency or machine_cpus())
        self.workspaces: set[UnsafeWorkspace] = set()  # that `close` will remove
        self._warned = False

    async def start(self) -> None:
        """There is nothing to check; it warns, and removes what killed processes left."""
        if not self._warned:
            self._warned = True
            await asyncio.to_thread(drop_left, _PREFIX)
            logger.warning(
                "sandbox local-unsafe isolates NOTHING: code written by a model runs as you, your files and network "
                "in reach; use it for trusted code only"
            )

    async def open(self, files: Mapping[str, Path]) -> UnsafeWorkspace:
        await self.start()
        data = await asyncio.to_thread(read_host_files, files, self.limits)
        workspace = UnsafeWorkspace(self)
        try:
            for name, content in data.items():
                inside_files.write(workspace.root, name, content)
        except OSError as error:
            await workspace.close()
            raise SandboxError(f"no workspace could be made: {error}") from error
        return workspace

    async def close(self) -> None:
        while self.workspaces:
            await self.workspaces.pop().close()


class UnsafeWorkspace(Workspace):
    """A temporary folder, empty at first."""

    def __init__(self, sandbox: UnsafeSandbox) -> None:
        """Raises SandboxError where it cannot be made."""
        self._sandbox, self._limits = sandbox, sandbox.limits
        try:
            self._folder = LockedFolder(_PREFIX)
        except OSError as error:
            raise SandboxError(f"no workspace could be made: {error}") from error
        self.root = self._folder.path
        self._turn = asyncio.Lock()
        self._closed = False
        sandbox.workspaces.add(self)

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        limits = self._limits if timeout_s is None else replace(self._limits, timeout_s=timeout_s)
        async with self._turn, self._sandbox.free:
            if self._closed:
                return Execution("infrastructure", stderr="the workspace is closed")
            if not self._is_there():
                return Execution("error", stderr="earlier code removed its workspace, or put something else there")
            Path(self.root).chmod(0o700)  # earlier code may have locked it, and the next could not enter
            before = self._snapshot()
            try:
                report = await _execute(code, self.root, limits)
            except OSError as error:
                return Execution("infrastructure", stderr=f"no process could be started: {error}")
            after = self._snapshot()
        header = report.header(inside_files.changed(before, after))
        return execution_of(header, *report.streams)

    async def files(self) -> tuple[str, ...]:
        return tuple(inside_files.reported(self._snapshot()))

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        return inside_files.read(self.root, name, max_bytes)

    async def copy(self) -> UnsafeWorkspace:
        async with self._turn:
            if not self._is_there():
                raise SandboxError("the workspace is closed, or earlier code removed it")
            copied = UnsafeWorkspace(self._sandbox)
            try:
                await to_its_end(asyncio.to_thread(inside_files.copy, self.root, copied.root))
            except OSError as error:
                await copied.close()
                raise SandboxError(f"the workspace could not be copied: {error}") from error
            except asyncio.CancelledError:
                await copied.close()
                raise
        return copied

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.to_thread(self._folder.remove)
        finally:
            self._sandbox.workspaces.discard(self)

    def _is_there(self) -> bool:
        """Code may have put a link to anywhere in the place of its folder."""
        return Path(self.root).is_dir() and not Path(self.root).is_symlink()

    def _snapshot(self) -> dict[str, inside_files.Stamp]:
        return inside_files.snapshot(self.root, self._limits.max_files) if self._is_there() else {}


async def _execute(code: str, root: str, limits: Limits) -> Report:
    """Run `code` in a thread that is told to stop when this call is cancelled."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        work = asyncio.create_task(asyncio.to_thread(plain.execute, code, root, limits, _environment(root), theirs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            ours.close()
            await asyncio.gather(work, return_exceptions=True)
            raise


def _environment(root: str) -> dict[str, str]:
    """The sandbox's clean environment, with the packages of this interpreter."""
    return {**environment(), "HOME": root, "PATH": os.defpath, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
