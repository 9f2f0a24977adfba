"""A run whose backend loses a process starts it again and goes on from its last checkpoint, as `--resume` does."""

import asyncio
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import small_runs
from command_line import coachrl
from rich.console import Console
from run_figures import figures

from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.errors import (
    BackendError,
    CheckpointError,
    CoachrlError,
    EngineGone,
    EngineLost,
    EngineStuck,
    Preempted,
    ProcessLost,
)
from coachrl.resources import resource
from coachrl.runs.folder import Run
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.loop import Trainer

SETTINGS = (*small_runs.SETTINGS, "train.checkpoint_every=1")


@pytest.fixture
def train(one_layer_model, tmp_path):
    def trained(name, *more):
        """The run, and what ended it before its last step."""
        config = load_config(None, [*SETTINGS, f"model={one_layer_model}", f"name={name}", f"out={tmp_path}", *more])
        run, ended = Run.create(config), None
        try:
            asyncio.run(train_run(config, run, Console(file=io.StringIO()), resume=False))
        except (CoachrlError, OSError) as error:
            ended = error
        return run, ended

    return trained


@pytest.fixture
def fail_at(monkeypatch):
    """Raise an error at some calls of the backend's `method`, counted over all backends; how many calls there were."""

    def failing(method, calls, error):
        plain, made = getattr(TorchBackend, method), []

        def faulty(self, *arguments):
            made.append(method)
            if len(made) in calls:
                raise error
            return plain(self, *arguments)

        monkeypatch.setattr(TorchBackend, method, faulty)
        return made

    return failing


def restarts(run):
    return [line for line in (run.folder / "log.txt").read_text().splitlines() if "restart " in line]


LOST = ProcessLost("training policy solver failed: trainer 1 of policy solver died")


def test_a_run_that_loses_a_process_twice_comes_to_the_figures_of_an_undisturbed_one(train, fail_at):
    whole, _ = train("whole")
    drawn = fail_at("generate", (), None)
    train("counted")
    needed = len(drawn)
    fail_at("update", (2, 4), LOST)
    run, ended = train("disturbed")
    assert ended is None
    assert figures(run) == figures(whole)
    assert len(drawn) == 2 * needed, "a reply of the broken step was drawn again"
    first, second = restarts(run)
    assert f"{LOST}; restart 1 of 3, from step-000001" in first
    assert f"{LOST}; restart 2 of 3, from step-000002" in second


def test_a_run_that_is_done_has_nothing_to_resume(train, tmp_path):
    run, _ = train("whole")
    over = subprocess.Popen(["true"])
    over.wait()
    left = run.folder / f".metrics.jsonl.0123abcd.{over.pid}"  # by a kill as it went on from its last checkpoint
    left.touch()
    again = coachrl("train", "--resume", run.folder, cwd=tmp_path)
    assert not left.exists()
    assert again.returncode == 0 and again.stdout.startswith(
        f"{run.folder} has done 3 steps of 3: there is nothing to resume. A new run from its weights:\n"
        f"  coachrl train --config {run.folder}/config.yaml --name NEW policies.code_executor.model={run.folder}"
    )


def test_a_run_that_loses_a_process_before_its_first_checkpoint_begins_again(train, fail_at):
    fail_at("update", (2,), LOST)
    run, ended = train("early", "train.checkpoint_every=0")
    assert ended is None and [record["step"] for record in run.metrics()] == [0, 1, 2, 3]
    [line] = restarts(run)
    assert "restart 1 of 3, from the beginning, since there is no checkpoint" in line


@pytest.mark.parametrize("most", [0, 1])
def test_a_run_is_restarted_so_many_times_and_then_says_how_to_go_on(train, fail_at, most):
    made = fail_at("update", range(2, 99), LOST)
    run, ended = train("lost", f"train.restarts={most}")
    assert isinstance(ended, ProcessLost)
    assert str(ended) == f"{LOST}; step-000001 is saved; continue with: coachrl train --resume {run.folder}"
    assert len(made) == 2 + most and len(restarts(run)) == most


def test_a_lost_engine_leaves_a_checkpoint_of_the_step_before_to_restart_from(train, fail_at):
    fail_at("with_reference", (2,), EngineLost("an engine of policy solver died twice"))
    run, ended = train("engine", "train.checkpoint_every=0")
    assert ended is None
    [line] = restarts(run)
    assert "step 2: an engine of policy solver died twice; restart 1 of 3, from step-000001" in line


