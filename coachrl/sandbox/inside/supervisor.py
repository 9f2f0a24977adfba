"""One execution, from outside of it: starts the code in its own room, keeps the limits, reports what happened.

Three processes: the supervisor (here, trusted) watches; the room's first process (trusted, pid 1 of a new pid
namespace) reaps; a third gives up every right and becomes the agent's program. That one is forked by pid 1, or, where
the code needs the packages, by the warm interpreter. When pid 1 ends, the kernel kills whatever is left in the room.

Pid 1 takes its time to reap what others leave. A process that has ended counts as one of the program's until then: else
each could hand its memory on to a child and end, before anybody has looked into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import jail
from .jail import Limits
from .memory_in_use import RoomMemory, kernel_oom_kills
from .stillness import Stillness
from .warm import BEGUN, ProgramFiles, ask, become_program, needs_packages

POLL_S = 0.05
_STOPPED_S = 2.0  # a wait that ends so late was stopped, and the program with it; rivals for processors delay it less
_REAP_EVERY_S = 0.01


class Cancelled(Exception):
    """The host hung up: nobody waits for this execution."""


@dataclass
class Report:
    """What is known of an execution. `state` is the first limit that was hit, while it runs."""

    state: str = ""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    wall_s: float = 0.0

    def header(self, files_written: list[str]) -> dict[str, Any]:
        """What is said of it ahead of its `streams`."""
        return {
            "state": self.state,
            "exit_code": self.exit_code,
            "wall_s": self.wall_s,
            "files_written": files_written,
            "sizes": [len(self.stdout), len(self.stderr)],
        }

    @property
    def streams(self) -> list[bytes]:
        return [bytes(self.stdout), bytes(self.stderr)]


def execute(
    workspace: str,
    code: str,
    limits: Limits,
    host: socket.socket,
    warm: tuple[socket.socket, Sequence[str]],
    begun: Callable[[], None],
    cgroup: tuple[int, int] | None = None,
) -> Report:
    """Run `code` in `workspace` within `limits`. warm: the warm interpreter's socket and the packages that it has.
    cgroup: the files of the one for this program, see `coachrl.sandbox.cgroups`. Calls `begun` when the code begins.
    Raises Cancelled when the host hangs up, OSError where the code never began: from then on, whatever happens in the
    room is the code's doing."""
    kills = functools.partial(kernel_oom_kills, cgroup[1] if cgroup else None)
    kills_before = kills()
    out, err, status = os.pipe(), os.pipe(), os.pipe()
    stillness = Stillness()
    jail.unshare(jail.CLONE_NEWPID | jail.CLONE_NEWNET | jail.CLONE_NEWIPC)
    init_pid = jail.fork()
    started = time.monotonic()
    if init_pid == 0:
        interpreter = warm[0] if needs_packages(code, warm[1]) else None
        files = ProgramFiles(out[1], err[1], status[1], cgroup[0] if cgroup else None)
        _be_init(workspace, code, limits, files, interpreter)
    for pipe in (out, err, status):
        os.close(pipe[1])
        fcntl.fcntl(pipe[0], fcntl.F_SETFL, os.O_NONBLOCK)
    report = Report()
    try:
        said = _first_words(status[0], host)
        if said.startswith(BEGUN):
            begun()
        if said == BEGUN:
            pipes = {out[0]: report.stdout, err[0]: report.stderr}
            watch(status[0], _looks(init_pid, limits, stillness), pipes, report, limits, host)
    finally:
        os.kill(init_pid, signal.SIGKILL)
        os.waitpid(init_pid, 0)  # returns when the last process of the room is gone
    report.wall_s = time.monotonic() - started
    for fd, kept in ((out[0], report.stdout), (err[0], report.stderr)):
        drain(fd, kept, report, limits)
    said += _said(status[0])
    if not said.startswith(BEGUN):
        raise OSError(said.removeprefix("failed ") or "the room ended before its code began")
    if said == BEGUN and not report.state:
        _end_with_the_sandbox(warm[0])
    conclude(report, said.removeprefix(BEGUN), kills() > kills_before)
    return report


def _looks(init_pid: int, limits: Limits, stillness: Stillness) -> Callable[[], bool]:
    """Tells, each time it is asked, whether the room holds more memory than it may."""
    memory, most = RoomMemory(init_pid), limits.memory_mb * 1024 * 1024

    def holds_too_much() -> bool:
        with stillness.after_a_while(memory.programs):
            return memory.exceeds(most)

    return holds_too_much


