"""A real run, killed again and again, ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import write_tiny_model

from coachrl.config import dump_config, load_config
from coachrl.jsonl import read_jsonl
from coachrl.runs.folder import Run

if any(importlib.util.find_spec(name) is None for name in ("litellm", "torch", "aiohttp")):
    pytest.skip("needs the extras llm and torch", allow_module_level=True)
from scripted_server import ScriptedServer, say

KILLS = int(os.environ.get("COACHRL_TEST_KILLS", "25"))
SETTINGS = [
    "train.steps=4", "train.tasks_per_step=2", "train.checkpoint_every=1", "train.keep_checkpoints=2",
    "train.learning_rate=1e-3", "eval.every=2", "tasks.heldout_count=2", "tasks.train_count=8",
    "pipeline.prompt_style=short", "pipeline.max_new_tokens=6", "pipeline.roles.code_executor.python=false",
    "pipeline.roles.code_executor.max_turns=1", "train.mask_truncated=false", "torch.threads=1", "torch.device=cpu",
    "coach.name=openai/judge",
]  # fmt: skip


class Driver:
    """The process that forks trainings; see kill_driver.py."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    @classmethod
    async def start(cls, folder):
        script = Path(__file__).with_name("kill_driver.py")
        errors = (folder / "driver.log").open("w")
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env={**os.environ, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, limit=2**24,
        )  # fmt: skip
        return cls(process, folder)

    async def train(self, config, resume=None, kill_at=None, kill_after_s=None):
        order = {"config": str(config), "resume": str(resume) if resume else None, "kill_at": kill_at}
        order |= {"kill_after_s": kill_after_s, "log": str(self.folder / "events.txt")}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), 300)
        assert line, (self.folder / "driver.log").read_text()[-3000:]
        return json.loads(line)

    async def end(self):
        self.process.stdin.close()
        await self.process.wait()


def figures(run):
    """Metrics without what a clock or the cache decides."""

    def decided(key):
        return not (key.startswith("time/") or "latency" in key or "cache" in key or "per_s" in key)

    return [{key: value for key, value in record.items() if decided(key)} for record in run.metrics()]


def tokens(run):
    return {
        path.name: [[action["response_ids"] for action in episode["actions"]] for episode in read_jsonl(path)]
        for path in run.episode_files()
    }


def paid(run):
    """Prompts whose reply was there before the kill."""
    lines = read_jsonl(run.ledger, skip_torn=True) if run.ledger.exists() else []
    return {json.dumps(line["messages"][-1]["content"]) for line in lines if line["kind"] == "call" and line["reply"]}


def whole_lines(run):
    return all(
        not (text := path.read_text()) or text.endswith("\n")
        for path in run.folder.rglob("*.jsonl")
    )  # fmt: skip


@pytest.fixture
async def environment(tmp_path):
    model = write_tiny_model(
        tmp_path / "tiny", hidden_size=32, intermediate_size=32, num_hidden_layers=1, max_position_embeddings=4096
    )
    driver = await Driver.start(tmp_path)
    async with ScriptedServer(lambda request: say(f"PROCESS_SCORE: {len(request.prompt) % 10}")) as server:

        def configured(name):
            settings = [*SETTINGS, f"model={model}", f"name={name}", f"out={tmp_path / 'runs'}"]
            path = tmp_path / f"{name}.yaml"
            path.write_text(dump_config(load_config(None, [*settings, f"coach.api_base={server.openai_base}"])))
            return path, tmp_path / "runs" / name

        yield driver, server, configured
        await driver.end()


def choose(events, chance):
    """An event to be killed at: often one of those around a checkpoint, where most can go wrong."""
    delicate = [n for n, event in enumerate(events) if "checkpoints" in event or event.startswith("os.rename")]
    return chance.choice(delicate) if delicate and chance.random() < 0.5 else chance.randrange(len(events))


@pytest.mark.slow
async def test_a_run_killed_at_any_moment_ends_as_an_uninterrupted_one(environment):
    driver, server, configured = environment
    chance = random.Random(int(os.environ.get("COACHRL_TEST_SEED", "0")))
    config, folder = configured("whole")
    done = await driver.train(config)
    assert done["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    whole, events = Run.open(folder), done["events"]
    asked_once = Counter(request.prompt for request in server.requests)
    assert max(asked_once.values()) == 1 and len(asked_once) >= 10

    kills, lives = 0, 0
    while kills < KILLS:
        config, folder = configured(f"life-{lives}")
        lives += 1
        resume, returncode = None, None
        for life in range(60):
            before = len(server.requests)
            had = paid(Run.open(folder)) if resume else set()
            spared = life >= 8 or kills >= KILLS
            timed = chance.random() < 0.3
            at = (
                None if spared or timed else choose(events, chance) if life == 0 else chance.randrange(len(events) // 3)
            )
            answer = await driver.train(config, resume, at, chance.uniform(0.05, 1.5) if timed and not spared else None)
            asked = {json.dumps(request.prompt) for request in server.requests[before:]}
            again = {prompt for prompt in asked & had if "test of the connection" not in prompt}
            assert not again, "a finished call was asked again"
            returncode = answer["returncode"]
            if returncode == 0:
                break
            assert returncode == -9, (driver.folder / "driver.log").read_text()[-3000:]
            kills += 1
            resume = folder if (folder / "config.yaml").exists() else None
        assert returncode == 0
        cut = Run.open(folder)
        assert figures(cut) == figures(whole)
        assert tokens(cut) == tokens(whole)
        assert whole_lines(cut)
        assert len(cut.checkpoints()) == 2
        assert not list(folder.rglob(".step*"))
