"""The filter of system calls, for each kind of processor: what the kernel would answer, by running its program."""

from __future__ import annotations

import re
import struct

import pytest
from escapes import ATTEMPTS

from coachrl.doctor.sandbox import CALLS, probes
from coachrl.sandbox.inside.calls import filter_program

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EINVAL, ENOTTY, ENOSYS, ESOCKTNOSUPPORT, ENOTSUP, EAFNOSUPPORT = 1, 22, 25, 38, 94, 95, 97
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# As the kernel's own tables have them: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
NUMBERS = {
    "x86_64": {"mmap": 9, "madvise": 28, "socket": 41, "socketpair": 53, "setsockopt": 54, "clone": 56, "fcntl": 72,
               "vmsplice": 278, "setrlimit": 160, "prlimit64": 302, "clone3": 435, "read": 0, "unshare": 272,
               "ptrace": 101, "sched_setaffinity": 203, "setpriority": 141, "memfd_create": 319, "bpf": 321,
               "io_setup": 206, "sync": 162, "syncfs": 306, "close_range": 436, "inotify_init1": 294,
               "landlock_add_rule": 445, "seccomp": 317, "prctl": 157, "syslog": 103, "quotactl": 179, "fsync": 74,
               "fdatasync": 75, "msync": 26, "sync_file_range": 277, "splice": 275, "tee": 276, "sendfile": 40,
               "flock": 73, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463, "quotactl_fd": 443,
               "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "migrate_pages": 256, "move_pages": 279,
               "set_mempolicy_home_node": 450, "futex_wait": 455, "statmount": 457, "open_tree_attr": 467,
               "the next one": 480, "ioctl": 16, "process_madvise": 440, "process_mrelease": 448, "cachestat": 451,
               "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
               "ustat": 136, "mincore": 27, "fadvise64": 221, "preadv2": 327, "openat": 257, "openat2": 437,
               "epoll_create1": 291,
               "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "fsconfig": 431, "fspick": 433,
               "sysfs": 139, "adjtimex": 159, "clock_adjtime": 305},
    "aarch64": {"mmap": 222, "madvise": 233, "socket": 198, "socketpair": 199, "setsockopt": 208, "clone": 220,
                "fcntl": 25, "vmsplice": 75, "setrlimit": 164, "prlimit64": 261, "clone3": 435, "read": 63,
                "unshare": 97, "ptrace": 117, "sched_setaffinity": 122, "setpriority": 140, "memfd_create": 279,
                "bpf": 280, "io_setup": 0, "sync": 81, "syncfs": 267, "close_range": 436, "inotify_init1": 26,
                "landlock_add_rule": 445, "seccomp": 277, "prctl": 167, "syslog": 116, "quotactl": 60, "fsync": 82,
                "fdatasync": 83, "msync": 227, "sync_file_range": 84, "splice": 76, "tee": 77, "sendfile": 71,
                "flock": 32, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "setxattrat": 463, "quotactl_fd": 443,
                "mbind": 235, "set_mempolicy": 237, "get_mempolicy": 236, "migrate_pages": 238, "move_pages": 239,
                "set_mempolicy_home_node": 450, "futex_wait": 455, "statmount": 457, "open_tree_attr": 467,
                "the next one": 480, "ioctl": 29, "process_madvise": 440, "process_mrelease": 448, "cachestat": 451,
                "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
                "ustat": 60, "mincore": 232, "fadvise64": 223, "preadv2": 286, "openat": 56, "openat2": 437,
                "epoll_create1": 20,
                "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "fsconfig": 431, "fspick": 433,
                "sysfs": 60, "adjtimex": 171, "clock_adjtime": 266},
}  # fmt: skip


