"""What an execution holds in memory: the pages of its processes, and what the kernel holds for them.

Nothing here trusts what a program says: pages that it has let go of but keeps alive by another way are counted there,
and ways that cannot be counted are closed in jail.py.
"""

# ruff: noqa: PTH115, PTH116, PTH118, PTH123, PTH208

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import platform
import socket
import stat
import time
from collections.abc import Collection, Iterable, Sequence

_COMPARE, _KCMP_VM = {"x86_64": 312, "aarch64": 272}, 1  # the call that tells what processes share
_PIPE_BYTES = 16 * mmap.PAGESIZE  # a full one; programs cannot make one larger
# One line of /proc/<pid>/maps costs the kernel so much, about, and more for each process that was forked with it.
_AREA_BYTES, _FORKED_AREA_BYTES = 512, 64
# A longer line, which names a path of up to 16 KiB, counts as several: a program would make a look read gigabytes.
_LINE_CHARS = 256
# A lock on a part of a file takes far less, but /proc/locks is slow to read: nobody needs many, and more cost dearly.
_FREE_LOCKS, _LOCK_BYTES, _MOST_LOCKS = 256, 1024 * 1024, 4096
# Nobody's list of open files has what a call waits for that another thread has closed meanwhile, nor what is sent to a
# socket that has no room. Nobody needs many of these.
_FREE_WAITED, _MOST_WAITED = 512, 512  # the latter by one call, which may name a higher number than there are files
# Number of each such call, and which of its arguments says how many (poll, ppoll, select, pselect6); None where none
# does (sendmsg, sendmmsg).
_WAITING = {
    "x86_64": {"7": 1, "271": 1, "23": 0, "270": 0, "46": None, "307": None},
    "aarch64": {"73": 1, "72": 0, "211": None, "269": None},
}.get(platform.machine(), {})
_MOST_SENT = 253  # files by one call
# What describes an open file is written out as a whole, all locks on it, and kept until it has been read.
_DESCRIPTION_BYTES = 64 * 1024 * 1024
# Of other files of /proc the longest record that was read is kept, which may hold a path of four letters a byte, and
# what describes the memory of a process that has ended.
_RECORD_BYTES = 32 * 1024
_PART_BYTES = 64 * 1024  # of a file of /proc, read at once
_COUNT_EVERY_S = 0.5  # pipes, areas and locks take time to count
# Each processor may keep so many pages of a kind and a process to itself that `status` does not show
# (percpu_counter_batch), and each thread 64 before Linux 6.2.
_CPUS = os.cpu_count() or 1
_UNTOLD_BYTES = _CPUS * max(32, 2 * _CPUS) * mmap.PAGESIZE
_SCRATCH = ("tmp", "dev/shm")
_ALL = ("Anon", "Shmem")
_ANONYMOUS = ("Anon",)


class RoomMemory:
    """What the room holds whose first process is `init_pid`: ask `exceeds` again and again. To be made in the room's
    network namespace."""

    def __init__(self, init_pid: int) -> None:
        self._init_pid = init_pid
        with socket.socket(socket.AF_UNIX) as fresh:
            # The last message may exceed the buffer by as much again.
            self._socket_bytes = 2 * fresh.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._next_count, self._counted = 0.0, 0
        self._orphaned: dict[int, set[str]] = {}

    def programs(self) -> list[int]:
        """The processes of the room but for its first one."""
        return [pid for pid in _members(self._init_pid) if pid != self._init_pid]

    def exceeds(self, limit_bytes: int) -> bool:
        """Whether the room holds more than `limit_bytes`, or nobody can tell. Files of its scratch folders count; those
        of the workspace have a limit of their own."""
        if _hides_any(f"/proc/{self._init_pid}/root/proc"):
            return True
        pids = _members(self._init_pid)
        if self._hides_in_threads(pids):
            return True
        if time.monotonic() >= self._next_count:
            views = [_view(pid) for pid in pids]
            self._counted = _area_bytes(views, limit_bytes) + _file_bytes(views)
            self._counted += _waiting_bytes(pids) + _lock_bytes(pids)
            self._next_count = time.monotonic() + _COUNT_EVERY_S
        beside = self._counted + sockets_in_use() * self._socket_bytes + self._scratch_bytes()
        # Shared pages can only be those of files here, and are counted with the files.
        return uses_more_than(pids, limit_bytes - beside, _ANONYMOUS)

    def _hides_in_threads(self, pids: Iterable[int]) -> bool:
        """Whether a process starts threads after its first one has ended: none of them may live long enough for anybody
        to look into it. Those of a process that is just ending become fewer."""
        before = self._orphaned
        orphaned = {pid: set(_listed(f"/proc/{pid}/task")) for pid in pids if not _has_program(f"/proc/{pid}")}
        self._orphaned = orphaned
        return any(orphaned[pid] - before[pid] for pid in orphaned.keys() & before.keys())

    def _scratch_bytes(self) -> int:
        try:
            found = [os.statvfs(f"/proc/{self._init_pid}/root/{folder}") for folder in _SCRATCH]
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last where it ends in this moment
            return 0
        return sum((of.f_blocks - of.f_bfree) * of.f_frsize for of in found)


