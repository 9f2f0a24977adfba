"""A real run, killed again and again, ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from command_line import command
from tiny_models import write_tiny_model

from coachrl.config import dump_config, load_config
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl

if any(importlib.util.find_spec(name) is None for name in ("litellm", "torch", "aiohttp")):
    pytest.skip("needs the extras llm and torch", allow_module_level=True)
from run_figures import figures
from scripted_server import ScriptedServer, say

KILLS = int(os.environ.get("COACHRL_TEST_KILLS", "5"))
MID_STEP_KILLS = int(os.environ.get("COACHRL_TEST_MID_STEP_KILLS", "2"))
COMMON = [
    "train.tasks_per_step=2", "train.keep_checkpoints=2", "train.learning_rate=1e-3", "tasks.heldout_count=2",
    "tasks.train_count=8", "pipeline.max_new_tokens=6", "train.mask_truncated=false", "torch.threads=1",
    "torch.device=cpu", "coach.name=openai/judge",
]  # fmt: skip
SETTINGS = [
    *COMMON, "train.steps=4", "train.checkpoint_every=1", "eval.every=2", "pipeline.prompt_style=short",
    "pipeline.roles.code_executor.python=false", "pipeline.roles.code_executor.max_turns=1",
]  # fmt: skip
TASKS_AT_ONCE = 4
PATIENCE_S = 900.0  # for one life of a run, on a machine that is busy with other things
UNEVEN = [
    *COMMON, "train.steps=2", f"train.tasks_per_step={TASKS_AT_ONCE}", "tasks.source=word-problems",
    "pipeline.name=uneven:Uneven",
]  # fmt: skip

TREE = [
    *COMMON, "train.steps=2", "train.checkpoint_every=1", "pipeline.name=planpath", "pipeline.options.turns=2",
    "tasks.source=planpath", "algorithm.name=at_grpo", "sampling.scheme=tree",
    "sampling.candidates=2", "sandbox.kind=local-unsafe", "coach.evidence.ground_truth=none",
]  # fmt: skip

REFILL = [
    *SETTINGS, "train.steps=1", "algorithm.name=grpo", "algorithm.without_spread=skip", "algorithm.refill_up_to=4",
    "train.group_size=2", "tasks.train_count=8",
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
            *command("forks:script"), str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=errors, env={**os.environ, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            limit=2**24,
        )  # fmt: skip
        return cls(process, folder)

    async def train(self, config, resume=None, kill_at=None, kill_after_s=None, kill_among=""):
        order = {"config": str(config), "resume": str(resume) if resume else None, "kill_at": kill_at}
        order |= {"kill_among": kill_among, "kill_after_s": kill_after_s, "log": str(self.folder / "events.txt")}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        assert line, (self.folder / "driver.log").read_text()[-3000:]
        return json.loads(line)

    async def end(self):
        self.process.stdin.close()
        await self.process.wait()


def tokens(run, of="response_ids"):
    return {
        path.name: [[action[of] for action in episode["actions"]] for episode in read_jsonl(path)]
        for path in run.episode_files()
    }


def paid(run):
    """Prompts whose reply was there before the kill."""
    lines = read_jsonl(run.ledger, skip_torn=True) if run.ledger.exists() else []
    return {json.dumps(line["messages"][-1]["content"]) for line in lines if line["kind"] == "call" and line["reply"]}


def asked_again(requests, had):
    asked = {json.dumps(request.prompt) for request in requests}
    return {prompt for prompt in asked & had if "test of the connection" not in prompt}


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

        def configured(name, settings=SETTINGS):
            settings = [*settings, f"model={model}", f"name={name}", f"out={tmp_path / 'runs'}"]
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
            assert not asked_again(server.requests[before:], had), "a finished call was asked again"
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


@pytest.mark.slow
async def test_a_run_killed_as_it_names_or_removes_a_checkpoint_has_its_best_and_its_newest_in_the_end(environment):
    """No task is solved, so that the earliest evaluation is the best."""
    driver, _, configured = environment
    settings = [*SETTINGS, "train.steps=3", "train.keep_checkpoints=1", "train.keep_best=true", "eval.every=1"]
    config, folder = configured("whole", settings)
    done = await driver.train(config)
    assert done["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    kept = ["step-000001", "step-000003"]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == kept
    renamed = re.compile(r"os\.rename .*/checkpoints/\.?step-[0-9.]+")
    moments = [n for n, event in enumerate(done["events"]) if renamed.fullmatch(event)]
    assert len(moments) == 4, "three are named, and then that of step 2 is removed"
    for moment in moments[-2:]:
        config, folder = configured(f"cut-{moment}", settings)
        assert (await driver.train(config, kill_at=moment))["returncode"] == -9
        assert (await driver.train(config, folder))["returncode"] == 0
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == kept


def replies_on_disk(folder):
    """(how many there are, how many of them are of batches that are there as a whole)"""
    lines = list(read_jsonl(folder / "replies.jsonl", skip_torn=True))
    there = Counter(tuple(line["batch"] or ()) for line in lines)
    return len(lines), sum(not line["batch"] or there[tuple(line["batch"])] == line["batch"][1] for line in lines)


def replies_kept(events):
    """How many a process drew and wrote down."""
    return sum(event.endswith("/replies.jsonl") for event in events if event.startswith("open"))


@pytest.mark.slow
async def test_a_run_killed_in_the_middle_of_a_step_draws_nothing_twice_but_the_batch_that_was_cut(environment):
    driver, server, configured = environment
    chance = random.Random(int(os.environ.get("COACHRL_TEST_SEED", "0")))
    config, folder = configured("whole", UNEVEN)
    whole_events = (await driver.train(config))["events"]
    whole, drawn = Run.open(folder), replies_kept(whole_events)
    assert drawn == sum(len(replies) for file in tokens(whole).values() for replies in file) > 20
    assert not (folder / "replies.jsonl").exists(), "the last checkpoint holds all that came of them"

    for life, written in enumerate(sorted(chance.sample(range(1, drawn), MID_STEP_KILLS))):
        config, folder = configured(f"cut-{life}", UNEVEN)
        assert (await driver.train(config, kill_at=written, kill_among="/replies.jsonl"))["returncode"] == -9
        had = paid(Run.open(folder))
        there, whole_batches = replies_on_disk(folder)
        assert there == written and there - whole_batches < TASKS_AT_ONCE, "at most a batch is cut"
        before = len(server.requests)
        again = await driver.train(config, resume=folder)
        assert again["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
        assert replies_kept(again["events"]) == drawn - whole_batches
        assert not asked_again(server.requests[before:], had), "the coach was paid twice"
        cut = Run.open(folder)
        assert figures(cut) == figures(whole) and tokens(cut) == tokens(whole)
        assert tokens(cut, "logprobs") == tokens(whole, "logprobs"), "to the last bit"


@pytest.mark.thorough
async def test_a_run_with_trees_killed_at_a_reply_and_at_a_checkpoint_ends_as_an_uninterrupted_one(environment):
    driver, _, configured = environment
    chance = random.Random(int(os.environ.get("COACHRL_TEST_SEED", "0")))
    config, folder = configured("whole", TREE)
    done = await driver.train(config)
    assert done["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    whole, events = Run.open(folder), done["events"]

    config, folder = configured("cut", TREE)
    at_reply = chance.randrange(1, replies_kept(events))
    assert (await driver.train(config, kill_at=at_reply, kill_among="/replies.jsonl"))["returncode"] == -9
    # Of what a resumed run does, the first thing of the kind: it comes to its checkpoint, and is killed at its seal.
    assert (await driver.train(config, folder, kill_at=0, kill_among="/trainer.json"))["returncode"] == -9
    assert (await driver.train(config, folder))["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    cut = Run.open(folder)
    assert figures(cut) == figures(whole) and tokens(cut) == tokens(whole)
    assert tokens(cut, "logprobs") == tokens(whole, "logprobs"), "to the last bit"
    episodes = [episode for path in cut.episode_files() for episode in read_jsonl(path)]
    assert any(episode["rejected_candidates"] for episode in episodes)


@pytest.mark.slow
async def test_a_run_killed_while_it_plays_further_tasks_ends_as_an_uninterrupted_one(environment):
    """The coach scores few prompts above the others, so that the step needs tasks in the place of those without
    spread."""
    driver, server, configured = environment
    server.script = lambda request: say(f"PROCESS_SCORE: {9 * (len(request.prompt) % 9 == 0)}")
    config, folder = configured("whole", REFILL)
    assert (await driver.train(config))["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    whole = Run.open(folder)
    assert whole.metrics()[1]["train/refill_tasks"] > 0
    replies = [len(replies) for file in ("eval-000000.jsonl", "step-000001.jsonl") for replies in tokens(whole)[file]]
    in_refill = sum(replies[: 2 + 4 + 1])  # of two held-out episodes, four of the step's own tasks, one more

    config, folder = configured("cut", REFILL)
    assert (await driver.train(config, kill_at=in_refill, kill_among="/replies.jsonl"))["returncode"] == -9
    had, before = paid(Run.open(folder)), len(server.requests)
    assert (await driver.train(config, folder))["returncode"] == 0, (driver.folder / "driver.log").read_text()[-3000:]
    assert not asked_again(server.requests[before:], had), "the coach was paid twice"
    cut = Run.open(folder)
    assert figures(cut) == figures(whole) and tokens(cut) == tokens(whole)
