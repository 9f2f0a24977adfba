"""A memory cgroup for each program, against a tree of folders that looks like the kernel's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import cgroups, checks, make_sandbox
from coachrl.sandbox.base import limits_of
from coachrl.sandbox.cgroups import Cgroups
from coachrl.sandbox.inside import memory_in_use
from coachrl.sandbox.inside.memory_in_use import kernel_oom_kills

LIMITS = limits_of(SandboxConfig(memory_mb=100, disk_mb=28))
RECORDS = """
import mmap, os, time
for _ in range(15):
    os.mkdir('\\n' * 255); os.chdir('\\n' * 255)
open('f', 'w').write('x')
held = [mmap.mmap(os.open('f', os.O_RDONLY), 1, prot=mmap.PROT_READ)]
for _ in range(20):
    if os.fork() == 0:
        break
try:
    while True:
        held.append(os.open('/proc/self/maps', os.O_RDONLY))
        while os.read(held[-1], 1 << 16): pass
except OSError: pass
time.sleep(4)
"""
LARGE_PAGES_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE_PAGES = """
import ctypes, mmap
def large():
    lines = open('/proc/self/smaps_rollup').read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith('AnonHugePages:'))
before = large()
ctypes.CDLL(None).prctl(41, 0, 0, 0, 0)
area = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(14)
area.write(bytes(8 << 20))
print(large() > before)
"""
FILES = ("cgroup.procs", "cgroup.subtree_control", "memory.events", "memory.max", "memory.oom.group")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`tree/slice` may have children with limits on memory, and this process is in `tree/slice/shell`."""
    root = tmp_path / "tree"
    (root / "slice" / "shell").mkdir(parents=True)
    for folder, controllers in ((root, "cpu memory"), (root / "slice", "memory"), (root / "slice" / "shell", "")):
        (folder / "cgroup.subtree_control").write_text(controllers)
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/slice/shell\n")
    make = type(root).mkdir

    def mkdir(folder, *arguments, **named):  # the kernel fills a cgroup as it makes it
        make(folder, *arguments, **named)
        for name in FILES:
            (folder / name).write_text("oom 3\noom_kill 2\n" if name == "memory.events" else "")

    def rmdir(folder):  # … and removes it with its files
        for path in [folder / name for name in FILES]:
            path.unlink(missing_ok=True)
        os.rmdir(folder)  # noqa: PTH106

    monkeypatch.setattr(type(root), "mkdir", mkdir)
    monkeypatch.setattr(type(root), "rmdir", rmdir)
    return root


def made(tree):
    return Cgroups.make(2, LIMITS, 50, tree, tree.parent / "own")


def test_a_cgroup_is_made_beside_the_own_one_and_holds_all_programs_together(tree):
    cgroups = made(tree)
    [folder] = (tree / "slice").glob("coachrl-*")
    assert (folder / "cgroup.subtree_control").read_text() == "+memory"
    assert int((folder / "memory.max").read_text()) == (2 * 128 + 50) << 20, "no program can make it end another"
    with cgroups.program(LIMITS) as (procs, events):
        [program] = folder.glob("program-*")
        assert int((program / "memory.max").read_text()) == 128 << 20
        assert (program / "memory.oom.group").read_text() == "1"
        os.write(procs, b"0")
        assert (program / "cgroup.procs").read_text() == "0"
        assert kernel_oom_kills(events) == 2
    assert list(folder.glob("program-*")) == []
    cgroups.close()
    assert [path.name for path in (tree / "slice").iterdir() if path.is_dir()] == ["shell"]


def test_what_killed_processes_left_goes_and_what_others_use_stays(tree):
    used = made(tree)
    left = tree / "slice" / "coachrl-1-1"
    (left / "program-7").mkdir(parents=True)
    new = made(tree)
    assert sorted((tree / "slice").glob("coachrl-*")) == sorted((used.folder, new.folder))
    used.close()
    (tree / "slice" / f"coachrl-{os.getpid()}-{next(cgroups._NUMBERS) + 1}").mkdir()  # another container's process
    other = made(tree)
    assert other.folder.exists() and other.folder != new.folder
    new.close()
    other.close()


