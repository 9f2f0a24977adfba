"""What watches over a program, without one: which limit is said to be hit, and how memory and room are counted."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import resource
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from coachrl.config import SandboxConfig
from coachrl.doctor.sandbox import CALLS
from coachrl.sandbox.base import limits_of
from coachrl.sandbox.inside import jail, memory_in_use, supervisor
from coachrl.sandbox.inside.supervisor import Cancelled, Report, watch

LIMITS = limits_of(SandboxConfig(timeout_s=60.0, output_kb=1))
MIB = 2**20


class Room:
    """The files that a supervisor watches."""

    def __init__(self):
        self.ended, self.out = os.pipe(), os.pipe()
        self.host, self.caller = socket.socketpair()
        os.set_blocking(self.out[0], False)
        self.report = Report()

    def watch(self, limits=LIMITS, holds_too_much=lambda: False):
        watch(self.ended[0], holds_too_much, {self.out[0]: self.report.stdout}, self.report, limits, self.host)
        return self.report.state

    def close(self):
        for fd in (*self.ended, *self.out):
            os.close(fd)
        self.host.close()
        self.caller.close()


@pytest.fixture
def room():
    made = Room()
    yield made
    made.close()


def test_a_program_that_has_ended_has_hit_no_limit_and_its_output_is_kept(room):
    os.write(room.out[1], b"hello")

    def then_ends():
        os.write(room.ended[1], b"exit 0")
        return False

    assert room.watch(holds_too_much=then_ends) == "" and room.report.stdout == b"hello"


def test_the_limit_that_is_hit_is_named(room):
    assert room.watch(replace(LIMITS, timeout_s=0.0)) == "timeout"
    room.report = Report()
    assert room.watch(holds_too_much=lambda: True) == "oom"
    room.report = Report()
    os.write(room.out[1], b"x" * 1024)
    assert room.watch(replace(LIMITS, timeout_s=0.01)) == "timeout"  # as much as may be printed


def test_a_program_that_ended_while_its_supervisor_was_stopped_has_hit_no_limit(room, monkeypatch):
    class Stopped(selectors.DefaultSelector):
        """Its first wait is broken off by a stop that lasts past the deadline, and tells of nothing."""

        waits = 0

        def select(self, timeout=None):
            self.waits += 1
            if self.waits > 1:
                return super().select(timeout)
            os.write(room.ended[1], b"exit 0")
            time.sleep(0.6)
            return []

    monkeypatch.setattr(selectors, "DefaultSelector", Stopped)
    assert room.watch(replace(LIMITS, timeout_s=0.5)) == ""


def test_time_in_which_everything_was_suspended_is_not_the_programs(room, monkeypatch):
    class Suspended(selectors.DefaultSelector):
        """Its first wait lasts past the deadline; the program ends soon after the second has begun, or not at all."""

        waits, ends = 0, True

        def select(self, timeout=None):
            self.waits += 1
            if self.waits == 1:
                time.sleep(0.4)
            elif self.waits == 3 and self.ends:
                os.write(room.ended[1], b"exit 0")
            return super().select(0 if self.waits == 1 else timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Suspended)
    monkeypatch.setattr(supervisor, "_STOPPED_S", 0.2)
    assert room.watch(replace(LIMITS, timeout_s=0.3)) == ""
    os.read(room.ended[0], 100)
    monkeypatch.setattr(Suspended, "ends", False)
    assert room.watch(replace(LIMITS, timeout_s=0.3)) == "timeout"


def test_one_byte_too_much_is_too_much_output(room):
    os.write(room.out[1], b"x" * 1025)
    assert room.watch() == "output_limit" and len(room.report.stdout) == 1024


def test_memory_is_looked_at_again_and_again(room):
    looks = iter([False, False, True])
    assert room.watch(holds_too_much=lambda: next(looks)) == "oom"


def test_where_the_host_hangs_up_nobody_waits(room):
    room.caller.close()
    with pytest.raises(Cancelled):
        room.watch()


@pytest.fixture
def rooms(monkeypatch):
    """MiB that the workspaces hold and may hold, by name, and what is mounted."""
    rooms, mounted = {}, []

    def statvfs(path):
        held, room = rooms[path.rpartition("/")[2]]
        return SimpleNamespace(f_blocks=room * 256, f_bfree=int((room - held) * 256), f_frsize=4096)

    monkeypatch.setattr(jail.os, "statvfs", statvfs)
    monkeypatch.setattr(jail.os, "listdir", lambda folder: [*rooms])
    monkeypatch.setattr(jail.os, "mkdir", lambda path: None)
    monkeypatch.setattr(jail, "alone_in", contextlib.nullcontext)
    monkeypatch.setattr(jail, "_mount", lambda source, target, kind, flags, data=None: mounted.append((target, data)))
    return rooms, mounted


@pytest.mark.parametrize(("held", "mib"), [(0, 0), (1 / 256, 1), (1, 1), (1 + 1 / 256, 2), (5, 5)])
def test_what_a_workspace_holds_is_rounded_up(rooms, held, mib):
    rooms[0]["a"] = held, 50
    assert jail.held_mb("a") == mib


@pytest.mark.parametrize(
    ("own", "others", "at_once", "size"),
    [
        (0, 0, 1, 50),  # disk_mb
        (0, 60, 1, 20),  # half of what is left of all: the other is for new workspaces
        (0, 60, 4, 8),  # as four share it
        (10, 60, 3, 18),  # beside what it holds already
        (30, 60, 1, 35),
        (0, 98, 4, 1),  # a whole MiB
        (0, 100, 4, 1),  # never 0, which would be no limit
        (20, 80, 4, 20),  # and no more each time that a program runs
        (20, 90, 4, 20),
    ],
)
def test_a_workspace_may_grow_into_its_share_of_what_is_left(rooms, own, others, at_once, size):
    may_hold, mounted = rooms
    may_hold |= {"own": (own, own), "others": (others / 2, others)}  # what others may hold is theirs
    jail.fit_workspace("own", 50, 100, at_once)
    assert mounted == [("/workspaces/own", f"size={size}m")]


@pytest.mark.parametrize(("held", "size"), [(0, 1), (3, 3), (3.5, 4)])
def test_a_workspace_in_which_nothing_runs_keeps_what_it_holds(rooms, held, size):
    may_hold, mounted = rooms
    may_hold["own"] = held, 50
    jail.shrink_workspace("own")
    assert mounted == [("/workspaces/own", f"size={size}m")]


def test_no_workspace_is_made_once_all_room_is_taken(rooms):
    may_hold, mounted = rooms
    may_hold |= {"a": (60, 60), "b": (3, 35)}
    assert jail.make_workspace("c", 5, 7, 100) == "/workspaces/c"
    assert mounted == [("/workspaces/c", "size=5m,nr_inodes=8,mode=0755,uid=1000,gid=1000")]
    with pytest.raises(OSError, match="hold 100 MiB together"):
        jail.make_workspace("d", 6, 7, 100)


def test_no_right_that_a_user_has_beside_the_usual_goes_on_to_programs(monkeypatch):
    lowered = {}
    monkeypatch.setattr(jail, "_lower", lowered.__setitem__)
    jail._set_rlimits(LIMITS)
    rights = (resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)
    assert [lowered[right] for right in rights] == [0, 0, 0, 0]


def counted():
    return memory_in_use._file_bytes(["/proc/self"])


def test_what_lies_in_files_of_a_process_counts_by_its_kind():
    def more(made, *close):
        before = counted()
        made = made()
        grown = counted() - before
        for fd in made if isinstance(made, tuple) else (made,):
            os.close(fd)
        return grown

    assert more(os.pipe) == 16 * mmap.PAGESIZE  # both ends are of one
    assert more(lambda: os.open("/proc/self/status", os.O_RDONLY)) == 32 * 1024
    assert more(lambda: os.open("/proc/self/fdinfo/0", os.O_RDONLY)) == 64 * MIB
    assert more(lambda: os.open("/dev/null", os.O_RDONLY)) == 0


def test_mapped_areas_cost_more_the_more_processes_were_forked_with_them(monkeypatch):
    monkeypatch.setattr(memory_in_use, "_lines", lambda path, enough: {"a/maps": 10, "b/maps": 3}[path])
    assert memory_in_use._area_bytes(["a", "b"], MIB) == 13 * (512 + 2 * 64)


def test_files_that_calls_wait_for_count(monkeypatch):
    out, into = os.pipe()
    polls = select.poll()
    for number in [os.dup(out) for _ in range(40)]:
        polls.register(number, select.POLLIN)
    sends, takes = socket.socketpair()
    with contextlib.suppress(BlockingIOError):
        while True:
            sends.send(bytes(4096), socket.MSG_DONTWAIT)
    waiting = [
        threading.Thread(target=polls.poll),
        threading.Thread(target=select.select, args=([out], [], [])),
        threading.Thread(target=socket.send_fds, args=(sends, [b"x"], [out])),
    ]
    for thread in waiting:
        thread.start()
    most = memory_in_use._PIPE_BYTES * (40 + out + 1 + 253 - 30)
    monkeypatch.setattr(memory_in_use, "_FREE_WAITED", 30)
    while memory_in_use._waiting_bytes([os.getpid()]) != most:
        time.sleep(0.01)
    os.write(into, b"x")
    while waiting[2].is_alive():
        with contextlib.suppress(BlockingIOError):
            takes.recv(65536, socket.MSG_DONTWAIT)
    for thread in waiting:
        thread.join()
    assert memory_in_use._waiting_bytes([os.getpid()]) == 0
    for end in (sends, takes):
        end.close()
    os.close(into)


WITHOUT_FIRST_THREAD = f"""
import _thread, ctypes, sys, time
def follow():
    time.sleep(0.02 if sys.argv[1] == "many" else 600)
    _thread.start_new_thread(follow, ())
