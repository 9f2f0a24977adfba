"""The warm interpreter: has the usual packages imported, and forks agents' programs into rooms that others have built.

Copying its memory map is what a warm start costs, so it is copied once for an execution, and not at all for code that
needs none of the packages: such code is forked from the small process that built its room.
"""

# ruff: noqa: PTH112, PTH118, PTH123

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple, NoReturn

from . import jail, program
from .jail import Limits

READY = b"ready"
BEGUN = "begun\n"  # said of a program once none but its own code runs in its process
_LIBRARY_PRELOAD = ("collections", "datetime", "decimal", "fractions", "itertools", "json", "math", "re", "statistics")
# They may import anything, by a name that is not in the code.
_INDIRECT = frozenset({"importlib", "imp", "pickle", "runpy", "shelve", "zipimport", "pkgutil", "ctypes"})
_IMPORT = re.compile(r"\bfrom\s+([\w.]+)\s+import\b|\bimport\s+([\w.]+(?:\s*,\s*[\w.]+)*)")
_HUGE_PAGE = 2 * 1024 * 1024
_MADV_COLLAPSE = 25


class ProgramFiles(NamedTuple):
    """Open files of a program: what it prints goes to `out` and `err`; how it began and ended is told to `status`; a
    process that writes 0 to `cgroup` is in that of the program."""

    out: int
    err: int
    status: int
    cgroup: int | None = None


def needs_packages(code: str, packages: Sequence[str]) -> bool:
    """Whether `code` may import anything that the small interpreter has not; in doubt it does."""
    found = [module or modules for module, modules in _IMPORT.findall(code)]
    names = {name.strip().partition(".")[0] for listed in found for name in listed.split(",")}
    if names & _INDIRECT or not names <= sys.stdlib_module_names or "__import__" in code:
        return True
    return any(name in code for name in packages)


def preload_library() -> None:
    """What plain code imports most."""
    for name in _LIBRARY_PRELOAD:
        importlib.import_module(name)


def start(preload: Sequence[str]) -> socket.socket:
    """Fork the warm interpreter; the socket that `ask` takes, once it has imported everything. Its end of the stream
    means that the interpreter has ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _be_warm(preload, theirs)
    theirs.close()
    if ours.recv(len(READY)) != READY:
        raise OSError("the packages could not be imported; see above")
    return ours


def ask(warm: socket.socket, code: str, limits: Limits, whole_proc: int, files: ProgramFiles) -> None:
    """From the first process of a room: have a program forked into it. How it ended is written to `files.status`, see
    `supervisor.execute`."""
    order = os.memfd_create("order")
    with open(order, "w", encoding="utf-8", closefd=False) as file:
        json.dump({"code": code, "limits": asdict(limits)}, file)
    room = os.pidfd_open(os.getpid())
    socket.send_fds(warm, [b"+"], [order, room, whole_proc, *(fd for fd in files if fd is not None)])


def _be_warm(preload: Sequence[str], requests: socket.socket) -> NoReturn:
    try:
        jail.die_with_parent(signal.SIGKILL)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)  # the control socket
        for name in preload:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # later collections, in each fork, look at new objects only and leave shared pages alone
        _use_huge_pages()
        requests.send(READY)
        _serve(requests)
    finally:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _use_huge_pages() -> None:
    """Where the kernel can, keep the heap in large pages: a fork then copies fewer entries. It is no loss otherwise."""
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        regions = [line.split() for line in maps]
    for addresses, access, _, _, inode, *_ in regions:
        first, last = (int(address, 16) // _HUGE_PAGE for address in addresses.split("-"))
        if "w" in access and inode == "0" and last > first + 1:
            start_at, size = (first + 1) * _HUGE_PAGE, (last - first - 1) * _HUGE_PAGE
            madvise(ctypes.c_void_p(start_at), ctypes.c_size_t(size), _MADV_COLLAPSE)


def _serve(requests: socket.socket) -> None:
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    programs: dict[int, int] = {}  # process -> where its end is told
    asked: list[list[int]] = []  # the files of each program that is to be forked
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(jail.FORK_AGAIN_S if asked else None):
                if key.fd == woken:
                    os.read(woken, 4096)
                    _reap(programs)
                else:
                    asked.append(_receive(requests))
            while asked and _fork_program(asked[0], own_pids, programs):
                del asked[0]


def _reap(programs: dict[int, int]) -> None:
    while programs:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid in programs:  # any other is a child that nobody here has made
            _tell(programs.pop(pid), f"exit {os.waitstatus_to_exitcode(ended)}")


def _tell(status: int, said: str) -> None:
    try:
        os.write(status, said.encode())
    except BrokenPipeError:  # nobody waits any more
        pass
    finally:
        os.close(status)


def _receive(requests: socket.socket) -> list[int]:
    message, fds, _, _ = socket.recv_fds(requests, 1, 7)
    if not message:
        os._exit(0)
    return fds


def _fork_program(fds: list[int], own_pids: int, programs: dict[int, int]) -> bool:
    """Whether it is done with, and the files closed. Not so where there is no process to be had, which the end of
    another program changes: this process goes on to tell of such ends."""
    order, room, whole_proc, *given = fds
    files = ProgramFiles(*given)
    try:
        jail.join(room, jail.CLONE_NEWPID)  # for children; this process stays where it is
        pid = os.fork()
        if pid == 0:
            _be_program(order, room, whole_proc, files)
        programs[pid] = os.dup(files.status)
    except BlockingIOError:
        return False
    except OSError as error:  # the room is gone: its execution was cancelled
        _tell(os.dup(files.status), f"failed {error}")
    finally:
        jail.join(own_pids, jail.CLONE_NEWPID)
    for fd in fds:
        os.close(fd)
    return True


def _be_program(order: int, room: int, whole_proc: int, files: ProgramFiles) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with open(order, encoding="utf-8") as file:
            file.seek(0)
            request = json.load(file)
        jail.join(room, jail.CLONE_NEWNS | jail.CLONE_NEWNET | jail.CLONE_NEWIPC)
    except OSError as error:
        _fail(files, error)
    become_program(request["code"], Limits(**request["limits"]), whole_proc, files)


def _fail(files: ProgramFiles, error: OSError) -> NoReturn:
    os.write(files.status, f"failed {error}".encode())
    os._exit(1)


def become_program(code: str, limits: Limits, whole_proc: int, files: ProgramFiles) -> NoReturn:
    """In a process of the room: give up every right and run `code`. Says BEGUN, or why it did not begin."""
    most_files = os.sysconf("SC_OPEN_MAX")  # which the program's own limit is about to lower
    try:
        jail.stand_alone()
        if files.cgroup is None:
            jail.without_large_pages()
        else:
            os.write(files.cgroup, b"0")
            jail.unshare(jail.CLONE_NEWCGROUP)  # or its own name for it would tell how many programs there were
        jail.set_dumpable(True)
        jail.enter(whole_proc, limits)
        silence = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((silence, 0), (files.out, 1), (files.err, 2)):
            os.dup2(source, target)
        os.write(files.status, BEGUN.encode())
    except OSError as error:
        _fail(files, error)
    os.closerange(3, most_files)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc,assignment]  # chosen for epoll, which is refused
    forget_ourselves()
    program.run_and_exit(code)


def forget_ourselves() -> None:
    """Make the modules of this folder invisible, so that an agent's own files may bear any name."""
    package = __name__.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, package))]
