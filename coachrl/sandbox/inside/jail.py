"""The kernel's side of an execution: namespaces, mounts, limits, capabilities, system calls."""

# ruff: noqa: PTH102, PTH106, PTH115, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .calls import filter_program

WORKSPACES = "/workspaces"
WORKSPACE = "/workspace"
CODE_UID = 1000

_MORE_ADDRESSES = 1 << 30
FORK_AGAIN_S = 0.02
_MOST_FILES = 1 << 14
_MOST_SIGNALS = 256  # that wait until a process takes them

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 8, 32, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PR_SET_THP_DISABLE = 41
_SECCOMP_MODE_FILTER = 2


@dataclass(frozen=True)
class Limits:
    """What one execution may use. The values, and what each of them means, come from the host's configuration: see
    `coachrl.config.SandboxConfig`."""

    timeout_s: float
    memory_mb: int
    disk_mb: int
    max_files: int
    max_processes: int
    output_kb: int


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name. Raises OSError."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def join(fd: int, flags: int) -> None:
    """Enter the namespaces that `flags` name, of the process or namespace file `fd`. Raises OSError."""
    _check(_libc.setns(fd, flags), f"setns({flags:#x})")


def _prctl(option: int, *values: int) -> None:
    numbers = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *numbers), f"prctl({option})")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    options = None if data is None else data.encode()
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), options), f"mount {kind or source} on {target}")


def _unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def mount_bounded(target: str, disk_mb: int, max_files: int, mode: str = "0755") -> None:
    """A tmpfs of at most `disk_mb` MiB and `max_files` files, owned by the user that code runs as."""
    # The root folder takes one inode itself.
    options = f"size={disk_mb}m,nr_inodes={max_files + 1},mode={mode},uid={CODE_UID},gid={CODE_UID}"
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def make_workspace(name: str, size_mb: int, max_files: int, all_files_mb: int) -> str:
    """Mount an empty workspace with room for `size_mb` and return its path. Raises OSError where it and those that are
    there would take more than `all_files_mb`."""
    path = os.path.join(WORKSPACES, name)
    with alone_in(WORKSPACES):
        if _room_mb(os.listdir(WORKSPACES)) + size_mb > all_files_mb:
            raise OSError(f"the workspaces hold {all_files_mb} MiB together, which is all that they may")
        os.mkdir(path)
        try:
            mount_bounded(path, size_mb, max_files)
        except OSError:
            os.rmdir(path)  # what is no mount counts with the room of all
            raise
    return path