_thread.start_new_thread(follow, ())
ctypes.CDLL(None).syscall({CALLS["exit"][platform.machine() == "aarch64"]}, 0)
"""


@pytest.mark.parametrize("threads", ["one", "many"])
def test_a_process_without_a_first_thread_that_goes_on_to_start_others_hides_what_it_holds(threads):
    room = memory_in_use.RoomMemory(os.getpid())
    with subprocess.Popen([sys.executable, "-c", WITHOUT_FIRST_THREAD, threads]) as process:
        while memory_in_use._has_program(f"/proc/{process.pid}"):
            assert not room._hides_in_threads([process.pid])
        if threads == "many":
            while not room._hides_in_threads([process.pid]):
                time.sleep(0.01)
        assert room._hides_in_threads([process.pid]) is False or threads == "many"
        process.kill()


def test_the_memory_of_a_child_of_vfork_is_its_parents():
    own, other = f"/proc/self/task/{os.getpid()}", "/proc/1"
    assert memory_in_use._first_of_each_memory([own, f"/proc/{os.getpid()}", other]) == [True, False, True]


def test_lines_with_long_paths_count_as_several_and_nobody_counts_beyond_what_is_enough(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(40 * ("x" * 99 + "\n"))
    assert memory_in_use._lines(str(maps), 1000) == 40
    maps.write_text(16 * ("x" * 16383 + "\n"))
    assert memory_in_use._lines(str(maps), 10_000) == 16 * 64
    assert 5 <= memory_in_use._lines(str(maps), 5) < 16 * 64
    assert MIB < memory_in_use._area_bytes([str(tmp_path)] * 1000, MIB) < 32 * MIB


def test_a_few_locks_are_free_and_each_further_one_is_dear(monkeypatch, tmp_path):
    lines = [f"{n}: POSIX ADVISORY WRITE {7 if n < 300 else 8} 08:01:1 0 EOF\n" for n in range(400)]
    (tmp_path / "locks").write_text("".join(lines))
    monkeypatch.setattr(memory_in_use, "open", lambda path: (tmp_path / "locks").open(), raising=False)
    assert [memory_in_use._lock_bytes(pids) for pids in ([7], [8], [7, 8], [9])] == [44 * MIB, 0, 144 * MIB, 0]


def test_this_process_holds_more_than_nothing_and_less_than_a_terabyte():
    own = [os.getpid()]
    assert memory_in_use.uses_more_than(own, 0) and memory_in_use.uses_more_than(own, MIB)
    assert not memory_in_use.uses_more_than(own, 2**40) and not memory_in_use.uses_more_than([], 0)


def test_shared_pages_count_once_and_page_tables_for_each(monkeypatch):
    """Two processes that share 60 of their 100 kB each: a walk over all pages says so."""
    known = {
        "/proc/1/status": {"VmPTE:": 5, "RssAnon:": 100}, "/proc/2/status": {"VmPTE:": 6, "RssAnon:": 100},
        "/proc/1/smaps_rollup": {"Pss_Anon:": 70}, "/proc/2/smaps_rollup": {"Pss_Anon:": 70, "SwapPss:": 1},
    }  # fmt: skip
    walked = []

    def fields(path, names):
        walked.extend([path] if "smaps" in path else [])
        return {name: value for name, value in known[path].items() if name in names}

    monkeypatch.setattr(memory_in_use, "_fields_kb", fields)
    monkeypatch.setattr(memory_in_use, "_view", lambda pid: f"/proc/{pid}")
    exact, most = 70 + 70 + 1 + 5 + 6, 211 * 1024 + 2 * 2 * memory_in_use._UNTOLD_BYTES  # of pages, and of swap
    assert not memory_in_use.uses_more_than([1, 2], most, ("Anon",)) and not walked  # the upper bound is enough
    assert not memory_in_use.uses_more_than([1, 2], most - 1, ("Anon",)) and len(walked) == 2
    assert memory_in_use.uses_more_than([1, 2], exact * 1024 - 1, ("Anon",)) and len(walked) == 4
    assert not memory_in_use.uses_more_than([1, 2], exact * 1024, ("Anon",))


def test_a_room_holds_its_processes_its_scratch_files_its_sockets_and_what_is_counted_now_and_then(monkeypatch):
    held = {"_area_bytes": 1, "_file_bytes": 8, "_waiting_bytes": 12, "_lock_bytes": 300}
    for counter in held:
        monkeypatch.setattr(memory_in_use, counter, lambda *of, name=counter: held[name])
    monkeypatch.setattr(memory_in_use, "_members", lambda init: [init, 8, 9])
    monkeypatch.setattr(memory_in_use, "_hides_any", lambda proc: hidden)
    monkeypatch.setattr(memory_in_use, "sockets_in_use", lambda: 2)
    monkeypatch.setattr(memory_in_use.time, "monotonic", lambda: clock[-1])
    asked = []
    monkeypatch.setattr(memory_in_use, "uses_more_than", lambda *given: asked.append(given) or True)
    clock, room, hidden = [100.0], memory_in_use.RoomMemory(7), False
    room._socket_bytes, room._scratch_bytes = 4000, lambda: 50_000
    room._hides_in_threads = lambda pids: False
    assert room.programs() == [8, 9]
    for now, area in ((100.0, 1), (100.4, 5), (100.6, 6)):
        clock.append(now)
        held["_area_bytes"] = area
        assert room.exceeds(10**6)
    left = 10**6 - 320 - 2 * 4000 - 50_000
    assert asked == [([7, 8, 9], left - area, ("Anon",)) for area in (1, 1, 6)]  # files have no pages of their own
    hidden = True
    assert room.exceeds(10**9) and len(asked) == 3  # what nobody can look into is too much without a count
