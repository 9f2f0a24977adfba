"""Two processes and one run: who holds it is named, and a killed owner holds nothing."""

import asyncio
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from command_line import coachrl, start
from saved_runs import save_run
from tiny_models import write_tiny_model

from coachrl.errors import ConfigError
from coachrl.runs.folder import LOCK, Run
from coachrl.runs.locks import in_use_by, locked

HOLD = """
import multiprocessing, subprocess, sys, time
from pathlib import Path
from coachrl.runs.locks import locked  # as `Run.locked` does, whose module takes seconds to import
with locked(Path(sys.argv[1], "train.lock"), "training"):
    children = [subprocess.Popen(["sleep", "600"])]
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    print(forked.pid, children[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return asyncio.run(save_run(tmp_path_factory.mktemp("saved"), samples_per_task=1))


@pytest.fixture
def run(saved, tmp_path):
    return Run(shutil.copytree(saved.folder, tmp_path / "runs" / "saved"))


@pytest.fixture
def owner(run):
    """A process that holds the run, and has children of both kinds, a fork and another program."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    children = [int(word) for word in process.stdout.readline().split()]
    yield process
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def one_line_of(done):
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize("verb", [["train", "--resume"], ["checkpoints", "prune"]], ids=" ".join)
async def test_a_run_in_use_names_its_owner_and_stays_as_it_is(run, owner, verb):
    (run.folder / "metrics.jsonl").unlink(missing_ok=True)  # as before the first step: an empty run is discarded
    before = sorted(run.folder.rglob("*"))
    line = one_line_of(coachrl(*verb, run.folder, cwd=run.folder.parent))
    assert f"is in use by process {owner.pid} of " in line and f"on {socket.gethostname()}, training since 20" in line
    assert sorted(run.folder.rglob("*")) == before


async def test_a_run_in_use_can_be_read(run, owner):
    for verb in (["report"], ["audit"], ["checkpoints", "list"]):
        done = coachrl(*verb, run.folder, cwd=run.folder.parent)
        assert done.returncode == 0, done.stderr


async def test_a_killed_owner_holds_nothing_though_its_children_live(run, owner):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert json.loads((run.folder / LOCK).read_text())["pid"] == owner.pid
    done = coachrl("checkpoints", "prune", run.folder, cwd=run.folder.parent)
    assert done.returncode == 0 and f"left by process {owner.pid}" in done.stderr
    assert not (run.folder / LOCK).exists()


def test_a_training_that_is_killed_can_be_resumed_and_one_that_goes_on_cannot(tmp_path):
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=4096)
    tasks = ("tasks.train_count=2", "tasks.heldout_count=1", "train.tasks_per_step=1", "pipeline.max_new_tokens=8")
    endless = ("train.steps=100000", "train.checkpoint_every=1")
    first = start("train", "-c", "quickstart", "name=one", f"model={model}", *tasks, *endless, cwd=tmp_path)
    folder, deadline = tmp_path / "runs" / "one", time.monotonic() + 300
    while not list(folder.glob("checkpoints/step-*/trainer.json")):
        assert first.running and time.monotonic() < deadline, first.finish(1).stderr
        time.sleep(0.05)
    line = one_line_of(coachrl("train", "--resume", folder, cwd=tmp_path))
    assert f"in use by process {first.pid} of" in line
    os.kill(first.pid, signal.SIGKILL)
    first.finish()
    second = start("train", "--resume", folder, cwd=tmp_path)
    while json.loads((folder / LOCK).read_text() or "{}").get("pid") != second.pid:
        assert second.running and time.monotonic() < deadline, second.finish(1).stderr
        time.sleep(0.05)
    os.kill(second.pid, signal.SIGKILL)
    second.finish()


@pytest.mark.parametrize(
    ("command", "lock", "doing"),
    [
        (("rescore", "--coach", "rules"), "rescore-rules.lock", "rescoring with rules"),
        (("audit", "--probe", "1"), "audit.lock", "asking a coach for an audit"),
    ],
    ids=["the same rescore", "an audit that asks"],
)
async def test_what_would_ask_twice_for_one_budget_runs_once_at_a_time(run, command, lock, doing):
    command, elsewhere = (*command, run.folder), run.folder.parent
    with locked(run.folder / lock, doing):
        line = one_line_of(coachrl(*command, cwd=elsewhere))
    assert f"in use by process {os.getpid()}" in line and f"{doing} since" in line
    done = coachrl(*command, cwd=elsewhere)
    assert done.returncode == 0 and not list(run.folder.glob("*.lock")), done.stderr


