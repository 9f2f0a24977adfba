"""The training loop with scripted parts: a run that goes on makes the steps that it would have made."""

import contextlib
import shutil

import pytest
from two_step import make_trainer, reply

from coachrl.errors import (
    CheckpointError,
)
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy


async def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["train.checkpoint_every=1"])
    await trainer.train()
    shutil.rmtree(trainer.run.folder / "checkpoints")
    (trainer.run.folder / "metrics.jsonl").open("a").write('{"step": 4, "cut')
    before = (trainer.run.folder / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match="has metrics of step 3, and no checkpoint any more"):
        trainer.start_over()
    assert (trainer.run.folder / "metrics.jsonl").read_text() == before
    assert len(trainer.run.episode_files()) == 5


@pytest.mark.parametrize(
    ("checkpoint_every", "last", "may_begin_again"),
    [(0, 2, True), (0, 3, True), (1, 1, True), (1, 2, False), (2, 2, True), (2, 3, False)],
)
def test_a_run_is_begun_again_where_it_was_killed_before_its_first_checkpoint(
    tmp_path, checkpoint_every, last, may_begin_again
):
    """It comes after the metrics of its step: of step 3, the last, where none is asked for before."""
    trainer, _ = make_trainer(tmp_path, overrides=[f"train.checkpoint_every={checkpoint_every}"])
    for step in range(last + 1):
        trainer.run.append_metrics({"step": step})
    with (
        contextlib.nullcontext() if may_begin_again else pytest.raises(CheckpointError, match="no checkpoint any more")
    ):
        trainer.start_over()
        assert trainer.run.last_step() == 0
        assert [(line["kind"], line["after_step"]) for line in read_jsonl(trainer.run.ledger)] == [("resumed", 0)]


@pytest.mark.parametrize(
    ("override", "others"),
    [("model=tiny-random", True), ("pipeline.name=debate", True), ("torch.precision=float32", True), ("seed=5", False)],
)
def test_a_kept_reply_is_anothers_where_models_pipeline_or_arithmetic_are_others(tmp_path, override, others):
    """Seeds are among what each reply is asked with."""
    plain, changed = make_trainer(tmp_path)[0], make_trainer(tmp_path, overrides=[override], name="changed")[0]
    assert (changed._replies._settings != plain._replies._settings) is others


async def test_a_resumed_run_makes_the_same_steps(tmp_path):
    whole_policy = ScriptedPolicy(reply)
    whole, _ = make_trainer(tmp_path, policy=whole_policy, name="whole")
    await whole.train()

    first, _ = make_trainer(tmp_path, name="cut", overrides=["train.checkpoint_every=1"])
    first.config = first.config.model_copy(update={"train": first.config.train.model_copy(update={"steps": 2})})
    await first.train()
    again_policy = ScriptedPolicy(reply)
    again, _ = make_trainer(tmp_path, policy=again_policy, name="cut", run=Run.open(first.run.folder))
    again.resume(again.run.last_checkpoint())
    await again.train()

    assert [record["step"] for record in again.run.metrics()] == [0, 1, 2, 3]
    last_whole, last_again = whole_policy.updates[-1]["planner"], again_policy.updates[-1]["planner"]
    assert [sample.action_id for sample in last_whole] == [sample.action_id for sample in last_again]
    assert [call.sampling.seed for call in again_policy.calls] == [
        call.sampling.seed for call in whole_policy.calls[-len(again_policy.calls) :]
    ]
    assert again._replies.weights == whole._replies.weights != "", "all updates since the first weights are known"


async def test_what_a_run_wrote_after_the_checkpoint_that_it_goes_on_from_is_made_again(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["train.checkpoint_every=1", "train.keep_checkpoints=9"])
    await trainer.train()
    before = trainer.run.metrics()
    again, pool = make_trainer(tmp_path, run=trainer.run, overrides=["train.keep_checkpoints=9"])
    again.resume(trainer.run.checkpoints()[0])
    assert again.step == 1 and [record["step"] for record in again.run.metrics()] == [0, 1]
    await again.train()
    await pool.close()
    assert [(r["step"], r.get("train/reward/planner")) for r in again.run.metrics()] == [
        (r["step"], r.get("train/reward/planner")) for r in before
    ]


async def test_a_run_killed_before_it_removed_an_old_checkpoint_removes_it_when_it_goes_on(tmp_path):
    """Also where its last step was whole, so that no further checkpoint is written."""
    keep = ["train.checkpoint_every=1", "train.keep_checkpoints=2"]
    first, _ = make_trainer(tmp_path, name="cut", overrides=keep)
    await first.train()
    newest = first.run.last_checkpoint()
    shutil.copytree(newest, newest.with_name("step-000001"))
    again, _ = make_trainer(tmp_path, name="cut", overrides=keep, run=Run.open(first.run.folder))
    again.resume(newest)
    await again.train()
    assert [path.name for path in again.run.checkpoints()] == ["step-000002", "step-000003"]


def test_a_checkpoint_without_its_step_is_refused(tmp_path):
    trainer, _ = make_trainer(tmp_path)
    (tmp_path / "broken").mkdir()
    with pytest.raises(CheckpointError, match=r"trainer\.json"):
        trainer.resume(tmp_path / "broken")


class Remembering(ScriptedCoach):
    """A coach that goes by the last two finished steps."""

    memory_steps = 2

    def __init__(self):
        super().__init__(lambda request: 5.0)
        self.observed = []

    def briefed(self, request):
        return request

    def observe(self, step, episodes, scores):
        self.observed.append((step, len(episodes), len(scores)))


async def test_a_coach_that_goes_by_the_run_is_told_of_the_same_steps_after_a_resumption(tmp_path):
    trainer, _ = make_trainer(tmp_path, Remembering())
    await trainer.train()
    coach = Remembering()
    again, _ = make_trainer(tmp_path, coach, run=trainer.run)
    again.resume(trainer.run.last_checkpoint())
    assert trainer.coach.coach.observed == [(step, 4, 8) for step in (1, 2, 3)]
    assert coach.observed == [(step, 4, 8) for step in (2, 3)]


async def test_a_coach_is_told_of_no_step_before_the_first(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["train.checkpoint_every=1", "train.steps=1"])
    await trainer.train()
    coach = Remembering()
    again, _ = make_trainer(tmp_path, coach, run=trainer.run)
    again.resume(trainer.run.last_checkpoint())
    assert coach.observed == [(1, 4, 8)]
