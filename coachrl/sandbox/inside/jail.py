"""The kernel's side of an execution: namespaces, mounts, limits, capabilities, system calls."""

# ruff: noqa: PTH102, PTH106, PTH118, PTH123

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from dataclasses import dataclass

WORKSPACES = "/workspaces"
WORKSPACE = "/workspace"
CODE_UID = 1000

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_PR_SET_CHILD_SUBREAPER = 36
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


def make_workspace(name: str, disk_mb: int, max_files: int) -> str:
    """Mount an empty workspace and return its path."""
    path = os.path.join(WORKSPACES, name)
    os.mkdir(path)
    mount_bounded(path, disk_mb, max_files)
    return path


def drop_workspace(name: str) -> None:
    """Unmount a workspace. Its memory is free once nothing runs in it."""
    path = os.path.join(WORKSPACES, name)
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
    return whole_proc


def die_with_parent(signal_number: int) -> None:
    """Ask for `signal_number` when the parent process ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def hold_signals() -> None:
    """Take no signal from now on, nor in children, but the word that a child has ended (and what the kernel forces)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})


def stand_alone() -> None:
    """Take signals again, in a session of one's own: what a program sends to its process group reaches no other."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_dumpable(value: bool) -> None:
    """Whether processes of the same user may look into this one."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def enter(whole_proc: int, limits: Limits) -> None:
    """Give up everything that the agent's code must not have. There is no way back.

    A user namespace of its own makes the process limit count this execution alone, and holds no capability.
    """
    _become_code_user()
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
    _limit(limits)
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


def _limit(limits: Limits) -> None:
    mebibyte = 1024 * 1024
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    cpu_s = int(limits.timeout_s * (os.cpu_count() or 1)) + 1
    for limit, value in (
        (resource.RLIMIT_DATA, held + limits.memory_mb * mebibyte),  # on top of the packages already imported
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits.disk_mb * mebibyte),
        (resource.RLIMIT_NOFILE, 512),
        (resource.RLIMIT_STACK, 8 * mebibyte),
        (resource.RLIMIT_NPROC, limits.max_processes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
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


# Calls that no data analysis needs and that escape the limits (memory without an address, queues, io_uring) or have
# been doors into kernels. Numbers: x86_64, aarch64.
_DENIED = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "ioprio_set": (251, 30),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
}  # fmt: skip
# Calls that change a process, and the arguments that must be 0: no other process than the one that calls. Where the
# code runs as the user who started coachrl, the first process of its room is one of that user's, too.
_OWN_PROCESS_ONLY = {
    "prlimit64": ((302, 261), (0,)), "setpriority": ((141, 140), (0, 1)), "sched_setaffinity": ((203, 122), (0,)),
    "sched_setscheduler": ((144, 119), (0,)), "sched_setparam": ((142, 118), (0,)), "sched_setattr": ((314, 274), (0,)),
}  # fmt: skip
# A child that passes for its parent's sibling would be a child of a trusted process. clone3 keeps its flags in memory,
# where a filter cannot read them; the C library takes clone where it is told that there is no clone3.
_CLONE, _CLONE3, _CLONE_PARENT = (56, 220), (435, 435), 0x8000
_SOCKET = (41, 198)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# AF_UNIX, AF_INET, AF_INET6. Others are not all held by a network namespace: AF_VSOCK reaches the host of a virtual
# machine.
_SOCKET_FAMILIES = (1, 2, 10)
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def _filter_program() -> bytes:
    """Classic BPF over `struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6];}`."""
    column, arch = _MACHINES[platform.machine()]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, fail = 0x7FFF0000, 0x80000000, 0x00050000

    def step(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, k)

    def argument(index: int) -> bytes:
        return step(load, 16 + 8 * index)

    def on(numbers: tuple[int, int], *rule: bytes) -> list[bytes]:
        return [step(equal, numbers[column], 0, len(rule)), *rule]

    steps = [step(load, 4), step(equal, arch, 1, 0), step(give, kill), step(load, 0)]
    steps += [step(at_least, 0x40000000, 0, 1), step(give, fail | _EPERM)]  # the x32 table, another way to each call
    for numbers in _DENIED.values():
        steps += on(numbers, step(give, fail | _EPERM))
    steps += on(_CLONE3, step(give, fail | _ENOSYS))
    steps += on(_CLONE, argument(0), step(any_bit, _CLONE_PARENT, 0, 1), step(give, fail | _EPERM), step(give, allow))
    for numbers, zeros in _OWN_PROCESS_ONLY.values():
        refusals = [rule for i in zeros for rule in (argument(i), step(equal, 0, 1, 0), step(give, fail | _EPERM))]
        steps += on(numbers, *refusals, step(give, allow))
    families = [rule for family in _SOCKET_FAMILIES for rule in (step(equal, family, 0, 1), step(give, allow))]
    steps += on(_SOCKET, argument(0), *families, step(give, fail | _EAFNOSUPPORT))
    return b"".join([*steps, step(give, allow)])


def _filter_system_calls() -> None:
    if platform.machine() not in _MACHINES:
        raise OSError(f"no system-call filter for {platform.machine()}; supported: {', '.join(_MACHINES)}")
    program = _filter_program()
    steps = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    prog = SockFprog(len(program) // 8, ctypes.addressof(steps))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(prog))
