"""Further tasks in the place of those whose rewards are all equal (dynamic sampling)."""

from itertools import combinations

import pytest
from train_samples import algorithm, grouped, sample
from two_step import make_tasks, make_trainer

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import load_config
from coachrl.errors import BudgetExceeded, ConfigError, NothingTrained
from coachrl.runs.folder import Run
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.schedule import all_specs, first_specs, further_specs, most_episodes, step_specs

GRPO = ["algorithm.name=grpo", "algorithm.without_spread=skip", "algorithm.refill_up_to=3", "train.group_size=2"]
STEP = ["train.tasks_per_step=2", "train.steps=2"]


def told_apart(*numbers):
    """A coach that scores the two episodes of the tasks of these numbers differently, and all others alike."""

    def score(request):
        number, episode = int(request.task.id.split("-")[1]), int(request.action.episode_id[-1])
        return float(episode) if number in numbers else 5.0

    return ScriptedCoach(score)


def tasks_of(run, step):
    episodes, _ = run.read_episodes(f"step-{step:06d}")
    return [episode.task_id for episode in episodes[::2]]


async def test_a_step_plays_further_tasks_until_it_has_its_number_of_tasks_with_something_to_compare(tmp_path):
    trainer, _ = make_trainer(tmp_path, told_apart(0, 1, 2), overrides=[*GRPO, *STEP])
    await trainer.train()
    for step, metrics in enumerate(trainer.run.metrics()[1:], 1):
        played = tasks_of(trainer.run, step)
        assert sum(int(task[-1]) < 3 for task in played) == metrics["train/tasks_compared"] == 2
        assert metrics["train/refill_tasks"] == len(played) - 2 and len(set(played)) == len(played)
        assert metrics["train/masked/no_spread"] == 4 * (len(played) - 2), "two episodes of two actions each"
        assert metrics["train/trained_actions"] == 8
    assert any(len(tasks_of(trainer.run, step)) > 2 for step in (1, 2)), "one of the steps had to be refilled"


async def test_a_step_that_finds_no_task_to_compare_stops_at_the_bound(tmp_path):
    trainer, _ = make_trainer(
        tmp_path, told_apart(), overrides=[*GRPO, "algorithm.refill_up_to=2", "train.tasks_per_step=2", "train.steps=1"]
    )
    with pytest.raises(NothingTrained):
        await trainer.train()
    assert trainer.run.metrics()[1]["train/refill_tasks"] == 2 and trainer.run.metrics()[1]["train/tasks_compared"] == 0
    assert len(tasks_of(trainer.run, 1)) == 4


async def test_a_task_that_is_played_twice_counts_twice(tmp_path):
    """There are six tasks; a step of seven plays one of them again."""
    steps = ["train.tasks_per_step=7", "train.steps=1"]
    trainer, _ = make_trainer(tmp_path, told_apart(*range(6)), overrides=[*GRPO, *steps])
    await trainer.train()
    metrics = trainer.run.metrics()[1]
    assert len(tasks_of(trainer.run, 1)) == 7 > len(set(tasks_of(trainer.run, 1)))
    assert (metrics["train/tasks_compared"], metrics["train/refill_tasks"]) == (7, 0)


async def test_without_a_refill_a_step_plays_its_own_tasks_alone(tmp_path):
    trainer, _ = make_trainer(tmp_path, told_apart(1, 2, 3, 4, 5), overrides=[*GRPO, "algorithm.refill_up_to=1", *STEP])
    await trainer.train()
    assert [len(tasks_of(trainer.run, step)) for step in (1, 2)] == [2, 2]
    assert "train/refill_tasks" not in trainer.run.metrics()[1]


async def test_a_run_that_is_paused_amid_a_refill_goes_on_as_one_that_was_not(tmp_path):
    whole, _ = make_trainer(tmp_path, told_apart(0, 1), overrides=[*GRPO, *STEP], name="whole")
    await whole.train()
    calls = 0

    def until_the_budget_ends(request):
        nonlocal calls
        calls += 1
        if calls > 13:  # the own tasks of the first step take eight
            raise BudgetExceeded("spent")
        return told_apart(0, 1)._score(request)

    paused, _ = make_trainer(tmp_path, ScriptedCoach(until_the_budget_ends), overrides=[*GRPO, *STEP], name="paused")
    with pytest.raises(BudgetExceeded):
        await paused.train()
    run = Run.open(paused.run.folder)
    resumed, _ = make_trainer(tmp_path, told_apart(0, 1), overrides=[*GRPO, *STEP], name="paused", run=run)
    if run.checkpoints():
        resumed.resume(run.last_checkpoint())
    await resumed.train()
    for step in (1, 2):
        one, other = (t.run.read_episodes(f"step-{step:06d}")[0] for t in (whole, resumed))
        assert [(e.id, [(a.text, a.credit) for a in e.actions]) for e in one] == [
            (e.id, [(a.text, a.credit) for a in e.actions]) for e in other
        ]


async def test_candidates_of_one_state_are_refilled_by_tasks_too(tmp_path):
    """The planner's two candidates differ in every task; the coach tells them apart for two tasks of six."""
    count = iter(range(1000))
    policy = ScriptedPolicy(lambda call: f"reply {next(count)}")

    def score(request):
        return float(request.action.candidate or 0) if request.task.id in ("train-4", "train-5") else 5.0

    trainer, _ = make_trainer(
        tmp_path,
        ScriptedCoach(score),
        policy,
        overrides=[
            *("algorithm.name=at_grpo", "algorithm.refill_up_to=3", "sampling.scheme=tree", "sampling.candidates=2"),
            *("coach.evidence.ground_truth=none", "train.tasks_per_step=2", "train.steps=1"),
        ],
    )
    await trainer.train()
    episodes, _ = trainer.run.read_episodes("step-000001")
    assert {"train-4", "train-5"} <= {episode.task_id for episode in episodes}
    assert trainer.run.metrics()[1]["train/tasks_compared"] == 2


