"""What every sandbox is: a place that runs model-written Python and tells what happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Protocol, TypeVar

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox.inside.files import parts_of
from coachrl.sandbox.inside.jail import Limits
from coachrl.storage.files import regular_file
from coachrl.types import Execution

_Result = TypeVar("_Result")

WITHOUT_WORKSPACE = "import os, sys; sys.path[:] = [path for path in sys.path if path not in ('', os.getcwd())]\n"
"""The first line of a program of coachrl's own: agents leave modules in the workspace, and it is to import none."""


def limits_of(settings: SandboxConfig) -> Limits:
    """The limits among the sandbox's settings, as the program inside takes them."""
    return Limits(**{limit.name: getattr(settings, limit.name) for limit in fields(Limits)})


class Workspace(Protocol):
    """One episode's folder. Files persist between executions; processes and memory do not."""

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        """Run `code` as a fresh Python process in the workspace. Never raises for what the code did."""
        ...

    async def files(self) -> tuple[str, ...]:
        """Relative names of the regular files in the workspace, sorted; the shortest, where they take more than
        `inside.files.MAX_REPORTED_BYTES`."""
        ...

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """Contents of one regular file. Raises FileNotFoundError for anything else (links, folders, `..`),
        ValueError where it is larger than `max_bytes`."""
        ...

    async def copy(self) -> Workspace:
        """A new workspace with the same folders, files and links; pipes and sockets are left out. Waits for an
        execution that is running. Raises SandboxError."""
        ...

    async def close(self) -> None:
        """Remove the workspace and everything that still runs in it."""
        ...


class Sandbox(Protocol):
    """A factory of workspaces. `open` may be called from many episodes at once; it waits where the sandbox is full."""

    async def start(self) -> None:
        """Check every control and warm up. Raises SandboxUnavailable. `open` does this where it was not called."""
        ...

    async def open(self, files: Mapping[str, Path]) -> Workspace:
        """A new workspace that holds copies of `files` (name inside -> host path). Raises SandboxError."""
        ...

    async def close(self) -> None:
        """End everything. Calling it twice is allowed."""
        ...


def read_host_files(files: Mapping[str, Path], limits: Limits) -> dict[str, bytes]:
    """Name inside -> contents. Raises ValueError for a name that leaves the workspace, SandboxError for a file that
    cannot be read, and for more than a workspace holds, which is not read to its end."""
    data: dict[str, bytes] = {}
    left = limits.disk_mb * 2**20
    for name, path in files.items():
        parts_of(name)
        try:
            with regular_file(Path(path)).open("rb") as file:
                data[name] = file.read(left + 1)
        except (OSError, ValueError) as error:
            raise SandboxError(f"cannot read {path} for the workspace: {getattr(error, 'strerror', error)}") from error
        left -= len(data[name])
        if left < 0 or len(data) > limits.max_files:
            raise SandboxError(
                f"the files given do not fit into a workspace of disk_mb={limits.disk_mb}, "
                f"max_files={limits.max_files}: {path} is beyond that"
            )
    return data


async def to_its_end(work: Coroutine[object, object, _Result]) -> _Result:
    """What `work` gives. Where the task that calls this is cancelled, however often, it waits for the end of `work`
    first: what was begun elsewhere is done there all the same."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody asks for it any more
        raise
