"""What is kept of a program's output, how its end is called, which files go along with it, and what is said of a
bubblewrap that does not start: all without a sandbox."""

from __future__ import annotations

import os
import signal

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import bubblewrap
from coachrl.sandbox.base import limits_of, read_host_files
from coachrl.sandbox.inside.supervisor import Report, conclude, drain

LIMITS = limits_of(SandboxConfig(disk_mb=1, max_files=2, output_kb=1))


@pytest.mark.parametrize(
    ("before", "status", "killed", "state", "exit_code"),
    [
        ("", "exit 0", False, "ok", 0),
        ("", "exit 3", False, "error", 3),
        ("", f"exit {-signal.SIGSEGV}", True, "error", -signal.SIGSEGV),
        ("", f"exit {-signal.SIGKILL}", False, "error", -signal.SIGKILL),  # a signal that it chose itself
        ("", f"exit {-signal.SIGKILL}", True, "oom", -signal.SIGKILL),
        ("", "exit 0", True, "ok", 0),
        ("", "", True, "oom", None),
        ("", "", False, "error", None),
        ("timeout", "exit 0", False, "timeout", 0),
        ("oom", f"exit {-signal.SIGKILL}", True, "oom", -signal.SIGKILL),
    ],
)
def test_how_an_end_is_called(before, status, killed, state, exit_code):
    report = Report()
    report.state = before
    conclude(report, status, killed)
    assert (report.state, report.exit_code) == (state, exit_code)
    assert bool(report.stderr) == (state == "error" and exit_code is None)


@pytest.mark.parametrize(
    ("written", "kept", "state"), [(0, 0, ""), (1000, 1000, ""), (1024, 1024, ""), (1025, 1024, "output_limit")]
)
def test_the_head_of_an_output_is_kept_up_to_its_limit(written, kept, state):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    report, head = Report(), bytearray()
    try:
        assert drain(reading, head, report, LIMITS), "nothing is there yet, and it goes on"
        os.write(writing, b"x" * written)
    finally:
        os.close(writing)
    assert drain(reading, head, report, LIMITS) is bool(state)
    os.close(reading)
    assert (len(head), report.state) == (kept, state)


def test_what_one_stream_has_left_is_its_own():
    report, heads = Report(), (bytearray(), bytearray())
    for head in heads:
        reading, writing = os.pipe()
        os.write(writing, b"x" * 1024)
        os.close(writing)
        drain(reading, head, report, LIMITS)
        os.close(reading)
    assert [len(head) for head in heads] == [1024, 1024] and report.state == ""


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [((2**20,), True), ((2**20 + 1,), False), ((2**19, 2**19), True), ((2**19, 2**19 + 1), False), ((0, 0, 0), False)],
)
def test_files_that_go_along_fit_into_a_workspace_together(tmp_path, sizes, fit):
    paths = {f"in/{place}": tmp_path / str(place) for place in range(len(sizes))}
    for path, size in zip(paths.values(), sizes, strict=True):
        path.write_bytes(b"x" * size)
    if fit:
        assert {name: len(data) for name, data in read_host_files(paths, LIMITS).items()} == dict(
            zip(paths, sizes, strict=True)
        )
    else:
        with pytest.raises(SandboxError, match=rf"disk_mb=1, max_files=2: .*{len(sizes) - 1} is beyond that"):
            read_host_files(paths, LIMITS)


def test_a_name_that_leaves_the_workspace_is_refused_before_its_file_is_read(tmp_path):
    with pytest.raises(ValueError, match="is not a plain relative file name"):
        read_host_files({"../evil": tmp_path / "none"}, LIMITS)
    with pytest.raises(SandboxError, match=r"cannot read .*none for the workspace: No such file"):
        read_host_files({"fine": tmp_path / "none"}, LIMITS)


@pytest.mark.parametrize(("pieces", "first"), [((b'{"child-', b'pid": 7}\n'), 7), ((b'{"chi',), None)])
def test_what_bubblewrap_says_of_its_child_may_come_in_pieces(pieces, first):
    reading, writing = os.pipe()
    for piece in pieces:
        os.write(writing, piece)
    os.close(writing)
    assert bubblewrap._first_inside(reading) == first
    os.close(reading)


@pytest.mark.parametrize(
    ("stderr", "settings", "remedy"),
    [
        ("bwrap: Can't mount proc on /newroot/proc", {"user/max_user_namespaces": "0"}, "systempaths=unconfined"),
        ("", {"user/max_user_namespaces": "0"}, "`sysctl -w user.max_user_namespaces=15000`"),
        ("", {"kernel/unprivileged_userns_clone": "0"}, "`sysctl -w kernel.unprivileged_userns_clone=1`"),
        (
            "setting up uid map: Permission denied",
            {"kernel/apparmor_restrict_unprivileged_userns": "1"},
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` or give bwrap an AppArmor profile",
        ),
        (
            "setting up uid map: Permission denied",
            {"kernel/apparmor_restrict_unprivileged_userns": "0", "kernel/unprivileged_userns_clone": "1"},
            "--security-opt seccomp=unconfined",
        ),
        ("No permissions to create new namespace", {}, "--security-opt seccomp=unconfined"),
        ("bwrap: Can't read /proc/sys/kernel/overflowuid: No such file or directory", {}, "mount /proc"),
        ("bwrap: Creating new namespace failed: Resource temporarily unavailable", {}, "`ulimit -u`"),
        ("RuntimeError: can't start new thread", {}, "`ulimit -u`"),
        ("unknown option --userns-block-fd", {"user/max_user_namespaces": "100"}, "bubblewrap 0.5 or later"),
    ],
)
def test_what_to_do_about_a_bubblewrap_that_does_not_start(tmp_path, monkeypatch, stderr, settings, remedy):
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(bubblewrap, "Path", lambda _, name: tmp_path / name)  # in the place of /proc/sys
    assert remedy in bubblewrap.explain(stderr)
