"""The system calls that agents' code may not make, as a program for the kernel's filter (seccomp, classic BPF)."""

from __future__ import annotations

import struct

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the numbers below, AUDIT_ARCH_…
Numbers = tuple[int, int]

# Calls that no data analysis needs and that escape the limits (memory without an address, queues, io_uring) or have
# been doors into kernels.
_DENIED: dict[str, Numbers] = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "vmsplice": (278, 75), "ioprio_set": (251, 30), "io_setup": (206, 0),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # Rules of landlock and watches of inotify are the kernel's memory; the latter also see what others do with files
    # that all of them may read. A processor without a call of its own gets the number of a neighbour.
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
    "inotify_init": (253, 26), "inotify_init1": (294, 26), "modify_ldt": (154, 97),
    # A filter of a program's own is the kernel's memory, and one that asks another process stays while its file does.
    "seccomp": (317, 277),
    "syslog": (103, 116),  # the kernel's log is the host's; many systems let everybody read it
    # One of quotas' commands is open to everybody, and writes the host's disks; ustat tells of disks that nobody here
    # can see, sysfs which file systems the host knows, and the last two how its clock is kept.
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "ustat": (136, 60), "sysfs": (139, 60),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    # The advice that madvise may not give, by another way; and which pages of a file others have read.
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "cachestat": (451, 451), "mincore": (27, 232),
    # A program that steps back behind all others takes minutes to end where they are busy, and its room with it.
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}  # fmt: skip
# They would write what all of the host has unwritten to its disks, and nothing can end a program that waits for them,
# or make the disks wait for a file of the host's. All that a program may write to lies in memory. Advice on a file that
# others read (fadvise64) throws it out of their memory.
_PRETENDED: dict[str, Numbers] = {
    "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83), "msync": (26, 227),
    "sync_file_range": (277, 84), "fadvise64": (221, 223),
}  # fmt: skip
# They put a file's pages into a pipe or a socket, where a page counts as the byte that is sent of it, and stays when
# the file is gone. Programs that find no such call read and write.
# Where memory is to lie is kept for each page of a file, in the kernel's memory, and stays while the file does. A
# program that finds no such call takes the machine for one whose memory is all alike.
# openat2 keeps its flags in memory, where a filter cannot read them.
# Each watch of an epoll is the kernel's memory, of which all processes of a user have one share, and stays with an
# epoll that a call waits for and nobody has open any more. Programs that find none poll.
# A file that can be read can be locked whole, also against the host's programs. Locks on parts of files (fcntl), which
# SQLite takes, keep others from writing alone where the file cannot be written.
_ABSENT: dict[str, Numbers] = {
    "flock": (73, 32), "openat2": (437, 437), "epoll_create": (213, 20), "epoll_create1": (291, 20),
    "splice": (275, 76), "tee": (276, 77), "sendfile": (40, 71), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "get_mempolicy": (239, 236), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
}  # fmt: skip
# From here on (Linux 6.8, and all that comes) a kernel has calls that no data analysis asks for. Nobody has looked at
# the later ones with this sandbox in mind, so there are none.
_FIRST_UNKNOWN = 457
# An access list takes 64 KiB of the kernel's memory, which no file system counts.
_UNSUPPORTED: dict[str, Numbers] = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
}  # fmt: skip
# Calls that change a process, and the arguments that must be 0: no other process than the one that calls. Where the
# code runs as the user who started coachrl, the first process of its room is one of that user's, too.
_OWN_PROCESS_ONLY: dict[str, tuple[Numbers, tuple[int, ...]]] = {
    "sched_setaffinity": ((203, 122), (0,)),
}  # fmt: skip
# A child that passes for its parent's sibling would be a child of a trusted process. clone3 keeps its flags in memory,
# where a filter cannot read them; the C library takes clone where it is told that there is no clone3.
_CLONE, _CLONE3, _CLONE_PARENT = (56, 220), (435, 435), 0x8000
# Threads of a process share its open files, which are counted for the process, and nobody else does: a process that has
# ended would leave locks with those that it shared them with, and no list shows the locks of a process that has ended.
_CLONE_THREAD, _CLONE_FILES = 0x10000, 0x400
# Processes that have one memory might follow one another faster than anybody looks. A child of vfork has its parent's,
# which waits for it.
_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
# Of the settings of a process, those from a certain one on are as unknown; the first makes a table of gigabytes, which
# no figure of a process's memory holds. The last is a name for memory, which the C library gives.
_PRCTL, _PR_SET_SECCOMP, _PR_FUTEX_HASH, _PR_SET_VMA = (157, 167), 22, 78, 0x53564D41
# Pages that the kernel finds to be alike become one, on a host where it looks for them: the time of a write then tells
# what another program holds.
_MADVISE, _MADV_MERGEABLE, _PR_SET_MEMORY_MERGE = (28, 233), 12, 67
# From this advice on (MADV_COLD, MADV_PAGEOUT) a user's own files are thrown out of the memory that others read them
# from; what came later still, nobody has looked at. Programs take it for an older kernel.
_FIRST_LATER_ADVICE = 20
# A read that may not wait tells whether others have read the same before, and one past the kernel's memory
# (RWF_DONTCACHE) comes from the host's disks each time. What comes later still, nobody has looked at.
_PREADV2, _RWF_NOWAIT, _LATER_READS = (327, 286), 0x08, 0xFFFFFFC0
_PR_SCHED_CORE = 62  # a processor's other half stands still while a program runs that shares with none
_PR_SET_THP_DISABLE = 41  # see `jail.without_large_pages`
_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = (436, 436), 2
# Memory that is of no file and of no process alone: once its pages are let go of (MADV_DONTNEED), nothing shows them.
_MMAP, _MAP_SHARED, _MAP_ANONYMOUS = (9, 222), 0x01, 0x20
_MAP_HUGETLB = 0x40000  # pages that the host has set aside, which no figure of a process's memory holds
# A file that is opened so (O_DIRECT, another bit on each processor) is read from the host's disks each time, as fast as
# they can, and what others have just written of it is written to them first. Beside each call: which argument tells.
_OPENS: dict[str, tuple[Numbers, int]] = {"openat": ((257, 56), 2), "open": ((2, 56), 1)}
_O_DIRECT, _SET_FLAGS = (0x4000, 0x10000), 4
# Flags, locks and owners of a file. The others make larger pipes or locks that name no process, which could not be
# counted, and watch, or keep from being opened, a file of the host that is the user's own.
_FCNTL, _FIRST_SPECIAL_COMMAND = (72, 25), 12
_SPECIAL_COMMANDS = (1025, 1030, 1032)  # F_GETLEASE, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
# Larger socket buffers (SO_SNDBUF, SO_SNDBUFFORCE) could not be counted either, nor could filters of packets, whose
# programs share a memory with those of all of the host (SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF), nor
# memory that is kept for later, which the host's connections lack (SO_RESERVE_MEM).
_SETSOCKOPT, _SOL_SOCKET, _UNCOUNTED_OPTIONS = (54, 208), 1, (7, 32, 26, 50, 51, 52, 73)
# A limit of 1 on core dumps keeps the kernel from starting the host's handler of crashes; one of 0 would not. Where a
# program sets this limit, it is told that it has done so, and nothing happens.
_SETRLIMIT, _PRLIMIT, _RLIMIT_CORE = (160, 164), (302, 261), 4
# Streams, datagrams and packets in order of the machine's own kind. No network is there that others could reach, and
# they are not all held by a network namespace: AF_VSOCK reaches the host of a virtual machine; sockets of the internet
# have the kernel stamp the time on each packet of the host, wait for a lock that all its networks share, and load
# protocols.
_SOCKET, _SOCKETPAIR, _AF_UNIX, _TYPES = (41, 198), (53, 199), 1, (1, 2, 5)
_TYPE_MASK = 0xF  # flags stand beside the type
# A byte that is sent ahead of the others (MSG_OOB): nobody needs it here, and it has been a door into kernels
# (CVE-2025-38236). Programs take it for a kernel without. Beside each call: which argument holds its flags.
_SENDS: dict[str, tuple[Numbers, int]] = {
    "sendto": ((44, 206), 3), "sendmsg": ((46, 211), 2), "sendmmsg": ((307, 269), 3),
}  # fmt: skip
_MSG_OOB = 0x1
# What is asked of a file beside reading and writing it: whether it is a terminal, how much can be read, whether it
# waits, goes on to other programs and may be cloned. Others have the kernel load drivers of networks, hand out the
# namespaces of other processes, or make the host's disks write.
_IOCTL, _REQUESTS = (16, 29), (
    0x5401, 0x802C542A, 0x540F, 0x5413,  # TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ
    0x5411, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452,  # TIOCOUTQ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
    0x40049409, 0x4020940D,  # FICLONE, FICLONERANGE
)  # fmt: skip