OWNER = {"pid": os.getpid(), "user": "ann", "host": socket.gethostname(), "since": "2026-01-01", "doing": "training"}


def owner_file(path, **changes):
    path.write_text(json.dumps(OWNER | {"pid": os.getpid()} | changes))


def gone_pid():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return process.pid


def test_another_machines_lock_cannot_be_checked_and_says_how_to_go_on(tmp_path):
    owner_file(tmp_path / LOCK, host="elsewhere")
    with pytest.raises(ConfigError, match=r"of ann on elsewhere.*cannot be checked from .*; .* remove .*train\.lock"):
        locked(tmp_path / LOCK, "training").__enter__()
    (tmp_path / LOCK).unlink()
    with locked(tmp_path / LOCK, "training"):
        pass


def test_a_file_system_without_locks_goes_by_the_process(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)  # as some network file systems answer
    owner_file(tmp_path / LOCK, pid=os.getppid())
    with pytest.raises(ConfigError, match=f"is in use by process {os.getppid()} of ann"):
        locked(tmp_path / LOCK, "training").__enter__()
    # A container gives its processes the same numbers each time: an owner of our own number is gone, too.
    for left in (gone_pid(), os.getpid()):
        owner_file(tmp_path / LOCK, pid=left)
        with locked(tmp_path / LOCK, "training"):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
            with pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} "):
                locked(tmp_path / LOCK, "pruning").__enter__()
    assert "has no locks" in caplog.text and "is gone; going on" in caplog.text


