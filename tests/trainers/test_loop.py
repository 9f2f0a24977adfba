"""The training loop with scripted parts: order of things, masking, stopping."""

import asyncio
from dataclasses import replace

import pytest
from two_step import TwoStep, failing_coach, make_tasks, make_trainer, reply

from coachrl.commands.progress import step_line
from coachrl.config import load_config
from coachrl.errors import (
    BackendError,
    BudgetExceeded,
    CoachError,
    ConfigError,
    NothingTrained,
)
from coachrl.pipelines.base import Team
from coachrl.runs.records import episode_from_record
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.schedule import step_specs
from coachrl.types import ActionCredit, CoachScore, Episode, Outcome, Task


async def test_the_means_that_centered_returns_subtract_are_among_the_metrics(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["algorithm.returns=centered_sum", "train.steps=1"])
    await trainer.train()
    step = trainer.run.metrics()[1]
    assert step["train/baseline/planner/0"] == 2.0 and step["train/baseline/speaker/0"] == 5.0


async def test_a_run_that_is_to_keep_no_checkpoint_writes_none_and_no_reply_either(tmp_path):
    saved, policy = [], ScriptedPolicy(reply)
    policy.begin_save = saved.append
    trainer, _ = make_trainer(tmp_path, policy=policy, overrides=["train.keep_checkpoints=0"])
    await trainer.train()
    assert saved == [] == list(trainer.run.folder.glob("replies*")) and not trainer.run.checkpoints()


async def test_a_run_leaves_metrics_episodes_and_a_checkpoint(tmp_path):
    policy = ScriptedPolicy(reply)
    trainer, _ = make_trainer(tmp_path, policy=policy)
    await trainer.train()
    metrics = trainer.run.metrics()
    assert [record["step"] for record in metrics] == [0, 1, 2, 3]
    assert metrics[0]["eval/success"] == metrics[-1]["eval/success"] == 1.0
    assert metrics[1]["coach/score/planner"] == 2.0 and metrics[1]["coach/score/speaker"] == 5.0
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000003"]
    assert not list(trainer.run.folder.glob("replies*")), "the checkpoint holds all that came of them"
    assert [path.stem for path in trainer.run.episode_files()] == [
        "eval-000000",
        "eval-000003",
        "step-000001",
        "step-000002",
        "step-000003",
    ]
    [first, *_] = read_jsonl(trainer.run.folder / "episodes" / "step-000001.jsonl")
    episode, scores = episode_from_record(first)
    assert episode.outcome.success and scores[episode.actions[0].id].process_0_10 == 2.0
    assert len(policy.updates) == 3 and set(policy.updates[0]) == {"planner", "speaker"}
    speaker = policy.updates[0]["speaker"][0]
    assert speaker.advantages_L is not None and (speaker.advantages_L > 0).all()


class EverySecond:
    """An audit of every second step, which finds the step that it is asked of, once its episodes are written."""

    def __init__(self, run):
        self._run = run

    def is_due(self, step):
        return step % 2 == 0

    async def metrics(self, step):
        assert len(self._run.read_episodes(f"step-{step:06d}")[0]) == 1
        return {"audit/step": float(step)}


async def test_evaluations_audits_and_checkpoints_come_when_they_are_due_and_at_the_end(tmp_path):
    schedule = ["train.steps=5", "train.tasks_per_step=1", "eval.every=3", "eval.samples_per_task=2"]
    kept = ["train.checkpoint_every=2", "train.keep_checkpoints=9"]
    trainer, pool = make_trainer(tmp_path, overrides=[*schedule, *kept])
    trainer.audit = EverySecond(trainer.run)
    phases = []
    trainer.callback.on_phase = lambda phase, total: phases.append((phase, total))
    await trainer.train()
    await pool.close()
    records = trainer.run.metrics()
    assert [record["step"] for record in records if "eval/success" in record] == [0, 3, 5]
    assert [record["step"] for record in records if "audit/step" in record] == [2, 4]
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000002", "step-000004", "step-000005"]
    held_out, steps = ("held-out tasks", 6), [(f"step {n}/5", 1) for n in range(1, 6)]
    assert phases == [held_out, *steps[:3], held_out, *steps[3:], held_out]
    assert len(trainer.run.read_episodes("eval-000003")[0]) == 6


