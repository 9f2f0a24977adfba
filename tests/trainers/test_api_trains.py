"""Whole runs from Python on a tiny model, where an event loop runs already and where none does."""

import asyncio
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
from full_disk import room_for
from tiny_models import write_tiny_model

import coachrl
from coachrl.cli.console import print_error
from coachrl.commands.serve import _loaded
from coachrl.errors import CheckpointError, ConfigError
from coachrl.runs.locks import locked
from coachrl.trainers.algorithms.base import Algorithm

SMALL = {
    "train": {"steps": 1, "tasks_per_step": 2, "keep_checkpoints": 1},
    "tasks": {"train_count": 2, "heldout_count": 2},
    "pipeline": {"name": "mixture", "max_new_tokens": 8, "options": {"proposers": 1}},
    "torch": {"threads": 1},
}


class Watched:
    """A coach that says when it was asked, and waits."""

    asked = threading.Event()

    async def score(self, request):
        self.asked.set()
        await asyncio.sleep(600)


class Broken(Algorithm):
    def advantages(self, samples, rewards):
        raise KeyError("gain")


@pytest.fixture
def small(roomy_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return coachrl.configure(SMALL, model=str(roomy_model), coach="rules", name="small")


async def test_a_run_is_trained_evaluated_and_looked_at_inside_of_a_running_loop(small, tmp_path, capfd):
    run = coachrl.train(small, quiet=True)
    assert capfd.readouterr() == ("", "")
    assert run.folder == tmp_path / "runs" / "small" and (run.folder / "report.html").is_file()
    assert run.frames.metrics["step"].tolist() == [0, 1]
    assert (run.frames.actions["split"] == "train").sum() == 2 * 2
    [card] = {path.read_text() for path in run.last_checkpoint().glob("proposer/README.md")}
    assert "after 1 of 1 training steps" in card and "| coachrl |" in card
    figures = coachrl.evaluate(run)
    assert figures["eval/episodes"] == 2
    assert coachrl.evaluate(small)["eval/episodes"] == 2
    with pytest.raises(ConfigError, match=r"run folder .* exists"):
        coachrl.train(small)


def test_episodes_for_which_there_is_no_room_are_an_error_that_tells_what_was_measured(small, tmp_path):
    with room_for(100), pytest.raises(ConfigError, match=r"--episodes .* cannot be written: File too large") as caught:
        coachrl.evaluate(small, episodes_file=tmp_path / "episodes.jsonl")
    [note] = caught.value.__notes__
    assert json.loads(note.partition(": ")[2])["eval/episodes"] == 2
    assert [place.name for place in tmp_path.glob("*episodes*")] == [".episodes.jsonl.replies"]  # for a second try


def test_each_step_is_one_plain_line_where_no_loop_runs(small, capfd):
    coachrl.train(small)
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert len(lines) == 4 and lines[0].endswith("coach rules; algorithm reinforce_pp") and len(lines[0]) > 80, out
    assert lines[-1].startswith("step   1 | success") and all("\x1b" not in line for line in lines) and err == ""
    resumed = coachrl.train(resume="runs/small")
    assert resumed.frames.metrics["step"].tolist() == [0, 1]


def test_a_program_that_is_to_outlive_its_terminal_does(small, monkeypatch):
    terminal, of_program = os.openpty()
    with os.fdopen(of_program, "w") as stdout:
        os.close(terminal)
        monkeypatch.setattr(sys, "stdout", stdout)
        run = coachrl.train(small)
    assert run.frames.metrics["step"].tolist() == [0, 1] and run.checkpoints()


def test_an_error_in_code_of_ones_own_says_in_the_end_how_to_go_on(small, capfd):
    with pytest.raises(ConfigError, match="KeyError: 'gain'") as caught:
        coachrl.train(small, algorithm={"name": Broken}, quiet=True)
    said = f"no checkpoint was whole yet; continue with: coachrl train --resume {Path('runs/small')}"
    assert caught.value.__notes__ == [said]
    print_error(caught.value)
    assert capfd.readouterr().err.splitlines()[-1] == said


def test_a_run_whose_tasks_were_edited_goes_on_only_where_it_is_told_to(small, caplog):
    def write(answers):
        problems.write_text("".join(f'{{"problem": "What is 2 + {n}?", "answer": {n}}}\n' for n in answers))

    problems = Path("sums.jsonl")
    write([1, 2, 3])
    run = coachrl.train(small, tasks={"source": "math", "train": str(problems), "heldout_count": 1}, quiet=True)
    write([1, 2, 4, 5])  # by which another task is held out, too
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(
        CheckpointError, match=r"of 2 training tasks .*of 1 held-out task .*remove .*tasks\.json"
    ) as told:
        coachrl.train(resume=run, quiet=True)
    assert not hasattr(told.value, "__notes__")  # that say how to resume it
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    coachrl.evaluate(run)
    assert "not the tasks that the run began with" in caplog.text
    caplog.clear()
    coachrl.evaluate(run, **{"tasks.heldout_count": 2})  # others were asked for
    assert "not the tasks" not in caplog.text
    (run.folder / "roles.json").write_text("[]")
    coachrl.evaluate(run, swap_policies="proposer,aggregator")
    assert "not the team that the run began with (changed: proposer, aggregator)" in caplog.text
    for name in ("tasks.json", "roles.json"):
        (run.folder / name).unlink()
    coachrl.train(resume=run, quiet=True)
    coachrl.train(resume=run, quiet=True)


def test_a_run_whose_settings_a_hand_has_changed_goes_on_only_where_it_is_told_to(small, caplog):
    run = coachrl.train(small, quiet=True)
    config = run.folder / "config.yaml"
    whole, before = config.read_text(), (run.folder / "metrics.jsonl").read_bytes()
    config.write_text(
        whole.replace("budget_usd: null", "budget_usd: 3").replace("gpus: 1", "gpus: 2")
    )  # as on --resume
    assert coachrl.train(resume=run, quiet=True).config().coach.budget_usd == 3
    config.write_text(whole.replace("steps: 1\n", "steps: 2\n").replace("weight_decay: 0.0", "weight_decay: 0.1"))
    said = (
        r"began with: train\.steps: 1 -> 2; train\.weight_decay: 0\.0 -> 0\.1: put them back .*remove .*settings\.json"
    )
    with pytest.raises(CheckpointError, match=said) as told:
        coachrl.train(resume=run, quiet=True)
    assert "\n" not in str(told.value) and (run.folder / "metrics.jsonl").read_bytes() == before
    coachrl.evaluate(run)
    assert "not the settings that the run began with: train.steps: 1 -> 2" in caplog.text
    (run.folder / "settings.json").unlink()
    assert coachrl.train(resume=run, quiet=True).last_step() == 2
    assert json.loads((run.folder / "settings.json").read_text())["train.steps"] == 2


def test_weights_that_others_took_the_place_of_under_adapters_are_noticed_and_moved_ones_are_the_same(small, caplog):
    model = shutil.copytree(small.model, "base")
    given = {"model": "base", "torch": {"lora_rank": 2, "share_base": True, "threads": 1}}
    run = coachrl.train(small, **given, train={"steps": 2, "checkpoint_every": 1, "keep_checkpoints": 2}, quiet=True)
    shutil.rmtree(run.last_checkpoint())
    before = (run.folder / "metrics.jsonl").read_bytes()
    write_tiny_model(Path(model), seed=1, hidden_size=32, num_hidden_layers=1, max_position_embeddings=8192)
    with pytest.raises(
        CheckpointError, match=r"policies\.proposer\.model: .*/base, changed model\.safetensors; .*models\.json"
    ):
        coachrl.train(resume=run, quiet=True)
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    coachrl.evaluate(run)
    assert "not the initial models that the run began with: policies.proposer.model" in caplog.text
    caplog.clear()
    with _loaded(run, run.config(), "last", print):
        assert "not the initial models that the run began with: policies.proposer.model" in caplog.text
    shutil.rmtree(model)
    shutil.copytree(small.model, "elsewhere/other name", dirs_exist_ok=True)
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace(f"{Path.cwd()}/base", f"{Path.cwd()}/elsewhere/other name"))
    assert "other name" in config.read_text()
    run.folder.parent.rename("moved")
    assert coachrl.train(resume="moved/small", quiet=True).last_step() == 2