@pytest.mark.parametrize(
    ("method", "call", "error", "more"),
    [
        ("update", 2, BackendError("loss/solver is nan"), ()),
        ("save", 1, OSError(errno.ENOSPC, "No space left on device"), ()),
        ("update", 2, LOST, ("train.keep_checkpoints=0", "train.checkpoint_every=0")),
        ("generate", 1, LOST, ()),  # before the first line of metrics
    ],
)
def test_what_would_come_again_at_once_is_not_restarted(train, fail_at, method, call, error, more):
    made = fail_at(method, range(call, 99), error)
    run, ended = train("ended", *more)
    assert type(ended) is type(error)
    assert len(made) >= call and (not run.folder.exists() or not restarts(run))
    assert method != "update" or len(made) == call


def test_a_restart_is_held_to_the_prompts_that_the_run_began_with(train, monkeypatch, tmp_path):
    """They are read again. What somebody edits while a run trains is meant for the next one."""
    prompts = Path(shutil.copytree(resource("prompts", "agents", "mathchat", "short"), tmp_path / "prompts"))
    plain, calls = TorchBackend.update, []

    def faulty(backend, samples, rate):
        calls.append(samples)
        if len(calls) == 2:
            edited = prompts / "verifier.md"
            edited.write_text(edited.read_text() + "Be brief.")
            raise LOST
        return plain(backend, samples, rate)

    monkeypatch.setattr(TorchBackend, "update", faulty)
    run, ended = train("edited", f"pipeline.prompts={prompts}")
    assert isinstance(ended, CheckpointError) and "not the team that the run began with (changed: verifier)" in str(
        ended
    )
    assert len(restarts(run)) == 1 and run.last_step() == 1


@pytest.mark.parametrize("most", [0, 3])
def test_a_notice_that_comes_while_a_lost_backend_is_closed_ends_the_run(train, fail_at, monkeypatch, tmp_path, most):
    plain, notice = TorchBackend.close, tmp_path / "notice"

    def noticed(backend):
        notice.touch()
        plain(backend)

    monkeypatch.setattr(TorchBackend, "close", noticed)
    fail_at("update", (2,), LOST)
    run, ended = train("noticed", f"train.notice_file={notice}", f"train.restarts={most}")
    assert isinstance(ended, Preempted) and not restarts(run)
    assert str(ended).endswith(
        f"asked to end; step-000001 is saved; continue with: coachrl train --resume {run.folder}"
    )


@pytest.mark.parametrize(("kind", "method"), [(Trainer, "_play"), (TorchBackend, "update")])
def test_a_run_whose_folder_was_moved_says_so(train, monkeypatch, tmp_path, kind, method):
    plain = getattr(kind, method)

    def moving(self, *arguments):
        if (tmp_path / "moved" / "metrics.jsonl").exists():
            (tmp_path / "moved").rename(tmp_path / "elsewhere")
        return plain(self, *arguments)

    monkeypatch.setattr(kind, method, moving)
    run, ended = train("moved")
    assert isinstance(ended, OSError) and not run.folder.exists()
    [note] = ended.__notes__
    assert note.startswith(f"{run.folder} was moved or removed meanwhile")
    assert (tmp_path / "elsewhere" / "metrics.jsonl").exists()


def test_a_caller_that_hands_on_to_no_process_is_told_how_to_go_on_where_an_engine_of_its_own_is_lost(train, fail_at):
    fail_at("update", (2,), EngineGone("vLLM's engine failed"))
    run, ended = train("gone")
    assert (
        str(ended)
        == f"step 2: vLLM's engine failed; step-000001 is saved; continue with: coachrl train --resume {run.folder}"
    )
    assert not restarts(run)


def test_weights_that_are_out_of_reach_with_the_engine_are_no_other_error(train, fail_at):
    fail_at("begin_save", range(99), RuntimeError("CUDA error: unspecified launch failure"))
    fail_at("with_reference", (2,), EngineGone("vLLM's engine failed"))
    run, ended = train("gone", "train.checkpoint_every=0")
    assert isinstance(ended, EngineGone) and f"continue with: coachrl train --resume {run.folder}" in str(ended)
    log = (run.folder / "log.txt").read_text()
    assert "no checkpoint after step 1: CUDA error: unspecified launch failure" in log