_LOAD, _MASK, _EQUAL, _AT_LEAST, _ANY_BIT, _GIVE = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_EPERM, _EINVAL, _ENOTTY, _ENOSYS, _ESOCKTNOSUPPORT = 1, 22, 25, 38, 94
_ENOTSUP, _EAFNOSUPPORT = 95, 97


def _step(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)


def _error(number: int) -> bytes:
    """The call is not made; 0 tells the program that it was."""
    return _step(_GIVE, 0x00050000 | number)


_ALLOW, _KILL, _REFUSE, _PRETEND = _step(_GIVE, 0x7FFF0000), _step(_GIVE, 0x80000000), _error(_EPERM), _error(0)


def _argument(index: int, upper_half: bool = False) -> bytes:
    """Load one half of an argument of the call: `struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6];}`."""
    return _step(_LOAD, 16 + 8 * index + 4 * upper_half)


def _where(code: int, value: int, *then: bytes) -> list[bytes]:
    """The steps `then` where what was loaded compares so with `value`; else what follows them."""
    return [_step(code, value, 0, len(then)), *then]


def _unless(value: int, then: bytes) -> list[bytes]:
    return [_step(_EQUAL, value, 1, 0), then]


def _rules(column: int) -> list[tuple[Numbers, list[bytes]]]:
    """For each call that is not simply allowed: what becomes of it. Each rule ends the program."""
    rules = [(numbers, [_REFUSE]) for numbers in _DENIED.values()]
    for numbers, zeros in _OWN_PROCESS_ONLY.values():
        own_only = [step for index in zeros for step in (_argument(index), *_unless(0, _REFUSE))]
        rules.append((numbers, [*own_only, _ALLOW]))
    rules += [(numbers, [_error(_ENOSYS)]) for numbers in (_CLONE3, *_ABSENT.values())]
    rules += [(numbers, [_error(_ENOTSUP)]) for numbers in _UNSUPPORTED.values()]
    rules += [(numbers, [_PRETEND]) for numbers in _PRETENDED.values()]
    alone = _where(_ANY_BIT, _CLONE_THREAD, *_where(_ANY_BIT, _CLONE_FILES, _ALLOW), _REFUSE)
    one_memory = _where(_ANY_BIT, _CLONE_VM, *_where(_ANY_BIT, _CLONE_VFORK, _ALLOW), _REFUSE)
    shared = [*_where(_ANY_BIT, _CLONE_FILES, _REFUSE), *one_memory]
    rules.append((_CLONE, [_argument(0), *_where(_ANY_BIT, _CLONE_PARENT, _REFUSE), *alone, *shared, _ALLOW]))
    rules.append((_CLOSE_RANGE, [_argument(2), *_where(_ANY_BIT, _CLOSE_RANGE_UNSHARE, _REFUSE), _ALLOW]))
    later = _where(_AT_LEAST, _PR_FUTEX_HASH, *_where(_EQUAL, _PR_SET_VMA, _ALLOW), _error(_EINVAL))
    settings = (_PR_SET_SECCOMP, _PR_SET_THP_DISABLE, _PR_SET_MEMORY_MERGE, _PR_SCHED_CORE)
    refused = [step for setting in settings for step in _where(_EQUAL, setting, _REFUSE)]
    rules.append((_PRCTL, [_argument(0), *refused, *later, _ALLOW]))
    advice = [
        *_where(_EQUAL, _MADV_MERGEABLE, _error(_EINVAL)),
        *_where(_AT_LEAST, _FIRST_LATER_ADVICE, _error(_EINVAL)),
    ]
    rules.append((_MADVISE, [_argument(2), *advice, _ALLOW]))
    rules.append((_PREADV2, [_argument(5), *_where(_ANY_BIT, _RWF_NOWAIT | _LATER_READS, _error(_ENOTSUP)), _ALLOW]))
    shared = _where(_ANY_BIT, _MAP_ANONYMOUS, *_where(_ANY_BIT, _MAP_SHARED, _REFUSE))
    rules.append((_MMAP, [_argument(3), *_where(_ANY_BIT, _MAP_HUGETLB, _REFUSE), *shared, _ALLOW]))
    cached = [*_where(_ANY_BIT, _O_DIRECT[column], _error(_EINVAL)), _ALLOW]
    rules += [(numbers, [_argument(place), *cached]) for numbers, place in _OPENS.values()]
    special = [step for command in _SPECIAL_COMMANDS for step in _where(_EQUAL, command, _ALLOW)]
    flags = _where(_EQUAL, _SET_FLAGS, _argument(2), *cached)
    others = _where(_AT_LEAST, _FIRST_SPECIAL_COMMAND, *special, _REFUSE)
    rules.append((_FCNTL, [_argument(1), *flags, *others, _ALLOW]))
    options = [step for option in _UNCOUNTED_OPTIONS for step in _where(_EQUAL, option, _REFUSE)]
    rules.append((_SETSOCKOPT, [_argument(1), *_unless(_SOL_SOCKET, _ALLOW), _argument(2), *options, _ALLOW]))
    rules.append((_SETRLIMIT, [_argument(0), *_where(_EQUAL, _RLIMIT_CORE, _PRETEND), _ALLOW]))
    sets_limit = [_argument(2), *_unless(0, _PRETEND), _argument(2, upper_half=True), *_unless(0, _PRETEND)]
    of_core = [_argument(1), *_unless(_RLIMIT_CORE, _ALLOW), *sets_limit, _ALLOW]
    rules.append((_PRLIMIT, [_argument(0), *_unless(0, _REFUSE), *of_core]))
    requests = [step for request in _REQUESTS for step in _where(_EQUAL, request, _ALLOW)]
    rules.append((_IOCTL, [_argument(1), *requests, _error(_ENOTTY)]))
    types = [step for kind in _TYPES for step in _where(_EQUAL, kind, _ALLOW)]
    kinds = [_argument(1), _step(_MASK, _TYPE_MASK), *types, _error(_ESOCKTNOSUPPORT)]
    family = [_argument(0), *_unless(_AF_UNIX, _error(_EAFNOSUPPORT))]
    rules += [(numbers, [*family, *kinds]) for numbers in (_SOCKET, _SOCKETPAIR)]
    in_order = [*_where(_ANY_BIT, _MSG_OOB, _error(_ENOTSUP)), _ALLOW]
    rules += [(numbers, [_argument(place), *in_order]) for numbers, place in _SENDS.values()]
    return rules


def filter_program(machine: str) -> bytes:
    """The filter for a processor as `platform.machine` names it. Raises OSError for one that it does not know."""
    if machine not in _ARCHITECTURES:
        raise OSError(f"no system-call filter for {machine}; supported: {', '.join(_ARCHITECTURES)}")
    column, architecture = _ARCHITECTURES[machine]
    steps = [_step(_LOAD, 4), *_unless(architecture, _KILL), _step(_LOAD, 0)]
    if machine == "x86_64":
        steps += _where(_AT_LEAST, 0x40000000, _REFUSE)  # the x32 table, another way to each call
    for numbers, rule in _rules(column):
        steps += _where(_EQUAL, numbers[column], *rule)
    steps += _where(_AT_LEAST, _FIRST_UNKNOWN, _error(_ENOSYS))
    return b"".join([*steps, _ALLOW])
