"""vLLM's own engine, at tiny size on CPU, beside the embedded trainer. One engine serves nearly all of these tests."""

import asyncio
import io
import random
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

import torch
from drawing import WORDS, draw, fresh, learn_low_tokens, samples_of
from flat_config import with_settings
from rich.console import Console
from tiny_models import write_tiny_model

from coachrl.commands import build
from coachrl.commands import run as run_commands
from coachrl.commands.run import evaluate_run, rollout_once, train_run
from coachrl.config import PipelineConfig, RunConfig, load_config
from coachrl.doctor.hand_over import measure
from coachrl.errors import BackendError, ConfigError, ContextOverflow, EngineGone, PolicyError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.generation import listening
from coachrl.runs.folder import Run, read_jsonl
from coachrl.trainers.backends.vllm import engine
from coachrl.trainers.backends.vllm.backend import VllmBackend
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.samples import to_samples
from coachrl.types import SamplingParams, Task

POLICIES = ("solver", "verifier", "judge")
SAME = 0.01  # mean difference of log-probabilities between engine and trainer: bfloat16's rounding
MOVED = 0.05  # what an update changes them by, at least
CONTEXT = 900
PATIENCE_S = 300  # that nobody waits for ever is what is tested, not how long

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Heads of 32: vLLM has kernels for those. Small weights: bfloat16's rounding alone must not look like weights that
    differ. Tied embeddings, as small models have them."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    return write_tiny_model(folder, initializer_range=0.06, **heads)


@pytest.fixture(scope="module")
def backend(model):
    """Two policies that are trained, of unequal weights, and one that is not. Tests find weights that others have
    changed."""
    config = RunConfig(backend="vllm", vllm={"max_length": CONTEXT, "engine_args": {"kv_cache_memory_bytes": 2**27}})
    config = with_settings(config, learning_rate=1e-2, device="cpu")
    made = VllmBackend(dict.fromkeys(POLICIES, model), config, {"judge": False}, keep_reference=True)
    made.update({"solver": fresh(made, "solver", 8, step=77)})
    made.sync_weights()
    yield made
    made.close()


def gap(backend, policy, samples):
    """Mean difference of log-probabilities between the engine that drew the samples and the trainer."""
    [filled] = backend.with_trainer_logprobs({policy: samples}).values()
    return np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.trainer_logprobs_L) for s in filled]))


def logits(backend, policy, ids):
    trained = backend._policies[policy].model
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return trained(input_ids=torch.tensor([ids])).logits[0].float()


def check_hand_over(backend, stats, step):
    """The engine drew what was trained on with the trainer's weights, and has what an update made of them once they are
    handed over."""
    for policy in POLICIES[:2]:
        assert stats[f"sampler_trainer_logprob_gap/{policy}"] < SAME
        assert gap(backend, policy, fresh(backend, policy, 8, step)) > MOVED  # nothing was handed over yet
    backend.sync_weights()
    for policy in POLICIES[:2]:
        assert gap(backend, policy, fresh(backend, policy, 8, step)) < SAME


def test_served_weights_are_the_trainers_after_each_update_and_only_after_the_hand_over(backend):
    for step in range(3):
        samples = {policy: fresh(backend, policy, 8, step) for policy in POLICIES}
        stats = backend.update(samples)
        assert set(stats) >= {f"{name}/{policy}" for name in ("loss", "grad_norm") for policy in POLICIES[:2]}
        assert not any(name.endswith("/judge") for name in stats)
        check_hand_over(backend, stats, step)


def test_the_doctors_hand_over_agrees_and_one_that_does_not_happen_is_seen(backend, monkeypatch):
    found = measure(backend, "solver")
    assert found.agrees, str(found)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "sync_weights", lambda: None)
        assert not measure(backend, "solver").agrees
    backend.sync_weights()


def test_the_weights_version_counts_hand_overs(backend):
    before = [draw(backend, policy, 1)[1][0].weights_version for policy in POLICIES]
    backend.sync_weights()
    assert [draw(backend, policy, 1)[1][0].weights_version for policy in POLICIES] == [v + 1 for v in before]


def test_a_policy_that_is_not_trained_keeps_its_weights(backend):
    samples = fresh(backend, "judge", 8)
    [filled] = backend.with_reference({"judge": samples}).values()
    assert np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.ref_logprobs_L) for s in filled])) < SAME
    [moved] = backend.with_reference({"solver": fresh(backend, "solver", 8)}).values()
    assert np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.ref_logprobs_L) for s in moved])) > MOVED


async def replies_of(backend, requests):
    """The replies to (policy, prompt, seed), all in flight at once, by request."""
    asked = (backend.generate(policy, prompt, SamplingParams(12, seed=seed)) for policy, prompt, seed in requests)
    return dict(zip(requests, await asyncio.gather(*asked), strict=True))


