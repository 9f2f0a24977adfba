"""One engine over two GPUs, as two processes that talk by gloo: what it draws, and new weights for both of them."""

import numpy as np
import pytest
from drawing import draw, fresh
from openrlhf_cpu import ENGINE_ARGS


def shape_of_engine(engine):
    """Of the engine's own settings: how many processes it has, and the bundles that it was given."""
    import os

    return engine.llm.vllm_config.parallel_config.tensor_parallel_size, os.environ.get("VLLM_RAY_BUNDLE_INDICES")


@pytest.mark.slow
def test_an_engine_over_two_gpus_draws_as_the_trainer_computes_and_is_sent_weights_in_both_its_parts(
    start, ray_cluster
):
    engine_args = {**ENGINE_ARGS, "distributed_executor_backend": "mp"}
    engine_args = {key: value for key, value in engine_args.items() if not key.startswith("max_num_")}
    backend = start("solver", gpus=1, tensor_parallel=2, engine_args=engine_args, micro_batch_tokens=64)
    [engine] = backend._engines["solver"].handles
    assert ray_cluster.get(engine.__ray_call__.remote(shape_of_engine)) == (2, "0,1")
    before = draw(backend, "solver", 8)[1]
    for step in range(3):
        stats = backend.update({"solver": fresh(backend, "solver", 8, step)})
        assert stats["sampler_trainer_logprob_gap/solver"] < 0.01
        backend.sync_weights()
    after = draw(backend, "solver", 8)[1]
    moved = [
        np.abs(np.mean(ours.logprobs) - np.mean(theirs.logprobs)) for ours, theirs in zip(before, after, strict=True)
    ]
    assert np.mean(moved) > 0.02
