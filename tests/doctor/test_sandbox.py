"""The doctor's short list: a sandbox that isolates holds each attempt, and one that does not is told of."""

from __future__ import annotations

import shutil
import socket
import tempfile

import pytest

from coachrl.doctor import sandbox as doctor_sandbox
from coachrl.doctor.bait import set_out
from coachrl.doctor.sandbox import PROBE_LIMITS, judge, probes, refusable, run_probes
from coachrl.sandbox import checks, make_sandbox
from coachrl.types import Execution

# What any process of this machine gets away with, and what leaves nothing behind.
OPEN_OUTSIDE = {
    "users of the host",
    "a file in the host's /tmp",
    "the grader's folder",
    "the project's code",
    "a server on the host",
    "a socket of the host by path",
    "a socket of the host without a path",
}


@pytest.mark.thorough
async def test_the_local_sandbox_holds_every_attempt():
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with set_out() as bait:
        sandbox = make_sandbox(PROBE_LIMITS)
        try:
            results = [result async for result in run_probes(sandbox, bait)]
        finally:
            await sandbox.close()
    assert [result for result in results if not result.held] == []
    assert [(result.area, result.tried) for result in results] == [(probe.area, probe.tried) for probe in probes()]


def test_a_long_name_of_the_folder_for_temporary_files_leaves_room_for_a_socket(tmp_path, monkeypatch):
    place = tmp_path / ("scratch" * 12)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with set_out() as bait, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(bait["SOCKET_FILE"])


def test_a_home_of_any_size_leaves_attempts_short_enough_to_be_sent(tmp_path, monkeypatch):
    for number in range(1200):
        (tmp_path / f"{number}-{'x' * 200}").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    with set_out() as bait:
        assert len(bait["HOME_ENTRIES"]) == len(checks._home_entries()) == 1000


@pytest.mark.parametrize("what", ["a file", "a loop of links", "missing"])
def test_a_home_that_is_no_folder_holds_nothing_to_hide(what, tmp_path, monkeypatch):
    home = tmp_path / "home"
    if what == "a file":
        home.touch(mode=0o755)
    elif what == "a loop of links":
        home.symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    with set_out() as bait:
        assert bait["HOME_ENTRIES"] == checks._home_entries() == []


async def test_what_reaches_the_host_goes_through_where_nothing_holds_it():
    chosen = [probe for probe in probes() if probe.tried in OPEN_OUTSIDE]
    assert len(chosen) == len(OPEN_OUTSIDE)
    with set_out() as bait:
        sandbox = make_sandbox(PROBE_LIMITS.model_copy(update={"kind": "local-unsafe"}))
        await sandbox.start()
        for probe in chosen:
            workspace = await sandbox.open({})
            execution = await workspace.run(refusable(probe.code, bait))
            await workspace.close()
            assert judge(execution) == (False, "ESCAPED"), (probe.tried, execution)
        await sandbox.close()


async def test_what_a_program_leaves_is_not_taken_for_what_starts_the_next_one(monkeypatch):
    """The attempt's own second program imports modules, too."""
    [chosen] = [probe for probe in probes() if probe.tried.startswith("modules of its own")]
    monkeypatch.setattr(doctor_sandbox, "probes", lambda: (chosen,))
    sandbox = make_sandbox(PROBE_LIMITS.model_copy(update={"kind": "local-unsafe"}))
    [result] = [result async for result in run_probes(sandbox, {})]
    await sandbox.close()
    assert result.held, result.detail


class Open:
    """A sandbox that lets everything through without running anything."""

    def __init__(self, processes):
        self.processes = processes

    async def start(self): ...
    async def close(self): ...
    async def open(self, files):
        return self

    async def run(self, code, timeout_s=None):
        return Execution("ok", f"{self.processes}\n" if code.startswith("import os; print(len(") else "ESCAPED\n")

    async def files(self):
        return ("link",)

    async def read(self, name, max_bytes=0):
        return b"from the host"


@pytest.mark.parametrize("processes", [2, 300])
async def test_each_attempt_that_gets_through_is_told_of(processes):
    results = [result async for result in run_probes(Open(processes), {})]
    assert not any(result.held for result in results)
    details = {result.tried: result.detail for result in results}
    assert details["users of the host"] == "ESCAPED"
    assert details["a link to a file of the host"] == "link is listed"
    assert details["a pipe that nobody writes to"] == "pipe was read: b'from the host'"
    assert ("300 processes are in reach" in details["fork bomb"]) == (processes == 300)


def test_each_control_is_tried_and_no_attempt_twice():
    areas = {"files", "network", "rights", "processes", "memory", "other programs", "signals"}
    assert {probe.area for probe in probes()} == areas
    assert len({(probe.area, probe.tried) for probe in probes()}) == len(probes()) >= 30
