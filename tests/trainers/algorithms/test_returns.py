"""The pure functions under the credit formulas, and what must hold of every batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_samples import advantages, played, sample

from coachrl.trainers.algorithms.returns import expected_worths, joint_returns, token_returns, worth_of_later

MODES = [
    {"name": "reinforce_pp"},
    {"name": "reinforce_pp", "normalize_over": "policy"},
    {"name": "reinforce_pp", "normalize_over": "role"},
    {"name": "reinforce_pp", "return_scope": "action"},
    {"name": "reinforce_pp", "kl_beta": 0.1},
    {"name": "retrospective"},
    {"name": "outcome"},
    {"name": "magrpo"},
    {"name": "grpo"},
    {"name": "grpo", "group_by": "turn"},
    {"name": "at_grpo"},
]
every_mode = pytest.mark.parametrize("options", MODES, ids=lambda options: "-".join(map(str, options.values())))


def of_one_batch(_):
    return "batch"


def test_the_worth_of_later_actions_is_summed_by_agent_and_not_by_policy():
    team = played("e", {"x": 2, "y": 2}, policies={"x": "shared", "y": "shared"}) + played("f", {"x": 2})
    worths = {"e/x0": 1.0, "e/y0": 10.0, "e/x1": 100.0, "e/y1": 1000.0, "f/x0": 7.0, "f/x1": 8.0}
    later = worth_of_later(team, worths)
    assert later == {"e/x0": 100.0, "e/y0": 1000.0, "e/x1": 0.0, "e/y1": 0.0, "f/x0": 8.0, "f/x1": 0.0}


@pytest.mark.parametrize("mode", ["reinforce_pp", "retrospective", "outcome", "magrpo"])
def test_roles_that_share_a_policy_have_the_credit_of_roles_that_do_not(mode):
    """A good first role is not rewarded for what a role after it does with the same weights."""
    turns, policies = {"x": 2, "y": 2}, {"x": "shared", "y": "shared"}
    rewards = {"a/x0": 1.0, "a/y0": 9.0, "a/x1": 2.0, "a/y1": 8.0, "b/x0": 6.0, "b/y0": 3.0, "b/x1": 5.0, "b/y1": 0.0}
    apart, _ = advantages([s for name in "ab" for s in played(name, turns)], rewards, name=mode)
    shared, _ = advantages([s for name in "ab" for s in played(name, turns, policies=policies)], rewards, name=mode)
    assert shared == {key: pytest.approx(value) for key, value in apart.items()}
    # In returns x: 3, 2 and 11, 5; y: 17, 8 and 3, 0.
    assert shared["a/x0"] < shared["b/x0"] and shared["a/y0"] > shared["b/y0"]


def test_what_is_unknown_is_worth_the_mean_of_its_role_and_turn():
    team = [s for name in "abc" for s in played(name, {"x": 3, "y": 1})]
    known = {"a/x0": 1.0, "a/x1": 2.0, "b/x1": 6.0, "b/x0": 3.0, "c/x0": 8.0, "a/y0": 5.0}
    worths = expected_worths(team, known, among=of_one_batch)
    assert worths["c/x1"] == 4.0, "the mean of a's and b's second turns"
    assert [worths[f"{name}/x2"] for name in "abc"] == [4.0] * 3, "no third turn is known: the mean of the role"
    assert [worths[f"{name}/y0"] for name in "bc"] == [5.0] * 2
    assert all(worths[key] == value for key, value in known.items())


def test_an_unknown_joint_reward_is_worth_the_mean_among_its_own_tasks_episodes():
    team = played("a", {"x": 2}) + played("b", {"x": 2}) + played("far", {"x": 2}, task="another")
    rewards = {"a/x0": 1.0, "a/x1": 2.0, "b/x0": 4.0, "b/x1": None, "far/x0": 90.0, "far/x1": 90.0}
    returns = joint_returns(team, rewards)
    assert returns.by_action == {"a/x0": 3.0, "a/x1": 2.0, "b/x0": 6.0, "far/x0": 180.0, "far/x1": 90.0}
    assert returns.unknown == {"x": 1}


def test_a_role_without_any_score_lends_nothing_to_the_others():
    team = [s for name in "ab" for s in played(name, {"x": 2, "mute": 2})]
    rewards = {s.action_id: None if s.role == "mute" else 5.0 for s in team}
    returns = token_returns(team, rewards, "agent", 0.0)
    assert [returns.by_action[f"{name}/x{turn}"][0] for name in "ab" for turn in (0, 1)] == [10.0, 5.0] * 2
    assert returns.unknown == {}


def test_an_unknown_action_costs_the_mean_penalty_of_its_peers_too():
    # Each known second turn is worth 4 - 0.5 * 2 tokens = 3.
    team = [
        sample(f"{episode}{turn}", episode=episode, turn=turn, index=turn, length=2, gap=0.5)
        for episode in "abc"
        for turn in (0, 1)
    ]
    rewards = {"a0": 1.0, "a1": 4.0, "b0": 1.0, "b1": 4.0, "c0": 1.0, "c1": None}
    returns = token_returns(team, rewards, "agent", kl_beta=1.0)
    for episode in "abc":
        assert returns.by_action[f"{episode}0"] == pytest.approx([3.0, 3.5])


takings = st.lists(st.dictionaries(st.sampled_from("xy"), st.integers(1, 4), min_size=1), min_size=2, max_size=6)


@given(takings, st.data())
def test_one_failure_after_the_other_the_errors_of_the_guess_sum_to_zero(turns, data):
    """Over all calls of a role and turn, each failing once, earlier returns of the agents it strikes keep their mean,
    and no other agent's return moves. Exact to rounding: 1e-9 of sums of tens."""
    team = [s for number, taken in enumerate(turns) for s in played(str(number), taken)]
    rewards = {s.action_id: data.draw(st.floats(-10, 10)) for s in team}
    kinds = {
        "tokens": lambda given: {key: G[0] for key, G in token_returns(team, given, "agent", 0.0).by_action.items()},
        "joint": lambda given: joint_returns(team, given).by_action,
    }
    for returns in kinds.values():
        whole = returns(rewards)
        for role, turn in {(s.role, s.turn) for s in team if s.turn > 0}:
            cell = [s for s in team if (s.role, s.turn) == (role, turn)]
            if len(cell) < 2:  # the guess is then the mean of the role
                continue
            moved = dict.fromkeys(range(turn), 0.0)
            for lost in cell:
                after = returns(rewards | {lost.action_id: None})
                for s in team:
                    if (s.episode_id, s.role) != (lost.episode_id, lost.role) or s.turn > turn:
                        assert after[s.action_id] == whole[s.action_id]
                    elif s.turn < turn:
                        moved[s.turn] += after[s.action_id] - whole[s.action_id]
            assert list(moved.values()) == pytest.approx([0.0] * turn, abs=1e-9)