async def test_a_reply_depends_on_its_own_prompt_and_seed_in_whatever_order_policies_are_asked(backend):
    """Prompts longer than a block of the cache (128), the same ones for all policies: none may read what another's
    weights have made of them."""
    tokenizer = backend.tokenizer("solver")
    prompts = [tokenizer.encode_chat([{"role": "user", "content": f"{word} " * 40}]) for word in WORDS]
    assert min(map(len, prompts)) > 130
    requests = [(policy, prompt, i) for policy in POLICIES for i, prompt in enumerate(prompts)]
    first = await replies_of(backend, requests)
    shuffled = random.Random(0).sample(requests, len(requests))
    again = await replies_of(backend, shuffled)
    # What runs beside a request changes its rounding, and so now and then a draw.
    assert np.mean([first[request].token_ids == again[request].token_ids for request in requests]) > 0.7
    for policy in POLICIES[:2]:
        replies = [again[policy, prompt, i] for i, prompt in enumerate(prompts)]
        assert gap(backend, policy, samples_of(prompts, replies, policy)) < SAME
    other = await replies_of(backend, [(policy, prompt, seed + 1) for policy, prompt, seed in requests])
    assert {r.token_ids for r in other.values()} != {r.token_ids for r in first.values()}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.0, 1.0)])
async def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(backend, temperature, top_p):
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "two plus two"}])
    reply = await backend.generate("solver", prompt, SamplingParams(16, temperature, top_p, seed=3))
    assert len(reply.logprobs) == len(reply.token_ids) <= 16
    ended = reply.token_ids[-1] in backend.tokenizer("solver").eos_ids
    assert reply.finish_reason == ("stop" if ended else "length")
    if temperature == 0:
        assert set(reply.logprobs) == {0.0}
        return
    scaled = logits(backend, "solver", [*prompt, *reply.token_ids])[len(prompt) - 1 : -1] / temperature
    chances, order = scaled.softmax(-1).sort(descending=True)
    kept = chances.cumsum(-1) - chances < top_p
    expected = []
    for token, row_kept, row_order, row in zip(reply.token_ids, kept, order, chances, strict=True):
        place = (row_order == token).nonzero()
        expected.append(float(row[place]) / float(row[row_kept].sum()))
    assert np.abs(np.log(expected) - reply.logprobs).mean() < 2 * SAME / temperature


async def test_a_caller_that_is_cancelled_ends_its_request_and_nobody_elses(backend, monkeypatch):
    engine, steps = backend._turns._engine, []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "the moon"}])
    kept = asyncio.ensure_future(backend.generate("solver", prompt, SamplingParams(8)))
    longest = CONTEXT - len(prompt)
    dropped = [
        asyncio.ensure_future(backend.generate(policy, prompt, SamplingParams(longest, seed=i)))
        for i, policy in enumerate(["solver"] * 8 + ["verifier"])  # the last has no turn yet
    ]
    while not steps:
        await asyncio.sleep(0.01)
    for task in dropped:
        task.cancel()
    await asyncio.gather(*dropped, return_exceptions=True)
    for _ in range(3):  # ticks of the loop in which the engine's thread hears of it
        await asyncio.sleep(0)
    heard = len(steps)
    assert 0 < len((await asyncio.wait_for(kept, PATIENCE_S)).token_ids) <= 8
    backend._turns.rest()
    assert len(steps) - heard < 20  # of those dropped, some would have gone on for hundreds
    assert not engine._engine.has_unfinished_requests()


async def test_who_listens_hears_each_token_as_it_is_drawn_and_the_reply_is_the_same(backend, monkeypatch):
    """The engine makes its next step only once the last one's token was heard."""
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "Count."}])
    sampling = SamplingParams(12, seed=4)
    whole = await backend.generate("solver", prompt, sampling)
    may_step, heard, engine = threading.Semaphore(1), [], backend._turns._engine
    step = engine.step

    def stepped():
        assert may_step.acquire(timeout=PATIENCE_S)
        return step()

    def hear(token):
        heard.append(token)
        may_step.release()

    monkeypatch.setattr(engine, "step", stepped)
    with listening(hear):
        grown = await backend.generate("solver", prompt, sampling)
    assert tuple(heard) == grown.token_ids == whole.token_ids


async def test_what_the_engine_refuses_fails_alone(backend):
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "snow"}])
    with pytest.raises(ContextOverflow, match=f"context of {CONTEXT} tokens of policy solver"):
        await backend.generate("solver", [3] * 890, SamplingParams(12))
    asked = [backend.generate("solver", ids, SamplingParams(4)) for ids in ([], prompt)]
    ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_S)
    assert isinstance(ends[0], PolicyError) and "vLLM refuses a request: " in str(ends[0])
    assert len(ends[1].token_ids) > 0


