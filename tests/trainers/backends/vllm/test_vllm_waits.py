"""vLLM's engine stands still: who waits for it is told so, and a run ends, with a checkpoint to go on from."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from flat_config import with_settings
from tiny_models import write_tiny_model

from coachrl.config import RunConfig
from coachrl.errors import EngineStuck
from coachrl.runs.folder import Run
from coachrl.trainers.backends.vllm.backend import VllmBackend
from coachrl.types import SamplingParams

POLICIES = ("solver", "verifier")
PATIENCE_S = 300  # that nobody waits for ever is what is tested, not how long
LIMIT_S = 2.0
PASS = "vllm.v1.worker.cpu_worker:CPUWorker.execute_model"
SAVE = "coachrl.trainers.backends.torch.backend:PolicyTrainer.save"
START = "coachrl.trainers.backends.vllm.engine:Engine.__init__"
SETTINGS = (
    "backend=vllm", "train.steps=2", "train.tasks_per_step=2", "train.learning_rate=1e-3", "train.checkpoint_every=0",
    "train.mask_truncated=false", "tasks.heldout_count=1", "tasks.train_count=8", "pipeline.prompt_style=short",
    "pipeline.max_new_tokens=6", "pipeline.roles.code_executor.python=false",
    "pipeline.roles.code_executor.max_turns=1", "torch.threads=1", "torch.device=cpu", "torch.precision=float32",
    "coach.name=rules", "eval.every=100", "vllm.engine_args={kv_cache_memory_bytes: 67108864}", "name=run",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=False, **heads)


@pytest.fixture
def start(model):
    """Start a backend whose engine may take `LIMIT_S` for each thing that it does."""
    started = []

    def make(limit_s=LIMIT_S):
        given = {"engine_args": {"kv_cache_memory_bytes": 2**26}, "answer_timeout_s": limit_s}
        config = with_settings(RunConfig(backend="vllm", vllm=given), device="cpu")
        started.append(VllmBackend(dict.fromkeys(POLICIES, model), config))
        return started[-1]

    yield make
    for backend in started:
        backend.close()


@pytest.fixture
def stands_still(monkeypatch):
    """Let a method of an engine stand still until the test has ended."""
    released = threading.Event()
    yield lambda engine, method: monkeypatch.setattr(engine, method, lambda *_: released.wait())
    released.set()


async def ask(backend, *policies, length=4):
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "snow"}])
    asked = [backend.generate(policy, prompt, SamplingParams(length, seed=i)) for i, policy in enumerate(policies)]
    return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_S)


def refusal(what, limit_s=LIMIT_S):
    return f"vLLM's engine does not answer: {what} has taken longer than {limit_s:g} s (vllm.answer_timeout_s)"


async def test_a_pass_that_never_ends_leaves_nobody_waiting(start, stands_still):
    backend = start()
    stands_still(backend._turns._engine, "step")
    ends = await ask(backend, "solver", "solver", "verifier")  # the last has no turn yet
    assert {type(end) for end in ends} == {EngineStuck}
    [said] = {str(end) for end in ends}
    assert said in (refusal("a pass for 1 request"), refusal("a pass for 2 requests"))
    began = time.monotonic()
    with pytest.raises(EngineStuck):
        backend.update({})
    assert {type(end) for end in await ask(backend, "solver")} == {EngineStuck}
    backend.close()
    assert time.monotonic() - began < LIMIT_S, "what is known needs no waiting"


@pytest.mark.parametrize(("method", "what"), [("load", "taking weights"), ("sleep", "leaving the GPU's memory")])
async def test_what_else_never_ends_is_named(start, stands_still, method, what):
    backend = start()
    stands_still(backend._turns._engine, method)
    if method == "load":
        assert {str(end) for end in await ask(backend, *POLICIES)} == {refusal(what)}
    else:
        with pytest.raises(EngineStuck) as caught:
            backend.update({})
        assert str(caught.value) == refusal(what)


async def test_many_passes_are_no_silence(start, monkeypatch):
    """What is asked for takes several times as long as one pass may."""
    backend = start()
    engine, began = backend._turns._engine, time.monotonic()
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: time.sleep(LIMIT_S / 4) or step())
    [reply] = await ask(backend, "solver", length=16)
    assert len(reply.token_ids) == 16 or reply.finish_reason == "stop"
    backend._turns.rest()
    assert time.monotonic() - began > len(reply.token_ids) * LIMIT_S / 4


async def test_a_process_that_was_stopped_takes_no_engine_for_silent(start, monkeypatch):
    """Both sides of a wait were stopped, for longer than a pass may take."""
    backend = start()
    engine, me = backend._turns._engine, os.getpid()
    step, stopped = engine.step, []

    def stop_once():
        if not stopped:
            stopped.append(subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep {2 * LIMIT_S}; kill -CONT {me}"]))
            time.sleep(LIMIT_S / 2)
        return step()

    monkeypatch.setattr(engine, "step", stop_once)
    [reply] = await ask(backend, "solver")
    stopped[0].wait()
    assert len(reply.token_ids) > 0


@pytest.fixture
def coachrl(model, tmp_path):
    """The command line in a process whose engine stands still in `call`, after so many updates."""
    driver = Path(__file__).with_name("broken_run.py")

    def run(call, updates, *arguments):
        words = [sys.executable, driver, "hangs", call, str(updates), *arguments]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    return run


@pytest.mark.thorough
def test_a_run_ends_with_a_checkpoint_of_its_last_whole_step_and_another_process_goes_on(coachrl, model, tmp_path):
    """Also where what ends with the process waits for the engine."""
    limits = ["vllm.answer_timeout_s=5", "train.restarts=0", f"model={model}"]
    ended = coachrl(PASS, 1, "train", *SETTINGS, *limits)
    words = " ".join(ended.stderr.split())
    assert ended.returncode == 1, words
    run = Run(tmp_path / "runs" / "run")
    [kept] = run.checkpoints()
    assert kept.name == "step-000001" == f"step-{run.metrics()[-1]['step']:06d}"
    assert re.search(r"step 2: vLLM's engine does not answer: a pass for . requests? has taken longer than 5 s", words)
    assert "step-000001 is saved; continue with: coachrl train --resume" in words and "Traceback" not in words, words

    in_evaluation = coachrl(PASS, 1, "train", "--resume", str(run.folder))  # counted anew in each process
    words = " ".join(in_evaluation.stderr.split())
    assert in_evaluation.returncode == 1 and "evaluation after step 2: vLLM's engine does not answer" in words, words
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]
    assert [kept.name for kept in run.checkpoints()] == ["step-000002"]


@pytest.mark.thorough
def test_a_checkpoint_that_hangs_with_the_engine_is_given_up_too(coachrl, model, tmp_path):
    limits = ["vllm.answer_timeout_s=5", "train.restarts=0", f"model={model}"]
    ended = coachrl(f"{PASS},{SAVE}", 1, "train", *SETTINGS, *limits)
    words = " ".join(ended.stderr.split())
    assert ended.returncode == 1 and "no checkpoint after step 1: it was not written within 5 s" in words, words
    assert "no checkpoint was whole yet; continue with: coachrl train --resume" in words, words
    assert not Run(tmp_path / "runs" / "run").checkpoints()


@pytest.mark.thorough
def test_an_engine_that_never_starts_ends_the_command(coachrl, model):
    ended = coachrl(START, 0, "train", *SETTINGS, "vllm.start_timeout_s=3", f"model={model}")
    words = " ".join(ended.stderr.split())
    assert ended.returncode == 1, words
    assert "its start has taken longer than 3 s (vllm.start_timeout_s); nothing had been trained yet" in words, words
