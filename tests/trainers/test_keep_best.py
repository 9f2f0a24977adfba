"""The checkpoint of the best evaluation, kept beside the newest."""

import importlib.util
import json
import shutil

import pytest
from command_line import coachrl
from small_runs import SETTINGS
from two_step import make_trainer

import coachrl as package
from coachrl.config import dump_config
from coachrl.errors import BudgetExceeded, CheckpointError, ConfigError, Preempted
from coachrl.report.page import headline, render
from coachrl.runs.beginning import keep_settings
from coachrl.runs.chosen import chosen_checkpoint
from coachrl.runs.folder import Run
from coachrl.testing.scripted import ScriptedPolicy

KEEP = ["train.keep_best=true", "eval.every=1", "train.steps=6"]
SOLVED = [3, 1, 2, 0, 2, 3, 1]  # held-out tasks, of three, by step
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")


def trained(tmp_path, overrides=(), run=None, solved=SOLVED, breaks_at=None):
    """A trainer whose team solves so many held-out tasks after each step. breaks_at: whose evaluation raises."""
    trainers = []

    def reply(call):
        step, said = trainers[0].step, call.prompt.split("<user>")[-1].split("\n")[0].removeprefix("Say ")
        if step == breaks_at and call.sampling.temperature != 1.0:
            raise BudgetExceeded("spent")
        return said if int(said.removeprefix("word") or 9) < solved[step] else "word"

    trainer, _ = make_trainer(tmp_path, policy=ScriptedPolicy(reply), overrides=[*KEEP, *overrides], run=run)
    trainers.append(trainer)
    return trainer


def names(run):
    return [path.name for path in run.checkpoints()]


async def test_the_best_of_the_evaluations_is_kept_through_pruning(tmp_path):
    trainer = trained(tmp_path)
    seen = []
    trainer.callback.on_metrics = lambda metrics: seen.append(names(trainer.run))
    await trainer.train()
    assert [line["eval/success"] * 3 for line in trainer.run.metrics()] == pytest.approx(SOLVED)
    # As each step's metrics come, before its own checkpoint.
    one, two, five, six = (f"step-{step:06d}" for step in (1, 2, 5, 6))
    assert seen == [[], [], [one], [two], [two], [two], [five]] and names(trainer.run) == [five, six]
    assert chosen_checkpoint(trainer.run, "best").name == five
    said = (
        "after step 5 (--checkpoint best), no better than before training. The highest of 6 evaluations tends to be too"
    )
    assert any(line.startswith("Best held-out success 1.00") and said in line for line in headline(trainer.run))
    assert said in render(trainer.run)


async def test_evaluations_between_checkpoints_write_none_unless_they_are_the_best(tmp_path):
    trainer = trained(tmp_path, ["train.checkpoint_every=4", "train.keep_checkpoints=9", "eval.every=2"])
    await trainer.train()
    assert names(trainer.run) == ["step-000002", "step-000004", "step-000006"]
    (trainer.run.folder / "config.yaml").write_text(dump_config(trainer.run.config(["train.keep_best=false"])))
    assert not any("Best" in line for line in headline(trainer.run))
    assert chosen_checkpoint(trainer.run, "best").name == "step-000002"


async def test_without_keep_best_an_evaluation_writes_none(tmp_path):
    trainer = trained(tmp_path, ["train.keep_best=false", "train.keep_checkpoints=9"])
    await trainer.train()
    assert names(trainer.run) == ["step-000006"]


async def test_an_evaluation_that_was_given_up_may_be_the_best_once_it_is_made(tmp_path):
    solved = [0, 1, 2, 0, 3, 1, 1]
    first = trained(tmp_path, solved=solved)
    evaluate = first._evaluate

    async def asked_to_end():
        if first.step == 4:
            first.end_soon()
        return await evaluate()

    first._evaluate = asked_to_end
    with pytest.raises(Preempted):
        await first.train()
    assert names(first.run) == ["step-000002", "step-000004"] and first.run.lacks_evaluation(4)
    again = trained(tmp_path, run=Run.open(first.run.folder), solved=solved)
    again.resume(again.run.last_checkpoint())
    await again.train()
    assert names(again.run) == ["step-000004", "step-000006"]


async def test_a_run_that_goes_on_knows_its_best_and_begins_at_its_newest(tmp_path):
    first = trained(tmp_path, ["train.checkpoint_every=1"], breaks_at=4)
    with pytest.raises(BudgetExceeded):
        await first.train()
    assert names(first.run) == ["step-000002", "step-000004"]
    again = trained(tmp_path, ["train.checkpoint_every=1"], Run.open(first.run.folder))
    assert again.run.checkpoint_to_resume().name == "step-000004"
    again.resume(again.run.checkpoint_to_resume())
    assert again.step == 4 and names(again.run) == ["step-000002", "step-000004"]
    await again.train()
    assert names(again.run) == ["step-000005", "step-000006"]
    assert [line["step"] for line in again.run.metrics()] == list(range(7))


async def test_a_run_killed_after_its_best_evaluation_and_before_the_checkpoint_makes_it_again(tmp_path):
    first = trained(tmp_path, ["train.checkpoint_every=1"], breaks_at=4)
    with pytest.raises(BudgetExceeded):
        await first.train()
    first.run.append_metrics({"step": 5, "eval/success": 1.0})
    again = trained(tmp_path, ["train.checkpoint_every=1"], Run.open(first.run.folder), solved=[0] * 7)
    again.resume(again.run.checkpoint_to_resume())
    await again.train()
    assert names(again.run) == ["step-000002", "step-000006"], "of what it came to the second time"


