"""Which checkpoints a run keeps, lists and removes, and what a kill leaves among them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from command_line import coachrl
from kept_checkpoints import newest, run_with_checkpoints

from coachrl.cli.checkpoints import list_checkpoints
from coachrl.config import dump_config
from coachrl.errors import CheckpointError
from coachrl.runs import checkpoints
from coachrl.runs.chosen import checkpoint_kept
from coachrl.runs.folder import Run


@pytest.fixture
def run(tmp_path):
    return run_with_checkpoints(tmp_path)


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(run, monkeypatch, caplog):
    busy = run.folder / "checkpoints" / "step-000001"
    real = Path.rename

    def rename(path, target):  # as of a folder that something is mounted on
        if path == busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with run.checkpoint(4, keep=1) as folder:
        checkpoints.seal(folder, 4, {})
    assert newest(run).name == "step-000004" and f"{busy}: Device or resource busy" in caplog.text


def test_a_checkpoint_that_somebody_reads_outlives_a_newer_one(run):
    with checkpoint_kept(run) as read:
        with run.checkpoint(4, keep=1) as folder:
            checkpoints.seal(folder, 4, {"pipeline": "mathchat", "model of policy a": "tiny"})
        assert [path.name for path in run.checkpoints()] == ["step-000003", "step-000004"]
        done = coachrl("checkpoints", "prune", run.folder, "--keep", 1, cwd=run.folder)
        assert done.stdout == "nothing to remove\n" and "step-000003 stays: another process reads it" in done.stderr
        assert checkpoints.read(read, {}).step == 3
    run.tidy_checkpoints(keep=1)
    assert [path.name for path in run.checkpoints()] == ["step-000004"]


def test_where_a_newer_checkpoint_takes_the_last_ones_place_the_newer_one_is_read(run, monkeypatch):
    first = run.last_checkpoint()
    chosen = iter([first, first.with_name("step-000004")])
    monkeypatch.setattr(Run, "last_checkpoint", lambda _: next(chosen))
    first.rename(first.with_name("step-000004"))
    with checkpoint_kept(run) as read:
        assert read.name == "step-000004"


def test_what_a_kill_leaves_among_the_checkpoints_goes_at_the_next_start(run):
    root = run.folder / "checkpoints"
    newest(run).rename(root / ".step-000003.removed")  # killed while it was pruned
    (root / ".step-000004.77").mkdir()  # killed while it was written
    (root / ".step-000004.77" / "weights").write_bytes(b"half")
    run.drop_after(2)
    assert sorted(path.name for path in root.iterdir()) == ["step-000001", "step-000002"]


def test_a_whole_checkpoint_that_a_kill_left_without_its_name_gets_it(run):
    root = run.folder / "checkpoints"
    newest(run).rename(root / ".step-000003.77")  # killed as an older one of the same step had just made room
    run.drop_after(2)
    assert checkpoints.read(newest(run), {}).step == 3


def test_pruning_keeps_the_newest(run):
    removed = checkpoints.prune(run.folder / "checkpoints", keep=1)
    assert [checkpoint.step for checkpoint in removed] == [1, 2]
    assert [path.name for path in run.checkpoints()] == ["step-000003"]


@pytest.mark.parametrize(("keep", "gone"), [(0, [1, 2, 3]), (2, [1]), (3, []), (4, []), (5, []), (9, [])])
def test_pruning_removes_none_where_as_many_or_more_may_stay(run, keep, gone):
    removed = checkpoints.prune(run.folder / "checkpoints", keep)
    assert [checkpoint.step for checkpoint in removed] == gone
    assert len(run.checkpoints()) == 3 - len(gone)


@pytest.mark.parametrize("hidden", ["policy/weights", "policy", "trainer.json", "."])
def test_pruning_leaves_what_this_user_may_not_read_and_says_so(run, hidden):
    place = newest(run) / hidden
    mode = place.stat().st_mode
    place.chmod(0)
    done = coachrl("checkpoints", "prune", run.folder, cwd=run.folder, powerless=True)
    place.chmod(mode)
    assert done.returncode == 0 and "removed step-000001" in done.stdout, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("warning: step-000003 stays: it cannot be read: ") and line.endswith("Permission denied")
    assert [path.name for path in run.checkpoints()] == ["step-000002", "step-000003"]
    assert checkpoints.read(newest(run), {}).step == 3


def test_pruning_leaves_what_another_version_has_sealed_and_says_so(run):
    seal = newest(run) / "trainer.json"
    record = json.loads(seal.read_text())
    del record["blake2b"]
    seal.write_text(json.dumps(record))
    done = coachrl("checkpoints", "prune", run.folder, cwd=run.folder)
    assert done.returncode == 0 and "removed step-000001" in done.stdout, done.stderr
    said = "has a trainer.json of another version of coachrl: there is no 'blake2b' in it"
    assert done.stderr.strip() == f"warning: step-000003 stays: it {said}"
    with pytest.raises(CheckpointError, match=f"{said}; move it elsewhere to resume from step-000002$"):
        checkpoints.read(newest(run), {})


def test_a_checkpoint_without_its_name_that_this_user_may_not_read_stays(run):
    left = newest(run).rename(run.folder / "checkpoints" / ".step-000003.77")
    left.chmod(0)
    done = coachrl("checkpoints", "prune", run.folder, cwd=run.folder, powerless=True)
    left.chmod(0o755)
    assert done.returncode == 0 and "step-000003.77 stays: it cannot be read: .: Permission denied" in done.stderr
    run.tidy_checkpoints(keep=3)
    assert checkpoints.read(newest(run), {}).step == 3


def test_all_of_a_checkpoint_is_on_the_disk_before_an_older_one_goes(run, monkeypatch):
    """What a loss of power would leave: of what is not on the disk by then, the name without the bytes, perhaps."""
    done = []

    def fsync(descriptor, real=os.fsync):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    def rename(path, target, real=Path.rename):
        done.append(Path(target).name)
        return real(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    with run.checkpoint(4, keep=1) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights").write_bytes(bytes(1000))
        checkpoints.seal(folder, 4, {})
    named, removed = done.index("step-000004"), done.index(".step-000003.removed")
    assert set(done[:named]) >= {folder, folder / "policy", folder / "policy" / "weights", folder / "trainer.json"}
    assert folder.parent in done[named:removed]


def evaluated(run, successes):
    """With a line of metrics for each step, from step 0."""
    for step, success in enumerate(successes):
        run.append_metrics({"step": step} | ({} if success is None else {"eval/success": success}))


def names(run):
    return [path.name for path in run.checkpoints()]


def add(run, step, **keep):
    with run.checkpoint(step, **keep) as folder:
        checkpoints.seal(folder, step, {})


def test_the_best_stays_beside_the_newest_until_a_better_one_is_there(run):
    evaluated(run, [0.9, 0.2, 0.5, 0.4, None, 0.5])
    add(run, 4, keep=1, keep_best=True)
    assert names(run) == ["step-000002", "step-000004"]
    add(run, 5, keep=1, keep_best=True)
    assert names(run) == ["step-000002", "step-000005"], "of equal ones the earlier"
    run.append_metrics({"step": 6, "eval/success": 0.6})
    run.tidy_checkpoints(keep=1, keep_best=True)  # killed before it was written
    assert names(run) == ["step-000002", "step-000005"]
    add(run, 6, keep=1, keep_best=True)
    assert names(run) == ["step-000006"]


def test_the_best_stays_while_a_better_one_is_written(run):
    evaluated(run, [None, 0.1, 0.5, 0.4, 0.9])
    with run.checkpoint(4, keep=1, keep_best=True) as folder:
        assert names(run) == ["step-000002", "step-000003"]
        checkpoints.seal(folder, 4, {})
    assert names(run) == ["step-000004"]


def test_without_keep_best_the_best_goes(run):
    evaluated(run, [None, 0.9, 0.5, 0.4])
    run.tidy_checkpoints(keep=1)
    assert names(run) == ["step-000003"]


@pytest.mark.parametrize(
    ("keep_best", "keep", "stay"), [("true", 1, [1, 3]), ("true", 2, [1, 2, 3]), ("true", 0, []), ("false", 1, [3])]
)
def test_pruning_leaves_the_best_of_a_run_that_keeps_it(run, keep_best, keep, stay):
    evaluated(run, [None, 0.9, 0.5, 0.4])
    config = run.config(["eval.every=1", f"train.keep_best={keep_best}"])
    (run.folder / "config.yaml").write_text(dump_config(config))
    done = coachrl("checkpoints", "prune", run.folder, "--keep", keep, cwd=run.folder)
    assert done.returncode == 0, done.stderr
    assert names(run) == [f"step-{step:06d}" for step in stay]


def test_pruning_leaves_the_best_where_nobody_can_say_whether_it_is_kept(run):
    evaluated(run, [None, 0.9, 0.5, 0.4])
    (run.folder / "config.yaml").write_text("no: configuration")
    assert coachrl("checkpoints", "prune", run.folder, cwd=run.folder).returncode == 0
    assert names(run) == ["step-000001", "step-000003"]


def test_where_the_best_is_damaged_the_best_of_the_others_stays(run):
    evaluated(run, [None, 0.9, 0.5, 0.4])
    os.truncate(run.folder / "checkpoints" / "step-000001" / "policy" / "weights", 1)
    removed = checkpoints.prune(run.folder / "checkpoints", 1, dict(enumerate(run.metrics())))
    assert [checkpoint.step for checkpoint in removed] == [1] and names(run) == ["step-000002", "step-000003"]


def test_the_list_says_which_was_evaluated_how_and_which_is_best(run):
    evaluated(run, [0.25, 0.5, None, 0.25])
    shown = coachrl("checkpoints", "list", run.folder, cwd=run.folder).stdout.splitlines()
    assert shown[0].endswith("whole  held-out success 0.500, the best evaluation")
    assert shown[1].endswith("whole") and shown[2].endswith("whole  held-out success 0.250")
    records = json.loads(coachrl("checkpoints", "list", run.folder, "--json", cwd=run.folder).stdout)
    assert [(record["heldout_success"], record["best"]) for record in records] == [
        (0.5, True), (None, False), (0.25, False),
    ]  # fmt: skip


def test_checkpoints_are_listed(run):
    os.truncate(newest(run) / "policy" / "weights", 1)
    (run.folder / "checkpoints" / "step-notes").mkdir()
    (run.folder / "checkpoints" / "step-000004").write_text("a file")
    shown = coachrl("checkpoints", "list", run.folder, cwd=run.folder)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["step-000001", "step-000002", "step-000003"]
    assert "1 of 1000 bytes" in shown.stdout
    records = json.loads(coachrl("checkpoints", "list", run.folder, "--json", cwd=run.folder).stdout)
    assert [record["problem"] == "" for record in records] == [True, True, False]


def test_a_checkpoint_that_is_removed_while_it_is_listed_is_not_called_damaged(run, monkeypatch, capsys):
    listed = checkpoints.listed

    def removed_meanwhile(root):
        found = listed(root)
        checkpoints.remove(found[0])
        return found

    monkeypatch.setattr(checkpoints, "listed", removed_meanwhile)
    list_checkpoints(run.folder)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["step-000002", "0.0", "MiB", "whole"],
        ["step-000003", "0.0", "MiB", "whole"],
    ]