def test_programs_that_are_just_ending_are_waited_for(tree, monkeypatch):
    held = made(tree)
    (held.folder / "program-7").mkdir()
    remove, busy = Cgroups._remove, [0, 0, 0]
    monkeypatch.setattr(Cgroups, "_remove", lambda self, folder: busy.pop() if busy else remove(self, folder))
    held.close()
    assert not held.folder.exists()


def test_a_cgroup_whose_program_was_just_ending_goes_with_the_next_program(tree, monkeypatch):
    def refuse(folder):
        raise OSError("Device or resource busy")

    cgroups = made(tree)
    with monkeypatch.context() as busy:
        busy.setattr(type(tree), "rmdir", refuse)
        with cgroups.program(LIMITS):
            pass
    [left] = cgroups.folder.glob("program-*")
    with cgroups.program(LIMITS):
        assert not left.exists()
    cgroups.close()


def test_without_a_delegated_tree_there_is_none(tree, tmp_path, monkeypatch):
    def refuse(folder, size_mb):
        raise PermissionError

    (tree / "slice" / "cgroup.subtree_control").write_text("cpu pids")
    (tree / "cgroup.subtree_control").write_text("cpu")
    assert made(tree) is None
    (tree / "slice" / "cgroup.subtree_control").write_text("memory")
    monkeypatch.setattr(cgroups, "_bound", refuse)
    assert made(tree) is None
    assert not list(tree.rglob("coachrl-*"))
    assert Cgroups.make(2, LIMITS, 50, tmp_path / "none", tree.parent / "own") is None
    assert Cgroups.make(2, LIMITS, 50, tree, tmp_path / "none") is None


def test_a_cgroup_that_cannot_be_made_any_more_is_told(tree):
    cgroups = made(tree)
    [folder] = (tree / "slice").glob("coachrl-*")
    folder.rmdir()
    with pytest.raises(SandboxError, match="no memory cgroup could be made for the program"), cgroups.program(LIMITS):
        pass


@pytest.mark.asyncio(loop_scope="session")
async def test_programs_enter_their_cgroup_before_their_code_begins(local, tree):
    sandbox = make_sandbox(SandboxConfig(memory_mb=256, concurrency=1))
    await sandbox.start()
    entered = []
    remove = Cgroups._remove
    sandbox.cgroups = made(tree)
    sandbox.cgroups._remove = lambda folder: (
        entered.append((folder / "cgroup.procs").read_text()) if folder.name.startswith("program") else None,
        remove(sandbox.cgroups, folder),
    )
    cell = await sandbox.open({})
    for code in ("print(1)", "import numpy; print(1)"):
        assert (await cell.run(code)).stdout == "1\n"
    assert (await cell.run("import os; os._exit(9)")).state == "error"  # the kernel's count did not grow meanwhile
    assert entered == ["0", "0", "0"]
    await cell.copy()  # what agents wrote must not be charged to coachrl when it is copied
    assert entered == ["0", "0", "0", "0"]
    await sandbox.close()
    assert not list((tree / "slice").glob("coachrl-*"))


@pytest.mark.asyncio(loop_scope="session")
async def test_cgroups_that_no_program_can_enter_are_not_used(local, tree, monkeypatch):
    @contextlib.contextmanager
    def program(*_):
        with Path(os.devnull).open("rb") as none:
            yield none.fileno(), none.fileno()

    make = Cgroups.make
    monkeypatch.setattr(Cgroups, "make", lambda *sizes: make(*sizes, tree, tree.parent / "own"))
    monkeypatch.setattr(Cgroups, "program", program)
    sandbox = make_sandbox(SandboxConfig(memory_mb=256, concurrency=1), [])
    assert (await (await sandbox.open({})).run("print(1)")).stdout == "1\n"
    [finding] = [found for found in await sandbox.check() if found.name == checks.CGROUPS]
    assert finding.optional and not finding.ok and finding.remedy and "no program can enter one" in finding.detail
    await sandbox.close()
    assert not list((tree / "slice").glob("coachrl-*"))


