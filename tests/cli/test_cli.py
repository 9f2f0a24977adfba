"""The command line as a user meets it: a process, its output, its exit code."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import coachrl


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--config", "quickstrat"], ["quickstrat", "did you mean 'quickstart'"]),
        (["train", "-c", "quickstart", "--pipeline", "mathcat"], ["mathcat", "did you mean 'mathchat'"]),
        (["train", "-c", "quickstart", "pipeline.prompt_style=shrot"], ["shrot", "did you mean 'short'"]),
        (["train", "-c", "quickstart", "trian.steps=1"], ["trian", "did you mean 'train'"]),
        (["train", "-c", "quickstart", "pipeline.roles.verifer.max_turns=1"], ["verifer", "verifier"]),
        (["train", "-c", "quickstart", "policies.solver.trainable=false"], ["solver", "problem_solver"]),
        (["train", "-c", "quickstart", "--coach", "gemini-2.5-prp"], ["gemini-2.5-pr"]),
        (
            ["train", "-c", "quickstart", "tasks.source=math", "tasks.train=no.json", "tasks.heldout=no.json"],
            ["no.json"],
        ),
        (["train", "-c", "quickstart", "sandbox.kind=locl"], ["locl"]),
        (["train", "-c", "quickstart", "--model", "smollm-135m", "--dry-run"], ["did you mean smollm2-135m"]),
        (["train", "-c", "quickstart", "--backend", "torhc"], ["backend", "'torch', 'vllm' or 'openrlhf'"]),
        (["train", "-c", "quickstart", "openrlhf.gpu=8"], ["openrlhf.gpu", "did you mean 'gpus'"]),
        (
            ["train", "-c", "dsbench_lite"],
            ["no folder models/dsbench/data_engineer yet; scripts/dsbench_lite.sh"],
        ),
        (["train", "-c", "dsbench_lite", "--dry-run"], ["scripts/dsbench_lite.sh makes it"]),
        (["train", "--resume", "no/run"], ["no/run", "config.yaml"]),
        (["eval", "--run", "no/run"], ["no/run"]),
        (["eval", "-c", "quickstart", "--episodes", "."], ["--episodes . is a folder"]),
        (["report", "no/run"], ["no/run"]),
        (["sft", "--data", "no.jsonl", "--out", "x"], ["no.jsonl"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)
def test_a_wrong_input_is_one_line_exit_code_2_and_nothing_left_behind(tmp_path, arguments, words):
    pytest.importorskip("torch", reason="needs the torch extra")
    done = coachrl(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="the distributed backend is installed here")
def test_the_distributed_backend_says_what_it_needs_and_leaves_nothing(tmp_path):
    done = coachrl("train", "-c", "quickstart", "--backend", "openrlhf", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "needs ray: `coachrl doctor --backend openrlhf`" in done.stderr and "Traceback" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    done = coachrl("doctor", "--backend", "openrlhf", cwd=tmp_path)
    assert done.returncode == 1 and "MISSING  ray: not installed (2.55.0 is needed)" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_the_backend_of_one_gpu_says_what_it_needs_and_leaves_nothing(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    done = coachrl("train", "-c", "one_gpu", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "needs vllm: pip install 'coachrl[vllm]'" in done.stderr and "Traceback" not in done.stderr
    planned = coachrl("train", "-c", "one_gpu", "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0 and "not checked here  backend=vllm needs vllm" in planned.stdout, planned.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    done = coachrl("doctor", "--backend", "vllm", cwd=tmp_path)
    assert done.returncode == 1 and "MISSING  vllm: not installed (0.29.0 is needed)" in done.stdout


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    done = coachrl(
        "train",
        "-c",
        "quickstart",
        "--dry-run",
        "train.steps=3",
        "train.tasks_per_step=4",
        "torch.offload_optimizer=false",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "3 steps, 12 episodes" in done.stdout and "coach             rules: 36 calls" in done.stdout
    assert "5.6 GB for weights" in done.stdout  # three policies of 134.5 million weights, 14 bytes each
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_never_shows_a_key(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    done = coachrl("train", "-c", "quickstart", "--dry-run", cwd=tmp_path, OPENAI_API_KEY="sk-secret")
    assert "OPENAI_API_KEY" in done.stdout and "sk-secret" not in done.stdout + done.stderr


def test_tasks_are_listed_for_people_and_for_scripts(tmp_path):
    settings = ["tasks.train_count=3", "tasks.heldout_count=2"]
    listed = coachrl("tasks", "list", "-c", "quickstart", "--json", *settings, cwd=tmp_path)
    rows = json.loads(listed.stdout)
    assert [row["split"] for row in rows] == ["train"] * 3 + ["held-out"] * 2
    shown = coachrl("tasks", "list", "-c", "quickstart", *settings, cwd=tmp_path)
    lines = shown.stdout.splitlines()
    assert len(lines) == 1 + len(rows) and all(
        row["id"] in line and row["prompt"] in line for row, line in zip(rows, lines[1:], strict=True)
    )


def test_the_doctor_names_every_check_and_shows_remedies_whole(tmp_path):
    findings = json.loads(coachrl("doctor", "--json", cwd=tmp_path).stdout)
    names = {finding["name"] for finding in findings}
    assert {"python", "torch", "smollm2-135m", "coach keys"} <= names
    assert any(name.startswith("sandbox") for name in names)
    assert all(finding["ok"] or finding["remedy"] for finding in findings)

    shown = coachrl("doctor", cwd=tmp_path).stdout
    assert all(finding["remedy"] in shown for finding in findings if not finding["ok"])


def test_a_run_that_fails_before_its_first_line_leaves_nothing(tmp_path):
    (tmp_path / "broken_pipeline.py").write_text(
        "from coachrl.pipelines.base import Pipeline\n"
        "class Broken(Pipeline):\n    name = 'broken'\n    async def run(self, *_): ...\n"
        "    def __init__(self, settings): 1 / 0\n"
    )
    done = coachrl("train", "-c", "quickstart", "--pipeline", "broken_pipeline:Broken", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be made: ZeroDivisionError" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_of_which_every_episode_broke_has_failed(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    (tmp_path / "gone.py").write_text(
        "from coachrl.errors import SandboxError\nfrom coachrl.pipelines.base import Pipeline\n"
        "from coachrl.prompts import parse_prompt\nfrom coachrl.types import Role\n"
        "ASK = parse_prompt('---\\nfields: [problem]\\n---\\n{{problem}}', 'ask')\n"
        "class Gone(Pipeline):\n    name = 'gone'\n    roles = (Role('only', policy='only', prompt=ASK),)\n"
        "    async def run(self, task, team, workspace): raise SandboxError('no room')\n"
    )
    settings = ("sandbox.kind=local-unsafe", "tasks.heldout_count=1")
    done = coachrl("eval", "--pipeline", "gone:Gone", "--model", "tiny-random", "--json", *settings, cwd=tmp_path)
    assert "no room" in done.stderr and json.loads(done.stdout)["eval/episodes"] == 0
    assert done.returncode == 1


@pytest.mark.thorough
def test_a_pipeline_of_ones_own_is_found_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from coachrl.pipelines.base import Pipeline\nfrom coachrl.prompts import parse_prompt\n"
        "from coachrl.types import Role\nASK = parse_prompt('---\\nfields: [problem]\\n---\\n{{problem}}', 'ask')\n"
        "class Mine(Pipeline):\n    name = 'mine'\n    roles = (Role('only', policy='only', prompt=ASK),)\n"
        "    async def run(self, task, team, workspace): ...\n"
    )
    command = [str(Path(sys.executable).parent / "coachrl"), "train", "--pipeline", "mine:Mine", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "only (smollm2-135m)" in done.stdout
