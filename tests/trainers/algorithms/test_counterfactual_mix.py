"""Replay and coach in one advantage: the coach where it is trusted with a role, replay for the others."""

import re

import pytest
from test_retrospective import episode as made_episode
from train_samples import advantages, algorithm, sample
from two_step import TwoStep, make_trainer, reply

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import PipelineConfig, RewardConfig, load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec
from coachrl.types import Task

TEAM = make_pipeline(PipelineConfig()).roles
MIX = {"name": "counterfactual", "coach_roles": ["planner"]}


def test_a_role_of_the_coach_is_held_against_its_place_and_the_others_against_their_state():
    """Planners are scored .9, .5 and .1 of success in three episodes; one speaker of two succeeded from each state."""
    planners = [sample(f"p{e}", role="planner", episode=str(e)) for e in range(3)]
    speakers = [sample(f"s{e}{i}", role="speaker", episode=str(e), index=1) for e in range(2) for i in range(2)]
    rewards = {"p0": 0.9, "p1": 0.5, "p2": 0.1, "s00": 1.0, "s01": 0.0, "s10": 1.0, "s11": 1.0}
    got, batch = advantages([*planners, *speakers], rewards, **MIX)
    assert {key: value[0] for key, value in got.items()} == pytest.approx(
        {"p0": 0.6, "p1": 0.0, "p2": -0.6, "s00": 1.0, "s01": -1.0, "s10": 0.0, "s11": 0.0}
    )
    assert (batch.groups, batch.groups_without_spread) == (2, 1), "what is counted are the states that were replayed"


def test_a_coach_that_always_says_the_same_moves_nothing_and_a_failed_call_moves_no_other():
    planners = [sample(f"p{e}", role="planner", episode=str(e)) for e in range(4)]
    constant, _ = advantages(planners, {f"p{e}": 0.7 for e in range(4)}, **MIX)
    assert not any(value.any() for value in constant.values())
    rewards = {"p0": 0.9, "p1": 0.5, "p2": 0.1, "p3": None}
    failed, batch = advantages(planners, rewards, **MIX)
    without, _ = advantages(planners[:3], rewards, **MIX)
    assert not failed.pop("p3").any() and failed == without and batch.masked == {"unscored": 1}


def test_a_roles_second_turn_is_held_against_second_turns_of_all_tasks():
    team = [
        sample(f"p{e}{turn}", role="planner", episode=e, task=e, turn=turn, index=turn)
        for e in "xyz"
        for turn in (0, 1)
    ]
    rewards = {"px0": 0.9, "py0": 0.3, "pz0": 0.3, "px1": 0.1, "py1": 0.2, "pz1": None}
    got, batch = advantages(team, rewards, **MIX)
    assert {key: float(value[0]) for key, value in got.items()} == pytest.approx(
        {"px0": 0.6, "py0": -0.3, "pz0": -0.3, "px1": -0.1, "py1": 0.1, "pz1": 0.0}
    )
    assert batch.groups == 0


def test_what_a_cut_reply_came_to_counts_for_the_others_and_how_it_was_scored_does_not():
    """Two speakers of one state are whole, and worth 1 and 0; the third was cut short, and is worth 1."""
    speakers = [sample(f"s{i}", role="speaker", masked="truncated" if i == 2 else None) for i in range(3)]
    planners = [
        sample(f"p{e}", role="planner", episode=str(e), masked="truncated" if e == 2 else None) for e in range(3)
    ]
    rewards = {"s0": 1.0, "s1": 0.0, "s2": 1.0, "p0": 0.9, "p1": 0.5, "p2": 0.1}
    got, _ = advantages([*speakers, *planners], rewards, **MIX)
    assert {key: float(value[0]) for key, value in got.items()} == pytest.approx(
        {"s0": 0.5, "s1": -1.0, "s2": 0.0, "p0": 0.4, "p1": -0.4, "p2": 0.0}
    )