def fit_workspace(name: str, disk_mb: int, all_files_mb: int, at_once: int) -> None:
    """Let the workspace grow to `disk_mb`, or by its share of what is left of the `all_files_mb` of all where that is
    less: `at_once` programs share it, and leave one share to new workspaces. What it may grow to is taken from the
    others until it is shrunk."""
    with alone_in(WORKSPACES):
        used_mb = held_mb(name)
        left_mb = all_files_mb - used_mb - _room_mb(other for other in os.listdir(WORKSPACES) if other != name)
        _resize(name, min(disk_mb, used_mb + -(-max(left_mb, 0) // (at_once + 1))))


def shrink_workspace(name: str) -> None:
    """Leave the workspace, in which nothing runs any more, the room that it fills, and the rest to others."""
    with contextlib.suppress(OSError), alone_in(WORKSPACES):  # it has been dropped meanwhile
        _resize(name, held_mb(name))


def held_mb(name: str) -> int:
    """What the files of a workspace take, in whole MiB or more. Raises OSError."""
    room = os.statvfs(os.path.join(WORKSPACES, name))
    return -((room.f_bfree - room.f_blocks) * room.f_frsize >> 20)


def _room_mb(names: Iterable[str]) -> int:
    """What these workspaces may take."""
    room_mb = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # it has just been dropped
            room = os.statvfs(os.path.join(WORKSPACES, name))
            room_mb += room.f_blocks * room.f_frsize >> 20
    return room_mb


def _resize(name: str, size_mb: int) -> None:
    # A mount cannot be made smaller than what it holds, and a size of 0 would mean that there is no limit.
    options = f"size={max(size_mb, 1)}m"
    _mount(None, os.path.join(WORKSPACES, name), None, _MS_REMOUNT | _MS_NOSUID | _MS_NODEV, options)


@contextlib.contextmanager
def alone_in(folder: str) -> Iterator[None]:
    """Wait until nobody else is in such a block for `folder`: no program runs in a workspace that is copied, also not
    one whose host has just hung up. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def drop_workspace(name: str) -> None:
    """Unmount a workspace. Its memory is free once nothing runs in it."""
    path = os.path.join(WORKSPACES, name)
    with alone_in(WORKSPACES):  # between the two, its folder has the room of all for whoever counts
        _unmount(path)
        os.rmdir(path)


def build_room(workspace: str, limits: Limits) -> int:
    """In a new pid namespace: a mount namespace that shows one workspace, empty scratch space and its own processes.

    Returns a handle on a whole /proc, for `enter`; what stays mounted shows processes only, no kernel settings.
    """
    unshare(CLONE_NEWNS)
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount(os.path.join(WORKSPACES, workspace), WORKSPACE, None, _MS_BIND)
    _unmount(WORKSPACES)
    for scratch in ("/tmp", "/dev/shm"):
        mount_bounded(scratch, limits.disk_mb, limits.max_files, mode="1777")
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    whole_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # Read-only: a process may otherwise tell the out-of-memory killer to spare it, in its own oom_score_adj.
    _mount("proc", "/proc", "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "subset=pid")
    # What is told of the first process is coachrl's: the name of its cgroup is that of a unit or container of the host.
    _mount(WORKSPACES, "/proc/1", None, _MS_BIND)
    return whole_proc


def see_own_processes() -> None:
    """Have /proc show the processes of this namespace, where it still shows those outside of it. Raises OSError."""
    if os.readlink("/proc/self") == str(os.getpid()):
        return
    unshare(CLONE_NEWNS)
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def fork() -> int:
    """As `os.fork`. Waits where there is no process to be had: programs may have all that this user, or the container,
    may have, and they end. Raises OSError for other reasons."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return os.fork()
        time.sleep(FORK_AGAIN_S)


def die_with_parent(signal_number: int) -> None:
    """Ask for `signal_number` when the parent process ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def hold_signals() -> None:
    """Take no signal from now on, nor in children, but the word that a child has ended (and what the kernel forces).

    What is not taken waits, at the cost of the user who started coachrl: few may."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    few = _MOST_SIGNALS if hard == resource.RLIM_INFINITY else min(_MOST_SIGNALS, hard)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (few, hard))


def bound_open_files() -> None:
    """Have no more file numbers than anybody needs: processes close all that there may be, one by one where the
    interpreter was built for an older system, and containers often allow a billion."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few == resource.RLIM_INFINITY or few > _MOST_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FILES, most))


def stand_alone() -> None:
    """Take signals again, in a session of one's own: what a program sends to its process group reaches no other."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_dumpable(value: bool) -> None:
    """Whether processes of the same user may look into this one."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def without_large_pages() -> None:
    """For this process and those that come of it. A large page that is let go of but for a small part shows as that
    part, and stays whole until the kernel lacks memory."""
    _prctl(_PR_SET_THP_DISABLE, 1)


def enter(whole_proc: int, limits: Limits) -> None:
    """Give up everything that the agent's code must not have. There is no way back.

    A user namespace of its own makes the process limit count this execution alone, and holds no capability.
    """
    _become_code_user()
    # Of the limit that is set now, all programs that are made so have a share together, and one could take it whole.
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (hard, hard))
    unshare(CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{CODE_UID} {CODE_UID} 1"),
        ("gid_map", f"{CODE_UID} {CODE_UID} 1"),
        ("oom_score_adj", "1000"),  # where memory runs out, the kernel takes this process first
    ):
        _write(f"self/{name}", text, whole_proc)
    _write("sys/user/max_user_namespaces", "0", whole_proc)
    os.close(whole_proc)
    _set_rlimits(limits)
    _drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _filter_system_calls()
    os.chdir(WORKSPACE)


def _become_code_user() -> None:
    if os.getuid() != CODE_UID:
        os.setgroups([])
        os.setresgid(CODE_UID, CODE_UID, CODE_UID)
        os.setresuid(CODE_UID, CODE_UID, CODE_UID)
        set_dumpable(True)  # a change of user clears it, and /proc/self could not be written


def _write(path: str, text: str, dir_fd: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _set_rlimits(limits: Limits) -> None:
    mebibyte = 1024 * 1024
    with open("/proc/self/status") as status:
        sizes = (line.split() for line in status if line.startswith(("VmData:", "VmSize:")))
        held = {name: int(kilobytes) * 1024 for name, kilobytes, _ in sizes}
    cpu_s = int(limits.timeout_s * (os.cpu_count() or 1)) + 1
    for limit, value in (
        # On top of the packages already imported. Addresses cost page tables, and stacks of threads take many.
        (resource.RLIMIT_DATA, held["VmData:"] + limits.memory_mb * mebibyte),
        (resource.RLIMIT_AS, held["VmSize:"] + limits.memory_mb * mebibyte + _MORE_ADDRESSES),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits.disk_mb * mebibyte),
        (resource.RLIMIT_NOFILE, 512),
        (resource.RLIMIT_STACK, 8 * mebibyte),
        (resource.RLIMIT_NPROC, limits.max_processes),
        (resource.RLIMIT_CORE, 1),  # no dump into a file; and none into a program of the host, which 0 would allow
        (resource.RLIMIT_MEMLOCK, 0),
        # Users who work with sound may pass others by, and so might their programs.
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _MOST_SIGNALS),
    ):
        _lower(limit, value)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _drop_capabilities() -> None:
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    with open("/proc/self/status") as status:
        bounding = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))
    for capability in range(bounding.bit_length()):
        _prctl(_PR_CAPBSET_DROP, capability)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _filter_system_calls() -> None:
    program = filter_program(platform.machine())
    steps = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    prog = SockFprog(len(program) // 8, ctypes.addressof(steps))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(prog))
