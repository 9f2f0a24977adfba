"""A run's folder is made whole, and removed where the run never began."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from full_disk import room_for

from coachrl.config import RunConfig, load_config
from coachrl.errors import ConfigError
from coachrl.runs import folder, leftovers, places
from coachrl.runs.folder import Run


def make_run(tmp_path, name="one"):
    return Run.create(RunConfig(name=name, out=tmp_path / "runs"))


def test_a_file_that_is_called_latest_stays(tmp_path, caplog):
    kept = tmp_path / "runs" / "latest"
    kept.parent.mkdir()
    kept.write_text("notes")
    run = make_run(tmp_path)
    run.discard_if_empty()
    assert kept.read_text() == "notes" and not run.folder.exists()
    assert "runs/latest was not moved: [Errno 17] File exists: " in caplog.text


def test_latest_points_to_the_newest_run(tmp_path):
    make_run(tmp_path)
    run = make_run(tmp_path, "two")
    assert (tmp_path / "runs" / "latest").resolve() == run.folder.resolve()
    assert Run.open(tmp_path / "runs" / "latest").config() == run.config()


def test_a_folder_that_is_called_latest_stays_and_the_run_begins_without_the_link(tmp_path, caplog):
    (tmp_path / "runs" / "latest" / "mine").mkdir(parents=True)
    run = make_run(tmp_path)
    assert (run.folder / "config.yaml").is_file() and (tmp_path / "runs" / "latest" / "mine").is_dir()
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("runs/latest was not moved: ")
    make_run(tmp_path, "two")
    assert not list((tmp_path / "runs").glob(".latest.*"))


def test_an_interrupt_while_the_folder_is_made_leaves_nothing(tmp_path, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("coachrl.runs.folder.versions", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_run(tmp_path)
    assert not list((tmp_path / "runs").iterdir())


def killed_while_it_makes_a_run(tmp_path, monkeypatch):
    """The folder that it leaves, and the process's number."""
    monkeypatch.setattr("coachrl.runs.folder.versions", lambda: os._exit(9))
    if (pid := os.fork()) == 0:
        make_run(tmp_path)
    os.waitpid(pid, 0)
    monkeypatch.undo()
    [left] = (tmp_path / "runs").glob(f".one.*.{pid}")
    return left, pid


def test_what_a_process_left_that_was_killed_while_it_made_a_run_goes_with_a_later_start(tmp_path, monkeypatch):
    left, pid = killed_while_it_makes_a_run(tmp_path, monkeypatch)
    link = left.with_name(f".latest.0123abcd.{pid}")
    removed = left.with_name(f".two.0123abcd.{pid}.discarded")
    link.symlink_to("nowhere")
    (removed / "episodes").mkdir(parents=True)
    (removed / "log.txt").touch()  # it was a run's to its end, and goes whole
    users = left.with_name(".settings.20240101")  # a date, and no number of a process
    users.mkdir()
    (users / "config.yaml").touch()
    make_run(tmp_path, "one")
    assert left.is_dir()  # a process of another machine might be making it
    for path in (left, link, removed, users):
        os.utime(path, (1, 1), follow_symlinks=False)
    make_run(tmp_path, "two")
    assert sorted(path.name for path in left.parent.iterdir()) == [users.name, "latest", "one", "two"]


def test_a_process_of_the_same_number_makes_the_run_that_another_was_killed_over(tmp_path, monkeypatch):
    left, pid = killed_while_it_makes_a_run(tmp_path, monkeypatch)
    monkeypatch.setattr("os.getpid", lambda: pid)  # as in a container
    make_run(tmp_path)
    assert left.is_dir()  # another container's process might be making it
    os.utime(left, (1, 1))
    make_run(tmp_path, "two")
    assert sorted(path.name for path in left.parent.iterdir()) == ["latest", "one", "two"]


def test_processes_of_one_number_that_make_runs_at_once_leave_each_others_alone(tmp_path, monkeypatch):
    """As in two containers over one folder: here one's folder is made while the other's is."""
    monkeypatch.setattr("coachrl.runs.folder.time.strftime", lambda form: "now")
    monkeypatch.setattr("os.getpid", lambda: 1)
    config, others, real = RunConfig(out=tmp_path), [], folder.versions

    def meanwhile():
        if not others:
            others.append(None)
            others.append(Run._create(config))
        return real()

    monkeypatch.setattr(folder, "versions", meanwhile)
    mine = Run.create(config)
    assert [run.folder.name for run in (others[1], mine)] == ["mathchat-now", "mathchat-now-2"]
    for run in (others[1], mine):
        assert {path.name for path in run.folder.iterdir()} == {*leftovers.PARTS, *leftovers.FILES}


