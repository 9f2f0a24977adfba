"""Memory and processors of this machine: the part of them that is left to this process, as in a container or a job."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_TREE = Path("/sys/fs/cgroup")  # of all control groups
_OWN = Path("/proc/self/cgroup")  # tells which are this process's


def machine_bytes(tree: Path = _TREE, own: Path = _OWN) -> int:
    """Memory of this machine, or the least limit of the control groups (of either version) that this process is in."""
    limits = (
        _number(folder / name)
        for folder in _groups("memory", tree, own)
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *filter(None, limits)])


def machine_mb() -> int:
    """The same in whole MiB."""
    return machine_bytes() >> 20


def machine_cpus(tree: Path = _TREE, own: Path = _OWN) -> int:
    """Processors of this machine, of its control groups' sets, or as many as their quotas are worth, rounded up."""
    # Not by the affinity of a thread: OpenMP may have pinned it to one processor, and the others to others.
    quotas = [math.ceil(quota) for quota in map(_quota, _groups("cpu", tree, own)) if quota]
    sets = [_members(folder) for folder in _groups("cpuset", tree, own)]
    return min([os.cpu_count() or 1, *quotas, *filter(None, sets)])


def _groups(controller: str, tree: Path, own: Path) -> Iterator[Path]:
    """The control groups that this process is in, the innermost first. In a container the outer ones cannot be seen,
    and its own lies at the top of the tree."""
    try:
        lines = own.read_text(errors="replace").splitlines()
    except OSError:  # another system
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if (controllers and controller not in controllers.split(",")) or ".." in path.split("/"):
            continue  # what lies outside of the tree that is seen here cannot be read
        for root in (tree / controllers, tree / controller) if controllers else (tree,):
            place = root / path.strip("/")
            yield from (folder for folder in (place, *place.parents) if folder.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    """Processors' worth of time in each period; None without a limit."""
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 < period else None


def _members(folder: Path) -> int:
    """Of a set of processors ("0-3,8"); 0 without one."""
    words = (_text(folder / name).strip() for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"))
    ranges = [part.partition("-")[::2] for part in next(filter(None, words), "").split(",") if part]
    try:
        return sum(int(last or first) - int(first) + 1 for first, last in ranges)
    except ValueError:
        return 0


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