def _end_with_the_sandbox(interpreter: socket.socket) -> None:
    """Where the warm interpreter has ended, and took its programs along, the sandbox ends at once: say nothing of one
    program before, or the last one would look like the only one that ran."""
    ended = select.poll()
    ended.register(interpreter, 0)  # its hang-up is always told
    if ended.poll(POLL_S * 1000):
        signal.pause()


def _first_words(status: int, host: socket.socket) -> str:
    """What the room says first; empty where it ended instead. Raises Cancelled when `host` hangs up."""
    with selectors.DefaultSelector() as selector:
        for fd in (status, host.fileno()):
            selector.register(fd, selectors.EVENT_READ)
        if any(key.fd == host.fileno() for key, _ in selector.select()):
            raise Cancelled
    return _said(status)


def _said(status: int) -> str:
    try:
        return os.read(status, 4096).decode(errors="replace")
    except BlockingIOError:  # ended before its program had
        return ""


def watch(
    ended: int,
    holds_too_much: Callable[[], bool],
    pipes: dict[int, bytearray],
    report: Report,
    limits: Limits,
    host: socket.socket,
) -> None:
    """Read `pipes` (non-blocking file -> where to keep its head) until the file `ended` is ready or a limit is hit,
    which `report.state` then names. holds_too_much: of memory; asked again and again. Ends nothing. While a batch
    system, a container or a virtual machine is suspended, the clock of the time limit stands still. Raises Cancelled
    when `host` hangs up."""
    deadline = time.monotonic() + limits.timeout_s
    next_look = time.monotonic() + POLL_S
    with selectors.DefaultSelector() as selector:
        for fd in (ended, host.fileno(), *pipes):
            selector.register(fd, selectors.EVENT_READ)
        while not report.state:
            now = time.monotonic()
            wait = max(0.0, min(next_look, deadline) - now)
            ready = selector.select(wait)
            late = time.monotonic() - now - wait
            if late > _STOPPED_S:  # of waits alone: a program can make a look at its memory take long
                deadline += late
            for key, _ in ready:
                if key.fd == ended:
                    return
                if key.fd == host.fileno():
                    raise Cancelled
                if not drain(key.fd, pipes[key.fd], report, limits):
                    selector.unregister(key.fd)
            # What had ended by the deadline has been seen, also where this process was stopped or starved meanwhile.
            if now >= deadline:
                report.state = report.state or "timeout"
            elif time.monotonic() >= next_look:
                next_look = time.monotonic() + POLL_S
                if holds_too_much():
                    report.state = report.state or "oom"


def drain(fd: int, kept: bytearray, report: Report, limits: Limits) -> bool:
    """Read what is there and keep the head, up to the output limit. False at the end of the stream."""
    while True:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        room = limits.output_kb * 1024 - len(kept)
        kept += data[:room]
        if len(data) > room:
            report.state = report.state or "output_limit"
            return True


def conclude(report: Report, status: str, kernel_killed: bool) -> None:
    """Fill in how it ended. status: "exit <code>" (negative: a signal), or anything else where nobody could say."""
    word, _, detail = status.partition(" ")
    if word == "exit":
        report.exit_code = int(detail)
    if report.state:
        return
    # Only what has ended a program says that a limit was hit; its own last words, or the signal that it chose, do not.
    if report.exit_code == 0:
        report.state = "ok"
    elif kernel_killed and report.exit_code in (None, -signal.SIGKILL):
        report.state = "oom"
    else:
        report.state = "error"
        if report.exit_code is None:
            report.stderr += b"\nthe code ended the processes that watch over it"


def _be_init(workspace: str, code: str, limits: Limits, files: ProgramFiles, warm: socket.socket | None) -> NoReturn:
    """The room's first process. "exit <code>" (negative: a signal) or "failed <why>" is written to `files.status`."""
    said = "failed the room ended early"
    try:
        jail.die_with_parent(signal.SIGKILL)
        jail.set_dumpable(False)
        whole_proc = jail.build_room(workspace, limits)
        if warm is not None:
            ask(warm, code, limits, whole_proc, files)
            _reap_until_killed()
        child = jail.fork()
        if child == 0:
            become_program(code, limits, whole_proc, files)
        _close_all_but(files.status)
        pid, ended = os.wait()
        while pid != child:
            time.sleep(_REAP_EVERY_S)
            pid, ended = os.waitpid(child, os.WNOHANG)
            pid, ended = (pid, ended) if pid else os.wait()
        said = f"exit {os.waitstatus_to_exitcode(ended)}"
    except OSError as error:
        said = f"failed {error}"
    finally:
        os.write(files.status, said.encode())
        os._exit(0)


def _reap_until_killed() -> NoReturn:
    """The program is not this process's child; what it leaves behind is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(_REAP_EVERY_S)


def _close_all_but(kept: int) -> None:
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
