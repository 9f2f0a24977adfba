"""`local-unsafe`: plain subprocesses in temporary folders. It isolates nothing; for trusted code only.

Agents' code runs as the user who runs coachrl, sees the host's files, processes and network, and keeps only the limits
that a process can be given: time, memory and file size of each process, output.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coachrl.errors import SandboxError
from coachrl.sandbox.base import Limits
from coachrl.sandbox.bubblewrap import INSIDE, environment
from coachrl.sandbox.inside import files as inside_files
from coachrl.sandbox.inside.supervisor import MEMORY_ERROR
from coachrl.types import Execution, ExecutionState

logger = logging.getLogger(__name__)

_START = f"""
import resource, sys
sys.path.insert(0, {str(INSIDE)!r})
import program
del sys.path[0], sys.modules['program']
for limit in sys.argv[1:]:
    name, value = map(int, limit.split('='))
    hard = resource.getrlimit(name)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (value, value))
program.run_and_exit(sys.stdin.buffer.read().decode())
"""


class UnsafeSandbox:
    """See the module. The interface and the states are those of `LocalSandbox`, the isolation is not."""

    def __init__(self, limits: Limits | None = None, concurrency: int | None = None) -> None:
        self.limits = limits or Limits()
        self.free = asyncio.Semaphore(concurrency or os.cpu_count() or 1)
        self._workspaces: set[UnsafeWorkspace] = set()
        self._warned = False

    async def start(self) -> None:
        """See `Sandbox.start`. There is nothing to check; it warns."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "sandbox local-unsafe isolates NOTHING: code written by a model runs as you, your files and network "
                "in reach; use it for trusted code only"
            )

    async def open(self, files: Mapping[str, Path]) -> UnsafeWorkspace:
        """See `Sandbox.open`."""
        await self.start()
        workspace = UnsafeWorkspace(self)
        self._workspaces.add(workspace)
        try:
            for name, path in files.items():
                inside_files.write(workspace.root, name, await asyncio.to_thread(Path(path).read_bytes))
        except OSError as error:
            await workspace.close()
            raise SandboxError(f"no workspace could be made: {error}") from error
        return workspace

    async def close(self) -> None:
        """See `Sandbox.close`."""
        while self._workspaces:
            await self._workspaces.pop().close()


class UnsafeWorkspace:
    """See `Workspace`: a temporary folder."""

    def __init__(self, sandbox: UnsafeSandbox) -> None:
        self._sandbox, self._limits = sandbox, sandbox.limits
        self.root = tempfile.mkdtemp(prefix="coachrl-unsafe-")
        self._turn = asyncio.Lock()

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        """See `Workspace.run`."""
        limits = self._limits if timeout_s is None else replace(self._limits, timeout_s=timeout_s)
        async with self._turn, self._sandbox.free:
            if not Path(self.root).is_dir():
                return Execution("infrastructure", stderr="the workspace is closed")
            before = inside_files.snapshot(self.root, limits.max_files)
            execution = await _execute(code, self.root, limits)
            after = inside_files.snapshot(self.root, limits.max_files)
        written = sorted(name for name, stamp in after.items() if before.get(name) != stamp)
        return replace(execution, files_written=tuple(written))

    async def files(self) -> tuple[str, ...]:
        """See `Workspace.files`."""
        return tuple(sorted(inside_files.snapshot(self.root, self._limits.max_files)))

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """See `Workspace.read`."""
        return inside_files.read(self.root, name, max_bytes)

    async def close(self) -> None:
        """See `Workspace.close`."""
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)


async def _execute(code: str, root: str, limits: Limits) -> Execution:
    mebibyte = 1024 * 1024
    bounds = {
        resource.RLIMIT_DATA: limits.memory_mb * mebibyte,
        resource.RLIMIT_FSIZE: limits.disk_mb * mebibyte,
        resource.RLIMIT_CPU: int(limits.timeout_s * (os.cpu_count() or 1)) + 1,
        resource.RLIMIT_CORE: 0,
    }
    clean = {**environment(), "HOME": root, "PATH": os.defpath}
    del clean["PYTHONPATH"]
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-s", "-P", "-c", _START, *(f"{name}={value}" for name, value in bounds.items())),
        cwd=root, env=clean, start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    state: ExecutionState | None = None
    readers = [
        asyncio.create_task(_head(stream, limits.output_kb * 1024)) for stream in (process.stdout, process.stderr)
    ]
    try:
        async with asyncio.timeout(limits.timeout_s):
            process.stdin.write(code.encode())
            process.stdin.close()
            if await _first_overflow(process, readers):
                state = "output_limit"
    except TimeoutError:
        state = "timeout"
    finally:
        _kill_group(process.pid)
        await process.wait()
    (stdout, _), (stderr, _) = await asyncio.gather(*readers)
    return _conclude(state, stdout, stderr, process.returncode, time.monotonic() - started)


async def _head(stream: asyncio.StreamReader, limit: int) -> tuple[str, bool]:
    """What a stream begins with, up to `limit` bytes, and whether there was more."""
    kept = b""
    while data := await stream.read(65536):
        room = limit - len(kept)
        kept += data[:room]
        if len(data) > room:
            return kept.decode(errors="replace"), True
    return kept.decode(errors="replace"), False


async def _first_overflow(process: asyncio.subprocess.Process, readers: list[asyncio.Task[tuple[str, bool]]]) -> bool:
    """Wait for the process to end or for a stream to hold too much. True for the latter."""
    ended = asyncio.create_task(process.wait())
    waiting: set[asyncio.Task[int] | asyncio.Task[tuple[str, bool]]] = {ended, *readers}
    try:
        while not ended.done() and waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(reader in done and reader.result()[1] for reader in readers):
                return True
        return False
    finally:
        ended.cancel()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _conclude(
    state: ExecutionState | None, stdout: str, stderr: str, exit_code: int | None, wall_s: float
) -> Execution:
    if state is None:
        last_line = stderr.rstrip().rpartition("\n")[2]
        state = "ok" if exit_code == 0 else "oom" if MEMORY_ERROR.match(last_line) else "error"
    return Execution(state, stdout, stderr, None if state in ("timeout", "output_limit") else exit_code, (), wall_s)
