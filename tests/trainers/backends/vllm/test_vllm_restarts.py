"""A run whose engine fails or hangs in the middle of a forward pass goes on by itself in a new process, to the figures
of an undisturbed one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from run_figures import figures
from tiny_models import write_tiny_model

from coachrl.runs.folder import Run

PASS = "vllm.v1.worker.cpu_worker:CPUWorker.execute_model"
SETTINGS = (
    "backend=vllm", "train.steps=2", "train.tasks_per_step=2", "train.learning_rate=1e-3", "train.checkpoint_every=1",
    "train.mask_truncated=false", "tasks.heldout_count=1", "tasks.train_count=8", "pipeline.prompt_style=short",
    "pipeline.max_new_tokens=6", "pipeline.roles.code_executor.python=false",
    "pipeline.roles.code_executor.max_turns=1", "torch.threads=1", "torch.device=cpu", "torch.precision=float32",
    "coach.name=rules", "eval.every=100", "vllm.engine_args={kv_cache_memory_bytes: 67108864}",
)  # fmt: skip
SAYS = {
    "fails": "step 2: vLLM's engine failed: RuntimeError: CUDA error: an illegal memory access was encountered; ",
    "hangs": "step 2: vLLM's engine does not answer: a pass for ",
}


@pytest.fixture
def train(tmp_path):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = write_tiny_model(tmp_path / "tiny", tie_word_embeddings=False, **heads)

    def trained(name, *program):
        """The run, and what was printed. A file of the current folder is called like a module of Python's own."""
        (tmp_path / "random.py").write_text("raise SystemExit('the wrong random')")
        settings = [*SETTINGS, "vllm.answer_timeout_s=10", f"model={model}", f"name={name}"]
        command = [sys.executable, "-P", *program, "train", *settings]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return Run(tmp_path / "runs" / name), " ".join((done.stdout + done.stderr).split())

    return trained


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_run_whose_engine_is_lost_goes_on_in_a_new_process_to_equal_figures(train, how):
    """Inside vLLM's worker, while replies of the second step are in flight."""
    whole, _ = train("whole", "-m", "coachrl.cli.main")
    run, said = train("disturbed", Path(__file__).with_name("broken_run.py"), how, PASS, "1")
    [line] = [line for line in (run.folder / "log.txt").read_text().splitlines() if "restart " in line]
    assert SAYS[how] in line and "; restart 1 of 3, from step-000001, in a new process" in line
    assert SAYS[how] in said and "Traceback" not in said and f"report: {run.folder}" in said
    for record, expected in zip(figures(run), figures(whole), strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True)
