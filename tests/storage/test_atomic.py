"""Files and folders that appear whole or not at all, and what may be removed beside them."""

import errno
import os
from pathlib import Path

import pytest

from coachrl.errors import ConfigError
from coachrl.storage import atomic
from coachrl.storage.atomic import check_place, drop_asides, drop_left_of, folder_aside, name_new, write_aside


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.jsonl"


@pytest.fixture
def alive(monkeypatch):
    """The numbers of the processes that run, beside this one."""
    running = {7}
    monkeypatch.setattr(atomic, "process_runs", lambda pid: pid in running or pid == os.getpid())
    return running


def test_of_what_was_written_aside_that_of_this_process_and_of_ended_ones_goes(tmp_path, alive):
    own, ended, running = (tmp_path / f".x.jsonl.0123abcd.{pid}" for pid in (os.getpid(), 8, 7))
    folder, named, others = tmp_path / ".folder.0123abcd.8", tmp_path / ".x.jsonl", tmp_path / ".backup.8"
    for file in (own, ended, running, named, others):
        file.touch()
    folder.mkdir()
    drop_asides(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([running, folder, named, others])
    drop_asides(tmp_path / "gone")


def test_what_was_written_aside_where_this_user_may_not_look_stays(tmp_path):
    left = tmp_path / ".x.jsonl.0123abcd.8"
    left.touch()
    tmp_path.chmod(0o311)
    try:
        if os.getuid() == 0:
            os.seteuid(65534)
        drop_asides(tmp_path)
    finally:
        os.seteuid(os.getuid())
        tmp_path.chmod(0o700)
    assert left.exists()


def test_of_a_folder_that_was_made_aside_what_ended_processes_left_goes(tmp_path, alive):
    kept = [".made.0123abcd.7", ".made.0123abcd", ".other.0123abcd.8", "made"]
    for name in (*kept, ".made.0123abcd.8", ".made.01234567.9"):
        (tmp_path / name / "inside").mkdir(parents=True)
    (tmp_path / ".made.89abcdef.8").symlink_to("made")
    (tmp_path / ".made.89abcdee.8").touch()
    drop_left_of(tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept) and (tmp_path / "made" / "inside").is_dir()


def test_a_folder_that_the_disk_takes_only_in_part_does_not_get_its_name(tmp_path, monkeypatch):
    def refused(descriptor):  # as network file systems do, which have taken all writes before
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("weights"):  # noqa: PTH115
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", refused)
    refusal = pytest.raises(OSError, match=r"Disk quota exceeded: '.*/policy/weights'")
    with refusal, folder_aside(tmp_path / "model") as aside:
        (aside / "policy").mkdir()
        (aside / "policy" / "weights").write_bytes(bytes(8))
    assert not list(tmp_path.iterdir())


def test_a_place_for_a_file_has_a_folder_above_it_and_none_in_it(tmp_path):
    check_place(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"^--out .*/no/file: there is no folder .*/no$"):
        check_place(tmp_path / "no" / "file", "--out ")
    with pytest.raises(ConfigError, match=r"^.* is a folder: name a file$"):
        check_place(tmp_path)


def test_a_file_that_cannot_be_written_aside_is_named_and_what_it_held_stays(path, monkeypatch):
    write_aside(path, "before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/x\.jsonl'$"):
        write_aside(path, "after")
    assert [each.name for each in path.parent.iterdir()] == ["x.jsonl"] and path.read_text() == "before"


def test_of_a_disk_that_may_not_be_written_to_the_file_is_named_too(path, monkeypatch):
    def refused(place, *_, **__):  # also to remove what is not there
        raise OSError(errno.EROFS, "Read-only file system", str(place))

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(OSError, match=r"Read-only file system: .*/x\.jsonl'$"):
        write_aside(path, "text")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_takes_nobodys_name(path, monkeypatch, has_links):
    def none(*_):
        raise PermissionError(1, "Operation not permitted")  # as on a memory stick

    if not has_links:
        monkeypatch.setattr(os, "link", none)
    write_aside(path, "first", is_new=True)
    with pytest.raises(FileExistsError):
        write_aside(path, "second", is_new=True)
    aside, link = path.with_name("aside"), path.with_name("link")
    aside.touch()
    link.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        name_new(aside, link)
    assert sorted(each.name for each in path.parent.iterdir()) == ["aside", "link", "x.jsonl"]
    assert path.read_text() == "first"
