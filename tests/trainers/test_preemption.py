"""A run that is asked to end (SIGTERM) writes a checkpoint, and goes on from it as if nothing had happened."""

import asyncio
import io
import json
import logging
import os
import shutil
import signal

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import small_runs
from cases import every
from rich.console import Console
from run_figures import figures

from coachrl.cli.train import _is_finished as is_finished
from coachrl.coach.clients.ledger import Ledger, read_ledger
from coachrl.commands import interrupt
from coachrl.commands import run as commands
from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.errors import Preempted
from coachrl.runs.folder import Run
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.loop import Trainer

SETTINGS = (*small_runs.SETTINGS, "train.checkpoint_every=0", "eval.every=2")


@pytest.fixture
def configured(one_layer_model, tmp_path):
    return lambda name, *more: load_config(
        None, [*SETTINGS, f"model={one_layer_model}", f"name={name}", f"out={tmp_path}", *more]
    )


@pytest.fixture(scope="module")
def figures_of_the_whole(one_layer_model, tmp_path_factory):
    """Of a run that nobody asks to end."""
    out = tmp_path_factory.mktemp("whole")
    config = load_config(None, [*SETTINGS, f"model={one_layer_model}", "name=whole", f"out={out}"])
    run = Run.create(config)
    train(config, run)
    return figures(run)


def train(config, run, resume=False):
    asyncio.run(train_run(config, run, Console(file=io.StringIO()), resume))


