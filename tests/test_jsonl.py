"""Lines of JSON: which are whole, which are left out and in which words, and what may be removed beside a file."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from full_disk import room_for

from coachrl import jsonl
from coachrl.errors import ConfigError
from coachrl.jsonl import (
    check_place,
    drop_asides,
    drop_left_of,
    drop_torn_line,
    folder_aside,
    json_line,
    name_new,
    numbered_lines,
    read_jsonl,
    readable_jsonl,
    write_aside,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.jsonl"


@pytest.fixture
def alive(monkeypatch):
    """The numbers of the processes that run, beside this one."""
    running = {7}
    monkeypatch.setattr(jsonl, "process_runs", lambda pid: pid in running or pid == os.getpid())
    return running


def test_what_python_has_and_json_has_not_is_written_as_plain_data():
    plain = {"path": Path("a/b"), "count": np.int64(3), "share": np.float64(0.5), "none": np.float32("inf")}
    assert json_line(plain) == '{"path": "a/b", "count": 3, "share": 0.5, "none": null}\n'
    assert json_line({"text": "déjà \ud83d"}) == '{"text": "déjà \\ud83d"}\n'
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        json_line({"a": {1}})


def test_a_line_may_be_as_long_as_a_file_and_no_longer(path, monkeypatch):
    monkeypatch.setattr(jsonl, "most_bytes", lambda: 4)
    path.write_text("abc\n\nabcd")
    assert list(numbered_lines(path)) == [(1, b"abc\n"), (2, b"\n"), (3, b"abcd")]
    path.write_text("a\nabcd\n")
    lines = numbered_lines(path)
    assert next(lines) == (1, b"a\n")
    with pytest.raises(ValueError, match="line 2 has more than 4 bytes"):
        next(lines)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ""),
        ("torn", ""),
        ("a\nb\n", "a\nb\n"),
        ("a\nb\nto", "a\nb\n"),
        ("a\n0123456789", "a\n"),
        ("0123\n56789", "0123\n"),
        ("01234567\n", "01234567\n"),
    ],
)
def test_what_follows_the_last_line_end_is_cut_off_however_far_away_that_is(path, monkeypatch, text, left):
    monkeypatch.setattr(jsonl, "_PIECE_BYTES", 4)
    path.write_text(text)
    drop_torn_line(path)
    assert path.read_text() == left


def test_only_a_last_line_without_its_end_may_be_skipped(path):
    path.write_text('{"a": 1}\n \n{"a": 2}\n{"a"')
    assert list(read_jsonl(path, skip_torn=True)) == [{"a": 1}, {"a": 2}]
    with pytest.raises(ConfigError, match=r"x\.jsonl, line 4: not JSON"):
        list(read_jsonl(path))
    path.write_text('{"a"\n{"a": 1}')
    with pytest.raises(ConfigError, match=r"x\.jsonl, line 1: not JSON"):
        list(read_jsonl(path, skip_torn=True))


def parsed(record):
    return 1 / record["a"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{}"], "line 2 is left out: not as coachrl writes it: it has no 'a'"),
        (['{"a": 0}'], "line 2 is left out: not as coachrl writes it: division by zero"),
        (["3", "{}"], "lines 2, 3 (2 of 4) are left out: not as coachrl writes it: 'int' object is not subscriptable"),
        (["{}"] * 5, "lines 2, 3, 4, 5, 6 (5 of 7) are left out: not as coachrl writes it: it has no 'a'"),
        (["{}"] * 6, "lines 2, 3, 4, 5, 6, … (6 of 8) are left out: not as coachrl writes it: it has no 'a'"),
        (["no", "{}"], "lines 2, 3 (2 of 4) are left out: not JSON: Expecting value"),
    ],
)
def test_lines_that_are_left_out_are_told_in_one_sentence_with_the_reason_of_the_first(path, lines, said):
    path.write_text("\n".join(['{"a": 1}', *lines, '{"a": 2}\n']))
    problems = []
    assert list(readable_jsonl(path, parsed, problems)) == [1, 0.5]
    assert problems == [f"x.jsonl: {said}"]


def test_a_last_line_without_its_end_is_read_where_it_is_whole_and_else_cut_short(path):
    problems = []
    path.write_text('{"a": 1}\n{"a": 2}')
    assert list(readable_jsonl(path, parsed, problems)) == [1, 0.5] and not problems
    path.write_text('{"a": 1}\n{"a": 2')
    assert list(readable_jsonl(path, parsed, problems)) == [1] and problems == [
        "x.jsonl: line 2 is left out: cut short"
    ]


def test_a_folder_in_the_place_of_a_file_is_told_and_no_file_is_not(path):
    problems = []
    assert list(readable_jsonl(path, parsed, problems)) == list(read_jsonl(path)) == problems == []
    path.mkdir()
    assert list(readable_jsonl(path, parsed, problems)) == [] and problems[0].startswith("x.jsonl cannot be read: ")
    with pytest.raises(ConfigError, match=r"x\.jsonl: .*"):
        list(read_jsonl(path))


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

    monkeypatch.setattr(jsonl.os, "fsync", full)
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
        monkeypatch.setattr(jsonl.os, "link", none)
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


def test_on_a_full_disk_a_piece_of_a_line_is_cut_from_a_file_that_a_copy_shares(path):
    jsonl.append_jsonl(path, [{"a": 1}])
    path.with_name("copy").hardlink_to(path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="File too large"), room_for(len(before) + 3):
        jsonl.append_jsonl(path, [{"a": 2}])
    assert path.read_bytes() == before and path.samefile(path.with_name("copy"))


def test_appended_lines_are_whole_and_follow_each_other(path):
    jsonl.append_jsonl(path, [{"a": 1}, {"a": 2}])
    jsonl.append_jsonl(path, [{"a": 3}])
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 2, 3]
