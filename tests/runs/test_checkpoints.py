"""Checkpoints that are whole, cut short, or made elsewhere; and run folders that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="needs the torch extra")

import numpy as np
from command_line import coachrl
from full_disk import room_for
from kept_checkpoints import newest, run_with_checkpoints
from safetensors.numpy import save_file

from coachrl.config import RunConfig, load_config, with_absolute_paths
from coachrl.errors import CheckpointError, ConfigError
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run
from coachrl.storage.atomic import folder_aside


@pytest.fixture
def run(tmp_path):
    return run_with_checkpoints(tmp_path)


def test_a_copy_that_is_converted_is_left_to_the_process_that_made_it(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for number in (os.getpid(), ended.pid):
        (tmp_path / f".resharded-step-000001.{number}" / "team").mkdir(parents=True)
    checkpoints.drop_asides(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [f".{os.getpid()}"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_weights_can_be_read_by_whom_the_umask_lets(tmp_path, umask, mode):
    run, before = Run.create(RunConfig(name="one", out=tmp_path)), os.umask(umask)
    try:
        with run.checkpoint(1, keep=1) as checkpoint, folder_aside(tmp_path / "model") as model:
            for folder in (checkpoint / "policy", model / "policy"):
                folder.mkdir()
                save_file({"w": np.zeros(2)}, folder / "model.safetensors")
    finally:
        os.umask(before)
    for folder in (newest(run), tmp_path / "model"):
        assert (folder / "policy" / "model.safetensors").stat().st_mode & 0o777 == mode


def test_a_whole_checkpoint_is_read(run):
    assert checkpoints.read(newest(run), {"pipeline": "mathchat", "model of policy a": "tiny"}).step == 3


@pytest.mark.parametrize("made_with", [{"pipeline": "sudoku"}, {"model of policy b": "tiny"}])
def test_a_checkpoint_that_was_made_with_something_else_or_does_not_say_is_refused(run, made_with):
    with pytest.raises(CheckpointError, match=r"was made with .* it belongs to another configuration"):
        checkpoints.read(newest(run), {"model of policy a": "tiny", **made_with})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: os.truncate(folder / "policy" / "weights", 400), "weights has 400 of 1000 bytes"),
        (lambda folder: os.truncate(folder / "policy" / "weights", 1001), "weights has 1001 of 1000 bytes"),
        (lambda folder: (folder / "policy" / "weights").unlink(), "weights is missing"),
        (
            lambda folder: (folder / "policy" / "weights").write_bytes(bytes(999) + b"x"),
            "policy/weights holds other bytes",
        ),
        (lambda folder: (folder / "trainer.json").unlink(), "not written to its end"),
        (lambda folder: os.truncate(folder / "trainer.json", 20), "cannot be read"),
        (lambda folder: (folder / "trainer.json").write_text("[]"), "cannot be read"),
    ],
)
def test_one_cut_short_is_refused_and_the_older_one_still_good(run, spoil, says):
    spoil(newest(run))
    with pytest.raises(CheckpointError, match=says) as error:
        checkpoints.read(newest(run), {})
    assert "step-000002 is whole: coachrl checkpoints prune" in str(error.value)
    done = coachrl("checkpoints", "prune", run.folder, "--keep", 2, cwd=run.folder)
    assert done.returncode == 0 and done.stdout.startswith("removed step-000003: it ")
    assert checkpoints.read(newest(run), {}).step == 2
    assert [path.name for path in run.checkpoints()] == ["step-000001", "step-000002"]


def test_a_bit_that_changed_anywhere_in_a_checkpoint_is_found(run):
    for path in (newest(run) / "trainer.json", newest(run) / "policy" / "weights"):
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            try:
                found = checkpoints.read(newest(run), {})
            except CheckpointError:
                continue
            assert path.name == "trainer.json" and whole[place] in b" \n", (place, found)  # between what it says
        path.write_bytes(whole)
    assert checkpoints.read(newest(run), {}).step == 3


def test_a_changed_byte_is_found_before_a_model_is_loaded(run):
    (newest(run) / "policy" / "weights").write_bytes(b"x" + bytes(999))
    done = coachrl("eval", "--run", run.folder, cwd=run.folder)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "step-000003 is damaged: policy/weights holds other bytes than were written" in done.stderr
    assert "is damaged" in coachrl("checkpoints", "list", run.folder, cwd=run.folder).stdout


def test_of_older_checkpoints_the_newest_that_is_whole_to_the_last_byte_is_offered(run):
    for step in (2, 3):
        (run.folder / f"checkpoints/step-00000{step}/policy/weights").write_bytes(b"x" + bytes(999))
    with pytest.raises(CheckpointError, match=r"; step-000001 is whole: coachrl checkpoints prune .*/one, then resume"):
        checkpoints.read(newest(run), {})
    with pytest.raises(CheckpointError, match=r"; no older one is whole$"):
        (run.folder / "checkpoints/step-000001/trainer.json").unlink()
        checkpoints.read(newest(run), {})


def test_what_is_known_of_a_checkpoint_is_its_step_its_size_and_its_weights(run):
    with run.checkpoint(12, keep=9) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "config.json").write_bytes(bytes(30))
        (folder / "algorithm.json").write_bytes(bytes(12))
        checkpoints.seal(folder, 12, {}, "replies")
    found = checkpoints.inspect(newest(run))
    assert (found.step, found.size_bytes, found.weights, found.problem) == (12, 42, "replies", "")
    assert checkpoints.policies(newest(run)) == [newest(run) / "policy"]


@pytest.mark.parametrize("place", ["step-000003", "step-000007"])
def test_a_checkpoint_in_the_place_of_another_step_is_refused(run, place):
    shutil.rmtree(newest(run))
    (run.folder / "checkpoints" / "step-000001").rename(run.folder / "checkpoints" / place)
    done = coachrl("eval", "--run", run.folder, cwd=run.folder)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"{place} is of another step: trainer.json says 1; step-000002 is whole" in done.stderr


@pytest.mark.parametrize("put", [Path.touch, os.mkfifo, lambda place: place.symlink_to("nowhere")])
def test_what_was_not_written_with_a_checkpoint_is_named_before_a_loader_meets_it(run, put):
    put(newest(run) / "policy" / "adapter_config.json")
    done = coachrl("eval", "--run", run.folder, cwd=run.folder)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "holds 'policy/adapter_config.json', which was not written with it: move it elsewhere" in done.stderr
    checkpoints.prune(run.folder / "checkpoints", keep=1)
    assert checkpoints.inspect(newest(run)).step == 3, "it is no reason to throw the weights away"


@pytest.mark.parametrize(
    "put", [Path.touch, lambda place: place.symlink_to(place), lambda place: place.symlink_to("..")]
)
@pytest.mark.parametrize("name", ["step-000004", ".step-000001.removed", ".step-000004.77"])
def test_a_name_that_something_else_has_taken_is_had_all_the_same(run, put, name):
    put(run.folder / "checkpoints" / name)
    with run.checkpoint(4, keep=3) as folder:
        checkpoints.seal(folder, 4, {})
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == [f"step-00000{n}" for n in (2, 3, 4)]
    assert (run.folder / "config.yaml").exists(), "of a link, the link alone is removed"


@pytest.mark.parametrize("verb", [["train", "--resume"], ["eval", "--run"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "not a folder"])
def test_where_nobody_can_say_which_checkpoints_there_are_nothing_is_made_again(run, verb, hidden):
    run.append_metrics({"step": 3, "train/success": 0.5})
    root = run.folder / "checkpoints"
    if hidden:
        root.chmod(0)
    else:
        root.rename(run.folder / "moved")
        root.touch()
    done = coachrl(*verb, run.folder, cwd=run.folder.parent, powerless=True)
    root.chmod(0o755)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"checkpoints cannot be read: {'Permission denied' if hidden else 'Not a directory'}" in done.stderr
    assert len(run.metrics()) == 1


def test_a_file_of_a_checkpoint_that_may_not_be_read_is_named(run):
    (newest(run) / "policy" / "weights").chmod(0)
    done = coachrl("eval", "--run", run.folder, cwd=run.folder, powerless=True)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "step-000003 cannot be read: policy/weights: Permission denied; move it elsewhere to" in done.stderr


def test_a_finished_run_whose_weights_are_damaged_does_not_offer_them(run):
    run.append_metrics({"step": RunConfig().train.steps, "eval/success": 0.5})
    with run.checkpoint(RunConfig().train.steps, keep=1) as folder:
        (folder / "weights").write_bytes(bytes(1000))
        checkpoints.seal(folder, RunConfig().train.steps, {})
    (newest(run) / "weights").write_bytes(b"x" + bytes(999))
    done = coachrl("train", "--resume", run.folder, cwd=run.folder)
    assert done.returncode == 2 and "is damaged" in done.stderr and not done.stdout


@pytest.mark.parametrize("part", ["episodes", "coach", "checkpoints"])
def test_a_run_that_cannot_be_written_to_forgets_nothing(run, part):
    run.append_metrics({"step": 3})
    (run.folder / part).rename(run.folder / "moved")
    (run.folder / part).touch()
    with pytest.raises(ConfigError, match=f"{part} is no folder that this user may write to"):
        run.drop_after(1)
    assert run.metrics() == [{"step": 3}]


@pytest.mark.parametrize(
    "line",
    ["{}", "[3]", '{"step": "3"}', '{"step": 3.5}', '{"step": -1}', '{"step": 99999999999}']
    + [f'{{"step": 1, "eval/success": {odd}}}' for odd in ('"x"', "null", "NaN", "1e999", "[1]")],
)
def test_a_line_of_metrics_that_no_run_has_written_is_one_clear_line(run, line):
    (run.folder / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: .* is no step with its numbers: take that line out"):
        run.drop_after(1)
    assert (run.folder / "metrics.jsonl").read_text() == line + "\n"


def test_one_of_another_configuration_is_refused(run):
    with pytest.raises(CheckpointError, match="made with model of policy a 'tiny', and this run has 'big'"):
        checkpoints.read(newest(run), {"model of policy a": "big"})


def test_a_stray_file_among_the_episodes_stays(run):
    stray = run.folder / "episodes" / "notes.jsonl"
    for name in ("notes.jsonl", "step-x.jsonl", "step-000002.jsonl", "step-000004.jsonl"):
        stray.with_name(name).write_text("")
    run.drop_after(3)
    assert {path.name for path in stray.parent.iterdir()} == {"notes.jsonl", "step-x.jsonl", "step-000002.jsonl"}
    assert [path.name for path in run.episode_files()] == ["step-000002.jsonl"]


@pytest.mark.parametrize("torn", ["", '{"kind": "ca', "x" * 200_000, "\0\udcff"])
@pytest.mark.parametrize("whole", ["", '{"kind": "score"}\n', "y" * 100_000 + "\n"])
def test_half_a_line_of_the_ledger_goes_on_resume(run, whole, torn):
    run.ledger.write_text(whole + torn, errors="surrogateescape")
    ledger = run.ledger.stat().st_ino
    run.drop_after(3)
    assert run.ledger.read_text() == whole
    assert run.ledger.stat().st_ino == ledger, "it may be larger than memory, and is not written again"


def test_what_another_process_is_just_writing_stays_when_a_run_goes_on(run):
    """A report of a run that is being resumed; and what one left that was killed."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as writer:
        for pid in (writer.pid, gone.pid, os.getpid()):
            (run.folder / f".report.html.0123abcd.{pid}").write_text("half")
        run.drop_after(3)
        assert [path.name for path in run.folder.glob(".report*")] == [f".report.html.0123abcd.{writer.pid}"]


