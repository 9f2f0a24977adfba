"""Adapters over one frozen base in vLLM's own engine, at tiny size on CPU. One engine serves all of these tests."""

import random

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

import torch
from drawing import WORDS, fresh, samples_of
from flat_config import with_settings
from test_vllm_backend import CONTEXT, MOVED, POLICIES, SAME, check_hand_over, gap, replies_of
from tiny_models import write_tiny_model

from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.trainers.backends.vllm.backend import VllmBackend


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    return write_tiny_model(folder, initializer_range=0.06, **heads)


@pytest.fixture(scope="module")
def backend(model):
    """Two policies that are trained, of unequal adapters, and one that is not. Tests find what others have changed."""
    config = RunConfig(backend="vllm", vllm={"max_length": CONTEXT, "engine_args": {"kv_cache_memory_bytes": 2**27}})
    config = with_settings(config, learning_rate=3e-2, device="cpu", lora_rank=4, share_base=True)
    made = VllmBackend(dict.fromkeys(POLICIES, model), config, {"judge": False}, keep_reference=True)
    made.update({"solver": fresh(made, "solver", 8, step=77)})
    made.sync_weights()
    yield made
    made.close()


def test_adapters_reach_the_engine_at_the_hand_over_and_not_before(backend, monkeypatch):
    reloads = []
    monkeypatch.setattr(backend._turns._engine, "_replace", reloads.append)
    for step in range(2):
        samples = {policy: fresh(backend, policy, 8, step) for policy in POLICIES}
        stats = backend.update(samples)
        check_hand_over(backend, stats, step)
    assert not reloads  # the base never changes


async def test_all_policies_are_served_side_by_side(backend, monkeypatch):
    """A batch holds requests of all three: none waits for another's turn, or reads what another's adapter cached."""
    engine, crowds = backend._turns._engine, []
    step = engine.step
    monkeypatch.setattr(
        engine,
        "step",
        lambda: crowds.append({request.policy for request in backend._turns._in_flight.values()}) or step(),
    )
    tokenizer = backend.tokenizer("solver")
    prompts = [tokenizer.encode_chat([{"role": "user", "content": f"{word} " * 40}]) for word in WORDS]
    requests = [(policy, prompt, i) for policy in POLICIES for i, prompt in enumerate(prompts)]
    first = await replies_of(backend, requests)
    assert set(POLICIES) in crowds
    again = await replies_of(backend, random.Random(0).sample(requests, len(requests)))
    assert np.mean([first[request].token_ids == again[request].token_ids for request in requests]) > 0.7
    for policy in POLICIES[:2]:
        replies = [again[policy, prompt, i] for i, prompt in enumerate(prompts)]
        assert gap(backend, policy, samples_of(prompts, replies, policy)) < SAME
        other = POLICIES[1 - POLICIES.index(policy)]
        assert gap(backend, other, samples_of(prompts, replies, other)) > MOVED


def test_the_base_is_the_reference_and_what_an_untrained_policy_plays_with(backend):
    [filled] = backend.with_reference({"judge": fresh(backend, "judge", 8)}).values()
    assert np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.ref_logprobs_L) for s in filled])) < SAME
    [moved] = backend.with_reference({"solver": fresh(backend, "solver", 8)}).values()
    assert np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.ref_logprobs_L) for s in moved])) > MOVED
    [base] = backend._frozen.values()
    assert all(policy.model is base for policy in backend._policies.values())


def test_a_checkpoint_brings_adapters_back_into_the_engine(backend, tmp_path):
    backend.sync_weights()
    backend.save(tmp_path)
    before = [matrix.detach().clone() for matrix in backend._policies["solver"].adapter.parameters().values()]
    backend.update({"solver": fresh(backend, "solver", 8, step=9)})
    backend.sync_weights()
    backend.load(tmp_path)
    after = backend._policies["solver"].adapter.parameters().values()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert gap(backend, "solver", fresh(backend, "solver", 8, step=9)) < SAME


def test_two_models_are_no_base_to_share(backend, model, tmp_path):
    other = write_tiny_model(tmp_path / "other", seed=1, num_attention_heads=2, max_position_embeddings=1024)
    with pytest.raises(ConfigError, match="are two models, and the engine keeps one frozen base"):
        VllmBackend({"solver": model, "verifier": other}, backend.config)
