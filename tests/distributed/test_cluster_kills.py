"""A real run with `--backend openrlhf` on the command line, killed at moment after moment, and resumed."""

import asyncio
import json
import os
import signal
import tempfile

import pytest
from openrlhf_cpu import ENGINE_ARGS, fork_server
from run_figures import figures
from scripted_server import ScriptedServer, say
from whole_runs import needs_sandbox

from coachrl.config import load_config
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl
from coachrl.tasks import load_tasks
from coachrl.trainers.schedule import step_specs

STEPS = 3
PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
GENERATE = "coachrl.trainers.backends.openrlhf.backend:OpenRLHFBackend.generate"
UPDATE = "coachrl.trainers.backends.openrlhf.backend:OpenRLHFBackend.update"
SAVE = "coachrl.trainers.backends.openrlhf.backend:OpenRLHFBackend.begin_save"
LOAD = "coachrl.trainers.backends.openrlhf.backend:OpenRLHFBackend.load"
SEND = "coachrl.trainers.backends.openrlhf.backend:OpenRLHFBackend.sync_weights"
COACH = "coachrl.coach.clients.retrying:RetryingClient._once"
EVALUATE = "coachrl.trainers.loop:Trainer._evaluate"
# One life after another; a call is counted within its life.
MOMENTS = {
    "evaluation": (GENERATE, 2, 0.0),
    "generation, before any checkpoint": (GENERATE, 4, 0.05),
    "update": (UPDATE, 1, 0.1),
    "checkpoint, the first": (SAVE, 1, 0.1),
    "coach's call": (COACH, 3, 0.0),
    "sending weights": (SEND, 2, 0.02),
    "loading the checkpoint, so twice in a row": (LOAD, 1, 0.1),
    "checkpoint, of a later step": (SAVE, 1, 0.0),
    "evaluation, the last": (EVALUATE, 1, 0.1),
}


class Driver:
    """Starts command lines."""

    def __init__(self, folder):
        self.folder, self.output = folder, folder / "output.txt"

    def start(self, function, *words):
        environment = {**os.environ, "OPENAI_API_KEY": "none", PATIENCE: "45"}
        output = (self.output, self.output)
        return fork_server().start(function, *words, cwd=self.folder, environment=environment, output=output)

    async def run(self, cluster, *arguments, kill_at=None, kill=None):
        """Return code of a command line that works on the cluster at that address; see killed_runs.py."""
        order = {"ray": cluster, "arguments": arguments, "kill_at": kill_at, "kill": kill}
        return await asyncio.to_thread(self.start("killed_runs:run", json.dumps(order)).wait, 1200)


def settings_of(model, server):
    settings = {
        "backend": "openrlhf",
        "name": "cut",
        "model": model,
        "coach.name": "openai/judge",
        "coach.api_base": server.openai_base,
        "pipeline.name": "mathchat",
        "pipeline.prompt_style": "short",
        "pipeline.max_new_tokens": 6,
        "pipeline.roles.problem_solver.policy": "team",
        "pipeline.roles.code_executor.policy": "team",
        "pipeline.roles.code_executor.python": "false",
        "pipeline.roles.code_executor.max_turns": 1,
        "pipeline.roles.verifier.policy": "team",
        "tasks.levels": "[1]",
        "tasks.train_count": 8,
        "tasks.heldout_count": 1,
        "eval.samples_per_task": 1,
        "train.steps": STEPS,
        "train.tasks_per_step": 2,
        "train.checkpoint_every": 1,
        "train.learning_rate": 1e-3,
        "train.mask_truncated": "false",
        "algorithm.kl_beta": 0,
        "algorithm.normalize_over": "batch",
        "openrlhf.gpus": 1,
        "openrlhf.sleep": "false",
        "openrlhf.attention": "eager",
        "openrlhf.engine_args": json.dumps(ENGINE_ARGS),
    }
    return [f"{key}={value}" for key, value in settings.items()]


def answered(run):
    """Prompts whose reply is in the ledger."""
    lines = read_jsonl(run.ledger, skip_torn=True) if run.ledger.exists() else []
    return {line["messages"][-1]["content"] for line in lines if line["kind"] == "call" and line["reply"]}


def played(run, step):
    return list(read_jsonl(run.folder / "episodes" / f"step-{step:06d}.jsonl"))


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path)


@pytest.fixture
async def judge():
    async with ScriptedServer(lambda request: say(f"PROCESS_SCORE: {len(request.prompt) % 10}")) as server:
        yield server


@pytest.fixture
def cluster(ray_cluster):
    return ray_cluster.get_runtime_context().gcs_address


