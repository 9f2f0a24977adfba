"""How a workspace is listed, read and copied, on folders of this machine; and how a report of one is read."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import answers
from coachrl.sandbox.base import limits_of
from coachrl.sandbox.fusion_reports import most_answer_bytes, read_report
from coachrl.sandbox.inside import files, memory_in_use, remote, wire, zygote
from coachrl.sandbox.inside.supervisor import Cancelled, Report
from coachrl.sandbox.packages import _outermost

LIMITS = limits_of(SandboxConfig(disk_mb=1, max_files=3, output_kb=1, timeout_s=5.0))


def test_a_copy_keeps_permissions_times_links_and_files_of_several_names(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "folder").mkdir(parents=True)
    target.mkdir()
    (source / "once").write_bytes(b"x" * 3000)
    (source / "once").chmod(0o640)
    os.link(source / "once", source / "folder" / "twice")
    (source / "link").symlink_to("once")
    os.link(source / "link", source / "folder" / "again", follow_symlinks=False)
    os.mkfifo(source / "pipe")
    for name, times in (
        ("once", (10**9, 2 * 10**9)),
        ("link", (3 * 10**9, 4 * 10**9)),
        ("folder", (5 * 10**9, 6 * 10**9)),
    ):
        os.utime(source / name, ns=times, follow_symlinks=False)
    files.copy(str(source), str(target))
    assert sorted(path.name for path in target.rglob("*")) == ["again", "folder", "link", "once", "twice"]
    assert (target / "once").read_bytes() == b"x" * 3000 and (target / "once").samefile(target / "folder" / "twice")
    assert (target / "link").lstat().st_ino == (target / "folder" / "again").lstat().st_ino
    assert (target / "link").readlink().name == "once" and not (target / "once").samefile(source / "once")
    found = {name: (target / name).lstat() for name in ("once", "link", "folder")}
    assert {name: info.st_mtime_ns for name, info in found.items()} == {
        "once": 2 * 10**9,
        "link": 4 * 10**9,
        "folder": 6 * 10**9,
    }
    assert stat.S_IMODE(found["once"].st_mode) == 0o640


def test_what_is_listed_of_a_workspace(tmp_path):
    (tmp_path / ("x" * 255)).touch()
    (tmp_path / "bell\a").touch()
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "bell\a link").symlink_to("/etc/passwd")
    (tmp_path / "bell\a folder").mkdir()
    deep = tmp_path
    for _ in range(files.MAX_DEPTH - 1):
        deep = deep / "d"
    (deep / "d").mkdir(parents=True)
    (deep / "last").touch()
    (deep / "d" / "beyond").touch()
    found = files.snapshot(str(tmp_path), 10)
    assert sorted(found) == ["d/" * 15 + "last", "x" * 255]
    assert found["x" * 255][1] == 0 and len(files.snapshot(str(tmp_path), 1)) == 1
    folders, links = files.folders_and_links(str(tmp_path), 3)
    assert (folders, links) == (["d", "d/d", "d/d/d"], [("link", "/etc/passwd")])


def test_a_link_that_takes_a_folders_place_meanwhile_leads_nowhere(tmp_path, monkeypatch):
    for folder in ("workspace/a/inner", "elsewhere/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "elsewhere" / "inner" / "secret").touch()
    (tmp_path / "workspace" / "b").touch()

    def count(name):  # as the file beside the folder is listed
        (tmp_path / "workspace" / "a").rename(tmp_path / "moved")
        (tmp_path / "workspace" / "a").symlink_to(tmp_path / "elsewhere")
        return 1

    monkeypatch.setattr(files, "_json_bytes", count)
    assert list(files.snapshot(str(tmp_path / "workspace"), 10)) == ["b"]


def test_a_listing_is_as_long_as_is_told_and_no_answer_is_too_long_for_its_names(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / ("\U0001f600" * 60 + f"{number:02}")).touch()
        (tmp_path / f'"plain{number:02}"').touch()
    assert len(files.snapshot(str(tmp_path), 100)) == 60 and len(files.snapshot(str(tmp_path), 7)) == 7
    for most in (1_000, 10_000, 20_000):
        monkeypatch.setattr(files, "MAX_LISTED_BYTES", most)
        found = files.snapshot(str(tmp_path), 100)
        assert most / 3 < len(wire.pack({"files": sorted(found)})) <= most + 100
    monkeypatch.undo()
    assert files.MAX_LISTED_BYTES + 1024**2 < answers._MAX_ANSWER_BYTES


def test_long_names_make_no_long_record_and_hide_no_short_one():
    long = [f"{n:04}" + letter * 250 for n in range(1000) for letter in ("a", "\U0001f600")]
    names = answers.checked_names([*long, "submission.csv"])
    assert "submission.csv" in names and names == tuple(sorted(names))
    assert 100_000 < len(json.dumps(names)) <= files.MAX_REPORTED_BYTES
    short = tuple(f"{n:04}" + "a" * 50 for n in range(2048))
    assert answers.checked_names(list(short)) == short


@pytest.mark.parametrize("name", ["", "/a", "..", "a/../b", "a\0b", "."])
def test_a_name_that_leaves_the_workspace_is_none(name, tmp_path):
    with pytest.raises(ValueError, match="is not a plain relative file name"):
        files.parts_of(name)
    with pytest.raises(FileNotFoundError):
        files.read(str(tmp_path), name, 10)


def test_a_file_is_read_up_to_its_limit_and_no_link_to_one(tmp_path):
    files.write(str(tmp_path), "a/b", b"1234")
    (tmp_path / "folder").symlink_to("a")
    (tmp_path / "link").symlink_to("a/b")
    assert files.read(str(tmp_path), "a/b", 4) == b"1234"
    with pytest.raises(ValueError, match="'a/b' is larger than 3 bytes"):
        files.read(str(tmp_path), "a/b", 3)
    for name in ("link", "folder/b", "a", "none", "none/b"):
        with pytest.raises(FileNotFoundError, match="no regular file"):
            files.read(str(tmp_path), name, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder", "link"], "a look makes nothing"
    with pytest.raises(FileExistsError):
        files.write(str(tmp_path), "a/b", b"")


def test_folders_of_tables_hide_what_is_in_them_and_not_their_neighbours():
    folders = ["p/data/x", "p/data", "p/data2", "q/a", "p/database/y"]
    assert _outermost(folders) == ("p/data", "p/data2", "p/database/y", "q/a")


def test_the_kernels_count_of_processes_that_it_ended_is_told_from_its_others(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nhigh 1\nmax 9\noom 5\noom_kill 2\noom_group_kill 1\n")
    with (tmp_path / "memory.events").open("rb", 0) as events:
        assert memory_in_use.kernel_oom_kills(events.fileno()) == 2


HEAD = {"state": "ok", "exit_code": 0, "wall_s": 0.5, "files_written": ["b", "a"], "sizes": [2, 1]}
HELD = {"files": [["a", 1], ["b", 0]], "modes": [["a", 0o4755], ["c", 0o644]], "folders": ["f"], "links": [["l", "/x"]]}


def report(header, *parts, status="Finished", left=True):
    packed = b"".join([wire.pack(header), *parts])
    said = "begun\n" + (remote.said_of_report("begun", remote.digest_of(packed)) if left else "")
    result = {"status": status, "stdout": said, "stderr": "why"}
    whole = {"status": "Success", "run_result": result, "files": {"coachrl-report": base64.b64encode(packed).decode()}}
    return read_report(json.dumps(whole).encode(), "begun", LIMITS)


def test_a_report_says_how_the_code_ended_and_what_the_workspace_holds():
    execution, held = report({**HEAD, **HELD}, b"hi", b"!", b"x")
    assert (execution.stdout, execution.stderr, execution.files_written, execution.wall_s) == (
        "hi",
        "!",
        ("a", "b"),
        0.5,
    )
    assert (held.files, held.modes) == ({"a": b"x", "b": b""}, {"a": 0o755})  # no rights of another user
    assert (held.folders, held.links) == (("f",), (("l", "/x"),))
    assert report(HEAD, b"hi", b"!")[1] is None


@pytest.mark.parametrize(
    ("state", "exit_code"), [("ok", 3), ("error", 3), ("oom", 3), ("timeout", None), ("output_limit", None)]
)
def test_an_execution_that_was_ended_has_no_exit_code(state, exit_code):
    assert report({**HEAD, "state": state, "exit_code": 3}, b"hi", b"!")[0].exit_code == exit_code


@pytest.mark.parametrize(("code", "fits"), [(-64, True), (-65, False), (255, True), (256, False), (None, True)])
def test_exit_codes_are_those_of_processes(code, fits):
    assert (report({**HEAD, "exit_code": code}, b"hi", b"!")[0].stdout == "hi") is fits


def test_a_report_within_the_limits_is_read_whole_and_one_beyond_is_not():
    long = {**HEAD, "sizes": [3000, 0], "files_written": list("abcd")}
    execution, _ = report(long, b"o" * 3000)
    assert len(execution.stdout) == 2048 and execution.files_written == ("a", "b", "c")
    for size, held in ((2**20, True), (2**20 + 1, False)):
        header = {**HEAD, **HELD, "files": [["a", size]], "sizes": [0, 0]}
        assert (report(header, b"x" * size)[1] is not None) is held
    assert most_answer_bytes(replace(LIMITS, disk_mb=2)) - most_answer_bytes(LIMITS) == pytest.approx(2**22 / 3, abs=1)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("begun by another\n", "answered with what belongs to another request"),
        ("hello\n", r"could not begin \(Finished\): why"),
        (None, r"could not begin \(Finished\): why"),
    ],
)
def test_a_program_that_did_not_begin_is_not_the_codes_doing(printed, said):
    result = {"status": "Finished", "stdout": printed, "stderr": "why"}
    with pytest.raises(SandboxError, match=f"^{said}$"):
        read_report(json.dumps({"status": "Success", "run_result": result}).encode(), "begun by us", LIMITS)


def test_output_that_a_server_could_not_decode_may_hide_that_the_program_began():
    result = {"status": "TimeLimitExceeded", "stdout": "[DecodeError] x", "stderr": ""}
    assert (
        read_report(json.dumps({"status": "Success", "run_result": result}).encode(), "b", LIMITS)[0].state == "timeout"
    )


@pytest.mark.parametrize("answer", [b"", b"[]", b"[1]", b'{"run_result": {}}', b"3"])
def test_an_answer_without_a_status_is_none(answer):
    with pytest.raises(SandboxError, match="is no RunCodeResponse"):
        read_report(answer, "begun", LIMITS)


def test_without_its_report_code_answers_for_itself_and_a_limit_of_time_is_one():
    execution, held = report(HEAD, left=False)
    assert (execution.state, execution.exit_code, held) == ("error", -9, None)
    late, held = report(HEAD, status="TimeLimitExceeded")
    assert (late.state, late.wall_s, held) == ("timeout", 5.0, None)


def test_an_answer_of_the_sandbox_is_the_report_of_an_execution():
    header = {"state": "oom", "exit_code": None, "wall_s": 0, "files_written": ["a/b"]}
    found = answers.execution_of(header, b"\xff", b"e")
    assert (found.state, found.exit_code, found.stdout, found.files_written) == ("oom", None, "\ufffd", ("a/b",))
    assert type(found.wall_s) is float


@pytest.mark.parametrize(
    "change",
    [
        {"state": "infrastructure"},
        {"state": None},
        {"exit_code": 256},
        {"exit_code": "0"},
        {"files_written": "ab"},
        *({"files_written": ["fine", name]} for name in ("../x", "/x", "a//b", "a\n", "", "a" * 256, 7)),
    ],
    ids=str,
)
def test_what_no_sandbox_would_report_is_no_report(change):
    header = {"state": "ok", "exit_code": 0, "wall_s": 0, "files_written": ["fine"]}
    assert answers.execution_of(header, b"", b"").files_written == ("fine",)
    with pytest.raises(SandboxError):
        answers.execution_of({**header, **change}, b"", b"")


def answered(*parts, raw_parts=0):
    """What is made of an answer that comes in these pieces."""

    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(parts))
        reader.feed_eof()
        return await answers.read_answer(reader, await answers.read_header(reader), raw_parts)

    return asyncio.run(read())


def test_an_answer_is_its_header_and_the_parts_that_were_asked_for():
    header = {"sizes": [2, 0, 3]}
    assert answered(wire.pack(header), b"abcde", raw_parts=3) == (header, [b"ab", b"", b"cde"])
    assert answered(wire.pack({})) == ({}, [])


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("missing", FileNotFoundError), ("refused", ValueError), ("failed", SandboxError), ("odd", SandboxError)],
)
def test_an_error_inside_is_raised_as_what_it_is(kind, raised):
    with pytest.raises(raised, match=r"^why$"):
        answered(wire.pack({"error": kind, "message": "why"}))


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [1, -1], [1, "1"], [1, 2**30 + 1], {"0": 1, "1": 1}, None, 2])
def test_parts_that_were_not_asked_for_are_refused_before_they_are_read(sizes):
    with pytest.raises(SandboxError, match="parts that were not asked for"):
        answered(wire.pack({"sizes": sizes}), b"xx", raw_parts=2)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (wire.LENGTH.pack(2**26 + 1), "an answer of 67108865 bytes"),
        (wire.LENGTH.pack(2) + b"[]", "an answer that is not an object"),
        (wire.LENGTH.pack(2) + b"{]", "an answer that is not JSON"),
    ],
)
def test_what_is_no_answer_is_refused(frame, said):
    with pytest.raises(SandboxError, match=said):
        answered(frame)


def test_a_request_is_taken_whole_or_not_at_all():
    stream = io.BytesIO()
    wire.send(stream, {"op": "run"}, [b"ab", b"c"])
    stream.seek(0)
    assert wire.receive(stream) == {"op": "run"} and wire.read_exactly(stream, 3) == b"abc"
    for torn in (b"", wire.pack({"op": "run"})[:-1], b"\0\0"):
        with pytest.raises(wire.Disconnected):
            wire.receive(io.BytesIO(torn))
    with pytest.raises(ValueError, match="a request of 67108865 bytes; at most 67108864 are taken"):
        wire.receive(io.BytesIO(wire.LENGTH.pack(2**26 + 1)))


def test_a_copy_waits_for_the_end_of_a_program_that_nobody_waits_for(monkeypatch, tmp_path):
    """Whose host has hung up: it would put a link to all workspaces in the place of a folder that is just copied."""
    runs, ends = threading.Event(), threading.Event()

    def execute(*_):
        runs.set()
        ends.wait(10)
        raise Cancelled

    for name in ("fit_workspace", "shrink_workspace"):
        monkeypatch.setattr(zygote.jail, name, lambda *_: None)
    monkeypatch.setattr(zygote.jail, "make_workspace", lambda name, *_: (tmp_path / name).mkdir())
    monkeypatch.setattr(zygote.jail, "CODE_UID", os.getuid())
    monkeypatch.setattr(zygote.jail, "WORKSPACES", str(tmp_path))
    monkeypatch.setattr(zygote.supervisor, "execute", execute)
    (tmp_path / "here").mkdir()
    bounds = {"disk_mb": 1, "max_files": 8, "all_files_mb": 1}
    run = {"workspace": "here", "code": "", "limits": asdict(limits_of(SandboxConfig())), "at_once": 1, **bounds}
    copy = {"op": "copy", "workspace": "copied", "source": "here", **bounds}
    with ThreadPoolExecutor() as pool:
        running = pool.submit(zygote._run, run, io.BytesIO(), None, None, None)
        assert runs.wait(10)
        copying = pool.submit(zygote._carry_out, copy, io.BytesIO())
        assert not wait([copying], 0.3).done
        ends.set()
        assert copying.result(10) == ({}, []) and isinstance(running.exception(10), Cancelled)


def test_a_file_that_is_too_large_is_not_read_to_find_that_out(tmp_path):
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", 1 << 42)
    with pytest.raises(ValueError, match="'f' is larger than"):
        files.read(str(tmp_path), "f", 1 << 41)


def test_files_with_holes_are_refused_for_their_size_and_not_read(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}").touch()
        os.truncate(tmp_path / f"{number}", LIMITS.disk_mb << 20)
    monkeypatch.setattr(remote.files, "read", lambda *_: pytest.fail("it was read"))
    header, payload = remote._describe(Report(state="ok"), str(tmp_path), {}, LIMITS)
    assert (header["state"], payload[0]) == ("error", b"") and b"No space left on device" in payload[1]


def test_what_leaves_processes_that_cannot_be_ended_leaves_no_report_that_they_could_change(monkeypatch):
    monkeypatch.setattr(remote.plain, "execute", lambda *_: Report(state="ok"))
    monkeypatch.setattr(remote.keeper, "end_below", lambda pid: False)
    with pytest.raises(SystemExit, match="could not be ended"):
        remote._run("", "", LIMITS, {})