async def test_an_engine_that_fails_in_the_middle_leaves_nobody_waiting(backend, monkeypatch):
    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore\nlines")

    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "snow"}])
    with monkeypatch.context() as patch:
        patch.setattr(backend._turns._engine, "step", lost)
        asked = [backend.generate(policy, prompt, SamplingParams(4)) for policy in POLICIES]
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE_S)
    assert {type(end) for end in ends} == {EngineGone}
    assert {type(end.__cause__) for end in ends} == {RuntimeError}, "a log must show where it was raised"
    assert str(ends[0]) == "vLLM's engine failed: RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_checkpoint_brings_weights_optimizer_and_version_back(backend, tmp_path):
    backend.sync_weights()
    backend.save(tmp_path)
    samples = fresh(backend, "solver", 8, step=9)
    version = draw(backend, "solver", 1)[1][0].weights_version
    first = backend.update({"solver": samples})
    backend.sync_weights()
    assert gap(backend, "solver", fresh(backend, "solver", 8, step=9)) < SAME
    backend.load(tmp_path)
    prompts, replies = draw(backend, "solver", 8, step=9)
    assert replies[0].weights_version == version
    assert gap(backend, "solver", samples_of(prompts, replies, "solver")) < SAME
    assert backend.update({"solver": samples}) == pytest.approx(first, rel=1e-3, abs=1e-4)
    backend.sync_weights()


def test_twenty_steps_raise_the_reward(backend):
    means, _ = learn_low_tokens(backend, "solver", steps=20, count=16)
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 1.0, means


MATHCHAT = {
    "backend": "vllm",
    "pipeline.name": "mathchat",
    "pipeline.prompt_style": "short",
    "pipeline.max_new_tokens": 8,
    "pipeline.roles.problem_solver.policy": "solver",
    "pipeline.roles.code_executor.policy": "judge",
    "pipeline.roles.code_executor.max_turns": 1,
    "pipeline.roles.verifier.policy": "verifier",
    "policies.judge.trainable": "false",
    "coach.evidence.ground_truth": "all",
    "tasks.levels": "[1]",
    "tasks.heldout_count": 2,
    "train.tasks_per_step": 4,
    "train.mask_truncated": "false",
    "algorithm.kl_beta": 0.01,
    "train.learning_rate": 1e-3,
    "sandbox.concurrency": 2,
}


def texts_of(run, step):
    """What was said first in each episode: what comes later may hang on the rounding of what came before."""
    episodes = read_jsonl(run.folder / "episodes" / f"step-{step:06d}.jsonl")
    return [episode["actions"][0]["text"] for episode in episodes]