def test_a_run_can_be_resumed_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "c.md").touch()
    (tmp_path / "train.json").touch()
    tasks = ["tasks.source=math", "tasks.train=train.json"]
    config = load_config(None, ["model=model", *tasks, "policies.p.model=model", "coach.prompt=c.md"])
    absolute = with_absolute_paths(config)
    assert (absolute.model, absolute.policies["p"].model) == (str(tmp_path / "model"),) * 2
    assert absolute.tasks.train == str(tmp_path / "train.json") and absolute.coach.prompt == tmp_path / "c.md"
    assert with_absolute_paths(RunConfig()).model == RunConfig().model
    assert Run.create(config.model_copy(update={"name": "r"})).config().tasks.train == str(tmp_path / "train.json")


def test_the_plan_of_a_resumed_run_counts_what_is_left(run):
    done = coachrl("train", "--resume", run.folder, "--dry-run", cwd=run.folder)
    assert done.returncode == 0, done.stderr
    assert f"{RunConfig().train.steps - 3} steps" in done.stdout


def test_a_full_disk_leaves_the_older_checkpoint_good(tmp_path):
    run = Run.create(RunConfig(name="full", out=tmp_path))
    with run.checkpoint(1, keep=1) as folder:
        (folder / "weights").write_bytes(bytes(1000))
        checkpoints.seal(folder, 1, {})
    with pytest.raises(OSError) as raised, run.checkpoint(2, keep=1) as folder, room_for(50_000):
        (folder / "weights").write_bytes(bytes(100_000))
    assert str(raised.value).endswith(f"File too large: '{tmp_path}/full/checkpoints/step-000002'")
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-000001"]
    assert checkpoints.read(newest(run), {}).step == 1


