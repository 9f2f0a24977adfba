"""One engine over two GPUs, whose workers vLLM starts by Ray and which talk by gloo; trainers share the GPUs."""

import os

import numpy as np
import pytest
from drawing import draw, fresh
from openrlhf_cpu import ENGINE_ARGS

from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers

pytestmark = pytest.mark.thorough

SAME, MOVED = 0.01, 0.02  # mean |log-prob| of bfloat16's rounding, and of weights that were not sent


def settings_of(engine):
    """How many workers it has, the bundles that they were given, and how much of a GPU each claims."""
    found = engine.llm.vllm_config.parallel_config
    return found.tensor_parallel_size, os.environ["VLLM_RAY_BUNDLE_INDICES"], os.environ["VLLM_RAY_PER_WORKER_GPUS"]


def logprobs(samples, name):
    return np.concatenate([getattr(sample, name) for sample in samples])


@pytest.mark.slow
def test_an_engine_over_two_gpus_draws_as_trainers_compute_and_is_sent_weights_in_both_its_parts(start):
    """It throws its weights away when it sleeps. vLLM's own class, by a name that its core imports: see there."""
    engine_args = {key: value for key, value in ENGINE_ARGS.items() if not key.startswith("max_num_")}
    engine_args["distributed_executor_backend"] = "openrlhf_cpu_ray.BookedGpus"
    shape = {"gpus": 2, "tensor_parallel": 2, "zero_stage": 3, "micro_batch_tokens": 64, "engine_args": engine_args}
    backend = start("solver", colocate=True, sleep=True, sleep_level=2, keep_reference=True, **shape)
    [engine] = backend.processes.engines["solver"].handles
    assert answers([engine.__ray_call__.remote(settings_of)], "asking the engine", 60) == [(2, "0,1", "0.3333")]
    first = fresh(backend, "solver", 8)
    for step in range(2):
        samples = backend.with_reference({"solver": fresh(backend, "solver", 8, step)})
        assert backend.update(samples)["sampler_trainer_logprob_gap/solver"] < SAME
        backend.sync_weights()
    [again] = backend.with_trainer_logprobs({"solver": first}).values()
    assert np.abs(logprobs(again, "trainer_logprobs_L") - logprobs(first, "old_logprobs_L")).mean() > MOVED
    [last] = backend.with_trainer_logprobs({"solver": fresh(backend, "solver", 8, 2)}).values()
    assert np.abs(logprobs(last, "trainer_logprobs_L") - logprobs(last, "old_logprobs_L")).mean() < SAME
    assert draw(backend, "solver", 1)[1][0].token_ids
