"""What stands in a run's folder: whole writes, round trips, and what a kill left."""

import contextlib
import logging
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from full_disk import room_for

from coachrl.coach.clients.ledger import Ledger
from coachrl.config import RunConfig, find_config, load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.runs.records import episode_from_record, episode_record
from coachrl.storage.atomic import folder_aside, write_aside
from coachrl.storage.jsonl import append_jsonl, read_jsonl
from coachrl.testing.actions import make_action
from coachrl.types import CoachScore, Episode, Execution, Outcome


def make_run(tmp_path, name="one"):
    return Run.create(RunConfig(name=name, out=tmp_path / "runs"))


def make_episode():
    action = make_action(
        "r",
        "x",
        policy="p",
        response_ids=(3, 4),
        logprobs=(-0.5, -0.25),
        prompt_text="a\nb",
        code="print(1)\n",
        execution=Execution("ok", "1\n", files_written=("a.csv",)),
        files_after=("a.csv",),
    )
    return Episode("e", "t", "k", "mathchat", (action,), Outcome(True, {"correct": 1.0}, summary="right"), 1.5)


def test_an_action_without_a_score_has_null(tmp_path):
    assert episode_record(make_episode(), {})["actions"][0]["score"] is None


def test_metrics_for_which_there_is_no_room_leave_no_piece(tmp_path):
    run = make_run(tmp_path)
    run.append_metrics({"step": 1})
    with pytest.raises(OSError, match=r"File too large: .*metrics\.jsonl"), room_for(100):
        run.append_metrics({"step": 2, "long": "x" * 1000})
    assert (run.folder / "metrics.jsonl").read_text() == '{"step": 1}\n'


@pytest.fixture
def no_handlers(monkeypatch):
    """A command that another test has called in this process may have left its own, which prints."""
    monkeypatch.setattr(logging.getLogger("coachrl"), "handlers", [])


def test_a_log_for_which_there_is_no_room_hides_nothing_of_what_ends_the_run(tmp_path, capsys, no_handlers):
    run = make_run(tmp_path)
    with pytest.raises(SystemExit, match="what ended the run"), room_for(100), run.logging():
        logging.getLogger("coachrl").warning("x" * 1000)
        raise SystemExit("what ended the run")
    assert capsys.readouterr().err == "" and (run.folder / "log.txt").stat().st_size == 100


def test_the_log_of_a_run_holds_what_the_program_said_meanwhile_fit_for_a_terminal(
    tmp_path, monkeypatch, capsys, no_handlers
):
    run, log = make_run(tmp_path), logging.getLogger("coachrl.part")
    monkeypatch.setattr(logging.getLogger("coachrl"), "propagate", False)  # pytest's own handler raises below
    before = list(logging.getLogger("coachrl").handlers)
    with run.logging():
        [kept] = [handler for handler in logging.getLogger("coachrl").handlers if handler not in before]
        log.warning("déjà \x1b[31m %s", "vu")
        logging.getLogger("another").warning("not ours")
        log.warning("%d", "no number")  # a bug, which is not hidden
    log.warning("late")
    [line] = (run.folder / "log.txt").read_text(encoding="utf-8").splitlines()
    date, time, level, name, *words = line.split(" ")
    assert (level, name, words[0], words[-1]) == ("WARNING", "coachrl.part:", "déjà", "vu") and "\x1b" not in line
    assert len(date) == 10 and time[2] == ":" and "Logging error" in capsys.readouterr().err
    assert logging.getLogger("coachrl").handlers == before and kept.stream is None, "the file is closed"


def test_a_traceback_in_the_log_of_a_run_holds_no_key(tmp_path, monkeypatch, no_handlers):
    run, key = make_run(tmp_path), "sk-0123456789abcdef"
    monkeypatch.setenv("GEMINI_API_KEY", key)
    with run.logging():
        try:
            raise RuntimeError(f"401 for a call with {key}")
        except RuntimeError as error:
            logging.getLogger("coachrl.part").warning("it failed", exc_info=error)
    text = (run.folder / "log.txt").read_text(encoding="utf-8")
    assert "RuntimeError: 401 for a call with [GEMINI_API_KEY]" in text and key not in text


