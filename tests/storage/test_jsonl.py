"""Lines of JSON: which are whole, which are left out, and in which words."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from full_disk import room_for

from coachrl.errors import ConfigError
from coachrl.storage import jsonl
from coachrl.storage.jsonl import alone_with, drop_torn_line, json_line, numbered_lines, read_jsonl, readable_jsonl


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.jsonl"


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


def test_a_line_that_another_process_is_writing_is_not_cut(path):
    with path.open("ab", buffering=0) as other:
        with alone_with(other.fileno()):
            other.write(b'{"a": 1}\n{"a": ')
            cutting = threading.Thread(target=drop_torn_line, args=(path,), daemon=True)
            cutting.start()
            cutting.join(0.3)
            other.write(b"2}\n")
        cutting.join(60)
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": 2}]


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
