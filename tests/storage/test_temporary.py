"""Temporary folders: removed when they are done with, and by the next process where that one was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coachrl.storage.temporary import LockedFolder, drop_left

PREFIX = "coachrl-test-"
ENDS = """
import os, sys
from pathlib import Path
from coachrl.storage.temporary import LockedFolder

folder = LockedFolder(sys.argv[1], sys.argv[2])
Path(folder.path, "file").touch()
print(folder.path, flush=True)
exec(sys.argv[3])
"""


def made(parent, ends="os._exit(1)"):
    """The folder of a process that has ended as `ends` says, and what it printed besides."""
    done = subprocess.run([sys.executable, "-c", ENDS, PREFIX, parent, ends], capture_output=True, text=True)
    folder, *said = done.stdout.splitlines()
    return Path(folder), said


def test_a_folder_removes_itself_whatever_is_in_it(tmp_path):
    with pytest.raises(ZeroDivisionError), LockedFolder(PREFIX, str(tmp_path)) as folder:
        inner = Path(folder.path, "locked", "inner")
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.parent.chmod(0)
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    folder.remove()  # it is no error to say it again


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(tmp_path):
    (left, _), other = made(tmp_path), tmp_path / f"{PREFIX}file"
    other.touch()
    with LockedFolder(PREFIX, str(tmp_path)) as in_use:
        assert left.is_dir()
        drop_left(PREFIX, str(tmp_path))
        assert {path.name for path in tmp_path.iterdir()} == {Path(in_use.path).name, other.name}


def test_what_is_somebody_elses_stays(tmp_path, monkeypatch):
    left, _ = made(tmp_path)
    (tmp_path / "theirs").mkdir()
    (link := tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
    drop_left(PREFIX, str(tmp_path))
    assert left.is_dir() and link.is_symlink()
    monkeypatch.undo()
    drop_left(PREFIX, str(tmp_path))
    assert not left.exists() and link.is_dir()


def test_a_program_that_ends_takes_its_folders_with_it_and_one_that_it_forked_does_not(tmp_path):
    folder, _ = made(tmp_path, "sys.exit()")
    assert not folder.exists()
    forks = "if os.fork(): os.wait(); print(Path(folder.path).is_dir(), flush=True); os._exit(0)"
    assert made(tmp_path, forks)[1] == ["True"], "the forked process went to its own end"