async def test_a_run_may_begin_to_keep_the_best_when_it_goes_on(tmp_path):
    first = trained(tmp_path, ["train.keep_best=false", "train.checkpoint_every=3"])
    first.config = first.config.model_copy(update={"train": first.config.train.model_copy(update={"steps": 3})})
    await first.train()
    assert names(first.run) == ["step-000003"]
    config = first.run.reconfigure(["train.keep_best=true"])
    assert config.train.keep_best
    again = trained(tmp_path, run=first.run, solved=[0, 3, 3, 0, 2, 1, 1])  # that of step 2 is gone
    again.resume(first.run.last_checkpoint())
    await again.train()
    assert names(again.run) == ["step-000004", "step-000006"], "the best of those that can be kept"


async def test_a_run_whose_best_checkpoint_is_gone_with_all_others_is_not_begun_again(tmp_path):
    """No other was due yet: without the best, none would be missed."""
    first = trained(tmp_path, breaks_at=4)
    keep_settings(first.run, first.config)
    with pytest.raises(BudgetExceeded):
        await first.train()
    before = [*first.run.metrics()]
    shutil.rmtree(first.run.folder / "checkpoints")
    with pytest.raises(CheckpointError, match=r"metrics of step 4, and no checkpoint any more"):
        trained(tmp_path, run=Run.open(first.run.folder)).start_over()
    assert first.run.metrics() == before
    trained(tmp_path, ["train.keep_best=false"], Run.open(first.run.folder)).start_over()
    assert first.run.last_step() == 0


BEST, WORSE, BROKEN = {"eval/success": 0.5}, {"eval/success": 0.2}, {"eval/success": 0.5, "eval/faulty_fraction": 0.8}


@pytest.mark.parametrize(
    ("began_with", "lines"),
    [
        ("train.keep_best=true", [{}, {}]),
        ("train.keep_best=true", [BEST, {}, WORSE]),
        ("train.keep_best=true", [BEST, BROKEN, {}]),
        ("train.keep_best=false", [BEST, BEST, WORSE]),
        (None, [BEST, BEST, WORSE]),
    ],
    ids=["not-evaluated", "killed-before-it-was-written", "broken", "not-kept-then", "of-an-earlier-version"],
)
def test_a_run_that_had_no_checkpoint_yet_begins_again(tmp_path, began_with, lines):
    """Also one that was told to keep its best, and failed before it was loaded."""
    first = trained(tmp_path, [began_with] if began_with else [])
    if began_with:
        keep_settings(first.run, first.config)
    for step, metrics in enumerate(lines):
        first.run.append_metrics({"step": step, **metrics})
    again = trained(tmp_path, ["train.keep_best=true"], Run.open(first.run.folder))
    again.start_over()
    assert again.run.last_step() == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["eval.every=2", "train.keep_checkpoints=0"], "keep_checkpoints=0 writes none: set keep_checkpoints=1"),
        (["eval.every=0"], "set eval.every to the number of steps between evaluations"),
    ],
)
def test_what_leaves_nothing_to_choose_from_is_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        make_trainer(tmp_path, overrides=["train.keep_best=true", *settings])


@pytest.mark.slow
@needs_torch
def test_a_trained_team_is_measured_and_exported_as_it_was_at_its_best(one_layer_model, tmp_path):
    """The tiny model solves nothing, so that the earliest evaluation is the best."""
    settings = [f"model={one_layer_model}", "name=one", "eval.every=1", "train.keep_best=true"]
    done = coachrl("train", "-c", "quickstart", *SETTINGS, *settings, "sandbox.kind=local-unsafe", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Best held-out success 0.00" in done.stdout and "--checkpoint best" in done.stdout
    run = Run.open(tmp_path / "runs" / "one")
    assert names(run) == ["step-000001", "step-000003"]
    again = coachrl("train", "--resume", "runs/one", "train.keep_best=false", cwd=tmp_path)
    assert "there is nothing to resume" in again.stdout
    assert names(run) == ["step-000001", "step-000003"], "a run that is done stays as it is"

    for which, step in (("best", 1), ("last", 3)):
        arguments = ["--format", "hub", "--out", which, "--checkpoint", which]
        assert coachrl("export", "runs/one", *arguments, cwd=tmp_path).returncode == 0
        card = (tmp_path / which / "verifier" / "README.md").read_text()
        assert f"after {step} of 3 training steps" in card

    measured = coachrl("eval", "--run", "runs/one", "--checkpoint", "best", "--json", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert "was chosen by its success on these very tasks" in measured.stderr
    figures = {key: value for key, value in json.loads(measured.stdout).items() if not key.startswith("time/")}
    assert figures == {key: run.metrics()[1][key] for key in figures}
    on_others = package.evaluate(run, checkpoint=1, seed=7)
    assert on_others["eval/episodes"] == 2
    with pytest.raises(ConfigError, match="checkpoint='best' is one of a run's"):
        package.evaluate("quickstart", checkpoint="best")

    shutil.rmtree(run.folder / "checkpoints")
    refused = coachrl("train", "--resume", "runs/one", cwd=tmp_path)
    assert refused.returncode == 2 and "no checkpoint any more" in refused.stderr
