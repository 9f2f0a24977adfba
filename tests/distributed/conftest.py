"""Backends of the real thing at tiny size. Nothing here is collected where a package is missing, and pytest that is
asked for this folder alone then fails; scripts/test_openrlhf_cpu.sh makes an environment that has them all."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "openrlhf_cpu"), str(TESTS / "trainers"), str(TESTS / "support")]

from started_backends import starter  # noqa: E402
from tiny_models import write_tiny_model  # noqa: E402

MISSING = [name for name in ("ray", "vllm", "deepspeed", "openrlhf") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
GPUS = 10  # in Ray's books: `pair` has six of them, and one module at a time up to four
CONTEXT = 1024


def pytest_terminal_summary(terminalreporter):
    if MISSING:
        terminalreporter.write_line(
            f"tests/distributed: not run, {', '.join(MISSING)} missing; scripts/test_openrlhf_cpu.sh runs them"
        )


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied: vLLM keeps a stale copy of a tied output layer on CPU. Heads of 32: it has kernels for those. Small
    weights: bfloat16's rounding alone must not look like weights that differ."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    return write_tiny_model(folder, tie_word_embeddings=False, initializer_range=0.06, **heads)


@pytest.fixture(scope="session")
def ray_cluster():
    import openrlhf_cpu
    import ray

    folder = tempfile.mkdtemp(prefix="orl", dir="/tmp")  # short: Ray makes sockets in it
    openrlhf_cpu.start_ray(folder, GPUS)
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def start(ray_cluster, model):
    """Start backends; they end with the module."""
    with starter(model) as make:
        yield make


@pytest.fixture(scope="session")
def pair(ray_cluster, model):
    """Two policies, each with ZeRO-3 on two processes and its own engine. Tests that take it find other weights."""
    with starter(model) as make:
        yield make("solver", "verifier", gpus=2, zero_stage=3, micro_batch_tokens=64)