@pytest.mark.parametrize(("setting", "seen"), [("all", {True}), ("none", {False}), ("last", {False, True})])
async def test_who_sees_the_outcome_is_a_setting(tmp_path, setting, seen):
    coach = ScriptedCoach(lambda request: 5.0)
    trainer, _ = make_trainer(
        tmp_path, coach=coach, overrides=["train.steps=1", f"coach.evidence.ground_truth={setting}"]
    )
    await trainer.train()
    assert {request.outcome is not None for request in coach.requests} == seen


async def test_failed_scores_are_masked_and_counted_and_the_run_stops_with_a_checkpoint(tmp_path):
    def score(request):
        if request.role.name == "planner":
            raise CoachError("no verdict in the reply")
        return 5.0

    policy = ScriptedPolicy(reply)
    trainer, _ = make_trainer(tmp_path, coach=ScriptedCoach(score), policy=policy)
    with pytest.raises(BudgetExceeded, match="50% of the coach's calls failed"):
        await trainer.train()
    assert trainer.run.metrics()[1]["train/masked/unscored"] == 4
    actions = [action for episode in trainer.run.read_episodes("step-000001")[0] for action in episode.actions]
    assert actions and all(a.credit == ActionCredit(None, None, "unscored") for a in actions if a.credit.reward is None)
    assert sum(action.credit.left_out == "unscored" for action in actions) == 4
    assert not any(sample.mask_L.any() for sample in policy.updates[0]["planner"])
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]


@pytest.mark.parametrize(("masked", "trained", "left_out"), [("true", 0, 2), ("false", 2, None)])
async def test_replies_that_were_cut_short_are_trained_on_where_the_settings_say_so(
    tmp_path, masked, trained, left_out
):
    overrides = ["train.tasks_per_step=1", f"train.mask_truncated={masked}"]
    trainer, pool = make_trainer(tmp_path, policy=ScriptedPolicy(lambda call: "x" * 5000), overrides=overrides)
    trainer.step = 1
    metrics = await trainer._train_step()
    await pool.close()
    assert (metrics["train/trained_actions"], metrics.get("train/masked/truncated")) == (trained, left_out)


async def test_a_policy_with_fewer_actions_than_the_settings_ask_for_is_not_moved(tmp_path):
    trainer, pool = make_trainer(tmp_path, overrides=["train.tasks_per_step=2", "train.min_actions=3"])
    trainer.step = 1
    metrics = await trainer._train_step()
    await pool.close()
    assert (metrics["train/trained_actions"], metrics["train/masked/few"]) == (0, 4)
    [samples] = trainer.backend.updates
    assert samples and not any(sample.mask_L.any() for group in samples.values() for sample in group)


async def test_what_a_policy_that_keeps_its_weights_wrote_is_not_told_as_trained_on(tmp_path):
    """Also where a policy that is to be trained has nothing to be trained on, and so the run has trained nothing."""
    one, other = "policies.speaker.trainable=false", "policies.planner.trainable=false"
    trainer, _ = make_trainer(tmp_path, overrides=["train.steps=1", one])
    await trainer.train()
    metrics = trainer.run.metrics()[1]
    assert (metrics["train/trained_actions"], metrics["train/masked/frozen"]) == (4, 4)
    credits = {a.policy: a.credit for e in trainer.run.read_episodes("step-000001")[0] for a in e.actions}
    assert (credits["planner"].advantage, credits["planner"].left_out) == (pytest.approx(-1.0), None)
    assert (credits["speaker"].advantage, credits["speaker"].left_out) == (None, "frozen")

    def score(request):
        if request.role.name == "planner":
            raise CoachError("no verdict in the reply")
        return 5.0

    overrides = ["train.steps=1", "coach.max_failed_fraction=1", one]
    trainer, _ = make_trainer(tmp_path, coach=ScriptedCoach(score), overrides=overrides, name="unscored")
    with pytest.raises(NothingTrained, match="4 actions left out: no score of the coach"):
        await trainer.train()
    overrides = [*overrides, other, "train.mask_truncated=true"]
    trainer, _ = make_trainer(tmp_path, coach=ScriptedCoach(score), overrides=overrides, name="none")
    await trainer.train()  # as asked for


