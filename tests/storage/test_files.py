import gzip
import socket
from pathlib import Path

import pytest

from coachrl.errors import ConfigError, TaskError
from coachrl.storage import files
from coachrl.storage.files import (
    _size_of,
    bounded_file,
    most_bytes,
    named_path,
    parquet_rows,
    read_text,
    regular_file,
    usable_path,
    whole_text,
)


def test_a_file_in_another_encoding_is_told_to_be_saved_as_utf_8(tmp_path):
    (path := tmp_path / "c.yaml").write_bytes("name: Grüße".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"^f: not UTF-8 text: .*; save it as UTF-8$"):
        read_text(path, "f")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.md", b"\xff", "not UTF-8 text: "),
        ("a.gz", gzip.compress(b"a" * 99, mtime=0)[:-9], "not a whole gzip file: "),
        ("a.gz", b"plain", "not a whole gzip file: "),
        ("b.md", None, "No such file or directory$"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, name, data, reason):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError, match=f"^f: {reason}"):
        read_text(tmp_path / name, "f", TaskError)


def test_a_path_is_as_long_as_file_systems_take():
    assert usable_path(Path("a" * 255 + "/" + "é" * 127)) and usable_path(Path("/".join(["a" * 99] * 40 + ["b" * 95])))
    for path in ("a" * 256, "é" * 128, "/".join(["a" * 99] * 40 + ["b" * 96])):
        with pytest.raises(ValueError, match=r"at most 4095 bytes, and 255 in each name; this one has (256|4096)$"):
            usable_path(Path(path))
    with pytest.raises(ValueError, match="NUL"):
        usable_path(Path("a\0b"))
    with pytest.raises(TaskError, match=r"^file a\\ud800: a path cannot hold half a character$"):
        named_path(Path("a\ud800"), "file", TaskError)


def test_only_what_ends_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        for path, kind in (("s", "a socket"), ("/dev/null", "a device"), ("/proc/self/status", "a view of the kernel")):
            with pytest.raises(ValueError, match=f"it is {kind}"):
                regular_file(Path(path))
    (tmp_path / "plain").write_text("x")
    assert regular_file(Path("plain")) == Path("plain") and regular_file(tmp_path) == tmp_path


def test_the_limit_on_a_file_is_in_mib_and_some_may_be_larger(tmp_path, monkeypatch):
    monkeypatch.delenv("COACHRL_MAX_FILE_MB", raising=False)
    assert most_bytes() == 1 << 30
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    path = tmp_path / "a"
    for size, times in ((1 << 20, 1), (2 << 20, 2)):
        path.write_bytes(bytes(size))
        assert bounded_file(path, times) == path
        path.write_bytes(bytes(size + 1))
        with pytest.raises(ValueError, match=f"^it has {size + 1:,} bytes, more than is read of a file of 1 MiB; "):
            bounded_file(path, times)


def test_a_packed_file_unpacks_to_what_is_usual_or_to_so_many_times_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_USUAL_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(files, "_MOST_TIMES", 20)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * 1000))
    assert whole_text(path) == "a" * 1000
    path.write_bytes(gzip.compress(b"a" * 1001))
    with pytest.raises(ValueError, match=r"^it unpacks to more than 1,000 bytes; where it is meant to"):
        whole_text(path)
    plain = bytes(range(128)) * 20  # of which gzip makes some 150 bytes
    path.write_bytes(gzip.compress(plain))
    assert 1000 < len(plain) < 20 * path.stat().st_size and whole_text(path).encode() == plain


def test_a_packed_file_unpacks_to_no_more_than_others_may_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * (1 << 20)))
    assert len(whole_text(path)) == 1 << 20
    path.write_bytes(gzip.compress(b"a" * ((1 << 20) + 1)))
    with pytest.raises(ValueError, match=r"^it unpacks to more than 1,048,576 bytes, more than is read of a file"):
        whole_text(path)


def test_plain_data_takes_memory_for_each_value_and_its_place():
    assert _size_of("é") == 33 and _size_of(b"abc") == 35 and _size_of(7) == _size_of(None) == 32
    assert _size_of([1, "xy"]) == 64 + 8 + 32 + 8 + 34
    assert _size_of({"name": [], "b": {"c": 1}}) == 64 + 16 + 64 + 16 + (64 + 16 + 32)


def test_rows_of_parquet_are_counted_while_they_are_read(tmp_path, monkeypatch):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": ["x" * 8] * 200}), path)
    a_row = 64 + 16 + 32 + 8
    monkeypatch.setattr(files, "_MOST_TIMES", 0)
    monkeypatch.setattr(files, "_USUAL_UNPACKED_BYTES", 200 * a_row)
    assert list(parquet_rows(path)) == [{"a": "x" * 8}] * 200
    monkeypatch.setattr(files, "_USUAL_UNPACKED_BYTES", 200 * a_row - 1)
    with pytest.raises(ValueError, match=rf"^it unpacks to more than {200 * a_row - 1:,} bytes$"):
        list(parquet_rows(path))
    monkeypatch.setattr(files, "_USUAL_UNPACKED_BYTES", 1)
    with pytest.raises(ValueError, match=r"^it unpacks to \d+ bytes and more; at most 1 are held$"):
        list(parquet_rows(path))
