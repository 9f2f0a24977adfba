"""`coachrl runs list`: which runs there are, how far each came, and what its held-out tasks say."""

import os
import subprocess
import sys

import pytest
from command_line import coachrl

from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.report.listing import listed_runs
from coachrl.runs.folder import Run

HOLDS = """
import sys
from coachrl.runs.folder import Run
with Run.open(sys.argv[1]).locked("training"):
    print(flush=True)
    input()
"""


@pytest.fixture
def make(tmp_path):
    """Makes a run that began at that second, with these lines of metrics."""

    def made(name, *metrics, begun=0, **settings):
        given = {"out": tmp_path, "name": name, "train.steps": 2, **settings}
        run = Run.create(load_config(None, [f"{key}={value}" for key, value in given.items()]))
        for record in metrics:
            run.append_metrics(record)
        os.utime(run.folder / "versions.json", (begun, begun))
        return run

    return made


def test_the_newest_is_first_with_its_choices_and_what_came_of_it(make, tmp_path):
    make(
        "older", {"step": 0, "eval/success": 0.25}, {"step": 1}, {"step": 2}, {"step": 2, "eval/success": 0.5}, begun=1
    )
    make("newer", {"step": 0, "eval/success": 0.0}, {"step": 1}, begun=2, seed=7, **{"algorithm.name": "outcome"})
    newer, older = listed_runs(tmp_path)  # `latest` is no run of its own
    assert (newer.name, newer.team, newer.algorithm, newer.seed) == ("newer", "mathchat on word-problems", "outcome", 7)
    assert (newer.coach, older.coach) == ("none", "rules")
    assert (newer.step, newer.steps, newer.before, newer.after, newer.state) == (1, 2, 0.0, None, "stopped")
    assert (older.name, older.before, older.after, older.state) == ("older", 0.25, 0.5, "finished")


def test_one_that_lacks_the_evaluation_of_its_last_step_is_not_finished(make, tmp_path):
    make("cut", {"step": 0, "eval/success": 0.0}, {"step": 1}, {"step": 2})
    make("broken", {"step": 0, "eval/episodes": 0}, {"step": 1}, {"step": 2, "eval/episodes": 0}, begun=1)
    assert [(run.step, run.state) for run in listed_runs(tmp_path)] == [(2, "finished"), (2, "stopped")]


def test_models_are_those_of_the_policies_and_coaches_those_of_the_ensemble(make, tmp_path):
    policies = {"policies.problem_solver.model": "mine/solver", "model": "tiny-random"}
    made = make("own", **policies, **{"coach.ensemble": "[{name: rules}, {name: openai/judge}]"})
    made.write_roles(make_pipeline(made.config().pipeline).roles)
    [run] = listed_runs(tmp_path)
    assert (run.model, run.coach) == ("mine/solver, tiny-random", "mean of rules, openai/judge")


def test_what_another_process_trains_is_said_until_that_is_gone(make, tmp_path):
    run = make("busy")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, run.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert [listed.state for listed in listed_runs(tmp_path)] == ["training"]
        process.kill()
    assert [listed.state for listed in listed_runs(tmp_path)] == ["stopped"]


def test_one_that_cannot_be_read_hides_no_other(make, tmp_path):
    make("whole", begun=1)
    damaged = make("damaged", begun=2)
    (damaged.folder / "config.yaml").write_text("train: [")
    torn = make("torn", {"step": 0, "eval/success": 0.5}, begun=3)
    with (torn.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "eval/su')
    (tmp_path / "else").mkdir()
    (tmp_path / "elsewhere").symlink_to(damaged.folder.rename(tmp_path / "else" / "damaged"))
    listed = {run.name: run for run in listed_runs(tmp_path)}
    assert list(listed) == ["torn", "elsewhere", "whole"]
    assert "config.yaml" in listed["elsewhere"].state and listed["torn"].before == 0.5


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file or directory"):
        listed_runs(tmp_path / "nowhere")


def test_on_the_command_line_each_is_a_row(make):
    cwd = make("mine", {"step": 0, "eval/success": 0.25}, {"step": 2, "eval/success": 0.5}).folder
    done = coachrl("runs", "list", "..", cwd=cwd)
    [heading, row] = done.stdout.splitlines()
    assert heading.split()[0] == "run" and row.split()[0] == "mine" and "0.25 → 0.50" in row and "2 of 2" in row
    assert '"after": 0.5' in coachrl("runs", "list", "..", "--json", cwd=cwd).stdout
    assert coachrl("runs", "list", ".", cwd=cwd).stdout == "no run in .\n"


def test_before_the_first_run_it_says_how_to_make_one(tmp_path):
    told = "no run in runs yet: `coachrl train --config quickstart` makes one\n"
    assert coachrl("runs", "list", cwd=tmp_path).stdout == told
    assert coachrl("runs", "list", "--json", cwd=tmp_path).stdout == "[]\n"
    (tmp_path / "runs").mkdir()
    assert coachrl("runs", "list", cwd=tmp_path).stdout == told


def test_metrics_that_are_gone_are_told_beside_the_state(make, tmp_path):
    run = make("cut", {"step": 0, "eval/success": 0.0}, {"step": 1})
    (run.folder / "checkpoints" / "step-000002").mkdir(parents=True)
    [cut] = listed_runs(tmp_path)
    assert (cut.step, cut.state) == (1, "stopped; metrics.jsonl: steps are missing after step 1")
