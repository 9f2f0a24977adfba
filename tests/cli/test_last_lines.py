"""What a run says at its end."""

import asyncio
import subprocess
from shlex import join

import pytest
from command_line import coachrl, command
from saved_runs import save_run

from coachrl.cli.console import out, waiting
from coachrl.cli.train import _finish
from coachrl.commands.interrupt import what_stays


@pytest.mark.parametrize(("algorithm", "asked"), [("reinforce_pp", True), ("outcome", False)])
def test_its_coach_is_offered_for_an_audit_where_there_is_one(tmp_path, capsys, algorithm, asked):
    run = asyncio.run(save_run(tmp_path, overrides=[f"algorithm.name={algorithm}"], samples_per_task=1))
    _finish(run)
    said = capsys.readouterr().out
    assert f"coachrl view {run.folder}" in said and f"coachrl compare {run.folder} OTHER" in said
    assert ("coachrl audit" in said) == asked


def test_commands_can_be_pasted_where_a_folder_has_spaces(tmp_path, capsys):
    (tmp_path / "my runs").mkdir()
    run = asyncio.run(save_run(tmp_path / "my runs", samples_per_task=1))
    _finish(run)
    said = capsys.readouterr().out
    for verb in ("view", "compare"):
        assert f"coachrl {verb} '{run.folder}'" in said
    run.append_metrics({"step": 1})
    assert what_stays(run.config(), run).endswith(f"--resume '{run.folder}'")


def test_what_a_run_came_to_is_said_though_its_report_cannot_be_written(tmp_path, monkeypatch):
    run = asyncio.run(save_run(tmp_path, samples_per_task=1))
    (run.folder / "report.html").mkdir()
    said = []
    monkeypatch.setattr(out, "print", said.append)
    monkeypatch.setattr(waiting, "start", said.append)
    with pytest.raises(IsADirectoryError):
        _finish(run)
    assert said[0] == "summing up the run" and said[1].startswith("held-out success 0.00")
    assert said[-1] == "writing the report"


def test_an_audit_of_a_run_that_may_not_be_written_to_asks_for_another_place(tmp_path):
    run = asyncio.run(save_run(tmp_path, samples_per_task=1))
    run.folder.chmod(0o555)
    told = coachrl("audit", run.folder, cwd=tmp_path, powerless=True)
    assert told.returncode == 2 and told.stderr.endswith("(Permission denied): name a place for the page with --html\n")
    told = coachrl(
        "audit", run.folder, "--html", "a.html", "--json", run.folder / "a.json", cwd=tmp_path, powerless=True
    )
    assert told.returncode == 2 and "a.json cannot be written: no permission to write in" in told.stderr
    done = coachrl("audit", run.folder, "--html", "a.html", "--resamples", "100", cwd=tmp_path, powerless=True)
    assert done.returncode == 0 and (tmp_path / "a.html").is_file(), done.stderr


def test_a_report_of_a_run_that_may_not_be_written_to_stands_elsewhere(tmp_path):
    run = asyncio.run(save_run(tmp_path, samples_per_task=1))
    run.folder.chmod(0o555)
    told = coachrl("report", run.folder, cwd=tmp_path, powerless=True)
    assert told.returncode == 2 and told.stderr.endswith("(Permission denied): name a place for the page with --html\n")
    done = coachrl("report", run.folder, "--html", "r.html", cwd=tmp_path, powerless=True)
    assert done.stdout.endswith("report: r.html\n") and (tmp_path / "r.html").is_file(), done.stderr


def test_a_terminal_without_a_size_is_told_all_the_same(tmp_path):
    told = coachrl("report", "nowhere", cwd=tmp_path, COLUMNS="0")
    assert told.returncode == 2 and "error: nowhere is not a run folder" in told.stderr
    helped = coachrl("view", "--help", cwd=tmp_path, COLUMNS="0")
    assert "Serve the run's report" in helped.stdout, helped


def test_a_run_whose_reader_leaves_writes_a_checkpoint_and_says_how_to_go_on(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    (tmp_path / "t.csv").write_text("problem,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(4)))
    settings = ["tasks.train=t.csv", "tasks.heldout_count=2", "train.tasks_per_step=2"]
    train = [*command(), "train", "--model", "tiny-random", "--steps", "1", "--name", "r", *settings]
    shell = f"{join(map(str, train))} | head -3 > said; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 143, ended
    assert ended.stderr.startswith("warning: nobody reads any more what is printed\n"), ended
    assert ended.stderr.endswith("go on with: coachrl train --resume runs/r\n"), ended
    assert (tmp_path / "runs" / "r" / "checkpoints" / "step-000000").exists()
    assert "nobody reads any more" in (tmp_path / "runs" / "r" / "log.txt").read_text()