@st.composite
def batches(draw):
    """Episodes of one team with shared or separate policies, some scores unknown, some replies masked."""
    turns = draw(takings)
    policies = dict.fromkeys("xy", "shared") if draw(st.booleans()) else None
    team = [
        s
        for number, taken in enumerate(turns)
        for s in played(
            str(number), taken, task=draw(st.sampled_from("pq")), length=draw(st.integers(1, 3)), policies=policies
        )
    ]
    for place, s in enumerate(team):
        if draw(st.integers(0, 9)) == 0:
            team[place] = sample(
                s.action_id,
                episode=s.episode_id,
                role=s.role,
                index=s.index,
                turn=s.turn,
                length=len(s.response_ids_L),
                policy=s.policy,
                task=s.task_id,
                masked=draw(st.sampled_from(["truncated", "infrastructure"])),
            )
    score = st.one_of(st.none(), st.integers(0, 10).map(float))
    return team, {s.action_id: draw(score) for s in team}


def seen_by(options, batch):
    """The batch as the mode gets it: with tree sampling, the episodes of a task are the candidates of one state."""
    team, rewards = batch
    return [replace(s, episode_id=s.task_id) for s in team] if options["name"] == "at_grpo" else team, rewards


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], rtol=1e-4, atol=1e-4)


@every_mode
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_a_batch_changes_nothing(options, batch, random):
    team, rewards = seen_by(options, batch)
    before, _ = advantages(team, rewards, **options)
    random.shuffle(team)
    after, _ = advantages(team, rewards, **options)
    same(before, after)