def answer(machine, call, *arguments, audit=None, number=None):
    """What the kernel does with a call: the value that the filter returns."""
    number = NUMBERS[machine][call] if number is None else number
    data = struct.pack("<iIQ6Q", number, audit or AUDIT[machine], 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    steps = list(struct.iter_unpack("HBBI", filter_program(machine)))
    place, loaded = 0, 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            loaded &= value
        elif code == 0x06:
            return value
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            place += if_true if holds else if_false


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("read", (0, 0, 100), ALLOW),
        *[(call, (), FAIL | EPERM) for call in ("vmsplice", "unshare", "ptrace", "memfd_create", "bpf", "io_setup")],
        *[(call, (), FAIL | EPERM) for call in ("inotify_init1", "landlock_add_rule", "seccomp", "syslog")],
        ("prctl", (22, 2), FAIL | EPERM),  # a filter of system calls
        ("prctl", (15,), ALLOW),  # a name
        ("prctl", (0x53564D41,), ALLOW),  # a name for memory
        *[("prctl", (setting,), FAIL | EINVAL) for setting in (78, 79, 0x53564D40, 0x53564D42)],
        *[(call, (), FAIL | ENOSYS) for call in ("mbind", "set_mempolicy", "get_mempolicy", "migrate_pages")],
        *[(call, (), FAIL | ENOSYS) for call in ("move_pages", "set_mempolicy_home_node")],
        ("futex_wait", (), ALLOW),
        *[(call, (), FAIL | ENOSYS) for call in ("statmount", "open_tree_attr", "the next one")],
        *[(call, (), FAIL | EPERM) for call in ("quotactl", "quotactl_fd")],
        # It is told that it has waited for the host's disks.
        *[(call, (), FAIL) for call in ("sync", "syncfs", "fsync", "fdatasync", "msync", "sync_file_range")],
        ("fadvise64", (3, 0, 0, 4), FAIL),  # nothing of a file is thrown out of the memory that others share
        *[(call, (), FAIL | ENOSYS) for call in ("splice", "tee", "sendfile", "flock", "epoll_create1")],
        *[(call, (), FAIL | ENOTSUP) for call in ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")],
        ("close_range", (3, 9, 0), ALLOW),
        ("close_range", (3, 9, 2), FAIL | EPERM),
        ("clone3", (), FAIL | ENOSYS),
        ("clone", (17,), ALLOW),
        ("clone", (0x8000 | 17,), FAIL | EPERM),
        ("clone", (0x3D0F00,), ALLOW),  # a thread, as the C library makes it
        ("clone", (0x3D0F00 & ~0x400,), FAIL | EPERM),  # one with open files of its own
        ("clone", (0x400 | 17,), FAIL | EPERM),  # a process with those of another
        ("clone", (0x4111,), ALLOW),  # vfork
        ("clone", (0x0111,), FAIL | EPERM),  # a process with another's memory
        ("mmap", (0, 4096, 3, 0x22), ALLOW),  # private, without a file
        ("mmap", (0, 4096, 3, 0x01), ALLOW),  # shared, of a file
        ("mmap", (0, 4096, 3, 0x21), FAIL | EPERM),
        ("mmap", (0, 4096, 3, 0x23), FAIL | EPERM),  # MAP_SHARED_VALIDATE
        ("mmap", (0, 4096, 3, 0x40022), FAIL | EPERM),
        *[("fcntl", (3, command), ALLOW) for command in (0, 4, 6, 11, 1025, 1030, 1032)],
        *[("fcntl", (3, command), FAIL | EPERM) for command in (16, 37, 38, 1024, 1026, 1031, 1040)],
        ("openat", (3, 0, 0x80000), ALLOW),
        ("openat2", (3, 0, 0, 24), FAIL | ENOSYS),
        ("fcntl", (3, 4, 0x800), ALLOW),
        *[("setsockopt", (3, 1, option), FAIL | EPERM) for option in (7, 26, 32, 50, 51, 52, 73)],
        ("setsockopt", (3, 1, 8), ALLOW),
        *[("madvise", (0, 4096, advice), ALLOW) for advice in (4, 14, 19)],
        *[("madvise", (0, 4096, advice), FAIL | EINVAL) for advice in (12, 20, 21, 25, 102)],
        ("prctl", (67, 1), FAIL | EPERM),
        *[("prctl", (setting, value), FAIL | EPERM) for setting, value in ((62, 1), (41, 0))],
        *[(call, (), FAIL | EPERM) for call in ("process_madvise", "process_mrelease", "cachestat", "ustat")],
        *[(call, (), FAIL | EPERM) for call in ("sysfs", "adjtimex", "clock_adjtime")],
        ("mincore", (), FAIL | EPERM),
        ("preadv2", (3, 0, 1, 0, 0, 0), ALLOW),
        ("preadv2", (3, 0, 1, 0, 0, 0x21), ALLOW),
        ("preadv2", (3, 0, 1, 0, 0, 8), FAIL | ENOTSUP),  # tells what others have read
        ("preadv2", (3, 0, 1, 0, 0, 0x80), FAIL | ENOTSUP),  # keeps nothing of what it has read from the disks
        *[("preadv2", (3, 0, 1, 0, 0, flag), FAIL | ENOTSUP) for flag in (0x40, 0x100, 1 << 31)],
        *[("ioctl", (1, request), ALLOW) for request in (0x5401, 0x541B, 0x5421, 0x5451, 0x40049409)],
        *[("ioctl", (1, request), FAIL | ENOTTY) for request in (0x8940, 0x8982, 0xFF04, 0xB702, 0x9408, 0x5412)],
        ("setsockopt", (3, 6, 7), ALLOW),  # an option of TCP
        *[(call, (1, 0x80801), ALLOW) for call in ("socket", "socketpair")],
        ("socketpair", (1, 5), ALLOW),
        *[("socket", (1, kind), FAIL | ESOCKTNOSUPPORT) for kind in (0, 3, 4, 6, 10)],
        *[("socket", (family, kind), FAIL | EAFNOSUPPORT) for family in (2, 10) for kind in (1, 2, 3, 10)],
        *[(call, (family, 1), FAIL | EAFNOSUPPORT) for call in ("socket", "socketpair") for family in (16, 38, 40)],
        *[("sendto", (3, 0, 1, flags), ALLOW) for flags in (0, 0x4040)],
        *[(call, (3, 0, 1, 0x4001), FAIL | ENOTSUP) for call in ("sendto", "sendmmsg")],
        ("sendmsg", (3, 0, 0x4040), ALLOW),
        ("sendmsg", (3, 0, 0x4001), FAIL | ENOTSUP),
        ("sendmmsg", (3, 0, 1, 0), ALLOW),
        *[(call, (), FAIL | EPERM) for call in ("fsconfig", "fspick")],
        ("setrlimit", (4, 1), FAIL),  # core dumps: it is told that it has succeeded
        ("setrlimit", (7, 1), ALLOW),
        ("prlimit64", (0, 4, 0), ALLOW),  # reads
        ("prlimit64", (0, 4, 1), FAIL),
        ("prlimit64", (0, 4, 1 << 32), FAIL),
        ("prlimit64", (0, 7, 1), ALLOW),
        ("prlimit64", (9, 7, 0), FAIL | EPERM),
        ("sched_setaffinity", (0,), ALLOW),
        ("sched_setaffinity", (1,), FAIL | EPERM),
        ("setpriority", (0, 0, 19), FAIL | EPERM),
        ("sched_setscheduler", (0, 5), FAIL | EPERM),
        ("sched_setparam", (0,), FAIL | EPERM),
        ("sched_setattr", (0,), FAIL | EPERM),
    ],
)
def test_each_call_is_answered_alike_on_every_processor(machine, call, arguments, expected):
    assert answer(machine, call, *arguments) == expected