ENDLESS = '{"pid": 1e400, "user": "a", "host": "b", "since": "c", "doing": "d"}'


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "\\ud800"}', "\x00\x1b[2J", ENDLESS])
def test_a_lock_file_that_says_nothing_is_taken(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    with locked(tmp_path / LOCK, "training"):
        assert json.loads((tmp_path / LOCK).read_text())["doing"] == "training"


@pytest.mark.parametrize(
    "put",
    [
        lambda lock, precious: lock.symlink_to(precious),
        lambda lock, precious: lock.symlink_to("/dev/null"),
        lambda lock, precious: lock.symlink_to(lock),
        lambda lock, precious: os.mkfifo(lock),
        lambda lock, precious: lock.mkdir(),
    ],
    ids=["link", "link to a device", "link to itself", "pipe", "folder"],
)
def test_what_is_no_lock_is_named_and_not_written_to(tmp_path, put):
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    put(tmp_path / LOCK, precious)
    with pytest.raises(ConfigError, match=r"is a link|something else than a lock|cannot be written: Is a directory"):
        locked(tmp_path / LOCK, "training").__enter__()
    assert precious.read_text() == "years of work" and os.path.lexists(tmp_path / LOCK)


def test_what_has_a_second_name_is_left_to_it_and_a_copy_of_hard_links_gets_a_lock_of_its_own(tmp_path):
    precious, lock = tmp_path / "precious", tmp_path / LOCK
    for text in ("years of work", json.dumps(OWNER | {"pid": gone_pid()})):  # as a killed run left it
        precious.write_text(text)
        lock.hardlink_to(precious)
        with locked(lock, "training"):
            assert precious.read_text() == text
            assert json.loads(lock.read_text())["pid"] == os.getpid()
            with locked(precious, "resuming the other"):
                pass
    with locked(precious, "training"):
        lock.hardlink_to(precious)  # a copy that is made while the run goes on
        with pytest.raises(ConfigError, match="is in use by"):
            locked(lock, "training").__enter__()


async def test_a_read_only_run_says_so_and_who_holds_it(run, owner):
    run.folder.chmod(0o555)
    (run.folder / LOCK).chmod(0o444)
    try:
        line = one_line_of(coachrl("train", "--resume", run.folder, cwd=run.folder.parent, powerless=True))
    finally:
        run.folder.chmod(0o755)
    assert "cannot be written: Permission denied" in line and f"in use by process {owner.pid}" in line


def test_a_second_run_object_of_one_process_is_refused_too(tmp_path):
    (tmp_path / "episodes").mkdir()
    first, second = Run.open(tmp_path), Run.open(tmp_path)
    with first.locked("training"), first.locked("training"), pytest.raises(ConfigError, match="in use by"):
        second.locked("training").__enter__()
    with second.locked("training"):
        pass


FULL = """
import errno, os, sys
from pathlib import Path
from coachrl.cli.main import main

run, words = Path(sys.argv[1]) / "run", sys.argv[2:]
(run / "episodes").mkdir(parents=True)
(run / "checkpoints" / "step-000001").mkdir(parents=True)
(run / "checkpoints" / "step-000001" / "model").write_bytes(bytes(100_000))
fill = os.open(run / "fill", os.O_WRONLY | os.O_CREAT)
try:
    while os.write(fill, bytes(65536)):
        pass
except OSError as error:
    assert error.errno == errno.ENOSPC
sys.argv = ["coachrl", words[0], *words[1:], str(run)]
try:
    main()
finally:
    print(sorted(path.name for path in run.rglob("*")))
"""


@pytest.fixture
def on_a_full_disk(tmp_path):
    """Runs a command line on a run that lies on a disk without any room."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap makes the disk, and is not installed")
    disk = tmp_path / "disk"
    disk.mkdir()
    make = ["bwrap", "--dev-bind", "/", "/", "--size", str(1 << 20), "--tmpfs", str(disk)]
    return lambda *words: subprocess.run(
        [*make, sys.executable, "-c", FULL, str(disk), *words], capture_output=True, text=True
    )


def test_checkpoints_are_pruned_where_the_disk_is_full(on_a_full_disk):
    done = on_a_full_disk("checkpoints", "prune")
    assert done.returncode == 0, done.stderr
    assert "['checkpoints', 'episodes', 'fill']" in done.stdout


def test_what_did_not_fit_on_a_full_disk_is_named_and_not_left_in_half(on_a_full_disk):
    done = on_a_full_disk("report")
    assert done.returncode == 1 and "['checkpoints', 'episodes', 'fill', 'model', 'step-000001']" in done.stdout
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "No space left on device" in line and "report.html" in line


def test_a_lock_that_the_system_refuses_is_named_with_its_reason(tmp_path, monkeypatch):
    def refused(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(ConfigError, match=r"train\.lock cannot be locked: Input/output error$"):
        locked(tmp_path / LOCK, "training").__enter__()


@pytest.mark.parametrize(("call", "said"), [("pread", "read"), ("pwrite", "written")])
def test_a_disk_that_fails_over_a_lock_is_named_with_the_file(tmp_path, monkeypatch, call, said):
    def failed(*arguments):
        raise OSError(errno.EIO, "Input/output error")  # of a descriptor, which names no file

    monkeypatch.setattr(os, call, failed)
    with pytest.raises(ConfigError, match=rf"train\.lock cannot be {said}: Input/output error$"):
        locked(tmp_path / LOCK, "training").__enter__()


def test_a_lock_that_an_owners_child_or_another_container_still_holds_says_that_the_owner_is_not_seen(tmp_path):
    owner_file(tmp_path / LOCK, pid=gone_pid())
    with (tmp_path / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            ConfigError, match=r"is not to be seen here, but .* another container, still holds .*lock; end"
        ):
            locked(tmp_path / LOCK, "training").__enter__()
        owner_file(tmp_path / LOCK, pid=gone_pid(), host="elsewhere")
        with pytest.raises(ConfigError, match=r"is in use by process .* on elsewhere, .*; wait until it ends, or end"):
            locked(tmp_path / LOCK, "training").__enter__()
        (tmp_path / LOCK).write_text("")
        with pytest.raises(ConfigError, match=r"is in use by another process; wait until it ends$"):
            locked(tmp_path / LOCK, "training").__enter__()


def test_a_lock_is_in_use_while_it_is_held_whatever_process_has_its_owners_number(tmp_path):
    """In a container the number of one that was killed is another's after a restart, and one of another container has
    none here."""
    owner_file(tmp_path / LOCK, pid=os.getppid())
    assert in_use_by(tmp_path / LOCK) is None
    owner_file(tmp_path / LOCK, pid=gone_pid())
    with (tmp_path / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert in_use_by(tmp_path / LOCK).user == "ann"


def test_who_only_looks_at_a_lock_keeps_nobody_from_taking_it(tmp_path, monkeypatch):
    def let_go(seconds):
        looking.close()

    owner_file(tmp_path / LOCK, pid=gone_pid())
    looking = (tmp_path / LOCK).open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("coachrl.runs.locks.time.sleep", let_go)
    with locked(tmp_path / LOCK, "training"):
        assert in_use_by(tmp_path / LOCK).pid == os.getpid()