def test_episodes_have_their_folder_made_again_where_it_was_removed(tmp_path):
    run = make_run(tmp_path)
    (run.folder / "episodes").rmdir()
    assert run.write_episodes("step-000001", [], {}).is_file()


def test_a_run_folder_that_cannot_be_logged_to_is_one_clear_line(tmp_path):
    run = make_run(tmp_path)
    (run.folder / "log.txt").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"), run.logging():
        pass


def test_half_a_character_is_written_and_read_back(tmp_path):
    run = make_run(tmp_path)
    score = CoachScore("e/0", "scored", 7.0, rationale="cut \ud83d")
    [record] = read_jsonl(run.write_episodes("step-000001", [make_episode()], {"e/0": score}))
    assert episode_from_record(record) == (make_episode(), {"e/0": score})


def test_checkpoints_appear_whole_or_not_at_all(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(RuntimeError), run.checkpoint(1, keep=2) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert run.checkpoints() == [] and list((run.folder / "checkpoints").iterdir()) == []
    (run.folder / "checkpoints" / ".step-000001.99").mkdir()  # what a killed process leaves
    for step in (1, 2, 3):
        with run.checkpoint(step, keep=2) as folder:
            (folder / "whole").write_text("x")
    assert [path.name for path in run.checkpoints()] == ["step-000002", "step-000003"]
    assert len(list((run.folder / "checkpoints").iterdir())) == 2


def test_a_run_that_was_moved_away_is_not_gone_on_with_in_its_old_place(tmp_path):
    run = make_run(tmp_path)
    with run.locked("training"):
        run.folder.rename(tmp_path / "moved")
        with pytest.raises(FileNotFoundError):
            Ledger(run.ledger).resumed(1)
        assert not run.folder.exists()
        (run.folder / "checkpoints").mkdir(parents=True)  # somebody else has the name by now
        with pytest.raises(FileNotFoundError), run.checkpoint(1, keep=1):
            pass
        with pytest.raises(FileNotFoundError):
            run.append_metrics({"step": 1})
        with pytest.raises(FileNotFoundError):
            run.write_episodes("step-000001", [], {})
    assert [path.name for path in run.folder.rglob("*")] == ["checkpoints"]


def test_a_checkpoint_gets_no_name_in_the_old_place_of_a_run_that_is_moved_meanwhile(tmp_path):
    run = make_run(tmp_path)
    with run.locked("training"):
        with pytest.raises(FileNotFoundError), run.checkpoint(1, keep=1) as folder:
            run.folder.rename(tmp_path / "moved")
            folder.mkdir(parents=True)  # as libraries do that save a model
        assert run.checkpoints() == []


def test_later_steps_are_forgotten_on_resume(tmp_path, caplog):
    run = make_run(tmp_path)
    for step in range(4):
        run.append_metrics({"step": step})
        run.write_episodes(f"step-{step:06d}", [make_episode()], {})
    run.drop_after(2)
    assert [record.getMessage() for record in caplog.records] == [
        f"{run.folder.name} goes on after step 2: what it holds of later steps, up to step 3, is dropped, and made "
        "again as far as the run goes"
    ]
    run.drop_after(2)
    assert len(caplog.records) == 1, "nothing is lost, nothing is said"
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]
    assert [path.stem for path in run.episode_files()] == [f"step-{step:06d}" for step in range(3)]


def test_evaluations_of_later_steps_are_forgotten_on_resume(tmp_path):
    run = make_run(tmp_path)
    for step in (0, 2, 3):
        run.write_episodes(f"eval-{step:06d}", [make_episode()], {})
    run.drop_after(2)
    assert [path.stem for path in run.episode_files("eval")] == ["eval-000000", "eval-000002"]


def test_files_of_episodes_come_by_step_however_many_digits_it_has(tmp_path):
    run = make_run(tmp_path)
    for label in ("step-1000000", "step-999999", "eval-1000000", "eval-000000"):
        run.write_episodes(label, [], {})
    labels = [path.stem for path in run.episode_files()]
    assert labels == ["eval-000000", "eval-1000000", "step-999999", "step-1000000"]


def test_a_line_torn_by_a_kill_is_dropped_on_resume(tmp_path):
    run = make_run(tmp_path)
    run.append_metrics({"step": 0})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "tra')
    run.drop_after(1)
    assert run.metrics() == [{"step": 0}]