def test_an_error_that_says_all_itself_stays_as_it_is(run):
    with pytest.raises(OSError) as raised, run.checkpoint(9, keep=2):
        raise OSError("checkpoint x cannot be written: no room")
    assert str(raised.value) == "checkpoint x cannot be written: no room"


SMALL = ["-c", "quickstart", "name=x", "train.steps=1"]


def test_without_bubblewrap_a_run_says_so_and_leaves_nothing(tmp_path):
    (tmp_path / "bin").mkdir()
    done = coachrl("train", *SMALL, cwd=tmp_path, PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "apt-get install bubblewrap" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "runs").write_text("a file")  # a read-only folder would not stop root
    done = coachrl("train", *SMALL, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "cannot be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_read_only_folder_is_one_clear_line(tmp_path):
    (tmp_path / "runs").mkdir(mode=0o555)
    done = coachrl("train", *SMALL, cwd=tmp_path, powerless=True)
    assert done.returncode == 2 and "cannot be written: no permission to write in runs" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("verb", [["train", "--resume"], ["report"], ["audit"]], ids=lambda verb: verb[0])
def test_a_run_in_a_read_only_folder_is_one_clear_line(run, tmp_path, verb):
    (run.folder / "metrics.jsonl").write_text('{"step": 3, "train/success": 0.5}\n')
    before = sorted(path for path in run.folder.rglob("*"))
    run.folder.chmod(0o555)
    done = coachrl(*verb, run.folder, cwd=tmp_path, powerless=True)
    run.folder.chmod(0o755)
    error = done.stderr.strip().splitlines()[-1]
    assert done.returncode in (1, 2) and error.startswith("error: ") and "Permission denied" in error
    assert "Traceback" not in done.stderr and sorted(path for path in run.folder.rglob("*")) == before
