"""Backends of the real thing at tiny size. Each test module that starts one is skipped where a package is missing;
scripts/test_openrlhf_cpu.sh makes an environment that has them all."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "openrlhf_cpu"), str(TESTS / "trainers")]

from tiny_models import write_tiny_model  # noqa: E402

from coachrl.settings import OpenRLHFConfig  # noqa: E402

GPUS = 6


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied: vLLM keeps a stale copy of a tied output layer on CPU. Heads of 32: it has kernels for those. Small
    weights: bfloat16's rounding alone must not look like weights that differ."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return write_tiny_model(folder, tie_word_embeddings=False, initializer_range=0.06, **heads)


@pytest.fixture(scope="session")
def ray_cluster():
    import openrlhf_cpu
    import ray

    folder = tempfile.mkdtemp(prefix="orl", dir="/tmp")  # short: Ray makes sockets in it
    openrlhf_cpu.start_ray(folder, GPUS)
    openrlhf_cpu.install()
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def start(ray_cluster, model):
    """Start backends; they end with the module."""
    from openrlhf_cpu import ENGINE_ARGS

    from coachrl.trainers.openrlhf.backend import OpenRLHFBackend
    from coachrl.trainers.openrlhf.settings import OpenRLHFSettings

    started = []

    def make(*policies, trainable=None, learning_rate=1e-2, keep_reference=False, minibatch_size=None, **given):
        defaults = {
            "colocate": False,
            "engines": 1,
            "attention": "eager",
            "gradient_checkpointing": False,
            "sleep": False,
            "max_length": 256,
            "zero_stage": 2,
            "start_timeout_s": 1500.0,
            "engine_args": ENGINE_ARGS,
        }
        settings = OpenRLHFSettings(
            OpenRLHFConfig(**(defaults | given)),
            learning_rate=learning_rate,
            keep_reference=keep_reference,
            minibatch_size=minibatch_size,
        )
        started.append(OpenRLHFBackend(dict.fromkeys(policies, model), settings, trainable))
        return started[-1]

    yield make
    for backend in started:
        backend.close()
