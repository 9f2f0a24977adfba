"""Which checkpoint a command takes that is told one, and which of a run's evaluations was the best."""

import json

import pytest
from command_line import coachrl
from kept_checkpoints import run_with_checkpoints

from coachrl.errors import CheckpointError
from coachrl.runs import checkpoints
from coachrl.runs.checkpoints import best_step
from coachrl.runs.chosen import checkpoint_kept, chosen_checkpoint


@pytest.fixture
def run(tmp_path):
    return run_with_checkpoints(tmp_path)


def by_step(lines):
    return {line["step"]: line for line in lines}


def line(step, success=None, broken=0.0):
    measured = {} if success is None else {"eval/success": success, "eval/faulty_fraction": broken}
    return {"step": step, "train/success": 1.0, **measured}


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ([], None),
        ([line(0, 1.0)], None),  # before training
        ([line(0, 1.0), line(1), line(2, 0.0)], 2),
        ([line(1, 0.2), line(2, 0.5), line(3, 0.4)], 2),
        ([line(1, 0.2), line(2, 0.5), line(3), line(4, 0.5)], 2),
        ([line(2, 0.5), line(4, 1.0, broken=0.6)], 2),
        ([line(2, 0.5), line(4, 1.0, broken=0.5)], 4),
        ([line(2), {"step": 3, "eval/episodes": 0.0, "eval/faulty_fraction": 1.0}], None),
    ],
)
def test_the_best_is_the_earliest_with_the_highest_success(lines, best):
    assert best_step(by_step(lines)) == best


def test_the_best_of_some_is_one_of_them():
    steps = by_step([line(1, 0.2), line(2, 0.5), line(3, 0.4)])
    assert best_step(steps, {1, 3}) == 3 and best_step(steps, {4}) is None


@pytest.mark.parametrize(
    ("which", "name"),
    [("last", "step-000003"), ("best", "step-000002"), ("1", "step-000001"), ("step-000002", "step-000002")],
)
def test_a_checkpoint_is_the_last_the_best_or_that_of_a_step(run, which, name):
    for step, success in enumerate([0.9, 0.1, 0.8, 0.3]):
        run.append_metrics(line(step, success))
    assert chosen_checkpoint(run, which).name == name
    with checkpoint_kept(run, which) as folder:
        assert folder.name == name and not checkpoints.remove_unread(folder)


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("7", r"has no checkpoint of step 7; it has those of step 1, 2, 3$"),
        ("newest", r"checkpoint 'newest': give last, best, or the number of a step$"),
        ("-1", r"checkpoint '-1': give last, best"),
        ("", r"checkpoint '': give last, best"),
        ("best", r"has no evaluation of trained weights yet, and so no best checkpoint; it has those of step 1, 2, 3$"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run, which, words):
    run.append_metrics(line(0, 0.5))
    with pytest.raises(CheckpointError, match=words):
        chosen_checkpoint(run, which)


def test_where_the_best_is_gone_the_best_of_the_others_is_named_and_not_taken(run):
    for step, success in enumerate([0.1, 0.1, 0.3, 0.2]):
        run.append_metrics(line(step, success))
    checkpoints.remove(run.folder / "checkpoints" / "step-000002")
    words = r"best evaluation was after step 2, whose checkpoint is not there .*; it has the best of those .*: step 3$"
    with pytest.raises(CheckpointError, match=words):
        chosen_checkpoint(run, "best")
    for path in run.checkpoints():
        checkpoints.remove(path)
    with pytest.raises(CheckpointError, match=r"; it has none$"):
        chosen_checkpoint(run, "best")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "--run", "runs/one", "--checkpoint", "9"], "has no checkpoint of step 9; it has those of step 1, 2"),
        (["eval", "--checkpoint", "best"], "--checkpoint is one of a run's: name the run with --run, too"),
        (["export", "runs/one", "--format", "hub", "--out", "x", "--checkpoint", "best"], "no best checkpoint"),
        (["export", "runs/one", "--format", "sft", "--out", "x", "--checkpoint", "2"], "--checkpoint is for --format"),
        (["serve", "runs/one", "--port", "0", "--checkpoint", "8"], "has no checkpoint of step 8"),
    ],
)
def test_a_command_that_is_told_a_wrong_one_says_so_in_one_line(run, arguments, words):
    if arguments[0] == "serve":
        pytest.importorskip("uvicorn", reason="needs the gateway extra")
    run.write_roles([])
    run.append_metrics(line(0, 0.5))
    done = coachrl(*arguments, cwd=run.folder.parents[1])
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_the_hub_gets_the_checkpoint_that_is_named(tmp_path, run):
    for step in (1, 2):
        folder = run.folder / "checkpoints" / f"step-{step:06d}"
        (folder / "policy" / "config.json").write_text(json.dumps(step))
        checkpoints.seal(folder, step, {})
    for step, success in enumerate([0.1, 0.6, 0.3]):
        run.append_metrics(line(step, success))
    for which, step in (("best", 1), ("2", 2)):
        arguments = ["--format", "hub", "--out", f"team-{which}", "--checkpoint", which]
        done = coachrl("export", run.folder, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / f"team-{which}" / "policy" / "config.json").read_text()) == step