def terminate_when(monkeypatch, kind, method, step, number=signal.SIGTERM):
    """Send this process a signal right before a method of the run is called for that step's sake."""
    plain, told = getattr(kind, method), []

    def watched(self, *arguments):
        trainer = self if isinstance(self, Trainer) else None
        told.append(trainer)
        if len(told) == step:
            os.kill(os.getpid(), number)
        return plain(self, *arguments)

    monkeypatch.setattr(kind, method, watched)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method", "call", "last_whole"),
    every(
        2,
        [
            (Trainer, "_play", 1, 0),  # its episodes are given up: nothing is trained yet
            (Trainer, "_play", 3, 2),
            (TorchBackend, "update", 2, 2),  # it changes weights, so that the step is finished first
            (TorchBackend, "sync_weights", 1, 1),
        ],
    ),
)
def test_a_run_that_is_asked_to_end_goes_on_from_the_last_whole_step(
    configured, monkeypatch, figures_of_the_whole, kind, method, call, last_whole
):
    config = configured("cut")
    cut = Run.create(config)
    with monkeypatch.context() as patched:
        terminate_when(patched, kind, method, call)
        with pytest.raises(Preempted, match=f"step {last_whole + 1}: .*go on with: coachrl train --resume") as caught:
            train(config, cut)
    assert caught.value.exit_code == 143
    assert [path.name for path in cut.checkpoints()] == [f"step-{last_whole:06d}"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train(config, cut, resume=True)
    assert figures(cut) == figures_of_the_whole  # the evaluation after step 2, too, which an end in its update gives up


@pytest.mark.parametrize("evaluation", [2, 3])
def test_an_evaluation_that_was_given_up_is_made_up_for(configured, monkeypatch, evaluation):
    """Of three: that of step 0, one along the way, and the last, without which no run is at its end."""
    step = 2 * (evaluation - 1)
    config = configured("cut", "train.steps=4")
    cut = Run.create(config)
    with monkeypatch.context() as patched:
        terminate_when(patched, Trainer, "_evaluate", evaluation)
        with pytest.raises(Preempted, match=r"after step 4: .*go on with|step 3: .*go on with"):
            train(config, cut)
    assert cut.lacks_evaluation(step) and not is_finished(cut)
    assert [path.name for path in cut.checkpoints()] == [f"step-{step:06d}"]
    train(config, cut, resume=True)
    assert [line["step"] for line in cut.metrics() if "eval/success" in line] == [0, 2, 4]
    assert is_finished(cut) and not (cut.folder / "replies.jsonl").exists()


def test_an_evaluation_whose_line_of_metrics_is_gone_is_made_again(configured, caplog):
    config = configured("short")
    run = Run.create(config)
    train(config, run)
    *kept, last = run.metrics()
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert not is_finished(run)
    train(config, run, resume=True)
    assert f"metrics.jsonl: steps are missing after step {last['step'] - 1}" in caplog.text
    *earlier, again = run.metrics()
    assert earlier == kept and is_finished(run)
    assert again == {key: last[key] for key in again if not key.startswith("time/")} | {
        key: value for key, value in again.items() if key.startswith("time/")
    }


def test_a_run_whose_metrics_are_gone_says_so_before_it_goes_on(configured, caplog):
    config = configured("without", "train.steps=1")
    run = Run.create(config)
    train(config, run)
    (run.folder / "metrics.jsonl").unlink()
    train(config, run, resume=True)
    assert "metrics.jsonl is missing" in caplog.text
    assert [line["step"] for line in run.metrics()] == [1] and "eval/success" in run.metrics()[0]


def test_a_run_whose_terminal_is_closed_writes_a_checkpoint(configured, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "coachrl")
    config = configured("closed")
    run = Run.create(config)
    terminate_when(monkeypatch, Trainer, "_play", 2, signal.SIGHUP)
    with pytest.raises(Preempted, match=r"step 2: .*go on with: coachrl train --resume"):
        train(config, run)
    assert [path.name for path in run.checkpoints()] == ["step-000001"]
    assert "the run ends: step 2: the process was asked to end" in (run.folder / "log.txt").read_text()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


async def test_a_run_that_is_to_outlive_its_terminal_does():
    before, asked = signal.signal(signal.SIGHUP, signal.SIG_IGN), []  # as `nohup` does
    try:
        with interrupt.asked_to_end(lambda: asked.append(1)):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
        assert asked == [] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_terminal_that_closes_sends_more_than_one_signal_and_ends_nothing_at_once(monkeypatch):
    monkeypatch.setattr(interrupt, "_TWICE_S", 0.0)
    asked = []
    with interrupt.asked_to_end(lambda: asked.append(1)):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
    assert asked == [1]


def test_a_notice_file_ends_a_run_as_a_signal_does_and_an_old_one_does_not(configured, monkeypatch, tmp_path):
    notice = tmp_path / "notice"
    notice.write_text("of an earlier part of the run")
    config = configured("told", f"train.notice_file={notice}")
    run, plain = Run.create(config), Trainer._play

    async def played_until_told(self, *arguments):
        """The first step is whole: the old notice says nothing. In the second one it comes again."""
        if (run.folder / "episodes" / "step-000001.jsonl").exists():
            notice.touch()
            await asyncio.sleep(3600)
        return await plain(self, *arguments)

    monkeypatch.setattr(Trainer, "_play", played_until_told)
    with pytest.raises(Preempted, match=r"step 2: .*go on with: coachrl train --resume"):
        train(config, run)
    assert [path.name for path in run.checkpoints()] == ["step-000001"]


def test_a_copy_made_of_hard_links_stays_as_it_is_when_the_run_goes_on(configured, monkeypatch, tmp_path):
    config = configured("linked", "train.steps=2", "eval.every=0", "train.tasks_per_step=1")
    run, plain = Run.create(config), commands.check_settings
    with monkeypatch.context() as patched:
        terminate_when(patched, Trainer, "_play", 2)
        with pytest.raises(Preempted):
            train(config, run)
    shutil.copytree(run.folder, tmp_path / "copy", copy_function=os.link)
    before = contents(tmp_path / "copy")
    early = Ledger(run.ledger)

    def checked(*arguments):
        """As coaches that are asked before the checkpoint is read: it goes on with the file that it has open."""
        early.resumed(0)
        logging.getLogger("coachrl").warning("the coach is slow")
        plain(*arguments)

    monkeypatch.setattr(commands, "check_settings", checked)
    train(config, run, resume=True)
    early.resumed(2)
    early.close()
    assert run.last_step() == 2 and contents(tmp_path / "copy") == before
    assert list(read_ledger(run.ledger))[-1] == {"kind": "resumed", "after_step": 2}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_is_asked_to_end_before_its_first_step_leaves_no_checkpoint(configured, monkeypatch):
    config = configured("early")
    run = Run.create(config)
    terminate_when(monkeypatch, Trainer, "_evaluate", 1)
    with pytest.raises(Preempted, match="the process was asked to end"):
        train(config, run)
    assert not run.folder.exists()


async def test_a_second_signal_that_comes_with_the_first_says_nothing_more(monkeypatch):
    asked, others = [], []
    before = signal.signal(signal.SIGTERM, lambda *_: others.append(1))
    try:
        with interrupt.asked_to_end(lambda: asked.append(1)):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
            assert (asked, others) == ([1], [])
        monkeypatch.setattr(interrupt, "_TWICE_S", 0.0)
        with interrupt.asked_to_end(lambda: asked.append(1)):
            while not others:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)
        assert asked == [1, 1]
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_second_signal_does_not_wait_for_code_that_keeps_the_loop_busy(monkeypatch):
    class Ended(Exception):
        pass

    def end(*_):
        raise Ended

    monkeypatch.setattr(interrupt, "_TWICE_S", 0.0)
    asked, before = [], signal.signal(signal.SIGTERM, end)
    try:
        with interrupt.asked_to_end(lambda: asked.append(1)):
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Ended):
                os.kill(os.getpid(), signal.SIGTERM)
            assert asked == [], "the first one waits for the loop"
            await asyncio.sleep(0)
        assert asked == [1] and signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
