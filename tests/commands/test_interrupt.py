"""Ctrl-C is answered at once, by one line, and then does what it would have done."""

import errno
import os
import signal
from pathlib import Path

import pytest
import typer

import coachrl.report
from coachrl.cli import train
from coachrl.cli.console import err, out
from coachrl.commands import run as run_commands
from coachrl.commands.interrupt import interrupts_acknowledged, what_stays
from coachrl.config import load_config
from coachrl.runs.folder import Run


@pytest.fixture
def run(tmp_path):
    return Run.create(load_config(None, ["name=one", f"out={tmp_path}"]))


@pytest.fixture
def struck():
    """What presses Ctrl-C, where whoever reads the screen could press it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_the_line_comes_before_anything_ends(run, capfd):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_acknowledged(lambda: what_stays(run.config(), run)):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                said = capfd.readouterr().err
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a second one ends it
        assert said.split("\n")[1:] == ["interrupted; nothing had been trained yet, and nothing is kept", ""]
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_ends_the_run_also_where_the_same_ctrl_c_has_ended_what_read_its_line(struck, monkeypatch):
    def unread(*_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(KeyboardInterrupt), interrupts_acknowledged(lambda: "nothing is kept"):
        monkeypatch.setattr(os, "write", unread)
        struck()


def test_it_says_what_is_saved(run):
    config = run.config()
    run.append_metrics({"step": 0})
    assert what_stays(config, run).startswith("no checkpoint was whole yet; continue with")
    (run.folder / "checkpoints" / "step-000002").mkdir()
    assert what_stays(config, run) == f"step-000002 is saved; continue with: coachrl train --resume {run.folder}"
    last = run.config(["train.steps=2"])
    assert what_stays(last, run).startswith("step-000002 is saved, and no step is left; the report, ")
    none = run.config(["train.keep_checkpoints=0"])
    assert what_stays(none, run) == "no checkpoint is kept, so it cannot be continued"


def test_while_the_report_is_written(run, struck, monkeypatch, capfd):
    run.append_metrics({"step": 0})
    monkeypatch.setattr(coachrl.report, "write_report", struck)
    with pytest.raises(KeyboardInterrupt):
        train._finish(run)
    assert "interrupted; no checkpoint was whole yet; continue with" in capfd.readouterr().err


def test_at_the_first_line_of_a_run(run, struck, monkeypatch, capfd):
    monkeypatch.setattr(out, "print", struck)
    with pytest.raises(typer.Exit):
        train._train(run.config(), run, resume=False, restarted=0)
    assert "interrupted; nothing had been trained yet" in capfd.readouterr().err and not run.folder.exists()


@pytest.mark.parametrize("verb", ["eval", "rollout"])
def test_while_a_team_is_measured(verb, struck, monkeypatch, capfd):
    monkeypatch.setattr(run_commands, "open_components", struck)
    config = load_config(None, ["model=tiny-random"])
    calls = {
        "eval": run_commands.evaluate_run(config, None, None, err),
        "rollout": run_commands.rollout_once(config, 1, Path("ledger"), err),
    }
    with pytest.raises(KeyboardInterrupt):
        calls.pop(verb).send(None)
    [other] = calls.values()
    other.close()
    assert "interrupted; nothing is kept" in capfd.readouterr().err
