"""The commands of the README's table that need neither a key nor a model of one's own, on one small saved run."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from saved_runs import save_run
from typer.testing import CliRunner

from coachrl.cli.main import app

README = Path(__file__).parents[2] / "README.md"
SMALL = {"export runs/latest --format sft --out sft.jsonl": ["--min-score", "7"]}  # few replies of a small run are good
READS = ("report", "compare", "checkpoints list", "checkpoints prune", "coaches", "audit", "export", "tasks")
FINDINGS = 3


def commands():
    """What stands between backticks and begins with coachrl, without that word."""
    table = README.read_text(encoding="utf-8").partition("| to | command |")[2].partition("\n\n")[0]
    return [text.removeprefix("coachrl ") for text in re.findall(r"`(coachrl [^`]*)`", table)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which runs/latest, runs/a and runs/b are runs of the quickstart."""
    root = tmp_path_factory.mktemp("readme")
    run = asyncio.run(save_run(root, samples_per_task=1))
    for step in (0, 1):
        run.append_metrics({"step": step, "train/success": 0.5, "eval/success": 0.5})
    for name in ("a", "b"):
        (root / "runs" / name).symlink_to(run.folder)
    return root


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith(READS)])
def test_a_line_of_the_table_works_on_a_run_without_a_key(folder, line, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, [*shlex.split(line), *SMALL.get(line, [])])
    found = line == "coaches lint" or line.startswith("audit")
    assert done.exit_code == 0 or (found and done.exit_code == FINDINGS), (done.output, done.exception)
    assert done.stdout or "prune" in line  # of a run without checkpoints


def test_pairs_of_a_run_that_has_none_are_refused_with_how_they_come_about(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, shlex.split("export runs/latest --format dpo --out dpo.jsonl"))
    assert done.exception.exit_code == 2 and not (folder / "dpo.jsonl").exists()
    assert "train.group_size=2" in str(done.exception) and "coach.suggest=true" in str(done.exception)