def test_so_many_decisions_of_each_episode_are_drawn_by_its_seed_and_kept_in_their_order():
    played = made_episode("e", 6)

    def drawn(seed, **options):
        specs = [EpisodeSpec("e", Task("t", "k", "p"), seed)]
        found = algorithm("counterfactual", **options)._drawn(specs, played)
        return [decision.action.index for decision in found]

    chosen = [drawn(seed, decisions=2) for seed in range(20)]
    assert all(len(places) == 2 and places == sorted(places) for places in chosen)
    assert chosen == [drawn(seed, decisions=2) for seed in range(20)] and len(set(map(tuple, chosen))) > 5
    assert drawn(0) == drawn(0, decisions=6) == drawn(0, decisions=9) == [0, 1, 2, 3, 4, 5]
    assert drawn(0, decisions=4, coach_roles=["r0", "r3"]) == [1, 2, 4, 5], "those of the coach are not replayed"


async def test_a_run_asks_the_coach_for_its_roles_alone_and_replays_the_others(tmp_path):
    coach = ScriptedCoach(lambda request: float(int(request.task.id[-1])))
    trainer, _ = make_trainer(
        tmp_path,
        coach,
        ScriptedPolicy(reply),
        overrides=["algorithm.name=counterfactual", "algorithm.coach_roles=[planner]", "algorithm.others=1"],
    )
    trainer.pipeline.adviser = None
    trainer.step = 1
    metrics = await trainer._train_step()
    assert {request.role.name for request in coach.requests} == {"planner"}
    episodes, scores = trainer.run.read_episodes("step-000001")
    assert metrics["replay/decisions"] == len(episodes) == 4, "one speaker of each episode"
    for episode in episodes:
        planner, speaker = episode.actions
        assert planner.credit.reward == scores[planner.id].process_0_10 / 10 and planner.value is None
        assert speaker.value == speaker.credit.reward == 1.0 and speaker.id not in scores
        assert {other.role for other in episode.rejected_candidates} == {"speaker"}
    [samples] = trainer.backend.updates
    others = {other.id for episode in episodes for other in episode.rejected_candidates}
    assert len(others) == 4 and others < {sample.action_id for sample in samples["speaker"]}, "they are trained on too"


async def test_replies_that_are_drawn_in_an_actions_place_are_drawn_as_all_that_is_trained_on(tmp_path):
    policy = ScriptedPolicy(reply)
    overrides = ["algorithm.name=counterfactual", "algorithm.others=1", "eval.top_p=0.5", "eval.temperature=0.1"]
    trainer, _ = make_trainer(tmp_path, None, policy, overrides=overrides)
    trainer.pipeline.adviser = None
    trainer.step = 1
    metrics = await trainer._train_step()
    assert metrics["replay/playouts"] > 0
    assert {(call.sampling.temperature, call.sampling.top_p) for call in policy.calls} == {(1.0, 1.0)}
    policy.calls.clear()
    await trainer._evaluate()
    assert {(call.sampling.temperature, call.sampling.top_p) for call in policy.calls} == {(0.1, 0.5)}


def test_no_coach_is_asked_without_a_role_of_its_own():
    assert algorithm(**MIX).needs_coach(RewardConfig()) and not algorithm("counterfactual").needs_coach(RewardConfig())


def test_the_dry_run_counts_the_calls_for_the_coachs_roles_alone():
    config = load_config(None, ["algorithm.name=counterfactual", "algorithm.coach_roles=[verifier]", "train.steps=1"])
    plain = load_config(None, ["train.steps=1"])
    most = sum(role.max_turns for role in [r for r in TEAM if r.name == "verifier"])
    assert make_dry_run(config).coach_calls == (32, 32 * most)
    assert make_dry_run(plain).coach_calls == (32 * len(TEAM), 32 * sum(role.max_turns for role in TEAM))


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["plannr"], "algorithm.coach_roles: pipeline two-step has no role 'plannr', did you mean 'planner'"),
        (
            ["planner", "speaker"],
            "names all roles, so that nothing would be replayed: take algorithm.name=reinforce_pp",
        ),
    ],
)
def test_roles_that_cannot_be_the_coachs_are_refused(roles, message):
    pipeline = TwoStep()
    pipeline.adviser = None
    with pytest.raises(ConfigError) as refused:
        algorithm("counterfactual", coach_roles=roles).check_pipeline(pipeline)
    assert re.search(message, str(refused.value))