def uses_more_than(pids: Collection[int], limit_bytes: int, kinds: tuple[str, ...] = _ALL) -> bool:
    """Whether `pids` hold more than `limit_bytes` together, page tables included. What they share is counted once, and
    pages of the waiting interpreters are shared with them. kinds: of pages, as the kernel names them."""
    # The exact figure costs a walk over all pages; it is needed only where an upper bound, which is cheap, is too high.
    views = [_view(pid) for pid in pids]
    resident = tuple(f"Rss{kind}:" for kind in kinds)
    tables = [_fields_kb(f"{view}/status", ("VmPTE:", "VmSwap:", *resident)) for view in views]
    untold = (len(kinds) + 1) * _UNTOLD_BYTES  # swap is a kind of its own
    if sum(untold + 1024 * sum(table.values()) for table in tables) <= limit_bytes:
        return False
    shared = ("SwapPss:", *(f"Pss_{kind}:" for kind in kinds))
    counted = zip(views, tables, _first_of_each_memory(views), strict=True)
    exact = [
        sum(_fields_kb(f"{view}/smaps_rollup", shared).values()) + table.get("VmPTE:", 0)
        for view, table, is_first in counted
        if is_first
    ]
    return 1024 * sum(exact) > limit_bytes


def _first_of_each_memory(views: Iterable[str]) -> list[bool]:
    """Whether none of the processes before it has the same memory, as a child of vfork has its parent's until it runs
    another program. Where the kernel cannot tell, all count."""
    number = _COMPARE.get(platform.machine())
    syscall = ctypes.CDLL(None).syscall
    firsts: list[int] = []
    found = []
    for thread in (int(view.rpartition("/")[2]) for view in views):
        found.append(number is None or all(syscall(number, thread, first, _KCMP_VM, 0, 0) != 0 for first in firsts))
        firsts += [thread] if found[-1] else []
    return found


def descendants(root_pid: int) -> set[int]:
    """`root_pid` and the processes below it."""
    parents = {pid: _fields_kb(f"/proc/{pid}/status", ("PPid:",)).get("PPid:", 0) for pid in _all_pids()}
    tree, grown = {root_pid} & parents.keys(), {root_pid}
    while grown := {pid for pid, parent in parents.items() if parent in grown}:
        tree |= grown
    return tree


def kernel_oom_kills(events: int | None) -> int:
    """Processes that the kernel has ended for want of memory: those of the cgroup whose `memory.events` is open as
    `events`, or of the whole machine."""
    if events is None:
        return _fields_kb("/proc/vmstat", ("oom_kill",)).get("oom_kill", 0)
    pairs = (line.split() for line in os.pread(events, 4096, 0).decode().splitlines())
    return sum(int(count) for name, count in pairs if name == "oom_kill")


def sockets_in_use() -> int:
    """Sockets of this network namespace, also those that no process holds any more."""
    with open("/proc/net/sockstat") as file:
        return int(file.readline().split()[2])


def _view(pid: int) -> str:
    """The folder that shows what a process has: its own, or, where its first thread has ended and shows nothing any
    more, that of another. All of them share their memory and their open files."""
    own = f"/proc/{pid}"
    if _has_program(own):
        return own
    threads = (f"{own}/task/{thread}" for thread in _listed(f"{own}/task"))
    return next(filter(_has_program, threads), own)


def _hides_any(room_proc: str) -> bool:
    """Whether a process of the room has memory, and nobody may look into it, nor see from outside that it is one of the
    room: it runs a file that may be run and not read, of a user who is unknown here."""
    return any(_hides(f"{room_proc}/{name}/task") for name in _listed(room_proc) if name.isdigit())


def _hides(tasks: str) -> bool:
    threads = [f"{tasks}/{thread}" for thread in _listed(tasks)]
    return not any(map(_has_program, threads)) and any(_fields_kb(f"{one}/status", ("VmRSS:",)) for one in threads)


