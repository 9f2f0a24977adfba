"""A checkpoint served by vLLM's engine. In a module of its own: an engine that is closed ends what others of
its process share with it, so that they come one after the other."""

import asyncio

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from drawing import fresh
from tiny_models import write_tiny_model

from coachrl.commands import build
from coachrl.config import RunConfig
from coachrl.trainers.backends.vllm.backend import VllmBackend
from coachrl.types import SamplingParams


def said_by(backend):
    prompt = backend.tokenizer("solver").encode_chat([{"role": "user", "content": "Count."}])
    return asyncio.run(backend.generate("solver", prompt, SamplingParams(8, temperature=0.0))).token_ids


def test_a_checkpoint_is_served_with_the_weights_that_were_trained(tmp_path):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    model = write_tiny_model(tmp_path / "tiny", initializer_range=0.06, **heads)
    config = RunConfig(
        model=str(model),
        backend="vllm",
        vllm={"max_length": 900, "engine_args": {"kv_cache_memory_bytes": 2**27}},
        torch={"device": "cpu"},
        train={"learning_rate": 1e-2},
    )
    made = VllmBackend({"solver": model}, config, {})
    untrained = said_by(made)
    made.update({"solver": fresh(made, "solver", 8)})
    made.sync_weights()
    trained = said_by(made)
    made.save(tmp_path / "checkpoint")
    made.close()
    assert trained != untrained

    served = build.load_generators(config, ["solver"], tmp_path / "checkpoint", in_process=True)
    assert isinstance(served, VllmBackend)
    again = said_by(served)
    served.close()
    assert again == trained