def test_what_no_run_has_left_stays(tmp_path, monkeypatch):
    left, pid = killed_while_it_makes_a_run(tmp_path, monkeypatch)
    (left / "episodes" / "kept").write_text("somebody's")
    others = [left.with_name(f".{name}.{pid}") for name in ("notes", "backup")]
    others[0].write_text("a file")
    others[1].mkdir()
    for name in ("thesis.tex", "config.yaml"):
        (others[1] / name).write_text("years of work")
    link, undated = left.with_name(f".mine.{pid}"), left.with_name(".mine")
    link.symlink_to("nowhere")
    undated.mkdir()
    for path in (left, *others, link, undated):
        os.utime(path, (1, 1), follow_symlinks=False)
    make_run(tmp_path)
    assert (left / "episodes" / "kept").exists() and others[0].exists() and link.is_symlink() and undated.is_dir()
    assert sorted(path.name for path in others[1].iterdir()) == ["config.yaml", "thesis.tex"]


def test_an_existing_run_is_never_overwritten(tmp_path):
    make_run(tmp_path)
    with pytest.raises(ConfigError, match="exists"):
        make_run(tmp_path)


def test_a_name_that_another_process_has_just_taken_is_said_to_exist(tmp_path, monkeypatch):
    def aside(folder):
        (folder / "episodes").mkdir(parents=True)
        return folder.with_name(".one.1")

    monkeypatch.setattr(leftovers, "aside", aside)
    with pytest.raises(ConfigError, match="one exists; choose another name"):
        Run.create(RunConfig(name="one", out=tmp_path / "runs"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("coachrl.runs.folder.time.strftime", lambda form: "now")
    names = [Run.create(load_config(None, [], {"out": str(tmp_path)})).folder.name for _ in range(3)]
    assert names == ["mathchat-now", "mathchat-now-2", "mathchat-now-3"]


def test_threads_that_begin_runs_at_once_leave_each_others_folders_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("coachrl.runs.folder.time.strftime", lambda form: "now")
    named = [RunConfig(name=f"run-{number}", out=tmp_path) for number in range(8)]
    unnamed = [load_config(None, [], {"out": str(tmp_path)})] * 4
    with ThreadPoolExecutor(4) as threads:
        made = {run.folder.name for run in threads.map(Run.create, named + unnamed)}
    assert len(made) == 12 and made == {path.name for path in tmp_path.iterdir()} - {"latest"}
    assert not caplog.records, "latest was moved each time"


def test_a_run_is_begun_once_another_thread_has_discarded_its_own(tmp_path, monkeypatch):
    """Both move `latest` by way of a link that has the process's number alone."""
    failed, point_back = Run.create(RunConfig(name="failed", out=tmp_path)), places.point_back

    def meanwhile(*given):
        other.start()
        other.join(0.2)
        waited.append(other.is_alive())
        point_back(*given)

    waited: list[bool] = []
    other = threading.Thread(target=lambda: Run.create(RunConfig(name="other", out=tmp_path)))
    monkeypatch.setattr(places, "point_back", meanwhile)
    failed.discard_if_empty()
    other.join()
    assert waited == [True]
    assert (tmp_path / "latest").resolve().name == "other" and not failed.folder.exists()


def test_a_place_that_cannot_hold_a_folder_is_one_clear_line(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"runs/one cannot be written: .*/runs is no folder$"):
        make_run(tmp_path)


def test_a_folder_whose_path_is_not_utf8_holds_no_run_and_no_file_that_one_would_name(tmp_path, monkeypatch):
    odd = tmp_path / os.fsdecode(b"odd\xff")
    odd.mkdir()
    (odd / "t.csv").write_text("problem,answer\n1 + 1,2\n")
    monkeypatch.chdir(odd)
    with pytest.raises(ConfigError, match=r"run folder .*: its path must be UTF-8"):
        Run.create(RunConfig(name="one"))
    with pytest.raises(ConfigError, match=r"tasks\.train: a setting is UTF-8 text"):  # as a whole, it is not
        Run.create(
            load_config({"name": "one", "out": str(tmp_path / "runs"), "tasks": {"source": "math", "train": "t.csv"}})
        )
    assert [path.name for path in odd.iterdir()] == ["t.csv"] and not (tmp_path / "runs").exists()


def test_a_run_without_a_first_line_leaves_nothing(tmp_path):
    run = make_run(tmp_path)
    run.discard_if_empty()
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_opened_is_never_discarded(tmp_path):
    """It may hold a ledger and replies of who made it, and was killed before its first line."""
    run = Run.open(make_run(tmp_path).folder)
    run.discard_if_empty()
    assert (run.folder / "config.yaml").exists()


def test_a_folder_that_was_there_before_the_run_stays(tmp_path):
    (tmp_path / "runs").mkdir()
    make_run(tmp_path).discard_if_empty()
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_without_a_first_line_leaves_latest_as_it_was(tmp_path):
    good = make_run(tmp_path)
    good.append_metrics({"step": 0})
    make_run(tmp_path, "two").discard_if_empty()
    assert (tmp_path / "runs" / "latest").resolve() == good.folder.resolve()


def test_a_run_that_is_discarded_leaves_latest_to_one_that_began_since(tmp_path):
    first, second = make_run(tmp_path), make_run(tmp_path, "two")
    first.discard_if_empty()
    assert (tmp_path / "runs" / "latest").resolve() == second.folder.resolve()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["latest", "two"]


def test_a_run_is_discarded_where_the_disk_has_no_room_for_a_link(tmp_path, monkeypatch):
    make_run(tmp_path).append_metrics({"step": 0})
    second = make_run(tmp_path, "two")

    def full(path, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "symlink_to", full)
    second.discard_if_empty()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_a_run_that_the_disk_does_not_let_go_hides_nothing_of_what_ended_it(tmp_path, monkeypatch, caplog):
    run = make_run(tmp_path)

    def read_only(path, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "rename", read_only)
    run.discard_if_empty()
    assert (run.folder / "config.yaml").is_file()
    assert f"{run.folder} stays, since it cannot be removed: Read-only file system" in caplog.text


def test_a_discarded_run_leaves_its_name_to_others(tmp_path):
    run = make_run(tmp_path)
    run.discard_if_empty()
    other = make_run(tmp_path)
    run.discard_if_empty()
    assert other.folder == run.folder and (other.folder / "config.yaml").is_file()


@pytest.mark.parametrize("moved", [Path.rename, lambda folder, away: shutil.rmtree(folder)])
def test_what_has_the_name_of_a_run_that_was_moved_away_is_not_discarded_for_it(tmp_path, moved):
    run = make_run(tmp_path)
    with run.locked("training"):
        moved(run.folder, tmp_path / "away")
        other = make_run(tmp_path)
        run.discard_if_empty()
    run.discard_if_empty()
    assert other.folder == run.folder and (other.folder / "config.yaml").is_file()
    assert (tmp_path / "runs" / "latest").resolve() == other.folder
    with other.locked("training"):
        other.discard_if_empty()
    assert not other.folder.exists()


def test_another_run_of_the_name_can_begin_while_one_is_being_removed(tmp_path, monkeypatch):
    begun, remove = [], shutil.rmtree

    def beside_another(folder, ignore_errors=False):
        begun.append(make_run(tmp_path))
        remove(folder, ignore_errors)

    run = make_run(tmp_path)
    monkeypatch.setattr(shutil, "rmtree", beside_another)
    run.discard_if_empty()
    assert [other.folder for other in begun] == [run.folder]
    assert (run.folder / "config.yaml").is_file() and (run.folder / "episodes").is_dir()


def test_a_run_is_made_although_another_takes_the_folder_above_away(tmp_path, monkeypatch):
    make, taken_away = Path.mkdir, []

    def after_another(folder, *mode, **how):
        if folder.parent.name == "runs" and not taken_away:
            taken_away.append(folder.parent)
            folder.parent.rmdir()
        make(folder, *mode, **how)

    monkeypatch.setattr(Path, "mkdir", after_another)
    assert (make_run(tmp_path).folder / "config.yaml").is_file() and taken_away


def test_a_run_with_a_checkpoint_is_never_discarded(tmp_path):
    run = make_run(tmp_path)
    with run.checkpoint(1, keep=1) as folder:
        (folder / "whole").write_text("x")
    run.discard_if_empty()
    assert run.checkpoints()


def test_a_run_with_a_line_of_metrics_is_never_discarded(tmp_path):
    run = make_run(tmp_path)
    run.append_metrics({"step": 0})
    run.discard_if_empty()
    assert run.metrics() == [{"step": 0}] and (tmp_path / "runs" / "latest").exists()


def test_a_run_for_which_there_is_no_room_is_one_clear_line_and_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"run folder .*/runs/one cannot be written: File too large$"), room_for(10):
        make_run(tmp_path)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("name", ["a/b", "..", "/tmp/x", " ", "a ", "\ta"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="plain folder name"):
        make_run(tmp_path, name)


def test_the_name_of_the_newest_run_is_no_name_for_a_run(tmp_path):
    with pytest.raises(ConfigError, match="name 'latest' is taken"):
        make_run(tmp_path, "latest")
