"""A run whose engine fails in the middle of a forward pass starts it again, and comes to the figures of an undisturbed
one."""

import asyncio
import io
import weakref

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from rich.console import Console
from tiny_models import write_tiny_model
from vllm.v1.worker.cpu_worker import CPUWorker

from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.runs.folder import Run
from coachrl.trainers.backends.vllm.backend import VllmBackend

SETTINGS = (
    "backend=vllm", "train.steps=2", "train.tasks_per_step=2", "train.learning_rate=1e-3", "train.checkpoint_every=1",
    "train.mask_truncated=false", "tasks.heldout_count=1", "tasks.train_count=8", "pipeline.prompt_style=short",
    "pipeline.max_new_tokens=6", "pipeline.roles.code_executor.python=false",
    "pipeline.roles.code_executor.max_turns=1", "torch.threads=1", "torch.device=cpu", "torch.precision=float32",
    "coach.name=rules", "eval.every=100", "vllm.engine_args={kv_cache_memory_bytes: 67108864}",
)  # fmt: skip
FAULT = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def train(tmp_path):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = write_tiny_model(tmp_path / "tiny", tie_word_embeddings=False, **heads)

    def trained(name):
        config = load_config(None, [*SETTINGS, f"model={model}", f"name={name}", f"out={tmp_path}"])
        run = Run.create(config)
        asyncio.run(train_run(config, run, Console(file=io.StringIO()), resume=False))
        return run

    return trained


def figures(run):
    """Metrics without what a clock decides."""
    return [
        {k: v for k, v in record.items() if not k.startswith("time/") and "per_s" not in k and "latency" not in k}
        for record in run.metrics()
    ]


def test_a_run_whose_engine_fails_goes_on_from_its_last_checkpoint_to_equal_figures(train, monkeypatch):
    """Inside vLLM's worker, while replies of the second step are in flight. Of the engine that failed nothing may be
    left when the next one starts: on a GPU vLLM starts none beside another's memory."""
    whole = train("whole")
    updates, passes, models, left = [], [], [], []
    sync, execute, load = VllmBackend.sync_weights, CPUWorker.execute_model, CPUWorker.load_model

    def counted_sync(backend):
        updates.append(len(updates))
        sync(backend)

    def failing_execute(worker, *arguments, **options):
        passes.append(len(updates))
        if passes.count(1) == 4:
            raise RuntimeError(FAULT)
        return execute(worker, *arguments, **options)

    def noted_load(worker, **options):
        left.append([model for model in models if model() is not None])
        load(worker, **options)
        models.append(weakref.ref(worker.get_model()))

    monkeypatch.setattr(VllmBackend, "sync_weights", counted_sync)
    monkeypatch.setattr(CPUWorker, "execute_model", failing_execute)
    monkeypatch.setattr(CPUWorker, "load_model", noted_load)
    run = train("disturbed")
    [line] = [line for line in (run.folder / "log.txt").read_text().splitlines() if "restart " in line]
    assert f"step 2: vLLM's engine failed: RuntimeError: {FAULT}; restart 1 of 3, from step-000001" in line
    assert left == [[], []], "one start, and another once the model of the first is gone"
    for record, expected in zip(figures(run), figures(whole), strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True)
