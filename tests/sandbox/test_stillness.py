"""Whoever looks at a room for long has its processes stopped meanwhile."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from coachrl.sandbox.inside import stillness
from coachrl.sandbox.inside.stillness import Stillness


@pytest.fixture
def busy():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def is_stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_processes_stand_still_while_a_look_takes_long(busy):
    with Stillness().after_a_while(lambda: [busy.pid]):
        while not is_stopped(busy):
            time.sleep(0.01)
    while is_stopped(busy):
        time.sleep(0.01)


def test_a_look_that_has_ended_stops_nothing(busy):
    with Stillness().after_a_while(lambda: [busy.pid]):
        pass
    time.sleep(1.0)  # longer than a long look
    assert not is_stopped(busy)


def test_a_process_that_is_gone_keeps_no_other_from_standing_still(busy):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with Stillness().after_a_while(lambda: [gone.pid, busy.pid]):
        while not is_stopped(busy):
            time.sleep(0.01)


def test_no_thread_to_be_had_is_waited_for(monkeypatch):
    started = []

    def start(self):
        started.append(self)
        if len(started) < 3:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(stillness, "_EVERY_S", 0)
    monkeypatch.setattr(stillness.threading.Thread, "start", start)
    stillness.Stillness()
    assert len(started) == 3
