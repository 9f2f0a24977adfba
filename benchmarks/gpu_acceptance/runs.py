"""Command lines of coachrl as a stage starts them: in processes of their own, with the settings of the acceptance."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from coachrl.config import RunConfig, find_config, load_config

# So small that all of it runs on two cores of a CPU in a few minutes; what it draws is noise.
_TINY = (
    "pipeline.max_new_tokens=8", "pipeline.roles.problem_solver.max_new_tokens=8",
    "pipeline.roles.code_executor.max_new_tokens=8", "pipeline.roles.verifier.max_new_tokens=8",
    "tasks.train_count=16", "tasks.heldout_count=2", "train.tasks_per_step=4", "train.steps=2",
    "train.learning_rate=1e-3", "eval.every=2", "vllm.max_length=2048", "torch.micro_batch_tokens=2048",
    "sandbox.concurrency=2",
)  # fmt: skip
_TINY_CACHE = '{"kv_cache_memory_bytes": 134217728}'
NO_CUDA = "no CUDA device"


@dataclass(frozen=True)
class Setting:
    """What every stage is told. model: a Hugging Face folder or `smollm2-135m`. folder: where its files go. overrides:
    of every run, from the command line."""

    model: str
    folder: Path
    tiny: bool
    overrides: tuple[str, ...]

    @property
    def on_gpu(self) -> bool:
        return torch.cuda.is_available()

    def words(self, *more: str) -> list[str]:
        """The settings of a run of `configs/one_gpu.yaml`."""
        tiny = _TINY if self.tiny else ()
        small_cache = [f"vllm.engine_args={_TINY_CACHE}"] if self.tiny and not self.on_gpu else []
        usual = [*tiny, *small_cache]
        if "backend=openrlhf" in more:  # which reads nothing of the other backends'
            usual = [word for word in usual if not word.startswith(("vllm.", "torch."))]
        return [f"model={self.model}", f"out={self.folder / 'runs'}", *usual, *more, *self.overrides]

    def config(self, *more: str) -> RunConfig:
        return load_config(find_config("one_gpu"), self.words(*more))


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def start(*words: str) -> subprocess.Popen[str]:
    """`coachrl` with these words, in this stage's group of processes. Its words go to the stage's log."""
    program = [sys.executable, "-c", "from coachrl.cli.main import main; main()"]
    return subprocess.Popen([*program, *words], text=True, stdout=sys.stderr)


def finish(process: subprocess.Popen[str], within_s: float) -> tuple[int, bool]:
    """Its return code, and whether it had to be asked to end (SIGTERM: it then writes a checkpoint)."""
    try:
        return process.wait(within_s), False
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGTERM)
        return process.wait(), True