async def test_a_team_whose_roles_are_all_played_by_providers_trains_nothing(tmp_path):
    def score(request):
        raise CoachError("no verdict in the reply")

    overrides = ["train.steps=1", "coach.max_failed_fraction=1"]
    trainer, _ = make_trainer(tmp_path, coach=ScriptedCoach(score), overrides=overrides)
    trainer.pipeline.roles = tuple(replace(role, external="a/b") for role in trainer.pipeline.roles)
    with pytest.raises(NothingTrained):
        await trainer.train()


async def test_the_trainers_log_probabilities_are_asked_for_where_the_algorithm_weighs_by_them(tmp_path):
    grpo = ["algorithm.name=grpo", "train.group_size=2", "train.tasks_per_step=1", "algorithm.importance_cap=2"]
    trainer, pool = make_trainer(tmp_path, overrides=grpo)
    trainer.step = 1
    metrics = await trainer._train_step()
    await pool.close()
    assert (metrics["train/importance_weight"], metrics["train/importance_gap"]) == (1.0, 0.0)


async def test_a_run_that_trained_on_nothing_does_not_end_as_if_all_were_well(tmp_path):
    trainer, _ = make_trainer(tmp_path, coach=failing_coach(steps={1, 2, 3}), overrides=["coach.max_failed_fraction=1"])
    with pytest.raises(NothingTrained) as caught:
        await trainer.train()
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(
        "nothing was trained in 3 steps, and the weights are what they were: 24 actions left out: no score of the "
        "coach (coach.max_failed_fraction says how many may fail), or None of your own reward (coachrl view "
    )
    assert [metrics.get("train/trained_actions") for metrics in trainer.run.metrics()] == [None, 0.0, 0.0, 0.0]
    assert "nothing was trained in this step | 8 actions left out" in step_line(trainer.run.metrics()[1])


async def test_a_run_that_trained_in_one_of_its_steps_ends_well(tmp_path):
    trainer, _ = make_trainer(tmp_path, coach=failing_coach(steps={1, 3}), overrides=["coach.max_failed_fraction=1"])
    await trainer.train()
    assert [metrics["train/trained_actions"] for metrics in trainer.run.metrics()[1:]] == [0.0, 8.0, 0.0]
    assert "nothing was trained" not in step_line(trainer.run.metrics()[2])


class Twice(TwoStep):
    """The planner plans, and plans again after the speaker has spoken."""

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        outcome = await super().run(task, team, workspace)
        await team.planner.act(question=task.prompt)
        return outcome


async def test_returns_of_which_a_later_part_is_unknown_are_counted_by_role(tmp_path):
    def score(request):
        if request.action.turn == 1 and request.action.episode_id.startswith("step-000001.002"):
            raise CoachError("no verdict in the reply")
        return 7.0

    policy, summed = ScriptedPolicy(reply), ["train.steps=2", "algorithm.returns=sum_as_in_the_paper"]
    trainer, _ = make_trainer(tmp_path, coach=ScriptedCoach(score), policy=policy, overrides=summed)
    trainer.pipeline = Twice()
    await trainer.train()
    _, first, second = trainer.run.metrics()
    assert first["train/unknown_returns/planner"] == first["train/masked/unscored"] == 1
    assert not any(key.startswith("train/unknown_returns") for key in second)
    plans = [s.advantages_L[0] for s in policy.updates[0]["planner"] if s.turn == 0]
    assert len(plans) == 4 and plans == pytest.approx([plans[0]] * 4, abs=1e-5)