def _has_program(view: str) -> bool:
    try:
        os.readlink(f"{view}/exe")
    except OSError:
        return False
    return True


def _file_bytes(views: Iterable[str]) -> int:
    """The most that the open pipes can hold, and the files that were sent to a socket, as if each were one; and what
    files of /proc take."""
    pipes: set[str] = set()
    sockets: dict[str, int] = {}  # each with the files that lie in it
    descriptions = records = 0
    for view in views:
        for number, target in _open_files(f"{view}/fd"):
            if target.startswith("pipe:"):
                pipes.add(target)
            elif target.startswith("socket:"):
                sockets[target] = _files_sent_to(f"{view}/fdinfo/{number}")
            elif "/fdinfo/" in target:
                descriptions += 1
            elif target.startswith("/proc/"):
                records += 1
            elif named := _named_pipe(f"{view}/fd/{number}"):
                pipes.add(named)
    read_from_proc = _DESCRIPTION_BYTES * descriptions + _RECORD_BYTES * records
    return _PIPE_BYTES * (len(pipes) + sum(sockets.values())) + read_from_proc


def _named_pipe(path: str) -> str:
    """Which pipe is open there; empty where it is none. The name that it had may be another's by now."""
    try:
        found = os.stat(path)
    except OSError:  # closed since it was listed
        return ""
    return f"{found.st_dev}:{found.st_ino}" if stat.S_ISFIFO(found.st_mode) else ""


def _files_sent_to(socket_info: str) -> int:
    try:
        with open(socket_info) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("scm_fds:")), 0)
    except OSError:  # closed since it was listed
        return 0


def _waiting_bytes(pids: Iterable[int]) -> int:
    """The same of the files that calls wait for, or are just sending."""
    threads = (f"/proc/{pid}/task/{thread}" for pid in pids for thread in _listed(f"/proc/{pid}/task"))
    return _PIPE_BYTES * max(0, sum(map(_waits_for, threads)) - _FREE_WAITED)


def _waits_for(thread: str) -> int:
    try:
        with open(f"{thread}/syscall") as file:
            number, *arguments = file.read().split()
    except OSError:  # it has just ended
        return 0
    if number not in _WAITING:
        return 0
    place = _WAITING[number]
    return _MOST_SENT if place is None else min(int(arguments[place], 16), _MOST_WAITED)


def _open_files(folder: str) -> list[tuple[str, str]]:
    """Number and target of each; the latter is empty where its path is too long, or it was closed since."""
    found = []
    for name in _listed(folder):
        try:
            found.append((name, os.readlink(os.path.join(folder, name))))
        except OSError:
            found.append((name, ""))
    return found


def _area_bytes(views: Sequence[str], most: int) -> int:
    """What the mapped areas take; something above `most` where it is more."""
    each = _AREA_BYTES + _FORKED_AREA_BYTES * len(views)
    areas = 0
    for view in views:
        areas += _lines(f"{view}/maps", most // each + 1 - areas)
    return areas * each


def _lines(path: str, enough: int) -> int:
    """How many there are, if need be until there are `enough`."""
    found = 0
    try:
        with open(path, "rb", 0) as file:
            while found < enough and (part := file.read(_PART_BYTES)):
                found += max(part.count(b"\n"), len(part) // _LINE_CHARS)
    except OSError:  # it has just ended
        pass
    return found


def _lock_bytes(pids: Iterable[int]) -> int:
    members = {str(pid) for pid in pids}
    with open("/proc/locks") as file:
        # Of the list, which may begin with thousands of others' locks, those of `pids` alone are worth an end to it.
        found = itertools.islice((line for line in file if not members.isdisjoint(line.split()[4:6])), _MOST_LOCKS)
        held = sum(1 for _ in found)
    return _LOCK_BYTES * max(0, held - _FREE_LOCKS)


def _members(init_pid: int) -> list[int]:
    """Processes of the room whose first one is `init_pid`."""
    room = _pid_namespace(init_pid)
    return [pid for pid in _all_pids() if room is not None and _pid_namespace(pid) == room]


def _pid_namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last where it ends in this moment
        return None


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # its process has just ended
        return []


def _fields_kb(path: str, names: tuple[str, ...]) -> dict[str, int]:
    try:
        # Only "\n" ends a line: the name of a process may hold any other byte.
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            pairs = (line.split() for line in file)
            return {pair[0]: int(pair[1]) for pair in pairs if pair[0] in names}
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last where it ends in this moment
        return {}