def test_further_tasks_are_a_function_of_the_step_and_none_comes_twice():
    config = load_config(None, [*GRPO, *STEP])
    tasks = make_tasks(9)
    for step in (1, 2, 7):
        own, further = step_specs(tasks, config, step), further_specs(tasks, config, step)
        assert further == further_specs(tasks, config, step) and len(further) == 4
        ids = [spec.task.id for specs in further for spec in specs[:1]]
        assert len({*ids, *(spec.task.id for spec in own)}) == 6
        everything = all_specs(tasks, config, step)
        assert len({spec.episode_id for spec in everything}) == len({spec.seed for spec in everything}) == 12
        assert len(everything) == most_episodes(config)
    assert further_specs(tasks, config, 1) != further_specs(tasks, config, 2)


def test_each_step_draws_its_further_tasks_and_episodes_anew_and_counts_on_after_its_own():
    config = load_config(None, [*GRPO, *STEP])
    steps = [further_specs(make_tasks(9), config, step) for step in range(1, 9)]
    orders = [[specs[0].task.id for specs in further] for further in steps]
    pairs = {pair for order in orders for pair in combinations(order, 2)}
    assert any((later, earlier) in pairs for earlier, later in pairs), "no order of all tasks holds for every step"
    assert len({spec.seed for further in steps for specs in further for spec in specs}) == 8 * 4 * 2
    ids = [spec.episode_id for specs in steps[0] for spec in specs]
    assert ids == [f"step-000001.{2 + n:03d}.{task}.{e}" for n, task in enumerate(orders[0]) for e in range(2)]


def test_an_epoch_holds_each_task_once_and_steps_go_on_where_the_last_one_ended():
    config = load_config(None, ["train.tasks_per_step=2", "train.group_size=2"])
    tasks = make_tasks(3)
    played = [spec for step in (1, 2, 3) for spec in step_specs(tasks, config, step)]
    ids = [spec.task.id for spec in played[::2]]
    assert sorted(ids[:3]) == sorted(ids[3:]) == ["train-0", "train-1", "train-2"]
    assert [spec.task.id for spec in played[1::2]] == ids
    assert len({spec.seed for spec in played}) == 12
    assert [spec.episode_id[:15] for spec in played[4:8:2]] == ["step-000002.000", "step-000002.001"]


def test_a_look_at_the_first_episodes_has_the_tasks_and_seeds_of_training():
    config = load_config(None, ["train.tasks_per_step=3", "train.group_size=2"])
    tasks = make_tasks(4)
    look, trained = first_specs(tasks, config, 3), step_specs(tasks, config, 1)[::2]
    assert [(spec.task.id, spec.seed) for spec in look] == [(spec.task.id, spec.seed) for spec in trained]
    assert [spec.episode_id for spec in look] == [f"look.{n:03d}.{spec.task.id}" for n, spec in enumerate(look)]


def test_a_task_set_that_is_used_up_ends_the_refill():
    config = load_config(None, [*GRPO, *STEP])
    assert len(further_specs(make_tasks(3), config, 1)) == 1 and further_specs(make_tasks(2), config, 1) == []


def test_the_dry_run_says_the_least_and_the_most():
    plan = make_dry_run(load_config(None, [*GRPO, *STEP, "pipeline.name=debate", "pipeline.options.agents=2"]))
    plain = make_dry_run(
        load_config(
            None, [*GRPO, "algorithm.refill_up_to=1", *STEP, "pipeline.name=debate", "pipeline.options.agents=2"]
        )
    )
    assert plain.episodes == (8, 8) and plan.episodes == (8, 24)
    assert plan.coach_calls == (plain.coach_calls[0], 3 * plain.coach_calls[1])
    assert any("8 to 24 episodes" in line for line in plan.lines()) and any(
        "8 episodes" in line for line in plain.lines()
    )
    assert plan.generated_tokens_most > plain.generated_tokens_most


@pytest.mark.parametrize("name", ["grpo", "at_grpo"])
def test_a_task_has_something_to_compare_where_one_of_its_groups_has(name):
    team = [sample(f"{task}{i}", task=task, episode=task) for task in "pqrs" for i in range(2)]
    rewards = {"p0": 1.0, "p1": 2.0, "q0": 1.0, "q1": 1.0, "r0": 1.0, "r1": None, "s0": None, "s1": None}
    assert algorithm(name).tasks_to_compare(grouped(team), rewards) == {"p"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.name=grpo", "train.group_size=2", "algorithm.refill_up_to=2"],
            "refill_up_to=2 replaces groups without spread, and .*=zeros keeps them: set algorithm.without_spread=skip",
        ),
        ([*GRPO, "algorithm.refill_up_to=0"], "refill_up_to.*greater than or equal to 1"),
        (
            [*GRPO, "backend=openrlhf", "openrlhf.one_step_off=true", "openrlhf.colocate=false"],
            "refill_up_to=3 plays further tasks once",
        ),
    ],
)
def test_a_refill_that_cannot_be_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)
