"""Runs that stop in the middle of a step and go on another day, and those that play one step ahead."""

import asyncio
import threading

import pytest
from two_step import failing_coach, make_trainer, reply

from coachrl.coach.clients.ledger import read_ledger
from coachrl.config import load_config
from coachrl.errors import BudgetExceeded, CoachUnavailable, ConfigError, EngineLost, Preempted
from coachrl.runs.folder import Run
from coachrl.seeding import derive_seed
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.schedule import step_specs


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
    trainer, _ = make_trainer(tmp_path, overrides=["backend=openrlhf"])
    assert trainer.run.reconfigure(["coach.budget_usd=7", "coach.concurrency=3"]).coach.budget_usd == 7
    assert trainer.run.config().coach.concurrency == 3
    trainer.run.reconfigure(["openrlhf.ray_address=10.0.0.2:6379", "coach.api_base=http://127.0.0.1:1/v1"])
    assert trainer.run.config().openrlhf.ray_address == "10.0.0.2:6379"
    assert trainer.run.reconfigure(["coach.concurrency=5"], keep=False).coach.concurrency == 5
    assert trainer.run.config().coach.concurrency == 3
    with pytest.raises(ConfigError, match=r"'coach\.name' cannot change now"):
        trainer.run.reconfigure(["coach.name=gemini-2.5-pro"])


async def test_a_checkpoint_is_put_on_disk_beside_the_next_steps_episodes_and_before_their_update(
    tmp_path, monkeypatch
):
    """It waits for a disk that is done once an episode of the next step has begun; in turn, neither would end."""
    drawn, on_disk = threading.Event(), []

    def slow_disk(folder):
        assert "step-000003" in folder.name or drawn.wait(60), "the next step waited for the checkpoint"
        on_disk.append(int(folder.name.split("-")[1].split(".")[0]))

    def answer(call):
        if trainer.step == 2:
            drawn.set()
        return reply(call)

    def update(samples, learning_rate):
        assert on_disk == list(range(1, trainer.step)), "the weights changed before they were on disk"
        return ScriptedPolicy.update(policy, samples, learning_rate)

    policy = ScriptedPolicy(answer)
    policy.update = update
    monkeypatch.setattr("coachrl.runs.folder.put_on_disk", slow_disk)
    trainer, pool = make_trainer(tmp_path, policy=policy, overrides=["train.checkpoint_every=1"])
    await trainer.train()
    await pool.close()
    assert on_disk == [1, 2, 3] and [path.name for path in trainer.run.checkpoints()][-1] == "step-000003"


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes no checkpoint."""

    def refuse(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coachrl.runs.folder.put_on_disk", refuse)


async def test_a_checkpoint_that_the_disk_did_not_take_ends_the_run_at_the_next_step(tmp_path, full_disk):
    trainer, pool = make_trainer(tmp_path, overrides=["train.checkpoint_every=1"])
    with pytest.raises(OSError, match="No space left"):
        await trainer.train()
    await pool.close()
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1] and not trainer.run.checkpoints()
    assert not list((trainer.run.folder / "checkpoints").iterdir())


async def test_a_full_disk_does_not_hide_why_the_run_would_have_ended(tmp_path, full_disk, caplog):
    spent = LimitedCoach(12, BudgetExceeded("the budget is spent"))
    trainer, pool = make_trainer(tmp_path, coach=spent, overrides=["train.checkpoint_every=1"])
    with pytest.raises(OSError, match="No space left"):
        await trainer.train()
    await pool.close()
    assert "step 2: the budget is spent; no checkpoint after step 1: [Errno 28] No space left" in caplog.text


@pytest.mark.parametrize(
    ("coach", "reason"),
    [
        (LimitedCoach(12, BudgetExceeded("the budget is spent")), "go on with: coachrl train --resume"),
        (failing_coach(steps={1}), "step 1: 100% of the coach's calls failed.*; checkpoint written"),
    ],
)
async def test_a_disk_that_has_room_again_gets_the_checkpoint_of_a_run_that_ends(tmp_path, monkeypatch, coach, reason):
    answers = iter([OSError(28, "No space left on device"), None])

    def full_once(folder):
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr("coachrl.runs.folder.put_on_disk", full_once)
    trainer, pool = make_trainer(tmp_path, coach=coach, overrides=["train.checkpoint_every=1"])
    with pytest.raises(BudgetExceeded, match=reason):
        await trainer.train()
    await pool.close()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]


async def test_a_run_that_was_killed_after_its_last_checkpoint_keeps_no_replies(tmp_path):
    trainer, pool = make_trainer(tmp_path)
    await trainer.train()
    await pool.close()
    (trainer.run.folder / "replies-before.jsonl").write_text("")
    resumed, _ = make_trainer(tmp_path, run=Run.open(trainer.run.folder))
    resumed.resume(resumed.run.last_checkpoint())
    assert not list(resumed.run.folder.glob("replies*"))


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


async def test_tokens_a_second_of_a_step_that_was_played_ahead_count_all_the_time_it_had(tmp_path):
    settings = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true"]
    trainer, _ = make_trainer(tmp_path, policy=ScriptedPolicy(reply), overrides=settings)
    await trainer.train()
    for record in trainer.run.metrics()[1:]:
        taken_s = record["time/step_s" if record["train/staleness"] else "time/rollout_s"]
        assert record["time/rollout_tokens_per_s"] == pytest.approx(record["tokens/generated"] / taken_s)


async def test_one_step_off_trains_while_episodes_are_played(tmp_path):
    """The update waits for a reply of the next step: it would wait for ever if that came after it."""
    replied = threading.Event()

    class Patient(ScriptedPolicy):
        def update(self, samples, learning_rate):
            if len(self.updates) < 2:  # there is no step after the third
                assert replied.wait(timeout=60)
                replied.clear()
            return super().update(samples, learning_rate)

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
    with pytest.raises(EngineLost, match=f"step {kept + 1}: an engine .* died twice"):
        await trainer.train()
    assert [path.name for path in trainer.run.checkpoints()] == [f"step-00000{kept}"]


async def test_no_checkpoint_of_a_step_holds_what_the_next_ones_update_made_of_it(tmp_path):
    class Failing(ScriptedPolicy):
        def sync_weights(self):
            if len(self.updates) == 2:
                raise EngineLost("an engine of policy planner died twice")
            super().sync_weights()

    trainer, _ = make_trainer(tmp_path, policy=Failing(reply), overrides=["train.checkpoint_every=0"])
    with pytest.raises(EngineLost, match=r"step 2: an engine .* died twice"):
        await trainer.train()
    assert not trainer.run.checkpoints()


async def test_a_run_that_is_asked_to_end_while_it_trains_gives_up_the_step_that_is_played_meanwhile(tmp_path):
    class Endless(ScriptedPolicy):
        async def generate(self, policy, prompt_ids, sampling):
            if trainer._rollouts._begun:  # from here on, the second step's
                playing.set()
                await asyncio.Event().wait()
            return await super().generate(policy, prompt_ids, sampling)

        def update(self, samples, learning_rate):
            assert playing.wait(timeout=60)
            loop.call_soon_threadsafe(trainer.end_soon)
            return super().update(samples, learning_rate)

    playing, loop = threading.Event(), asyncio.get_running_loop()
    settings = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true"]
    trainer, _ = make_trainer(tmp_path, policy=Endless(reply), overrides=settings)
    with pytest.raises(Preempted, match="step 2: the process was asked to end"):
        await trainer.train()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1]


async def test_a_run_that_is_asked_to_end_waits_for_no_audit(tmp_path):
    class Endless:
        def is_due(self, step):
            return True

        async def metrics(self, step):
            trainer.end_soon()
            await asyncio.Event().wait()

    trainer, _ = make_trainer(tmp_path)
    trainer.audit = Endless()
    with pytest.raises(Preempted, match="step 2: the process was asked to end"):
        await asyncio.wait_for(trainer.train(), 60)
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]
    assert [record["step"] for record in trainer.run.metrics()] == [0, 1]


def test_one_step_off_needs_gpus_of_its_own_for_engines():
    with pytest.raises(ConfigError, match=r"set openrlhf.colocate=false"):
        load_config(None, ["openrlhf.one_step_off=true"])


MEAN = """
from coachrl.trainers.algorithms.base import Algorithm, all_samples, known_rewards, mask_unscored, with_advantages