@needs_sandbox
@pytest.mark.usefixtures("bare_sandboxes")
async def test_a_whole_run_trains_resumes_evaluates_and_plays(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(run_commands, "make_backend", lambda config, policies, again: backend)
    monkeypatch.setattr(build, "load_generators", lambda config, policies, checkpoint: backend)
    monkeypatch.setattr(backend, "close", lambda: None)
    kept = {"train.steps": 2, "train.checkpoint_every": 1, "train.keep_checkpoints": 2}
    given = {"out": tmp_path / "runs", "name": "run", **MATHCHAT, **kept}
    config = load_config(None, [f"{key}={value}" for key, value in given.items()])
    console, run = Console(file=io.StringIO()), Run.create(config)
    await train_run(config, run, console, resume=False)
    for metrics in run.metrics()[1:]:
        for policy in ("solver", "verifier"):
            assert metrics[f"train/sampler_trainer_logprob_gap/{policy}"] < SAME
            assert f"train/ref_kl/{policy}" in metrics
        assert metrics["train/faulty_fraction"] == 0
    whole = texts_of(run, 2)

    shutil.rmtree(run.checkpoints()[-1])
    await train_run(config, run, console, resume=True)
    assert len(run.metrics()) == 3
    # What runs beside a request changes its rounding, and so now and then a draw; other seeds would change all of them.
    assert any(text == again for text, again in zip(whole, texts_of(run, 2), strict=True))

    assert (await evaluate_run(config, run, None, console))["eval/faulty_fraction"] == 0
    episodes, scores = await rollout_once(config, 2, tmp_path / "ledger", console)
    assert len(episodes) == 2 and len(scores) >= 6


def solve(task, endpoint):
    """An app of the pipeline `gateway`."""
    client = endpoint.openai()
    talk = [{"role": "user", "content": task.prompt}]
    first = client.chat.completions.create(model="planner", messages=talk, max_tokens=6).choices[0].message
    talk += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Check it."}]
    return client.chat.completions.create(model="checker", messages=talk, max_tokens=6, n=2).choices[1].message.content


def grade(task, result):
    return isinstance(result, str)


async def test_an_app_plays_its_episodes_on_the_engine_and_what_is_recorded_is_what_the_trainer_finds(backend):
    pytest.importorskip("starlette", reason="the extra gateway is not installed")
    roles = {"planner": {"policy": "solver"}, "checker": {"policy": "verifier"}}
    options = {"run": f"{__name__}:solve", "grade": f"{__name__}:grade", "roles": roles}
    pipeline = make_pipeline(PipelineConfig(name="gateway", max_new_tokens=8, options=options))
    specs = [EpisodeSpec(f"e{n}", Task(f"t{n}", "k", f"What is {n} + 2?"), n) for n in range(4)]
    episodes = await rollout(specs, RolloutContext(pipeline, backend, sandbox=None))
    assert all(episode.outcome.success and episode.infra_error is None for episode in episodes)
    for episode in episodes:
        assert [action.policy for action in episode.actions] == ["solver", "verifier", "verifier"]
        assert {action.weights_version for action in episode.actions} == {backend._weights_version}
    samples = to_samples(episodes)
    assert all(gap(backend, policy, samples[policy]) < SAME for policy in ("solver", "verifier"))


def test_adapters_are_added_to_the_weights_that_are_handed_over(model):
    config = RunConfig(backend="vllm", vllm={"engine_args": {"kv_cache_memory_bytes": 2**26}})
    backend = VllmBackend({"solver": model}, with_settings(config, learning_rate=2e-2, lora_rank=4, device="cpu"))
    for step in range(3):
        backend.update({"solver": fresh(backend, "solver", 8, step)})
    assert gap(backend, "solver", fresh(backend, "solver", 8)) > MOVED
    backend.sync_weights()
    assert gap(backend, "solver", fresh(backend, "solver", 8)) < SAME
    trained = backend._policies["solver"]
    names = set(dict(trained.weights()))
    assert names - set(backend._weights["solver"].tensors) == {"lm_head.weight"}  # tied to the embeddings
    backend.close()


def test_an_engine_that_cannot_start_is_one_line_with_what_to_do(backend, model, capfd):
    """Beside the engine that runs already."""
    for argument, words in (
        ({"kv_cache_memory_bytes": 4096}, r"vLLM's engine does not start: .*; change vllm\.engine_args\.kv_cache"),
        ({"quantization": "nonsense"}, r"does not start: .*nonsense.*; `coachrl doctor --backend vllm` says"),
        ({"no_such": 1}, r"does not start: .*no_such.*vllm\.engine_args are passed to vLLM as they are"),
    ):
        config = RunConfig(backend="vllm", vllm={"engine_args": argument})
        with pytest.raises(BackendError, match=words) as caught:
            VllmBackend({"solver": model}, with_settings(config, device="cpu"))
        assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_policies_of_other_shapes_cannot_take_turns(model, tmp_path):
    wider = write_tiny_model(tmp_path / "wider", hidden_size=96, num_attention_heads=3, num_key_value_heads=3)
    with pytest.raises(ConfigError, match=r"differ in .*hidden_size.* cannot take turns in one engine"):
        VllmBackend({"solver": model, "verifier": wider}, with_settings(RunConfig(backend="vllm"), device="cpu"))


def test_a_neighbour_on_the_card_that_vllms_sleep_does_not_bear_is_told_with_what_to_set(backend, monkeypatch):
    held = backend._turns._engine

    def disturbed(level):
        raise AssertionError("Memory usage increased after sleeping.")

    monkeypatch.setattr(held, "_sleeps", True)
    monkeypatch.setattr(held._engine, "sleep", disturbed)
    with pytest.raises(EngineGone, match=r"increased after sleeping.* Another process took memory.* vllm\.sleep=false"):
        backend._turns.rest()
    assert not held._asleep


@pytest.mark.parametrize("room", [True, False])
def test_memory_that_sleeps_is_mapped_before_it_is_freed(monkeypatch, room):
    """vLLM's allocator for GPUs, which no CPU has, keeps the error of unmapping twice."""
    log = []

    def mapped():
        log.append("map")
        if not room:
            raise RuntimeError("CUDA Error: out of memory")

    monkeypatch.setattr(engine, "get_mem_allocator_instance", lambda: SimpleNamespace(wake_up=mapped))
    closing = engine.Engine.__new__(engine.Engine)
    closing._sleeps = True
    closing._engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: log.append("shut down")))
    closing.close()
    assert log == ["map", "shut down"]
