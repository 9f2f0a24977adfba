"""Every command of the README's table: on one small saved run, or as a dry run where it would train.

Not here: `view` and `serve`, which serve until they are stopped (tests/report/test_view.py,
tests/gateway/test_serve.py), warm starts (test_cli_sft.py), and `doctor`, which looks at the machine (tests/doctor).
"""

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import coachrl
from saved_runs import save_run
from scripted_server import ScriptedServer, say
from tiny_models import write_tiny_model
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.resources import resource

README = Path(__file__).parents[2] / "README.md"
SMALL = {"export runs/latest --format sft --out sft.jsonl": ["--min-score", "7"]}  # few replies of a small run are good
READS = ("report", "compare", "checkpoints", "coaches", "audit", "export", "tasks", "pipelines", "runs", "config")
ELSEWHERE = ("view", "sft", "serve", "doctor")
KEYS = {"GEMINI_API_KEY": "none", "HF_HUB_OFFLINE": "1"}
FINDINGS = 3


def commands():
    """What stands between backticks and begins with coachrl, without that word."""
    tables = README.read_text(encoding="utf-8").split("| to | command |")[1:]
    text = "\n".join(table.strip().partition("\n\n")[0] for table in tables)
    return re.findall(r"`(?:\w+=… )?coachrl ([^`]*)`", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which runs/latest, runs/a and runs/b are runs of the quickstart."""
    root = tmp_path_factory.mktemp("readme")
    run = asyncio.run(save_run(root, samples_per_task=1))
    for step in (0, 1):
        run.append_metrics({"step": step, "train/success": 0.5, "eval/success": 0.5})
    for name in ("a", "b"):
        (root / "runs" / name).symlink_to(run.folder)
    for name, numbers in (("train", range(100)), ("test", range(100, 104))):
        problems = [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in numbers]
        (root / f"{name}.json").write_text(json.dumps(problems))
    (root / "train.csv").write_text("text,answer\n" + "".join(f"{n} + 1?,{n + 1}\n" for n in range(100)))
    (root / "house-prices").mkdir()
    rows = "".join(f"{n},{n % 7},{n * 1.5}\n" for n in range(40))
    (root / "house-prices" / "train.csv").write_text("Id,rooms,SalePrice\n" + rows)
    (root / "my_module.py").write_text("class MyCoach:\n    async def score(self, request):\n        return 5.0\n")
    shutil.copy(resource("prompts", "coach", "strict.md"), root / "my_prompt.md")
    write_tiny_model(root / "tiny")
    return root


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith(READS)])
def test_a_line_of_the_table_works_on_a_run_without_a_key(folder, line, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, [*shlex.split(line), *SMALL.get(line, [])])
    found = line == "coaches lint" or line.startswith("audit")
    assert done.exit_code == 0 or (found and done.exit_code == FINDINGS), (done.output, done.exception)
    assert done.stdout


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("train")])
def test_a_line_that_trains_is_taken_by_a_dry_run(folder, line):
    words = [word for word in shlex.split(line.replace("/path/to/hf-folder", "tiny")) if word != "…"]
    done = coachrl(*words, *(["--dry-run"] if "--dry-run" not in words else []), cwd=folder, **KEYS)
    missing = re.search(r"needs (ray|peft|tensorboardX|vllm)", done.stderr)
    assert done.returncode == 0 or (missing and done.returncode == 2), done.stderr


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith(("rollout", "eval"))])
def test_a_line_that_plays_or_asks_does_so_with_a_small_model(folder, line):
    if "--run" in line:
        pytest.skip("needs a checkpoint: tests/trainers/test_runs_end_to_end.py evaluates one")
    else:
        small = ["model=tiny", "tasks.heldout_count=2", "pipeline.max_new_tokens=8"]
    done = coachrl(*shlex.split(line), *small, cwd=folder, **KEYS)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("rescore")])
async def test_a_line_that_asks_a_model_does_so_on_a_server(folder, line):
    pytest.importorskip("google.genai", reason="needs the llm extra")
    async with ScriptedServer([say("It did its part.\nPROCESS_SCORE: 8")]) as server:
        words = [*shlex.split(line), f"coach.api_base={server.gemini_base}"]
        done = await asyncio.to_thread(lambda: coachrl(*words, cwd=folder, GEMINI_API_KEY="none"))
    assert done.returncode == 0 and done.stdout, done.stderr
    assert server.requests


def test_every_line_of_the_table_is_looked_at_somewhere():
    tested = (*READS, *ELSEWHERE, "train", "rollout", "eval", "rescore")
    assert [line for line in commands() if not line.startswith(tested)] == []


def test_pairs_of_a_run_that_has_none_are_refused_with_how_they_come_about(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, shlex.split("export runs/latest --format dpo --out dpo.jsonl"))
    assert done.exception.exit_code == 2 and not (folder / "dpo.jsonl").exists()
    assert "train.group_size=2" in str(done.exception) and "coach.suggest=true" in str(done.exception)


def test_pairs_come_of_a_run_that_played_its_tasks_twice(tmp_path, monkeypatch):
    asyncio.run(save_run(tmp_path, samples_per_task=2))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split("export runs/latest --format dpo --out dpo.jsonl"))
    assert done.exit_code == 0 and (tmp_path / "dpo.jsonl").read_text().count("chosen") >= 1, done.exception