def test_metrics_that_are_not_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        append_jsonl(tmp_path / "x.jsonl", [{"step": 1, "loss": float("nan")}])
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("line", [b"{half", b"\xff\xfe"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match="line 2"):
        list(read_jsonl(path))


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_aside(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_what_a_killed_process_left_of_a_file_goes_when_it_is_written_again(tmp_path):
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    left = tmp_path / f".report.html.0123abcd.{ended}"
    of_another_file = tmp_path / f".labels.csv.0123abcd.{ended}"
    of_one_that_writes = tmp_path / ".report.html.0123abcd.1"
    for path in (left, of_another_file, of_one_that_writes):
        path.write_text("half")
    write_aside(tmp_path / "report.html", "whole")
    assert {*tmp_path.iterdir()} == {of_another_file, of_one_that_writes, tmp_path / "report.html"}


def test_the_team_reads_back_equal(tmp_path):
    run = make_run(tmp_path)
    assert run.roles() is None
    team = make_pipeline(load_config(find_config("quickstart")).pipeline).roles
    assert any(role.examples for role in team)
    run.write_roles(team)
    kept = [replace(role, prompt=replace(role.prompt, header={})) for role in team]
    assert [replace(role, feedback=replace(role.feedback, header={})) for role in kept] == list(run.roles())


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"name": "a"}]', '[{"name": "a", "policy": "a", "stop_when": "banana"}]']
)
def test_a_team_that_cannot_be_read_is_named(tmp_path, text):
    run = make_run(tmp_path)
    (run.folder / "roles.json").write_text(text)
    with pytest.raises(ConfigError, match=r"roles\.json"):
        run.roles()


def test_what_a_killed_process_left_beside_its_files_is_removed_when_the_run_goes_on(tmp_path):
    run = make_run(tmp_path)
    left = [run.folder / ".metrics.jsonl.0123abcd.123", run.folder / "episodes" / ".step-000002.jsonl.0123abcd.3499"]
    for path in left:
        path.write_text("cut sh")
    (run.folder / "episodes" / ".keep.txt").write_text("the user's own")
    run.drop_after(1)
    assert not any(path.exists() for path in left)
    assert (run.folder / "episodes" / ".keep.txt").exists()


def test_a_folder_that_is_written_aside_is_there_whole_or_not_at_all(tmp_path):
    place = tmp_path / "above" / "made"
    with folder_aside(place) as aside:
        (aside / "file").write_text("whole")
        assert not place.exists()
    assert [path.name for path in place.parent.iterdir()] == ["made"] and (place / "file").read_text() == "whole"
    with pytest.raises(ZeroDivisionError), folder_aside(tmp_path / "failed") as aside:
        (aside / "file").write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["above"]


@pytest.mark.parametrize("may_exist", [True, False])
def test_of_two_who_make_one_folder_the_first_ones_stays(tmp_path, may_exist):
    place = tmp_path / "made"
    refused = contextlib.nullcontext() if may_exist else pytest.raises(OSError, match="not empty")
    with refused, folder_aside(place, may_exist) as aside:
        (aside / "file").write_text("second")
        place.mkdir()
        (place / "file").write_text("first")
    assert [path.name for path in tmp_path.iterdir()] == ["made"] and (place / "file").read_text() == "first"


def test_what_a_killed_process_left_of_a_folder_goes_when_the_folder_is_made_again(tmp_path):
    if (pid := os.fork()) == 0:
        with folder_aside(tmp_path / "made") as aside:
            (aside / "weights").touch()
            os._exit(9)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 1
    kept = [f".made.{pid}", f".made.notes.{pid}", f".made.0123abcd.{os.getpid()}"]
    for name in kept:  # other people's, and one that is being written
        (tmp_path / name).mkdir()
    with folder_aside(tmp_path / "made"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "made"])


def test_the_last_step_is_the_highest_that_has_a_whole_line(tmp_path):
    run = make_run(tmp_path)
    assert run.last_step() == 0
    for step in (3, 11, 7):
        run.append_metrics({"step": step})
    assert run.last_step() == 11
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "tra')  # which a run that goes on is just writing
    assert run.last_step() == 11


