"""Whole runs on a backend that is there already, as the command line makes them."""

import asyncio
import hashlib
import io
import shutil

import pytest
from rich.console import Console

from coachrl.coach.pool import CoachPool
from coachrl.commands import build as assembly
from coachrl.commands import run as commands
from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.runs.folder import Run, read_jsonl
from coachrl.types import CoachScore

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

# The models' words are noise, so their scores are too: no two are alike, and equal words have equal ones.
MATHCHAT = {
    "backend": "openrlhf",
    "openrlhf.colocate": "false",
    "pipeline.name": "mathchat",
    "pipeline.prompt_style": "short",
    "pipeline.max_new_tokens": 8,
    "pipeline.roles.problem_solver.policy": "solver",
    "pipeline.roles.code_executor.policy": "solver",
    "pipeline.roles.code_executor.max_turns": 1,
    "pipeline.roles.verifier.policy": "verifier",
    "tasks.levels": "[1]",
    "tasks.heldout_count": 2,
    "train.tasks_per_step": 4,
    "train.mask_truncated": "false",
    "algorithm.kl_beta": 0,
    "coach.max_failed_fraction": 0,
    "train.learning_rate": 1e-3,
    "sandbox.concurrency": 2,
}


class Judge:
    """Scores by what it reads, and knows how many actions it was asked about at once."""

    name = "judge"

    def __init__(self, latency_s=0.0):
        self.latency_s, self.at_once, self.most_at_once = latency_s, 0, 0

    async def score(self, request):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.latency_s)
        self.at_once -= 1
        value = int(hashlib.sha256(request.action.text.encode()).hexdigest(), 16) % 101 / 10
        return CoachScore(request.action.id, "scored", process_0_10=value, model=self.name)

    async def close(self):
        pass


def configured(folder, settings):
    given = {"out": folder / "runs", "name": "run", "openrlhf.attention": "eager", **settings}
    return load_config(None, [f"{key}={value}" for key, value in given.items()])


async def train_on(backend, config, monkeypatch, coach=None):
    """Train with the engines and trainers of `backend`, which stays open, and with `coach` in place of the configured
    one. The run."""
    if coach is not None:
        monkeypatch.setattr(assembly, "make_coach_pool", lambda config, ledger, **_: CoachPool(coach, ledger=ledger))
    monkeypatch.setattr(commands, "make_backend", lambda config, policies, again: backend)
    monkeypatch.setattr(backend, "close", lambda: None)
    run = Run.create(config)
    await train_run(config, run, Console(file=io.StringIO()), resume=False)
    return run


def episodes_of(run, step):
    return list(read_jsonl(run.folder / "episodes" / f"step-{step:06d}.jsonl"))
