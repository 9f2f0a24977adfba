"""The training loop with scripted parts: order of things, masking, stopping, resuming."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.pool import CoachPool
from coachrl.commands.progress import step_line
from coachrl.config import RewardConfig, load_config
from coachrl.errors import (
    BackendError,
    BudgetExceeded,
    CheckpointError,
    CoachError,
    CoachUnavailable,
    ConfigError,
    EngineLost,
    NothingTrained,
    Preempted,
    SandboxError,
)
from coachrl.jsonl import read_jsonl
from coachrl.pipelines.base import Team
from coachrl.prompts import parse_prompt
from coachrl.runs.folder import Run
from coachrl.runs.records import episode_from_record
from coachrl.seeding import derive_seed
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.algorithms.advantages.rewards import action_rewards
from coachrl.trainers.algorithms.outcome import Outcome as OutcomeRewards
from coachrl.trainers.algorithms.outcome import OutcomeConfig
from coachrl.trainers.loop import Trainer
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.schedule import step_specs
from coachrl.types import ActionCredit, Outcome, Role, Task


class TwoStep:
    """A planner writes a plan, a speaker repeats it; success where the speaker says the truth."""

    name = "two-step"
    patience_s = None
    roles = (
        Role("planner", "planner", parse_prompt("---\nfields: [question]\n---\n{{question}}", "planner")),
        Role("speaker", "speaker", parse_prompt("---\nfields: [plan]\n---\nSay {{plan}}", "speaker")),
    )

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        plan = await team.planner.act(question=task.prompt)
        said = await team.speaker.act(plan=plan.text)
        right = said.text == task.ground_truth
        return Outcome(right, {"correct": float(right)}, "" if right else "wrong", f"truth was {task.ground_truth}")


class Silent:
    def on_phase(self, phase, total): ...
    def on_episode(self, episode): ...
    def on_metrics(self, metrics): ...


def reply(call):
    return call.prompt.split("<user>")[-1].split("\n")[0].removeprefix("Say ")


def make_tasks(count, split="train"):
    return [
        Task(f"{split}-{i}", "even" if i % 2 == 0 else "odd", f"word{i}", ground_truth=f"word{i}") for i in range(count)
    ]


def make_trainer(tmp_path, coach=None, policy=None, overrides=(), name="run", run=None):
    config = load_config(None, ["train.steps=3", "train.tasks_per_step=4", f"name={name}", *overrides])
    config = config.model_copy(update={"out": tmp_path / "runs"})
    run = run or Run.create(config)
    pool = CoachPool(coach or ScriptedCoach(lambda request: float(request.action.index * 3 + 2)), ledger=run.ledger)
    trainer = Trainer(
        config,
        run,
        pipeline=TwoStep(),
        backend=policy or ScriptedPolicy(reply),
        sandbox=None,
        coach=pool,
        train_tasks=make_tasks(6),
        heldout_tasks=make_tasks(3, "heldout"),
        callback=Silent(),
    )
    return trainer, pool


async def test_the_means_that_centered_returns_subtract_are_among_the_metrics(tmp_path):
    trainer, _ = make_trainer(tmp_path, overrides=["algorithm.returns=centered_sum", "train.steps=1"])
    await trainer.train()
    step = trainer.run.metrics()[1]
    assert step["train/baseline/planner/0"] == 2.0 and step["train/baseline/speaker/0"] == 5.0


async def test_a_run_leaves_metrics_episodes_and_a_checkpoint(tmp_path):
    policy = ScriptedPolicy(reply)
    trainer, _ = make_trainer(tmp_path, policy=policy)
    await trainer.train()
    metrics = trainer.run.metrics()
    assert [record["step"] for record in metrics] == [0, 1, 2, 3]
    assert metrics[0]["eval/success"] == metrics[-1]["eval/success"] == 1.0
    assert metrics[1]["coach/score/planner"] == 2.0 and metrics[1]["coach/score/speaker"] == 5.0
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000003"]
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


async def test_only_the_last_agent_meets_the_outcome(tmp_path):
    coach = ScriptedCoach(lambda request: 5.0)
    trainer, _ = make_trainer(tmp_path, coach=coach, overrides=["train.steps=1"])
    await trainer.train()
    assert {(r.role.name, r.is_last_role, r.outcome is not None) for r in coach.requests} == {
        ("planner", False, False),
        ("speaker", True, True),
    }


@pytest.mark.parametrize(("setting", "seen"), [("all", {True}), ("none", {False})])
async def test_who_sees_the_outcome_is_a_setting(tmp_path, setting, seen):
    coach = ScriptedCoach(lambda request: 5.0)
    trainer, _ = make_trainer(
        tmp_path, coach=coach, overrides=["train.steps=1", f"coach.evidence.ground_truth={setting}"]
    )
    await trainer.train()
    assert {request.outcome is not None for request in coach.requests} == seen


async def test_upstream_actions_reach_the_coach_while_the_episode_goes_on():
    order = []
    policy = ScriptedPolicy(lambda call: (order.append(f"generate {call.policy}"), reply(call))[1])
    context = RolloutContext(TwoStep(), policy, None, submit=lambda request: order.append(f"coach {request.role.name}"))
    await rollout([EpisodeSpec("e", make_tasks(1)[0], 0)], context)
    assert order == ["generate planner", "coach planner", "generate speaker", "coach speaker"]


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


async def test_a_run_that_trained_on_nothing_does_not_end_as_if_all_were_well(tmp_path):
    trainer, _ = make_trainer(tmp_path, coach=failing_coach(steps={1, 2, 3}), overrides=["coach.max_failed_fraction=1"])
    with pytest.raises(NothingTrained) as caught:
        await trainer.train()
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(
        "nothing was trained in 3 steps, and the weights are what they were: 24 actions left out: the coach gave no "
        "score; coach.max_failed_fraction says how many may (coachrl view "
    )
    assert [metrics.get("train/trained_actions") for metrics in trainer.run.metrics()] == [None, 0.0, 0.0, 0.0]
    assert "nothing was trained in this step | 8 actions left out" in step_line(trainer.run.metrics()[1])


async def test_a_run_that_trained_in_one_of_its_steps_ends_well(tmp_path):
    trainer, _ = make_trainer(tmp_path, coach=failing_coach(steps={1, 3}), overrides=["coach.max_failed_fraction=1"])
    await trainer.train()
    assert [metrics["train/trained_actions"] for metrics in trainer.run.metrics()[1:]] == [0.0, 8.0, 0.0]
    assert "nothing was trained" not in step_line(trainer.run.metrics()[2])


def failing_coach(steps):
    def score(request):
        if int(request.action.episode_id.split(".")[0].rpartition("-")[2]) in steps:
            raise CoachError("no verdict in the reply")
        return 5.0 + request.action.index

    return ScriptedCoach(score)


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


def test_a_checkpoint_without_its_step_is_refused(tmp_path):
    trainer, _ = make_trainer(tmp_path)
    (tmp_path / "broken").mkdir()
    with pytest.raises(CheckpointError, match=r"trainer\.json"):
        trainer.resume(tmp_path / "broken")


def test_every_task_comes_once_in_an_epoch():
    config = load_config(None, ["train.tasks_per_step=4"])
    tasks = make_tasks(6)
    ids = [spec.task.id for step in (1, 2, 3) for spec in step_specs(tasks, config, step)]
    assert sorted(ids[:6]) == sorted(ids[6:]) == sorted(task.id for task in tasks)
    assert ids[:6] != ids[6:]
    assert len({spec.seed for step in (1, 2, 3) for spec in step_specs(tasks, config, step)}) == 12


async def test_one_broken_episode_leaves_the_rest():
    context = RolloutContext(TwoStep(), ScriptedPolicy(reply, context_length=5000), None)
    tasks = [replace(task, prompt="x" * 9000) if i == 1 else task for i, task in enumerate(make_tasks(3))]
    episodes = await rollout([EpisodeSpec(str(i), task, i) for i, task in enumerate(tasks)], context)
    assert [episode.outcome.success for episode in episodes] == [True, False, True]
    assert "context overflow" in episodes[1].outcome.reason and "9" in episodes[1].outcome.reason


class Breaking(TwoStep):
    """The sandbox goes after both have acted, before anything could be measured."""

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        await super().run(task, team, workspace)
        raise SandboxError("gone")


async def test_an_outcome_that_was_never_measured_is_shown_to_no_coach():
    seen = []
    context = RolloutContext(
        Breaking(), ScriptedPolicy(reply), None, submit=lambda request: seen.append(request.role.name)
    )
    [episode] = await rollout([EpisodeSpec("e", make_tasks(1)[0], 0)], context)
    assert episode.infra_error == "sandbox: gone" and len(episode.actions) == 2
    assert seen == ["planner"]


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
    def update(self, samples):
        return {"loss/planner": float("nan"), "skipped/planner": 1.0}


async def test_an_update_without_a_finite_loss_is_written_down(tmp_path):
    trainer, _ = make_trainer(tmp_path, policy=Diverging(reply), overrides=["train.steps=1"])
    await trainer.train()
    [_, record] = trainer.run.metrics()
    assert record["train/skipped/planner"] == 1.0 and "train/loss/planner" not in record


class Unsound(ScriptedPolicy):
    def update(self, samples):
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


async def test_outcome_rewards_are_broadcast_and_shuffling_keeps_each_roles_rewards():

    context = RolloutContext(
        TwoStep(), ScriptedPolicy(lambda call: reply(call) if "word1" in call.prompt else "?"), None
    )
    episodes = await rollout([EpisodeSpec(str(i), task, i) for i, task in enumerate(make_tasks(4))], context)
    of_episode = OutcomeRewards(OutcomeConfig()).rewards
    plain = action_rewards(of_episode, episodes, {}, RewardConfig(), np.random.default_rng(0))
    assert [plain[a.id] for e in episodes for a in e.actions] == [0, 0, 10, 10, 0, 0, 0, 0]
    shuffled = action_rewards(of_episode, episodes, {}, RewardConfig(shuffle=True), np.random.default_rng(1))
    assert shuffled != plain
    for role in (0, 1):
        ids = [episode.actions[role].id for episode in episodes]
        assert sorted(shuffled[i] for i in ids) == sorted(plain[i] for i in ids)


class LimitedCoach(ScriptedCoach):
    """A coach that runs out of money, or of its key, after so many scores."""

    def __init__(self, calls, error):
        super().__init__(lambda request: 5.0)
        self.calls, self.error = calls, error

    async def score(self, request):
        if len(self.requests) >= self.calls:
            raise self.error
        return await super().score(request)


def drawn_by(trainer):
    return [(call.policy, call.sampling.seed) for call in trainer.backend.calls]


@pytest.mark.parametrize("error", [BudgetExceeded("the budget is spent"), CoachUnavailable("the key was withdrawn")])
async def test_a_step_that_cannot_be_scored_is_left_for_another_day(tmp_path, error):
    trainer, pool = make_trainer(tmp_path, coach=LimitedCoach(12, error), name="paused")
    with pytest.raises(type(error), match=f"step 2: {error}; go on with: coachrl train --resume"):
        await trainer.train()
    await pool.close()
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1]
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]

    resumed, _ = make_trainer(tmp_path, name="paused", run=Run.open(trainer.run.folder))
    resumed.resume(resumed.run.last_checkpoint())
    await resumed.train()
    drawn = drawn_by(resumed)
    of_step_2 = [
        (role, derive_seed(spec.seed, role, 0))
        for spec in step_specs(resumed.train_tasks, resumed.config, 2)
        for role in ("planner", "speaker")
    ]
    again = [draw for draw in of_step_2 if draw in drawn]
    assert len(again) < len(of_step_2), "what was drawn before the pause is drawn again"
    assert set(again) == set(of_step_2) - set(drawn_by(trainer))
    assert [record["step"] for record in resumed.run.metrics()] == [0, 1, 2, 3]
    lines = list(read_ledger(trainer.run.ledger))
    mark = next(place for place, line in enumerate(lines) if line["kind"] == "resumed")
    assert lines[mark]["after_step"] == 1
    step_2 = [line["action_id"] for line in lines if line.get("action_id", "").startswith("step-000002.")]
    after = [line["action_id"] for line in lines[mark + 1 :] if line.get("action_id", "").startswith("step-000002.")]
    assert len(step_2) == 12 and len(set(after)) == len(after) == 8  # what was scored before the pause stands twice


async def test_a_budget_for_less_than_a_step_keeps_the_first_evaluation(tmp_path):
    trainer, pool = make_trainer(tmp_path, coach=LimitedCoach(3, BudgetExceeded("the budget is spent")))
    with pytest.raises(BudgetExceeded, match="step 1"):
        await trainer.train()
    await pool.close()
    resumed, _ = make_trainer(tmp_path, run=Run.open(trainer.run.folder))
    resumed.resume(resumed.run.last_checkpoint())
    await resumed.train()
    assert [record["step"] for record in resumed.run.metrics()] == [0, 1, 2, 3]


def test_a_resumed_run_may_change_how_its_coach_is_called_and_where_servers_are(tmp_path):
    trainer, _ = make_trainer(tmp_path)
    assert trainer.run.reconfigure(["coach.budget_usd=7", "coach.concurrency=3"]).coach.budget_usd == 7
    assert trainer.run.config().coach.concurrency == 3
    trainer.run.reconfigure(["openrlhf.ray_address=10.0.0.2:6379", "coach.api_base=http://127.0.0.1:1/v1"])
    assert trainer.run.config().openrlhf.ray_address == "10.0.0.2:6379"
    assert trainer.run.reconfigure(["coach.concurrency=5"], keep=False).coach.concurrency == 5
    assert trainer.run.config().coach.concurrency == 3
    with pytest.raises(ConfigError, match=r"'coach\.name' cannot change now"):
        trainer.run.reconfigure(["coach.name=gemini-2.5-pro"])


def weights_versions(run, step):
    episodes = read_jsonl(run.folder / "episodes" / f"step-{step:06d}.jsonl")
    return {action["weights_version"] for episode in episodes for action in episode["actions"]}


@pytest.mark.parametrize(
    ("one_step_off", "versions", "staleness"),
    [("false", [0, 1, 2], [0, 0, 0]), ("true", [0, 0, 1], [0, 1, 1])],
)
async def test_one_step_off_plays_with_weights_one_update_old(tmp_path, one_step_off, versions, staleness):
    policy = ScriptedPolicy(reply)
    settings = ["backend=openrlhf", "openrlhf.colocate=false", f"openrlhf.one_step_off={one_step_off}"]
    trainer, _ = make_trainer(tmp_path, policy=policy, overrides=settings)
    await trainer.train()
    assert [weights_versions(trainer.run, step) for step in (1, 2, 3)] == [{version} for version in versions]
    assert [record["train/staleness"] for record in trainer.run.metrics()[1:]] == staleness
    trained = [sample.action_id for samples in policy.updates for sample in samples["planner"]]
    assert trained == sorted(set(trained)) and len(trained) == 12  # every step once, in order


async def test_one_step_off_trains_while_episodes_are_played(tmp_path):
    """The update waits for a reply of the next step: it would wait for ever if that came after it."""
    replied = threading.Event()

    class Patient(ScriptedPolicy):
        def update(self, samples):
            if len(self.updates) < 2:  # there is no step after the third
                assert replied.wait(timeout=60)
                replied.clear()
            return super().update(samples)

    def answer(call):
        replied.set()
        return reply(call)

    settings = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true"]
    trainer, _ = make_trainer(tmp_path, policy=Patient(answer), overrides=settings)
    await trainer.train()
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1, 2, 3]


@pytest.mark.parametrize("one_step_off", ["false", "true"])
async def test_a_run_whose_engine_is_lost_keeps_the_step_before(tmp_path, one_step_off):
    class Failing(ScriptedPolicy):
        async def generate(self, policy, prompt_ids, sampling):
            if self.updates:
                raise EngineLost("an engine of policy planner died twice")
            return await super().generate(policy, prompt_ids, sampling)

    settings = ["backend=openrlhf", "openrlhf.colocate=false", f"openrlhf.one_step_off={one_step_off}"]
    trainer, _ = make_trainer(tmp_path, policy=Failing(reply), overrides=settings)
    kept = 2 if one_step_off == "true" else 1  # step 2 was played before step 1 was trained
    with pytest.raises(
        EngineLost, match=f"step {kept + 1}: an engine .* died twice; go on with: coachrl train --resume"
    ):
        await trainer.train()
    assert [path.name for path in trainer.run.checkpoints()] == [f"step-00000{kept}"]


async def test_a_run_that_is_asked_to_end_while_it_trains_gives_up_the_step_that_is_played_meanwhile(tmp_path):
    class Endless(ScriptedPolicy):
        async def generate(self, policy, prompt_ids, sampling):
            if trainer._rollouts._begun:  # from here on, the second step's
                playing.set()
                await asyncio.Event().wait()
            return await super().generate(policy, prompt_ids, sampling)

        def update(self, samples):
            assert playing.wait(timeout=60)
            loop.call_soon_threadsafe(trainer.end_soon)
            return super().update(samples)

    playing, loop = threading.Event(), asyncio.get_running_loop()
    settings = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true"]
    trainer, _ = make_trainer(tmp_path, policy=Endless(reply), overrides=settings)
    with pytest.raises(Preempted, match="step 2: the process was asked to end"):
        await trainer.train()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1]


def test_one_step_off_needs_gpus_of_its_own_for_engines():
    with pytest.raises(ConfigError, match=r"set openrlhf.colocate=false"):
        load_config(None, ["openrlhf.one_step_off=true"])