def test_every_task_comes_once_in_an_epoch():
    config = load_config(None, ["train.tasks_per_step=4"])
    tasks = make_tasks(6)
    ids = [spec.task.id for step in (1, 2, 3) for spec in step_specs(tasks, config, step)]
    assert sorted(ids[:6]) == sorted(ids[6:]) == sorted(task.id for task in tasks)
    assert ids[:6] != ids[6:]
    assert len({spec.seed for step in (1, 2, 3) for spec in step_specs(tasks, config, step)}) == 12


def test_the_members_of_a_group_play_one_task_with_seeds_of_their_own():
    config = load_config(None, ["train.tasks_per_step=2", "train.group_size=3"])
    specs = step_specs(make_tasks(6), config, 1)
    assert [specs[place].task.id == specs[place + 1].task.id for place in range(5)] == [True, True, False, True, True]
    assert len({spec.seed for spec in specs}) == len({spec.episode_id for spec in specs}) == 6


class Failing(TwoStep):
    """The first task is wrong; the others tidy up when they are stopped."""

    def __init__(self) -> None:
        self.started = self.tidied = 0

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        if task.id == "train-0":
            await asyncio.sleep(0)
            raise ConfigError("wrong")
        self.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.tidied += 1


async def test_a_rollout_that_stops_leaves_no_episode_at_work():
    pipeline = Failing()
    specs = [EpisodeSpec(task.id, task, 0) for task in make_tasks(3)]
    with pytest.raises(ConfigError, match="wrong"):
        await rollout(specs, RolloutContext(pipeline, ScriptedPolicy(reply), None))
    assert pipeline.started == pipeline.tidied == 2


class Diverging(ScriptedPolicy):
    def update(self, samples, learning_rate):
        return {"loss/planner": float("nan"), "skipped/planner": 1.0}


async def test_an_update_without_a_finite_loss_is_written_down(tmp_path):
    trainer, _ = make_trainer(tmp_path, policy=Diverging(reply), overrides=["train.steps=1"])
    await trainer.train()
    [_, record] = trainer.run.metrics()
    assert record["train/skipped/planner"] == 1.0 and "train/loss/planner" not in record


class Unsound(ScriptedPolicy):
    def update(self, samples, learning_rate):
        return {"loss/planner": 0.1, "sampler_trainer_logprob_gap/planner": float("nan")}


async def test_a_figure_of_an_update_that_is_not_finite_ends_the_run(tmp_path):
    trainer, _ = make_trainer(tmp_path, policy=Unsound(reply), overrides=["train.steps=1"])
    with pytest.raises(BackendError, match="sampler_trainer_logprob_gap/planner is nan"):
        await trainer.train()
    assert [record["step"] for record in trainer.run.metrics()] == [0]


async def test_a_run_whose_prompts_never_fit_stops(tmp_path):
    trainer, _ = make_trainer(tmp_path, policy=ScriptedPolicy(reply, context_length=100))
    with pytest.raises(BudgetExceeded, match="100% of the episodes a prompt did not fit"):
        await trainer.train()


def test_rewards_are_shuffled_anew_in_each_step_and_alike_in_a_run_that_goes_on(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["reward.shuffle=true", "seed=3"])
    actions = tuple(make_action("planner", index=index) for index in range(20))
    played = Episode("e", "t", "k", "two-step", actions, Outcome(True))
    scores = {action.id: CoachScore(action.id, "scored", float(action.index) / 2) for action in actions}

    def rewards(step):
        trainer.step = step
        return list(trainer._rewards([played], scores).values())

    assert rewards(1) == rewards(1) != rewards(2) and sorted(rewards(1)) == sorted(rewards(2))
    assert set(rewards(1)) == {score.process_0_10 for score in scores.values()}