@pytest.mark.parametrize("machine", AUDIT)
def test_calls_of_another_processor_end_the_program(machine):
    other = next(audit for name, audit in AUDIT.items() if name != machine)
    assert answer(machine, "read", audit=other) == KILL


@pytest.mark.parametrize(("machine", "direct"), [("x86_64", 0x4000), ("aarch64", 0x10000)])
def test_no_file_is_read_past_the_memory_that_keeps_it(machine, direct):
    folder = 0x14000 - direct  # the other processor's bit
    assert answer(machine, "openat", 3, 0, direct) == answer(machine, "fcntl", 3, 4, direct) == FAIL | EINVAL
    assert answer(machine, "openat", 3, 0, folder) == answer(machine, "fcntl", 3, 3, direct) == ALLOW
    assert answer("x86_64", "read", 0, 0x4000, number=2) == FAIL | EINVAL  # open
    assert answer("x86_64", "read", 0, 0, 0x4000, number=2) == ALLOW


def test_the_second_way_to_each_call_is_closed():
    assert answer("x86_64", "read", number=0x40000000) == FAIL | EPERM


def test_an_unknown_processor_is_refused():
    with pytest.raises(OSError, match="no system-call filter for riscv64; supported: x86_64, aarch64"):
        filter_program("riscv64")


def test_attempts_make_the_call_that_they_name_on_each_processor():
    for name in CALLS.keys() & NUMBERS["x86_64"].keys() - {"ustat", "sysfs"}:  # which aarch64 lacks
        assert CALLS[name] == (NUMBERS["x86_64"][name], NUMBERS["aarch64"][name]), name
    codes = [*(probe.code + probe.then for probe in probes()), *(attempt.code for attempt in ATTEMPTS)]
    numbers = [int(number) for code in codes for number in re.findall(r"syscall\((\d+)", code)]
    assert numbers and min(numbers) >= 424, "processors share the numbers of calls from 424 on"
