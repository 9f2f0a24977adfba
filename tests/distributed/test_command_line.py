"""A whole run with `--backend openrlhf`: killed in the middle, and resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import time

from openrlhf_cpu import ENGINE_ARGS, HERE
from whole_runs import needs_sandbox

from coachrl.jsonl import read_jsonl
from coachrl.runs import Run


def command_line(*arguments, cwd):
    folder = tempfile.mkdtemp(prefix="orl", dir="/tmp")
    return subprocess.Popen(
        [sys.executable, str(HERE / "run_cli.py"), folder, "4", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@needs_sandbox
def test_a_killed_run_goes_on_where_it_was(tmp_path, model):
    settings = {
        "backend": "openrlhf",
        "name": "cut",
        "model": model,
        "pipeline.roles.problem_solver.policy": "team",
        "pipeline.roles.verifier.policy": "team",
        "tasks.heldout_count": 2,
        "train.steps": 3,
        "train.batch_size": 3,
        "train.checkpoint_every": 1,
        "train.learning_rate": 1e-3,
        "advantage.normalize_over": "batch",  # a role of an untrained model has one score throughout
        "openrlhf.gpus": 1,
        "openrlhf.sleep": "false",
        "openrlhf.attention": "eager",
        "openrlhf.engine_args": str(ENGINE_ARGS).replace("True", "true").replace("False", "false"),
    }
    run = Run(tmp_path / "runs" / "cut")
    process = command_line("train", "-c", "quickstart", *(f"{k}={v}" for k, v in settings.items()), cwd=tmp_path)
    deadline = time.monotonic() + 1800
    while not run.checkpoints() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    assert run.checkpoints(), output

    resumed = command_line("train", "--resume", run.folder, cwd=tmp_path)
    output, _ = resumed.communicate(timeout=1800)
    assert resumed.returncode == 0, output
    metrics = run.metrics()
    assert [record["step"] for record in metrics] == [0, 1, 2, 3]
    assert {path.name for path in run.checkpoints()[-1].iterdir()} == {"team", "code_executor", "trainer.json"}
    gaps = [value for record in metrics for name, value in record.items() if name.startswith("train/logprob_gap/")]
    assert gaps and max(gaps) < 0.01, gaps
    for step in (1, 2, 3):
        episodes = list(read_jsonl(run.folder / "episodes" / f"step-{step:06d}.jsonl"))
        assert {action["weights_version"] for e in episodes for action in e["actions"]} == {step - 1}
        assert {action["policy"] for e in episodes for action in e["actions"]} == {"team", "code_executor"}