@every_mode
@given(batches())
def test_the_names_of_roles_change_nothing(options, batch):
    """The roles are called the other way round, so that they sort and hash in another order, too."""
    team, rewards = seen_by(options, batch)
    named = {"x": "writer", "y": "critic"}
    before, credited = advantages(team, rewards, **options)
    renamed, again = advantages([replace(s, role=named[s.role]) for s in team], rewards, **options)
    same(before, renamed)
    assert {named[role]: count for role, count in credited.unknown_returns.items()} == again.unknown_returns


@every_mode
@given(batches(), st.integers(1, 4))
def test_a_batch_that_was_gathered_from_ranks_is_the_batch(options, batch, ranks):
    """Episodes are played by several workers, and their samples come one worker after the other."""
    team, rewards = seen_by(options, batch)
    gathered = [s for rank in range(ranks) for s in team if int(s.action_id[0]) % ranks == rank]
    whole, _ = advantages(team, rewards, **options)
    same(whole, advantages(gathered, rewards, **options)[0])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"name": "magrpo"}, lambda s: s.task_id),
        ({"name": "grpo"}, lambda s: s.task_id),
        ({"name": "at_grpo"}, lambda s: s.episode_id),
        ({"name": "reinforce_pp", "normalize_over": "role"}, lambda s: s.role),
    ],
)
@given(batches())
def test_parts_that_are_not_compared_may_be_credited_apart(options, part, batch):
    team, rewards = seen_by(options, batch)
    whole, credited = advantages(team, rewards, **options)
    apart, groups = {}, 0
    for name in {part(s) for s in team}:
        got, of_part = advantages([s for s in team if part(s) == name], rewards, **options)
        apart |= got
        groups += of_part.groups
    same(whole, apart)
    assert groups == credited.groups


own_action = pytest.mark.parametrize("normalize_over", ["batch", "policy", "role"])


@own_action
@given(batches(), st.integers(0, 10))
def test_with_own_rewards_alone_a_constant_coach_moves_nothing(normalize_over, batch, always):
    team, rewards = batch
    constant = {key: None if value is None else float(always) for key, value in rewards.items()}
    got, _ = advantages(team, constant, return_scope="action", normalize_over=normalize_over)
    assert not any(value.any() for value in got.values())


def test_the_papers_sum_pays_for_turns_where_the_coach_is_constant():
    """MAPPA's Eq. 3 as written: what `return_scope` "action" is there to avoid."""
    team = played("short", {"x": 1}) + played("long", {"x": 4})
    got, _ = advantages(team, {s.action_id: 7.0 for s in team})
    assert got["short/x0"][0] < 0 < got["long/x0"][0]


@own_action
@given(st.lists(st.lists(st.integers(-5, 5), min_size=0, max_size=3), min_size=2, max_size=6))
def test_with_own_rewards_alone_turns_earn_nothing_at_equal_mean_score(normalize_over, deviations):
    """Each episode takes another number of turns, whose scores are 5 on average: its advantages sum to 0."""
    scores = [[5.0] + [5.0 + sign * d for d in listed for sign in (1, -1)] for listed in deviations]
    team = [s for number, given in enumerate(scores) for s in played(str(number), {"x": len(given)})]
    rewards = {f"{number}/x{turn}": score for number, given in enumerate(scores) for turn, score in enumerate(given)}
    got, _ = advantages(team, rewards, return_scope="action", normalize_over=normalize_over)
    for number in range(len(scores)):
        assert sum(float(v[0]) for key, v in got.items() if key.startswith(f"{number}/")) == pytest.approx(0, abs=1e-4)


def test_the_teams_reward_for_a_reply_that_was_cut_short_is_known():
    """The environment measured it; only what broke for no fault of the agents is not known."""
    cut = replace(sample("a/0", episode="a", masked="truncated"), index=0)
    broken = replace(sample("b/0", episode="b", masked="infrastructure"), index=0)
    returns = joint_returns([cut, broken], {"a/0": 4.0, "b/0": 8.0})
    assert returns.by_action == {"a/0": 4.0}