def test_weights_beside_an_engine_that_is_stuck_are_not_waited_for_without_end(train, fail_at, monkeypatch):
    may_end = threading.Event()
    monkeypatch.setattr(TorchBackend, "begin_save", lambda self, folder: lambda: may_end.wait(30))
    fail_at("with_reference", (2,), EngineStuck("vLLM's engine does not answer"))
    run, ended = train("stuck", "train.checkpoint_every=0", "vllm.answer_timeout_s=1")
    may_end.set()
    assert isinstance(ended, EngineStuck) and f"continue with: coachrl train --resume {run.folder}" in str(ended)
    assert "no checkpoint after step 1: it was not written within 1 s" in (run.folder / "log.txt").read_text()


def test_an_engine_that_is_lost_in_an_evaluation_takes_no_step_with_it(train, monkeypatch):
    async def lost(*_):
        raise EngineGone("vLLM's engine failed")

    plain = Trainer._evaluate
    monkeypatch.setattr(Trainer, "_evaluate", lambda trainer: lost() if trainer.step == 2 else plain(trainer))
    run, ended = train("gone", "train.checkpoint_every=0", "eval.every=2")
    assert isinstance(ended, EngineGone)
    assert str(ended).startswith("evaluation after step 2: vLLM's engine failed; step-000002 is saved")
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]


@pytest.mark.parametrize("lost", [LOST, EngineGone("vLLM's engine failed")], ids=["trainer", "engine"])
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, Preempted), (signal.SIGINT, KeyboardInterrupt)])
def test_a_run_that_is_asked_to_end_while_it_loses_a_process_ends(
    one_layer_model, tmp_path, monkeypatch, number, ends, lost
):
    plain, calls = TorchBackend.update, []

    def faulty(backend, samples, rate):
        calls.append(samples)
        if len(calls) == 2:
            os.kill(os.getpid(), number)
            raise lost
        return plain(backend, samples, rate)

    monkeypatch.setattr(TorchBackend, "update", faulty)
    config = load_config(None, [*SETTINGS, f"model={one_layer_model}", "name=ended", f"out={tmp_path}"])
    run = Run.create(config)
    with pytest.raises(ends) as ended:
        asyncio.run(train_run(config, run, Console(file=io.StringIO()), resume=False, restarted=0))
    assert len(calls) == 2 and not restarts(run)
    if ends is Preempted:
        assert str(ended.value).endswith(
            f"the process was asked to end; step-000001 is saved; continue with: coachrl train --resume {run.folder}"
        )


IN_EACH_PROCESS = """
import os
if os.environ.pop("FAULTY", None):  # not in the sandbox's
    import coachrl.errors
    from coachrl.trainers.backends.torch.backend import TorchBackend
    update, made = TorchBackend.update, []

    def faulty(self, samples, rate):
        made.append(samples)
        if len(made) == 2:
            os.environ["FAULTY"] = "1"
            raise coachrl.errors.EngineGone(f"the engine of process {os.getpid()} failed")
        return update(self, samples, rate)

    TorchBackend.update = faulty
"""


@pytest.mark.thorough
def test_the_command_goes_on_in_new_processes_so_many_times(one_layer_model, tmp_path):
    """Each makes a step and fails. Its standard streams and its number stay; files of the current folder that are
    called like modules of Python's own are none."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(IN_EACH_PROCESS)
    (tmp_path / "random.py").write_text("raise SystemExit(1)")
    settings = [*SETTINGS, f"model={one_layer_model}", "name=run", "train.restarts=1", "train.steps=4"]
    path = os.pathsep.join(filter(None, [str(tmp_path / "patch"), os.environ.get("PYTHONPATH")]))
    program = [sys.executable, "-P", "-c", "from coachrl.cli.main import main; main()", "--verbose", "train", *settings]
    process = subprocess.Popen(
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": path, "FAULTY": "1"},
    )  # fmt: skip
    said, _ = process.communicate(timeout=300)
    said, run = " ".join(said.split()), Run(tmp_path / "runs" / "run")
    failed = f"the engine of process {process.pid} failed"
    assert process.returncode == 1, said
    assert f"{failed}; restart 1 of 1, from step-000001, in a new process" in said
    assert f"{failed}; step-000002 is saved; continue with: coachrl train --resume {run.folder}" in said
    assert len(restarts(run)) == 1 and [record["step"] for record in run.metrics()] == [0, 1, 2]
    assert "Traceback" not in said