@pytest.mark.asyncio(loop_scope="session")
async def test_the_kernel_holds_a_program_where_cgroups_can_be_made(local):
    sandbox = make_sandbox(SandboxConfig(memory_mb=256, disk_mb=8, concurrency=1), [])
    cell = await sandbox.open({})
    if sandbox.cgroups is None:
        await sandbox.close()
        pytest.skip("no memory cgroup can be made here, see coachrl doctor")
    folder = sandbox.cgroups.folder
    running = asyncio.create_task(cell.run("import time; print(open('/proc/self/cgroup').read()); time.sleep(2)"))
    while not (held := [procs for procs in folder.glob("program-*/cgroup.procs") if procs.read_text()]):
        await asyncio.sleep(0.01)
    assert [int((procs.parent / "memory.max").read_text()) for procs in held] == [264 << 20]
    assert "0::/\n" in (await running).stdout, "a program is told nothing of cgroups"
    assert [path for path in folder.iterdir() if path.is_dir()] == []
    await sandbox.close()
    assert not folder.exists()


def test_programs_at_once_fit_into_the_machine(monkeypatch):
    monkeypatch.setattr(cgroups, "machine_mb", lambda: 16384)
    monkeypatch.setattr(cgroups, "machine_cpus", lambda: 64)
    assert [cgroups.usual_concurrency(size) for size in (64, 2048, 100_000)] == [64, 4, 1]
    assert [cgroups.usual_concurrency(size, sharers=4) for size in (64, 2048, 100_000)] == [32, 1, 1]


@pytest.mark.parametrize("depth", [0, 20], ids=["near", "too deep for a path"])
def test_pipes_with_a_name_count_as_those_without(tmp_path, depth):
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 250, dir_fd=folder)
        above, folder = folder, os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(above)
    before = memory_in_use._file_bytes(["/proc/self"])
    opened = []
    for _ in range(3):  # of one name, one after the other
        os.mkfifo("pipe", dir_fd=folder)
        opened += [os.open("pipe", os.O_RDWR, dir_fd=folder) for _ in range(2)]
        os.unlink("pipe", dir_fd=folder)
    assert memory_in_use._file_bytes(["/proc/self"]) == before + 3 * memory_in_use._PIPE_BYTES
    for number in (*opened, folder):
        os.close(number)
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def test_locks_count_behind_thousands_of_others(tmp_path):
    place = min(os.sched_getaffinity(0))  # the newest of a processor come first
    take = "import fcntl, os, sys\nos.sched_setaffinity(0, [int(sys.argv[1])])\n"
    take += "files = [open(name, 'w') for name in sys.argv[3:]]\n"
    take += "for n in range(int(sys.argv[2])):\n    for file in files: fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * n)\n"
    take += "print(flush=True)\nsys.stdin.read()"
    others = [str(tmp_path / f"{number}") for number in range(70)]
    with contextlib.ExitStack() as stack:
        pids = []
        for arguments in (["300", str(tmp_path / "own")], ["60", *others]):
            command = [sys.executable, "-c", take, str(place), *arguments]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            pids.append(process.pid)
        assert memory_in_use._lock_bytes(pids[:1]) == 44 * memory_in_use._LOCK_BYTES


@pytest.mark.asyncio(loop_scope="session")
async def test_what_the_kernel_keeps_of_the_records_of_proc_counts(local):
    sandbox = make_sandbox(SandboxConfig(memory_mb=128, disk_mb=8, max_processes=32, concurrency=1))
    cell = await sandbox.open({})
    assert (await cell.run(RECORDS)).state == "oom"
    await sandbox.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_no_page_is_larger_than_what_shows_of_it(cell, local):
    if local.cgroups is not None:
        pytest.skip("the kernel counts large pages as a whole for the cgroup of a program")
    if "[never]" in LARGE_PAGES_SETTING.read_text():
        pytest.skip("this machine's kernel makes no large pages")
    assert (await cell.run(LARGE_PAGES)).stdout == "False\n"