def test_what_a_resumed_run_may_change_is_written_down_unless_it_is_for_once(tmp_path):
    run = make_run(tmp_path)
    for keep, kept in ((False, None), (True, 3)):
        assert run.reconfigure(["coach.budget_usd=3"], keep).coach.budget_usd == 3
        assert run.config().coach.budget_usd == kept
    assert run.reconfigure([]).coach.budget_usd == 3
    for refused in ("train.steps=9", "coach={budget_usd: 3}"):
        with pytest.raises(ConfigError, match=f"'{refused.partition('=')[0]}' cannot change now") as error:
            run.reconfigure([refused])
        assert f": coachrl train --config {run.folder / 'config.yaml'} --name NEW " in str(error.value)
    for refused in ("algorithm.name=grpo", "tasks.source=math"):  # nor is it asked what goes with what
        with pytest.raises(ConfigError, match=f"'{refused.partition('=')[0]}' cannot change now"):
            run.reconfigure([refused])
    with pytest.raises(ConfigError, match="--name NEW policies"):
        run.reconfigure(["name=other"])
    with pytest.raises(ConfigError, match=r"unknown key 'coach\.budget', did you mean 'coach\.budget_usd'"):
        run.reconfigure(["coach.budget=3"])


def test_a_configuration_that_lacks_a_section_is_not_filled_up_with_defaults(tmp_path):
    run = make_run(tmp_path)
    path = run.folder / "config.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if line[:5] != "seed:"))
    with pytest.raises(ConfigError, match=r"config\.yaml: cut short: it has no seed, and a run's configuration"):
        run.config()


def test_episodes_that_a_run_goes_on_from_must_all_be_read(tmp_path):
    run = make_run(tmp_path)
    assert run.read_episodes("step-000001") == ([], {})
    path = run.write_episodes("step-000001", [make_episode(), make_episode()], {"e/0": CoachScore("e/0", "failed")})
    assert run.read_episodes("step-000001") == ([make_episode()] * 2, {"e/0": CoachScore("e/0", "failed")})
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(ConfigError, match=r"one: step-000001\.jsonl: line 3 is left out"):
        run.read_episodes("step-000001")


@pytest.mark.parametrize("part", ["checkpoints/step-000002", "rescores/strict", "episodes"])
def test_a_part_of_a_run_is_answered_by_the_run(tmp_path, part):
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=mine"]))
    (run.folder / part).mkdir(parents=True, exist_ok=True)
    with pytest.raises(ConfigError, match=rf"{part} is not a run folder, but a part of one: name {run.folder}$"):
        Run.open(run.folder / part)


@pytest.mark.parametrize("named", [".", "", "con/.."])
def test_the_folder_that_runs_are_in_is_none(tmp_path, monkeypatch, named):
    (tmp_path / "con").mkdir()
    (tmp_path / "con" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not a run folder"):
        Run.open(named)


def test_a_folder_is_a_run_where_it_holds_any_part_of_one(tmp_path):
    for part in ("config.yaml", "metrics.jsonl"):
        (tmp_path / part[:3]).mkdir()
        (tmp_path / part[:3] / part).touch()
    (tmp_path / "episodic" / "episodes").mkdir(parents=True)
    for name in ("con", "met", "episodic"):
        assert Run.open(tmp_path / name).folder == (tmp_path / name).resolve()
    with pytest.raises(ConfigError, match=r"it has none of config\.yaml, metrics\.jsonl, episodes"):
        Run.open(tmp_path / "other")


def test_a_run_by_its_name_alone_and_the_folder_of_runs_are_answered_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("math-1", "latest"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").touch()
    for wrong, right in (("math-1", "runs/math-1"), ("runs", "runs/latest"), ("runs/mth-1", "runs/math-1")):
        with pytest.raises(ConfigError, match=rf"{wrong} is not a run folder, did you mean '{right}'\?$"):
            Run.open(wrong)


def test_a_run_of_nearly_that_name_is_suggested_however_deep_the_folder(tmp_path):
    folder = tmp_path / ("long" * 30)
    for name in ("math-1", "code-1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").touch()
    for wrong, right in (("mth-1", "math-1"), ("coed-1", "code-1")):
        with pytest.raises(ConfigError, match=rf"/{wrong} is not a run folder, did you mean '{folder}/{right}'\?$"):
            Run.open(folder / wrong)
    with pytest.raises(ConfigError, match=r"/worlds is not a run folder: it has none"):
        Run.open(folder / "worlds")
