"""Runs that several users of one machine share, through a group's folder, or may read alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat

import pytest
from users import ANN, BOB, as_user, shared_folder

from coachrl.coach.clients.cache import ReplyCache
from coachrl.coach.clients.ledger import Ledger
from coachrl.errors import ConfigError
from coachrl.resources import cache_folder
from coachrl.runs import checkpoints
from coachrl.runs.folder import LOCK, Run
from coachrl.runs.labels import adding_labels
from coachrl.runs.locks import locked


@pytest.fixture
def folder():
    with shared_folder() as folder:
        yield folder


def hold(lock):
    with locked(lock, "training"):
        return json.loads(lock.read_text())["pid"]


def leave(lock):
    """As a process that is killed leaves it."""
    with locked(lock, "training"):
        os._exit(1)


def killed_over(user, lock):
    with pytest.raises(Exception, match="terminated abruptly"):
        as_user(user, leave, lock)


@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_a_lock_that_another_user_was_killed_over_is_taken(folder, mode):
    killed_over(ANN, folder / LOCK)
    (folder / LOCK).chmod(mode)
    assert as_user(BOB, hold, folder / LOCK) and not (folder / LOCK).exists()


def test_a_lock_that_another_user_holds_names_that_one(folder):
    with locked(folder / LOCK, "training"):
        (folder / LOCK).chmod(0o644)
        with pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} of .*; wait until it ends"):
            as_user(BOB, hold, folder / LOCK)
        assert (folder / LOCK).exists()


def test_a_lock_that_another_user_left_where_only_that_one_may_remove_it_is_named(folder):
    killed_over(ANN, folder / LOCK)
    folder.chmod(0o3775)
    with pytest.raises(ConfigError, match="was left by another user: have it removed by that one"):
        as_user(BOB, hold, folder / LOCK)


def hold_over_nfs(lock):
    """Where a lock for writing is given to those alone who may write."""
    flock = fcntl.flock

    def of_nfs(descriptor, how):
        if how & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    fcntl.flock = of_nfs
    return hold(lock)


def test_a_lock_of_another_user_on_nfs_is_named(folder):
    killed_over(ANN, folder / LOCK)
    (folder / LOCK).chmod(0o644)
    with pytest.raises(ConfigError, match=r"may be in use by process .*another user's, and cannot be locked by this"):
        as_user(BOB, hold_over_nfs, folder / LOCK)


def test_a_run_that_may_be_read_alone_is_not_said_to_be_in_use_by_who_is_gone(folder):
    killed_over(ANN, folder / LOCK)
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match=r"cannot be written: Permission denied$"):
        as_user(BOB, hold, folder / LOCK)


def make_files(folder):
    (folder / "coach").mkdir()
    ReplyCache(folder / "coach" / "cache.sqlite").close()
    ledger = Ledger(folder / "coach" / "ledger.jsonl")
    ledger.resumed(1)
    ledger.close()
    with adding_labels(Run(folder)) as add, locked(folder / LOCK, "training"):
        add([])
        return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_all_files_that_are_appended_to_follow_the_umask(folder, umask, mode):
    modes = as_user(ANN, make_files, folder, umask=umask)
    assert len(modes) == 4 and set(modes.values()) == {mode}


def leave_checkpoints(folder):
    for name in ("step-000001", "step-000002", ".step-000003.99999999"):
        (folder / "checkpoints" / name / "policy").mkdir(parents=True)
        (folder / "checkpoints" / name / "policy" / "model").write_bytes(b"weights")


def go_on(folder):
    run = Run(folder)
    run.drop_left_checkpoints()
    with run.checkpoint(4, keep=1) as new:
        checkpoints.seal(new, 4, {})
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_another_user_left_among_the_checkpoints_ends_nothing_and_what_is_ones_own_goes(folder, caplog):
    (folder / "checkpoints").mkdir(mode=0o777)
    (folder / "checkpoints").chmod(0o777)
    as_user(ANN, leave_checkpoints, folder)
    (folder / "checkpoints" / "step-000000" / "policy").mkdir(parents=True)
    os.chown(folder / "checkpoints" / "step-000000", BOB, BOB)
    os.chown(folder / "checkpoints" / "step-000000" / "policy", BOB, BOB)
    left = as_user(BOB, go_on, folder)
    assert "step-000004" in left and not [name for name in left if "step-000000" in name]


def test_a_user_without_a_home_is_told_what_to_set(folder):
    with pytest.raises(ConfigError, match=f"user {BOB} has no home: set HOME, or COACHRL_CACHE to a folder"):
        as_user(BOB, cache_folder)
