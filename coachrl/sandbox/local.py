"""The embedded sandbox: bubblewrap namespaces around a warm interpreter that forks for each execution.

What holds agents' code: namespaces (user, pid, mount, network, ipc, uts, cgroup), a read-only system with the allowed
packages only, one writable workspace in bounded memory, no capability, no new privileges, a system-call filter, limits
on time, memory, processes, output, disk and files. See `inside/` for the half that runs in there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError, SandboxUnavailable
from coachrl.sandbox import bubblewrap, cgroups, checks
from coachrl.sandbox.answers import checked_names, execution_of, read_answer, read_header
from coachrl.sandbox.base import Sandbox, Workspace, limits_of, read_host_files, to_its_end
from coachrl.sandbox.bubblewrap import Bubblewrap
from coachrl.sandbox.cgroups import Cgroups
from coachrl.sandbox.checks import Finding
from coachrl.sandbox.inside import wire
from coachrl.sandbox.inside.jail import Limits
from coachrl.sandbox.packages import resolve
from coachrl.types import Execution

logger = logging.getLogger(__name__)

Answer = tuple[dict[str, Any], list[bytes]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_RAW_PARTS = {"run": 2, "read": 1}  # how many byte strings follow the header of an answer; none where none is named
_START_TIMEOUT_S = 300.0
_GRACE_S = 30.0  # beyond an execution's own limit: building its room, removing it, a busy machine
_LIGHT_REQUESTS = 16  # at once, beside the executions: what the control socket surely holds
_MAX_CODE_BYTES = 8 * 1024 * 1024  # six times that, escaped, still passes; a compiler would not take as much
_END_S = 10.0  # from the end of the waiting process to that of bubblewrap, on a busy machine


class StartFailure(SandboxUnavailable):
    """bubblewrap, or the interpreter under it, does not start. detail: its own words; remedy: what to do."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"the sandbox does not start: {detail}; {remedy}")
        self.detail, self.remedy = detail, remedy


class _BrokenByCode(SandboxError):
    """The sandbox, or this execution's part of it, ended while one program ran that could have done that."""


