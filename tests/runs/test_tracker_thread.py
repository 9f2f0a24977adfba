"""Trackers that may have a server, in threads of their own: the server hangs, is away, and comes back."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from coachrl.config import RunConfig
from coachrl.errors import ConfigError, Preempted
from coachrl.runs import tracker_thread
from coachrl.runs.folder import Run
from coachrl.runs.trackers import TRACKERS, open_trackers

LINES = [{"step": step, "train/success": step / 8} for step in range(14)]
TAKEN = [(line["step"], {"train/success": line["train/success"]}) for line in LINES]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(RunConfig(name="tracked", out=tmp_path / "runs"))


class Served:
    """A tracker whose server answers while `answers` is set, and refuses the first `refusals` calls."""

    def __init__(self, refusals: int = 0) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.refusals, self.calls = refusals, 0
        self.taken: list[tuple[int, dict]] = []
        self.threads: set[int] = set()

    def __call__(self, *made_with: object) -> Served:
        self.threads.add(threading.get_ident())
        return self

    def log(self, step, metrics):
        self.threads.add(threading.get_ident())
        self.calls += 1
        assert self.answers.wait(60)
        if self.calls <= self.refusals:
            raise ConnectionError("no route to host")
        self.taken.append((step, metrics))

    def close(self, ending):
        self.threads.add(threading.get_ident())
        self.taken.append(ending)


def follow(run, monkeypatch, served, before_the_end=lambda: None):
    monkeypatch.setitem(TRACKERS, "mlflow", served)
    with open_trackers(["mlflow"], run, run.config(), 0) as trackers:
        for line in LINES:
            trackers.on_metrics(line)
        before_the_end()


def test_a_server_that_hangs_holds_up_no_step_and_gets_all_of_them_once_it_answers(run, monkeypatch):
    served = Served()
    served.answers.clear()

    def come_back():
        assert served.taken == []
        served.answers.set()

    follow(run, monkeypatch, served, come_back)
    assert served.taken == [*TAKEN, "finished"]
    assert len(served.threads) == 1 and threading.get_ident() not in served.threads


def test_a_server_that_is_away_for_a_time_lacks_no_step_when_it_is_back(run, monkeypatch, caplog):
    served = Served(refusals=3)
    follow(run, monkeypatch, served)
    assert served.taken == [*TAKEN, "finished"]
    [record] = caplog.records
    assert record.message == (
        "tracker mlflow has not taken step 0, it is tried again with the next one: no route to host"
    )


def test_a_server_that_stays_away_is_left_out(run, monkeypatch, caplog):
    served = Served(refusals=10**6)
    follow(run, monkeypatch, served)
    assert (served.calls, served.taken) == (10, ["finished"])
    assert caplog.records[-1].message == "tracker mlflow is left out from now on: no route to host"


def test_a_server_that_hangs_in_the_end_is_not_waited_for_without_an_end(run, monkeypatch, caplog):
    monkeypatch.setattr(tracker_thread, "_LAST_WORDS_S", 0.01)
    served = Served()
    served.answers.clear()
    try:
        follow(run, monkeypatch, served)
    finally:
        served.answers.set()
    [record] = caplog.records
    assert record.message == (
        "tracker mlflow does not answer, and may lack the last steps: metrics.jsonl has all of them"
    )


def test_a_server_that_refuses_the_run_ends_it_before_it_begins(run, monkeypatch):
    def refuse(*made_with):
        raise PermissionError("not logged in")

    with pytest.raises(ConfigError, match="track: mlflow cannot start: not logged in"):
        follow(run, monkeypatch, refuse)


def test_steps_that_were_refused_up_to_the_end_are_missed_aloud(run, monkeypatch, caplog):
    monkeypatch.setattr(tracker_thread, "_TRIES", 10**6)
    served = Served(refusals=10**6)
    follow(run, monkeypatch, served)
    assert served.taken == ["finished"]
    assert caplog.records[-1].message == "tracker mlflow lacks what came from step 0 on: metrics.jsonl has it"


@pytest.mark.parametrize("end", [Preempted("the process was asked to end"), KeyboardInterrupt()])
def test_a_run_that_was_asked_to_end_waits_for_seconds_and_no_minute(run, monkeypatch, caplog, end):
    monkeypatch.setattr(tracker_thread, "_HURRIED_S", 0.01)
    served = Served()
    served.answers.clear()

    def stop():
        raise end

    began = time.monotonic()
    try:
        with pytest.raises(type(end)):
            follow(run, monkeypatch, served, stop)
    finally:
        served.answers.set()
    assert time.monotonic() - began < 10
    assert "mlflow does not answer" in caplog.text


@pytest.mark.parametrize(
    ("end", "ending"),
    [(Preempted("asked to end"), "interrupted"), (KeyboardInterrupt(), "interrupted"), (OSError(28, "full"), "failed")],
)
def test_a_tracker_is_told_how_the_run_ended(run, monkeypatch, end, ending):
    served = Served()

    def stop():
        raise end

    with pytest.raises(type(end)):
        follow(run, monkeypatch, served, stop)
    assert served.taken == [*TAKEN, ending]


def test_servers_that_hang_are_waited_for_all_at_once(run, monkeypatch):
    monkeypatch.setattr(tracker_thread, "_LAST_WORDS_S", 2.0)
    served = [Served(), Served(), Served()]
    names = ["mlflow", "wandb", "trackio"]
    for name, one in zip(names, served, strict=True):
        one.answers.clear()
        monkeypatch.setitem(TRACKERS, name, one)
    try:
        with open_trackers(names, run, run.config(), 0) as trackers:
            trackers.on_metrics(LINES[0])
            began = time.monotonic()
        assert time.monotonic() - began < 4
    finally:
        for one in served:
            one.answers.set()


@pytest.mark.parametrize("hangs_at", ["start", "end"])
def test_the_first_ctrl_c_is_heard_while_a_server_hangs(run, monkeypatch, hangs_at):
    served = Served()
    served.answers.clear()

    def make(*made_with):
        assert hangs_at == "end" or served.answers.wait(60)
        return served

    def interrupt():
        time.sleep(0.5)
        signal.raise_signal(signal.SIGINT)

    async def track():
        threading.Thread(target=interrupt, daemon=True).start()
        follow(run, monkeypatch, make)
        await asyncio.sleep(0)

    monkeypatch.setattr(tracker_thread, "_HURRIED_S", 0.01)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(track())
    finally:
        served.answers.set()
    assert time.monotonic() - began < 10
