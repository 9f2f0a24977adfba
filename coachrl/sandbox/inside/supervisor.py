"""One execution, from outside of it: starts the code in its own room, keeps the limits, reports what happened.

Three processes: the supervisor (here, trusted) watches; the room's first process (trusted, pid 1 of a new pid
namespace) reaps; its child gives up every right and becomes the agent's program. When pid 1 ends, the kernel kills
whatever is left in the room.
"""

# ruff: noqa: PTH112, PTH118, PTH123, PTH208

from __future__ import annotations

import fcntl
import os
import re
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from . import jail, program
from .jail import Bounds

POLL_S = 0.05
MEMORY_ERROR = re.compile(r"^([\w.]*MemoryError\b|terminate called after throwing an instance of 'std::bad_alloc')")


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


def execute(workspace: str, code: str, bounds: Bounds, host: socket.socket) -> Report:
    """Run `code` in `workspace` within `bounds`. Raises Cancelled when the host hangs up, OSError when the room cannot
    be built."""
    kills_before = _kernel_oom_kills()
    out, err, status = os.pipe(), os.pipe(), os.pipe()
    jail.unshare(jail.CLONE_NEWPID | jail.CLONE_NEWNET | jail.CLONE_NEWIPC)
    started = time.monotonic()
    init_pid = os.fork()
    if init_pid == 0:
        _be_init(workspace, code, bounds, out[1], err[1], status[1])
    for pipe in (out, err, status):
        os.close(pipe[1])
        fcntl.fcntl(pipe[0], fcntl.F_SETFL, os.O_NONBLOCK)
    report = Report()
    try:
        watch(init_pid, {out[0]: report.stdout, err[0]: report.stderr}, report, bounds, host)
    finally:
        os.kill(init_pid, signal.SIGKILL)
        os.waitpid(init_pid, 0)  # returns when the last process of the room is gone
    report.wall_s = time.monotonic() - started
    for fd, kept in ((out[0], report.stdout), (err[0], report.stderr)):
        drain(fd, kept, report, bounds)
    conclude(report, os.read(status[0], 4096).decode(errors="replace"), _kernel_oom_kills() > kills_before)
    return report


def watch(pid: int, pipes: dict[int, bytearray], report: Report, bounds: Bounds, host: socket.socket) -> None:
    """Read `pipes` (non-blocking file -> where to keep its head) until process `pid` ends or a limit is hit, which
    `report.state` then names. Ends nothing. Raises Cancelled when `host` hangs up."""
    deadline = time.monotonic() + bounds.timeout_s
    next_look = time.monotonic() + POLL_S
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as selector:
        for fd in (ended, host.fileno(), *pipes):
            selector.register(fd, selectors.EVENT_READ)
        while not report.state:
            now = time.monotonic()
            for key, _ in selector.select(max(0.0, min(next_look, deadline) - now)):
                if key.fd == ended:
                    return
                if key.fd == host.fileno():
                    raise Cancelled
                if not drain(key.fd, pipes[key.fd], report, bounds):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if now >= deadline:
                report.state = report.state or "timeout"
            elif now >= next_look:
                next_look = now + POLL_S
                if uses_more_than(pid, bounds.memory_mb * 1024 * 1024):
                    report.state = report.state or "oom"


def drain(fd: int, kept: bytearray, report: Report, bounds: Bounds) -> bool:
    """Read what is there and keep the head, up to the output limit. False at the end of the stream."""
    while True:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        room = bounds.output_kb * 1024 - len(kept)
        kept += data[:room]
        if len(data) > room:
            report.state = report.state or "output_limit"
            return True


def conclude(report: Report, status: str, kernel_killed: bool) -> None:
    """Fill in how it ended. status: what the room's first process said, see `_be_init`. Raises OSError where that is
    not the code's doing."""
    word, _, detail = status.partition(" ")
    if word == "failed":
        raise OSError(detail)
    if word == "exit":
        report.exit_code = int(detail)
    if report.state:
        return
    last_line = report.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
    if report.exit_code == 0:
        report.state = "ok"
    elif MEMORY_ERROR.match(last_line) or (kernel_killed and report.exit_code in (None, -signal.SIGKILL)):
        report.state = "oom"
    elif report.exit_code is None:
        raise OSError("the first process of the room ended without a word")
    elif report.exit_code == -signal.SIGXCPU:
        report.state = "timeout"
    else:
        report.state = "error"


def uses_more_than(root_pid: int, limit_bytes: int) -> bool:
    """Whether `root_pid` and its descendants hold more than `limit_bytes` together. What they share is counted once,
    and pages of the waiting interpreter are shared with it."""
    usage = {pid: _status(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    tree, grown = {root_pid} & usage.keys(), {root_pid}
    while grown := {pid for pid, (parent, _) in usage.items() if parent in grown}:
        tree |= grown
    # The exact figure costs a walk over all pages; it is needed only where the cheap upper bound is too high.
    if sum(usage[pid][1] for pid in tree) <= limit_bytes:
        return False
    return sum(map(_proportional_bytes, tree)) > limit_bytes


def _fields_kb(path: str, names: tuple[str, ...]) -> dict[str, int]:
    try:
        with open(path) as file:
            pairs = (line.split() for line in file)
            return {pair[0]: int(pair[1]) for pair in pairs if pair[0] in names}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _status(pid: int) -> tuple[int, int]:
    """Parent, and bytes of anonymous and shared memory, shared pages in full."""
    found = _fields_kb(f"/proc/{pid}/status", ("PPid:", "RssAnon:", "RssShmem:"))
    return found.pop("PPid:", 0), 1024 * sum(found.values())


def _proportional_bytes(pid: int) -> int:
    return 1024 * sum(_fields_kb(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")).values())


def _kernel_oom_kills() -> int:
    return _fields_kb("/proc/vmstat", ("oom_kill",)).get("oom_kill", 0)


def _be_init(workspace: str, code: str, bounds: Bounds, out: int, err: int, status: int) -> NoReturn:
    """The room's first process. Writes "exit <code>" (negative: a signal) or "failed <why>" to `status`."""
    said = "failed the room ended early"
    try:
        jail.die_with_parent(signal.SIGKILL)
        jail.set_dumpable(False)
        whole_proc = jail.build_room(workspace, bounds)
        child = os.fork()
        if child == 0:
            _be_program(code, bounds, whole_proc, out, err, status)
        close_all_but(status)
        while True:
            pid, ended = os.wait()
            if pid == child:
                break
        said = f"exit {os.waitstatus_to_exitcode(ended)}"
    except OSError as error:
        said = f"failed {error}"
    finally:
        os.write(status, said.encode())
        os._exit(0)


def _be_program(code: str, bounds: Bounds, whole_proc: int, out: int, err: int, status: int) -> NoReturn:
    try:
        jail.set_dumpable(True)
        jail.enter(whole_proc, bounds)
        silence = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((silence, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
    except OSError as error:
        os.write(status, f"failed {error}".encode())
        os._exit(1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    forget_ourselves()
    program.run_and_exit(code)


def close_all_but(kept: int) -> None:
    """Close every file of this process but `kept`."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def forget_ourselves() -> None:
    """Make the modules of this folder invisible, so that an agent's own files may bear any name."""
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, package))]