class AgainstMean(Algorithm):
    \"\"\"Holds rewards against their running mean over all steps so far.\"\"\"

    mean = 0.0

    def advantages(self, samples, rewards):
        batch = mask_unscored(samples, rewards)
        known = known_rewards(all_samples(batch), rewards)
        self.mean = 0.5 * self.mean + 0.5 * sum(known.values()) / len(known)
        return with_advantages(batch, {key: value - self.mean for key, value in known.items()})

    def state(self):
        return {"mean": self.mean}

    def restore(self, state):
        self.mean = state["mean"]
"""


async def test_what_an_own_algorithm_carries_from_step_to_step_goes_on_with_the_run(tmp_path, monkeypatch):
    (tmp_path / "running_means.py").write_text(MEAN)
    monkeypatch.chdir(tmp_path)
    overrides = ["algorithm.name=running_means:AgainstMean", "train.checkpoint_every=1", "train.keep_checkpoints=9"]
    whole, _ = make_trainer(tmp_path, overrides=overrides, name="whole")
    await whole.train()
    resumed, _ = make_trainer(tmp_path, overrides=overrides, name="again", run=whole.run)
    resumed.resume(whole.run.checkpoints()[0])
    assert resumed.step == 1 and resumed.algorithm.mean != whole.algorithm.mean
    await resumed.train()
    assert resumed.algorithm.mean == whole.algorithm.mean != 0.0