def test_who_does_not_hold_a_run_changes_nothing_of_it(small):
    run = coachrl.train(small, quiet=True)
    before = (run.folder / "config.yaml").read_text()
    with locked(run.folder / "train.lock", "training"), pytest.raises(ConfigError, match="training since"):
        coachrl.train(resume=run.folder, coach={"budget_usd": 3}, quiet=True)
    assert (run.folder / "config.yaml").read_text() == before


def test_a_run_that_a_thread_trains_is_refused_to_another_that_has_the_same_object(small):
    run = coachrl.train(small, quiet=True)
    with run.locked("training"), pytest.raises(ConfigError, match="training since"):
        coachrl.train(resume=run, quiet=True)


async def test_a_rollout_gives_episodes_scores_and_tables(small, capfd, tmp_path):
    played = coachrl.rollout(small, count=3)
    assert len(played.episodes) == 3 and len(played.scores) == 6
    assert len(played.frames.actions) == 6 and played.frames.scores["model"].unique().tolist() == ["rules"]
    assert capfd.readouterr() == ("", "") and not (tmp_path / "runs").exists()


async def test_an_interrupted_notebook_leaves_no_half_written_run(small, tmp_path):
    """Ctrl-C comes to the main thread, as a notebook's kernel has it, while the work goes on in another."""

    def interrupt():
        if Watched.asked.wait(120):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            coachrl.train(small, coach=Watched, eval={"every": 0}, quiet=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not any(thread.name.startswith("coachrl") for thread in threading.enumerate())
    assert not list((tmp_path / "runs" / "small").glob("episodes/*step*"))
