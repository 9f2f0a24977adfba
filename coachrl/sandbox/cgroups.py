"""The machine's memory: what all programs and workspaces may take together, and a cgroup for each program where the
system lets this user make some."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from coachrl.errors import SandboxError
from coachrl.machine import machine_cpus, machine_mb
from coachrl.sandbox.inside.jail import Limits

logger = logging.getLogger(__name__)

_NUMBERS = itertools.count(1)
_PREFIX = "coachrl-"
_PATIENCE_S = 2.0


def workspaces_mb(sharers: int = 1) -> int:
    """What the files of all workspaces of one of so many sandboxes may take together: its share of half of the
    machine's memory, for that is where they lie."""
    return machine_mb() // 2 // sharers


def usual_concurrency(memory_mb: int, sharers: int = 1) -> int:
    """So many programs at once: one for each processor, as far as a sandbox's share of half the memory holds them."""
    return max(1, min(machine_cpus(), machine_mb() // 2 // sharers // memory_mb))


class Cgroups:
    """Makes a cgroup (v2) for each program below `folder`. The kernel then holds it to its memory, to the last page
    table; the sandbox's own looks at what a program holds go on beside that."""

    def __init__(self, folder: Path, lock: int) -> None:
        """lock: the file that keeps others from taking `folder` for left."""
        self.folder, self._lock = folder, lock
        self._left: set[Path] = set()

    @classmethod
    def make(
        cls,
        concurrency: int,
        limits: Limits,
        files_mb: int,
        tree: Path = Path("/sys/fs/cgroup"),
        own: Path = Path("/proc/self/cgroup"),
    ) -> Cgroups | None:
        """None where this user may make none with a limit on memory. concurrency: so many programs run at once, with
        `limits` each. files_mb: what the files of all workspaces may take together. tree: where cgroups are mounted.
        own: tells which of them this process is in."""
        for parent in _parents(tree, own):
            try:
                if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                    continue
                _drop_left(parent)
                made = cls(*_locked(parent))
            except OSError as error:
                logger.debug("no memory cgroup below %s: %s", parent, error)
                continue
            try:
                (made.folder / "cgroup.subtree_control").write_text("+memory")
                # Hardly ever reached before a program reaches its own: else the kernel might end another one for it.
                _bound(made.folder, concurrency * _program_mb(limits) + files_mb)
            except OSError as error:
                logger.debug("no limit on memory for cgroups below %s: %s", parent, error)
                made.close()
                continue
            return made
        return None

    @contextlib.contextmanager
    def program(self, limits: Limits) -> Iterator[tuple[int, int]]:
        """A cgroup for one program, as two open files: a process that writes 0 to the first is in it, and the second
        tells of processes that the kernel has ended. What a program writes to its workspace is charged to it, too.
        Raises SandboxError where none can be made any more."""
        for left in tuple(self._left):
            self._remove(left)
        folder = self.folder / f"program-{next(_NUMBERS)}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove, folder)
            try:
                folder.mkdir()
                _bound(folder, _program_mb(limits))
                (folder / "memory.oom.group").write_text("1")
                procs = stack.enter_context((folder / "cgroup.procs").open("rb+", 0))
                events = stack.enter_context((folder / "memory.events").open("rb", 0))
            except OSError as error:
                raise SandboxError(f"no memory cgroup could be made for the program: {error}") from error
            yield procs.fileno(), events.fileno()

    def close(self) -> None:
        """Remove what is left, once the last programs have ended, which takes the kernel a moment."""
        give_up = time.monotonic() + _PATIENCE_S
        while self.folder.exists() and time.monotonic() < give_up:
            for folder in _with_programs(self.folder):
                self._remove(folder)
            time.sleep(0.001)
        os.close(self._lock)

    def _remove(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except OSError as error:  # its last process is just ending: the next program, or `close`, tries again
            logger.debug("%s stays for now: %s", folder, error)
        if folder.exists():
            self._left.add(folder)
        else:
            self._left.discard(folder)


def _locked(parent: Path) -> tuple[Path, int]:
    """A new cgroup, and the file that keeps it locked for as long as this process lives, however that ends. Raises
    OSError."""
    while True:
        folder = parent / f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}"
        # It is there where a process of another container has this process's number; and it may be gone before it is
        # locked, where another process took it for left.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _drop_left(parent: Path) -> None:
    """Remove the cgroups of processes that were killed before they could."""
    for left in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, or somebody else's
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for folder in _with_programs(left):
                    folder.rmdir()
            finally:
                os.close(lock)


def _with_programs(folder: Path) -> list[Path]:
    """In the order in which they can be removed."""
    return [*folder.glob("program-*"), folder]


def _program_mb(limits: Limits) -> int:
    """What the kernel lets one program hold, with what it writes to its workspace."""
    return limits.memory_mb + limits.disk_mb


def _bound(folder: Path, size_mb: int) -> None:
    (folder / "memory.max").write_text(str(size_mb << 20))
    if (folder / "memory.swap.max").exists():  # else the kernel has no swap, or does not count it; the looks do
        (folder / "memory.swap.max").write_text("0")


def _parents(tree: Path, own: Path) -> Iterator[Path]:
    """Where a cgroup beside or above this process's own might be made, the nearest first. Its own holds processes, and
    the kernel lets such a one have no children with limits."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for path in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        yield from (parent for parent in (tree / path).parents if parent.is_relative_to(tree))