@pytest.mark.thorough
@needs_sandbox
async def test_a_run_killed_at_every_kind_of_moment_comes_to_its_end(tmp_path, model, cluster, driver, judge):
    run = Run(tmp_path / "runs" / "cut")
    settings = settings_of(model, judge)
    for moment, kill_at in [*MOMENTS.items(), ("no kill", None)]:
        had, before = answered(run), len(judge.requests)
        arguments = ["--resume", str(run.folder)] if run.folder.exists() else settings
        code = await driver.run(cluster, "train", *arguments, kill_at=kill_at)
        assert code == (0 if kill_at is None else -9), f"{moment}: {driver.output.read_text()}"
        again = {request.prompt for request in judge.requests[before:]} & had
        assert not {prompt for prompt in again if "test of the connection" not in prompt}, moment

    metrics = run.metrics()
    assert [record["step"] for record in metrics] == list(range(STEPS + 1))
    gaps = [record["train/sampler_trainer_logprob_gap/team"] for record in metrics[1:]]
    assert max(gaps) < 0.01, gaps
    config = load_config(None, settings)
    tasks, _ = load_tasks(config)
    for step in range(1, STEPS + 1):
        episodes = played(run, step)
        assert [episode["task_id"] for episode in episodes] == [
            spec.task.id for spec in step_specs(tasks, config, step)
        ]
        assert {action["weights_version"] for e in episodes for action in e["actions"]} == {step - 1}
    assert all(not (text := path.read_text()) or text.endswith("\n") for path in run.folder.rglob("*.jsonl"))
    assert {path.name for path in run.checkpoints()[-1].iterdir()} == {"team", "trainer.json"}
    assert run.checkpoints()[-1].name == f"step-{STEPS:06d}"
    assert not list(run.folder.rglob(".step*"))


@pytest.mark.thorough
@needs_sandbox
async def test_a_run_whose_trainer_dies_in_an_update_goes_on_by_itself_to_the_figures_of_an_undisturbed_one(
    tmp_path, model, cluster, driver, judge
):
    alone = json.dumps({**ENGINE_ARGS, "max_num_seqs": 1})  # what runs beside a request changes its rounding
    two_ranks = ["openrlhf.gpus=2", "train.steps=2", "openrlhf.prefix_caching=false", f"openrlhf.engine_args={alone}"]
    settings = [*settings_of(model, judge), *two_ranks, "train.lr_schedule=cosine"]
    for name, kill_at in [("whole", None), ("disturbed", (UPDATE, 2, 0.3))]:
        code = await driver.run(cluster, "train", *settings, f"name={name}", kill_at=kill_at, kill="trainer")
        assert code == 0, driver.output.read_text()
    whole, disturbed = (Run(tmp_path / "runs" / name) for name in ("whole", "disturbed"))
    restarts = [line for line in (disturbed.folder / "log.txt").read_text().splitlines() if "restart 1 of 3" in line]
    assert len(restarts) == 1 and "trainer 1 of policy team died" in restarts[0], restarts
    assert restarts[0].endswith("from step-000001")
    assert figures(disturbed) == figures(whole)
    assert [line["train/learning_rate/team"] for line in whole.metrics()[1:]] == pytest.approx([1e-3, 5e-4])


@needs_sandbox
async def test_a_run_that_gets_a_sigterm_ends_with_a_checkpoint_of_its_last_whole_step(
    tmp_path, model, cluster, driver, judge
):
    endless = ["train.steps=1000", "train.checkpoint_every=0"]
    order = {"ray": cluster, "arguments": ["train", *settings_of(model, judge), *endless], "kill_at": None}
    process = driver.start("killed_runs:run", json.dumps(order))
    run = Run(tmp_path / "runs" / "cut")
    metrics = run.folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert process.running, driver.output.read_text()
        await asyncio.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    code = await asyncio.to_thread(process.wait, 600)
    words = " ".join(driver.output.read_text().split())
    assert code == 143 and "asked to end; go on with: coachrl train --resume" in words, words
    [checkpoint] = run.checkpoints()
    assert checkpoint.name == f"step-{run.metrics()[-1]['step']:06d}"
    assert (checkpoint / "team" / "model.safetensors").exists() and (checkpoint / "team" / "deepspeed").is_dir()


@pytest.mark.thorough
@needs_sandbox
async def test_a_cluster_that_is_gone_ends_the_run_which_goes_on_in_another(tmp_path, model, cluster, driver, judge):
    with tempfile.TemporaryDirectory(prefix="orl", dir="/tmp") as folder:
        address = tmp_path / "address"
        other = driver.start("openrlhf_cpu:serve_ray", folder, "2", str(address))
        while not address.exists():
            assert other.running, driver.output.read_text()
            await asyncio.sleep(0.1)
        in_step_two = (UPDATE, 2, 0.0)  # what ends actors waits for an answer of the head, and hears of no interrupt
        settings = settings_of(model, judge)
        code = await driver.run(address.read_text(), "train", *settings, kill_at=in_step_two, kill=other.pid)
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    run = Run(tmp_path / "runs" / "cut")
    words = " ".join(driver.output.read_text().split())
    assert code == 1 and "has not answered for 30 s; a run goes on from its last checkpoint" in words, words
    assert "is gone" in words and "Traceback" not in words, words

    moved = [f"openrlhf.ray_address={cluster}", "openrlhf.gpus=2", "openrlhf.engines=1"]
    assert await driver.run(cluster, "train", "--resume", str(run.folder), *moved) == 0, driver.output.read_text()
    assert not list(run.folder.rglob(".step*"))
    assert run.config().openrlhf.ray_address == cluster
    assert [record["step"] for record in run.metrics()] == list(range(STEPS + 1))