@dataclass
class _Zygote:
    """programs: names of the workspaces in which the agent's code runs now."""

    bubblewrap: Bubblewrap
    control: socket.socket
    errors: IO[bytes]
    programs: set[str] = field(default_factory=set)

    def end(self) -> None:
        self.control.close()
        self.bubblewrap.end()

    async def hand_over(self, files: Sequence[int]) -> None:
        """Give the waiting process the files of a request, once it has taken enough of those before. Raises
        SandboxError."""
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        socket.send_fds(self.control, [b"+"], files)
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:  # an OSError, too
            raise SandboxError(f"it took no request within {_START_TIMEOUT_S:g} s") from None
        except OSError:
            raise SandboxError("its process has ended, and the workspace with it") from None

    def last_words(self) -> str:
        """The end of what bubblewrap and the supervisors wrote to stderr."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip()

    @property
    def alive(self) -> bool:
        return self.bubblewrap.process.poll() is None

    async def why_lost(self, name: str, goes_on: bool) -> SandboxError:
        """Why the answer to a request of the workspace `name` does not come, and whether its program is to blame.
        goes_on: whether the sandbox has answered since."""
        blamed = name in self.programs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self.alive and not goes_on:
                    await asyncio.sleep(0.02)
        # What watches over one program is out of the others' reach. Where everything ended, several may have done it,
        # and none is blamed for another. A signal to bubblewrap itself comes from outside: no program sees it.
        if not goes_on:
            blamed = blamed and self.programs == {name} and not self.alive and self.bubblewrap.process.returncode >= 0
            logger.error("the sandbox ended while %d programs ran: %s", len(self.programs), self.last_words())
        said = f"its process ended, or the workspace was closed, meanwhile. {self.last_words()}".rstrip()
        return _BrokenByCode(said) if blamed else SandboxError(said)


class LocalSandbox(Sandbox):
    """Workspaces on this machine. Fails closed: the first use checks each control and raises SandboxUnavailable.

    packages: distributions that agents may import, with what they require (default: `DEFAULT_PACKAGES`). sharers: how
    many sandboxes share the machine's memory, this one included.
    Workspaces live in memory, `disk_mb` each at most. Belongs to the event loop that first uses it.
    """

    def __init__(self, settings: SandboxConfig, packages: Sequence[str] | None = None, sharers: int = 1) -> None:
        self.limits = limits_of(settings)
        self._packages = resolve(None if packages is None else tuple(packages))
        self.at_once = settings.concurrency or cgroups.usual_concurrency(settings.memory_mb, sharers)
        self.all_files_mb = cgroups.workspaces_mb(sharers)
        self.free = asyncio.Semaphore(self.at_once)
        self.cgroups: Cgroups | None = None
        self.light = asyncio.Semaphore(_LIGHT_REQUESTS)
        self._starting = asyncio.Lock()
        self._zygote: _Zygote | None = None
        self._closed = False

    async def start(self) -> None:
        """Raises SandboxUnavailable, naming each control that does not hold."""
        await self._started()

    async def open(self, files: Mapping[str, Path]) -> LocalWorkspace:
        """Raises SandboxUnavailable, SandboxError, ValueError for a name that leaves the folder."""
        data = await asyncio.to_thread(read_host_files, files, self.limits)
        zygote = await self._started()
        return await self._make_workspace(zygote, data, self.limits)

    async def close(self) -> None:
        self._closed = True
        async with self._starting:  # what is just being started ends, too
            if self._zygote is not None:
                self._zygote.end()
                self._zygote = None
            if self.cgroups is not None:
                self.cgroups.close()
                self.cgroups = None

    async def check(self) -> list[Finding]:
        """Try each control from inside, now. Raises SandboxUnavailable where the sandbox cannot start at all."""
        async with self._starting:
            if self._zygote is not None and self._zygote.alive:
                return [*await self._check(self._zygote), await self._find_cgroups(self._zygote)]
            zygote = await self._start()
            try:
                return [*await self._check(zygote), await self._find_cgroups(zygote)]
            finally:
                zygote.end()

    async def _check(self, zygote: _Zygote) -> list[Finding]:
        workspace = await self._make_workspace(zygote, {}, limits_of(checks.SMALL))
        try:
            return await checks.try_controls(workspace)
        finally:
            await workspace.close()

    async def _started(self) -> _Zygote:
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.end()
                self._zygote = await self._start_checked()
                found = await self._find_cgroups(self._zygote)
                logger.debug("%s: %s", found.name, found.detail)
            return self._zygote

    async def _find_cgroups(self, zygote: _Zygote) -> Finding:
        """From now on each program gets a cgroup, where one can be made and a program can enter it."""
        if self.cgroups is None:
            self.cgroups = Cgroups.make(self.at_once, self.limits, self.all_files_mb)
            if self.cgroups is None:
                return checks.without_cgroups("none can be made")
            workspace = await self._make_workspace(zygote, {}, limits_of(checks.SMALL))
            tried = await workspace.run("")
            await workspace.close()
            if tried.state != "ok":
                self.cgroups.close()
                self.cgroups = None
                return checks.without_cgroups(f"no program can enter one ({tried.stderr.strip()})")
        return Finding(checks.CGROUPS, ok=True, detail=f"one for each program, below {self.cgroups.folder}")

    async def _start_checked(self) -> _Zygote:
        zygote = await self._start()
        try:
            failed = [check for check in await self._check(zygote) if not check.ok]
            if failed:
                raise SandboxUnavailable("; ".join(f"{c.name}: {c.detail}; {c.remedy}" for c in failed))
        except BaseException:
            zygote.end()
            raise
        return zygote

    async def _start(self) -> _Zygote:
        with contextlib.ExitStack() as stack:
            try:
                # In memory: there may be no folder for temporary files. It lives as long as the zygote.
                errors = stack.enter_context(open(os.memfd_create("errors"), "w+b", 0))  # noqa: PTH123
                ours, theirs = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                ours.setblocking(False)
                started = bubblewrap.start(self._packages, theirs.fileno(), errors)
            except OSError as error:  # no process can be started, or no file opened
                words = error.strerror or str(error)
                raise StartFailure(words, bubblewrap.explain(words)) from error
            theirs.close()
            stack.pop_all()
        zygote = _Zygote(started, ours, errors)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                ready = await asyncio.get_running_loop().sock_recv(ours, 16)
        except TimeoutError:
            zygote.end()
            late = f"it did not answer within {_START_TIMEOUT_S:g} s"
            raise StartFailure(late, "try again where less is running") from None
        except ConnectionError:
            ready = b""
        except BaseException:  # nobody waits for it any more
            zygote.end()
            raise
        if not ready:
            zygote.end()
            said = zygote.last_words()
            raise StartFailure(said or "it ended without a word", bubblewrap.explain(said))
        logger.debug("sandbox started, process %d", zygote.bubblewrap.process.pid)
        return zygote

    async def _make_workspace(self, zygote: _Zygote, data: Mapping[str, bytes], limits: Limits) -> LocalWorkspace:
        workspace = LocalWorkspace(self, zygote, limits)
        files = [[name, len(content)] for name, content in data.items()]
        await workspace.make({"op": "open", "files": files}, "no workspace could be made", tuple(data.values()))
        return workspace


class LocalWorkspace(Workspace):
    """Made by `LocalSandbox.open`."""

    def __init__(self, sandbox: LocalSandbox, zygote: _Zygote, limits: Limits) -> None:
        self._sandbox, self._zygote, self._limits = sandbox, zygote, limits
        self._name = uuid.uuid4().hex
        self._belongs = {"workspace": self._name, "all_files_mb": sandbox.all_files_mb}
        self._turn = asyncio.Lock()  # one execution at a time: what it wrote would not be known otherwise
        self._running: set[asyncio.StreamWriter] = set()
        self._closed = False

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        """The clock starts when the execution does, not while it waits for its turn."""
        limits = self._limits if timeout_s is None else replace(self._limits, timeout_s=timeout_s)
        request = {"op": "run", "code": code, "limits": asdict(limits), "at_once": self._sandbox.at_once}
        if len(code.encode(errors="replace")) > _MAX_CODE_BYTES:
            return Execution("error", stderr=f"the code is longer than {_MAX_CODE_BYTES} bytes", exit_code=1)
        try:
            async with self._turn:
                header, (stdout, stderr) = await self.ask(request, limits.timeout_s + _GRACE_S)
            return execution_of(header, stdout, stderr)
        except _BrokenByCode as error:
            return Execution("error", stderr=f"the code ended the process that watches over it: {error}")
        except (SandboxError, ValueError, FileNotFoundError) as error:
            return Execution("infrastructure", stderr=f"the sandbox failed, not the code: {error}")
        finally:
            if self._zygote.alive:  # else it stays a suspect, so that no other is taken for the only one
                self._zygote.programs.discard(self._name)

    async def files(self) -> tuple[str, ...]:
        """Raises SandboxError."""
        header, _ = await self.ask({"op": "files", "max_files": self._limits.max_files})
        return checked_names(header.get("files"))

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """Raises SandboxError where the workspace is gone."""
        _, (data,) = await self.ask({"op": "read", "name": name, "max_bytes": max_bytes})
        return data

    async def copy(self) -> LocalWorkspace:
        copied = LocalWorkspace(self._sandbox, self._zygote, self._limits)
        async with self._turn:
            await copied.make({"op": "copy", "source": self._name}, "the workspace could not be copied")
        return copied

    async def make(self, request: Mapping[str, Any], failed: str, payload: Sequence[bytes] = ()) -> None:
        """Have it made inside. failed: what a SandboxError says that is raised where it cannot be."""
        bounds = {"disk_mb": self._limits.disk_mb, "max_files": self._limits.max_files}
        try:
            await to_its_end(self.ask({**request, **bounds}, payload=payload))
        except (SandboxError, FileNotFoundError) as error:  # the latter of a copy of what is closed
            await self.close()
            raise SandboxError(f"{failed}: {error}") from error
        except asyncio.CancelledError:
            await self.close()  # nobody else knows of it
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._zygote.programs.discard(self._name)
        for writer in self._running:
            writer.close()
        # Gone with the zygote, or never made: nothing is left to remove.
        with contextlib.suppress(SandboxError, FileNotFoundError):
            await to_its_end(self.ask({"op": "close"}))
        self._closed = True

    async def ask(
        self, request: Mapping[str, Any], timeout_s: float = _GRACE_S, payload: Sequence[bytes] = ()
    ) -> Answer:
        """Send one request inside; its answer and the byte strings that come with it. Raises SandboxError, and
        FileNotFoundError or ValueError where the inside says so."""
        if self._closed:
            raise SandboxError("the workspace is closed")
        slot = self._sandbox.free if request["op"] == "run" else self._sandbox.light
        # What agents have copied must not be charged to coachrl's own cgroup either.
        groups = self._sandbox.cgroups if request["op"] in ("run", "copy") else None
        async with slot, self._connection(groups) as streams:
            answer = asyncio.ensure_future(self._exchange(streams, request, payload))
            try:
                return await self._awaited(answer, timeout_s)
            except (ConnectionError, asyncio.IncompleteReadError):
                raise await self._zygote.why_lost(self._name, await self._goes_on()) from None
            finally:
                answer.cancel()

    async def _exchange(self, streams: Streams, request: Mapping[str, Any], payload: Sequence[bytes]) -> Answer:
        reader, writer = streams
        writer.write(wire.pack({**request, **self._belongs}))
        for part in payload:
            writer.write(part)
            await writer.drain()
        header = await read_header(reader)
        if header == wire.BEGUN:
            self._zygote.programs.add(self._name)
            header = await read_header(reader)
        return await read_answer(reader, header, _RAW_PARTS.get(request["op"], 0))

    async def _awaited(self, answer: asyncio.Future[Answer], timeout_s: float) -> Answer:
        """What `answer` gives. Raises SandboxError where it does not come."""
        await asyncio.wait({answer}, timeout=timeout_s)
        # A machine that stood still, or a host that did something else, lets the time pass for an answer that is just
        # coming, or already there. It is late where the sandbox has answered something else since, and time went by.
        if not answer.done() and await self._goes_on():
            await asyncio.wait({answer}, timeout=timeout_s)  # the program's own clock may have stood still as well
        if not answer.done():
            raise SandboxError(f"no answer within {timeout_s:g} s")
        return answer.result()

    async def _goes_on(self) -> bool:
        """Whether the waiting process answers. It never does once any process has ended because the sandbox did."""
        try:
            async with asyncio.timeout(_GRACE_S), self._connection(None) as (reader, writer):
                writer.write(wire.pack({"op": "ping"}))
                await read_header(reader)
                return True
        except (TimeoutError, OSError, asyncio.IncompleteReadError, SandboxError):
            return False

    @contextlib.asynccontextmanager
    async def _connection(self, cgroups: Cgroups | None) -> AsyncIterator[Streams]:
        with contextlib.ExitStack() as stack:
            files = () if cgroups is None else stack.enter_context(cgroups.program(self._limits))
            ours, theirs = await _socket_pair()
            with theirs:
                try:
                    await self._zygote.hand_over([theirs.fileno(), *files])
                except BaseException:
                    ours.close()
                    raise
            reader, writer = await asyncio.open_connection(sock=ours)
            self._running.add(writer)
            try:
                yield reader, writer
            finally:
                self._running.discard(writer)
                writer.close()  # the supervisor sees it, and ends an execution that is still running


async def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Waits where this process has all files open that it may: others are closed meanwhile. Raises SandboxError."""
    give_up = time.monotonic() + _GRACE_S
    while True:
        try:
            return socket.socketpair()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() >= give_up:
                raise SandboxError(f"it cannot be asked: {error.strerror}") from error
        await asyncio.sleep(0.01)


def probe() -> list[Finding]:
    """Every control of the local sandbox, tried for real on this machine. Never raises for one that is missing: its
    check says what is wrong and how to get it. Must not be called from a running event loop."""

    async def check() -> list[Finding]:
        sandbox = LocalSandbox(SandboxConfig(concurrency=1))
        try:
            return await sandbox.check()
        finally:
            await sandbox.close()

    try:
        found = Finding("bubblewrap", ok=True, detail=bubblewrap.find_bubblewrap())
    except SandboxUnavailable:
        return [Finding("bubblewrap", ok=False, detail="bwrap is not on the PATH", remedy=bubblewrap.INSTALL_HINT)]
    try:
        return [found, *asyncio.run(check())]
    except StartFailure as error:
        return [found, Finding("start", ok=False, detail=error.detail, remedy=error.remedy)]
    except SandboxError as error:
        return [found, Finding("start", ok=False, detail=str(error))]
