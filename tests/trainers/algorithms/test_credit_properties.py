"""What must hold of the credit that every algorithm gives, at every setting of it.

P1  A constant coach moves nothing.
P2  An unknown score is neutral (more of it in test_unknown_scores).
P3  Turns alone earn nothing.
P4  The order of a batch, as that in which ranks send their parts, and the names of roles change nothing.

The papers' own sums of rewards fail P1 and P3, and so does a KL penalty; tests show that they do.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train_samples import advantages, played, sample

from coachrl.config.algorithm import SHIPPED

PAPER = "sum_as_in_the_paper"
SCALES = ("batch", "policy", "role", "role_turn")
TOKENWISE = [
    {"name": name, "returns": returns, "normalize_over": scale}
    for name in ("reinforce_pp", "retrospective", "outcome")
    for returns in ("own", "centered_sum", PAPER)
    for scale in (SCALES if name == "reinforce_pp" else ["role"])  # the other two inherit all but their rewards
]
MODES = [
    *TOKENWISE,
    {"name": "reinforce_pp", "kl_beta": 0.1},
    {"name": "reinforce_pp", "kl_beta": 0.1, "returns": "centered_sum"},
    {"name": "reinforce_pp", "kl_beta": 0.1, "returns": PAPER},
    {"name": "magrpo"},
    {"name": "magrpo", "returns": PAPER},
    {"name": "grpo"},
    {"name": "grpo", "group_by": "role"},
    {"name": "grpo", "group_by": "turn", "without_spread": "skip"},
    {"name": "grpo", "importance_cap": 2.0},
    {"name": "at_grpo"},
    {"name": "counterfactual"},
    {"name": "counterfactual", "coach_roles": ("x",)},
]
"""Every shipped algorithm at every setting that changes its credit."""
NO_SUMS = [mode for mode in MODES if mode.get("returns") != PAPER]
FAIR = [mode for mode in NO_SUMS if "kl_beta" not in mode]
"""Those that pay for nothing but rewards: not the papers' sums, and no penalty on tokens, which is no coach's doing."""


def called(options):
    return "-".join(map(str, options.values()))


def in_modes(modes):
    return pytest.mark.parametrize("options", modes, ids=called)


few = settings(max_examples=12)  # of each mode; there are about forty
every_mode = in_modes(MODES)
every_fair_mode = in_modes(FAIR)
of_paper = in_modes([mode for mode in MODES if mode.get("returns") == PAPER and "kl_beta" not in mode])


def test_every_shipped_algorithm_is_among_the_modes():
    assert {mode["name"] for mode in MODES} == set(SHIPPED)


takings = st.lists(st.dictionaries(st.sampled_from("xy"), st.integers(1, 4), min_size=1), min_size=2, max_size=6)


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
    """The batch as the mode gets it: where candidates of one state are compared, the episodes of a task are these."""
    team, rewards = batch
    return [replace(s, episode_id=s.task_id) for s in team] if options["name"] in (
        "at_grpo",
        "counterfactual",
    ) else team, rewards


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], rtol=1e-4, atol=1e-4)


@every_mode
@few
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_a_batch_changes_nothing(options, batch, random):
    team, rewards = seen_by(options, batch)
    before, _ = advantages(team, rewards, **options)
    random.shuffle(team)
    after, _ = advantages(team, rewards, **options)
    same(before, after)


@every_mode
@few
@given(batches())
def test_the_names_of_roles_change_nothing(options, batch):
    """The roles are called the other way round, so that they sort and hash in another order, too."""
    team, rewards = seen_by(options, batch)
    named = {"x": "writer", "y": "critic"}
    before, credited = advantages(team, rewards, **options)
    if "coach_roles" in options:
        options = {**options, "coach_roles": tuple(named[role] for role in options["coach_roles"])}
    renamed, again = advantages([replace(s, role=named[s.role]) for s in team], rewards, **options)
    same(before, renamed)
    assert {named[role]: count for role, count in credited.unknown_returns.items()} == again.unknown_returns


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"name": "magrpo"}, lambda s: s.task_id),
        ({"name": "grpo"}, lambda s: s.task_id),
        ({"name": "at_grpo"}, lambda s: s.episode_id),
        ({"name": "reinforce_pp", "normalize_over": "role"}, lambda s: s.role),
    ],
)
@few
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


def nothing(value):
    """No advantage, to rounding."""
    return np.abs(value).max(initial=0.0) < 1e-6


@in_modes(NO_SUMS)
@few
@given(batches(), st.floats(0, 10))
def test_a_constant_coach_moves_nothing(options, batch, always):
    """Nor does a KL penalty by itself, however far the policy is from where it began."""
    team, rewards = seen_by(options, batch)
    team = [replace(s, ref_logprobs_L=s.ref_logprobs_L - 0.1 * place) for place, s in enumerate(team)]
    constant = {key: None if value is None else always for key, value in rewards.items()}
    got, _ = advantages(team, constant, **options)
    assert not any(value.any() for value in got.values()), (
        "not even to rounding: a step of it is left out, momentum too"
    )


@in_modes([mode for mode in FAIR if mode.get("returns") == "centered_sum" or mode["name"] == "magrpo"])
@few
@given(batches(), st.data())
def test_to_be_of_a_place_earns_nothing_where_returns_are_centered(options, batch, data):
    """Rewards that depend on role and turn alone are what rewards are on average where quality does not differ; returns
    are linear in them. So no turn is paid for, however much later turns are worth."""
    team, rewards = seen_by(options, batch)
    level = {place: data.draw(st.integers(-5, 10)) for place in sorted({(s.role, s.turn) for s in team})}
    given_ = {s.action_id: None if rewards[s.action_id] is None else float(level[s.role, s.turn]) for s in team}
    got, _ = advantages(team, given_, **options)
    assert all(nothing(value) for value in got.values())


def short_and_long():
    """One episode of one turn and one of four."""
    return played("short", {"x": 1}) + played("long", {"x": 4})


@of_paper
def test_the_papers_sum_pays_for_turns_where_the_coach_is_constant(options):
    """Eq. 3 of MAPPA and Eq. 1 of MAGRPO as written fail P1 and P3: the long episode wins by being long."""
    team = short_and_long()
    got, _ = advantages(team, {s.action_id: 7.0 for s in team}, **options)
    assert got["short/x0"][0] < 0 < got["long/x0"][0]


@in_modes([{}, {"returns": "centered_sum"}, {"returns": PAPER}])
def test_a_penalty_alone_moves_nothing(options):
    """Eq. 4 would make it as large as rewards are: in the first step it is rounding, and once all is solved it would
    undo what was learned. One role whose rewards differ is trained, beside one whose rewards do not."""
    team = [
        sample(f"{role}{n}", role=role, episode=n, gap=0.1 * number) for role in "xy" for number, n in enumerate("ab")
    ]
    options = {**options, "name": "reinforce_pp", "kl_beta": 0.01, "normalize_over": "role"}
    got, _ = advantages(team, {"xa": 10.0, "xb": 10.0, "ya": 10.0, "yb": 0.0}, **options)
    assert not got["xa"].any() and not got["xb"].any()
    assert got["ya"][0] > 0 > got["yb"][0]


@in_modes([{}, {"normalize_over": "role_turn", "returns": PAPER}])
def test_rewards_that_differ_by_rounding_are_equal(options):
    """0.1 + 0.2 and 0.3; and, where a score is not known, a mean of equal ones in its place."""
    team = [s for number in range(8) for s in played(str(number), {"x": 2})]
    team = [replace(s, ref_logprobs_L=s.ref_logprobs_L - 0.1 * place) for place, s in enumerate(team)]
    rewards = {s.action_id: 0.1 + 0.2 if place % 3 else 0.3 for place, s in enumerate(team)}
    got, _ = advantages(team, rewards | {"1/x1": None}, kl_beta=0.01, **options)
    assert not any(value.any() for value in got.values())


def test_a_team_that_solves_its_task_at_once_is_not_beaten_by_one_that_collects_halves():
    """Joint rewards of 3 for a solution, then the end; and of 2 for each of four failures."""
    team = short_and_long()
    rewards = {s.action_id: 3.0 if s.episode_id == "short" else 2.0 for s in team}
    got, _ = advantages(team, rewards, name="magrpo")
    assert got["short/x0"][0] > 0 > got["long/x0"][0]
    as_written, _ = advantages(team, rewards, name="magrpo", returns=PAPER)
    assert as_written["short/x0"][0] < 0 < as_written["long/x0"][0]


@in_modes([mode for mode in FAIR if mode.get("returns") == "own" and mode["normalize_over"] != "role_turn"])
@few
@given(
    st.lists(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 3)), max_size=3), min_size=2, max_size=6),
    st.integers(1, 4),
)
def test_turns_earn_nothing_at_equal_mean_score(options, deviations, length):
    """Each episode takes another number of turns, whose scores are 5 on average over its tokens: its advantages sum
    to 0."""
    team, rewards = [], {}
    for number, listed in enumerate(deviations):
        turns = [(5.0, length), *((5.0 + sign * d, tokens) for d, tokens in listed for sign in (1, -1))]
        for turn, (score, tokens) in enumerate(turns):
            key = f"{number}/x{turn}"
            team.append(sample(key, episode=str(number), role="x", turn=turn, index=turn, length=tokens))
            rewards[key] = score
    got, _ = advantages(team, rewards, **options)
    for number in range(len(deviations)):
        earned = sum(float(v.sum()) for key, v in got.items() if key.startswith(f"{number}/"))
        assert earned == pytest.approx(0, abs=1e-4)


def mean_earned(options, later_turns_score_more):
    """Mean and standard error of the sum of an episode's advantages, by its number of turns, over 150 draws in which
    scores change places at random among the actions of a role and turn."""
    rng = np.random.default_rng(11)
    team = [s for e in range(12) for s in played(str(e), {"x": 1 + e % 4, "y": 2})]
    earned = {turns: [] for turns in range(1, 5)}
    for _ in range(150):
        rewards = {s.action_id: rng.normal(5 + later_turns_score_more * s.turn, 2) for s in team}
        got, _ = advantages(team, rewards, **options)
        for turns, sums in earned.items():
            of = [e for e in range(12) if 1 + e % 4 == turns]
            sums.append(np.mean([sum(got[f"{e}/x{t}"][0] for t in range(turns)) for e in of]))
    return {turns: (np.mean(sums), np.std(sums) / np.sqrt(len(sums))) for turns, sums in earned.items()}


@in_modes([mode for mode in FAIR if mode.get("returns") in ("own", "centered_sum") or mode["name"] == "magrpo"])
def test_on_average_over_whose_scores_they_are_episodes_of_all_lengths_earn_nothing(options):
    """Within 4 standard errors; where returns are centered, though later turns score higher."""
    for mean, error in mean_earned(options, options.get("returns") != "own").values():
        assert abs(mean) < 4 * error


@of_paper
def test_under_the_papers_sum_long_episodes_earn_on_average(options):
    earned = mean_earned(options, False)
    assert earned[4][0] > 10 * earned[4][1] and earned[1][0] < -10 * earned[1][1]


@every_mode
@few
@given(takings, st.data())
def test_two_roles_on_one_policy_have_the_credit_of_roles_on_two(options, turns, data):
    if options.get("normalize_over") == "policy":
        return  # there policies are what is told apart
    apart = [s for number, taken in enumerate(turns) for s in played(str(number), taken)]
    shared = [replace(s, policy="shared") for s in apart]
    rewards = {s.action_id: data.draw(st.integers(0, 10).map(float)) for s in apart}
    one, rewards = seen_by(options, (apart, rewards))
    two, _ = seen_by(options, (shared, rewards))
    same(advantages(one, rewards, **options)[0], advantages(two, rewards, **options)[0])


def test_the_mean_that_was_subtracted_is_a_metric_of_its_role_and_turn():
    team = [s for name in "ab" for s in played(name, {"x": 2})]
    rewards = {"a/x0": 4.0, "b/x0": 6.0, "a/x1": 9.0, "b/x1": None}
    _, batch = advantages(team, rewards, returns="centered_sum")
    assert batch.metrics == {"baseline/x/0": 5.0, "baseline/x/1": 9.0}


def test_centered_sums_by_hand():
    """Held against the others of the turn: -2 and 2, then 3 and -3, and a third turn that stands alone."""
    team = played("a", {"x": 3}) + played("b", {"x": 2})
    rewards = {"a/x0": 4.0, "b/x0": 6.0, "a/x1": 8.0, "b/x1": 5.0, "a/x2": 1.0}
    got, _ = advantages(team, rewards, returns="centered_sum")
    scale = np.sqrt((1 + 9 + 0 + 1 + 9) / 5)
    expected = {"a/x0": 1.0, "a/x1": 3.0, "a/x2": 0.0, "b/x0": -1.0, "b/x1": -3.0}
    assert {key: value[0] for key, value in got.items()} == pytest.approx({k: v / scale for k, v in expected.items()})


def failing(team, rewards, lost):
    return {s.action_id: None if lost(s) else rewards[s.action_id] for s in team}


@every_mode
def test_however_many_fail_no_advantage_is_undefined_and_what_is_left_moves_nothing_alone(options):
    """All fail; one survives; a whole role fails; the long replies fail."""
    rng = np.random.default_rng(5)
    whole = [s for e in range(8) for s in played(str(e), {"x": 1 + e % 3, "y": 2}, length=1 + e, task="pq"[e % 2])]
    drawn = {s.action_id: float(rng.integers(0, 11)) for s in whole}
    team, rewards = seen_by(options, (whole, drawn))
    none_left, batch = advantages(team, failing(team, rewards, lambda s: True), **options)
    assert not any(value.any() for value in none_left.values()) and batch.masked == {"unscored": len(team)}
    assert batch.unknown_returns == {}
    survivor = team[3].action_id
    alone, _ = advantages(team, failing(team, rewards, lambda s: s.action_id != survivor), **options)
    assert all(nothing(value) for value in alone.values())
    for lost in (lambda s: s.role == "y", lambda s: len(s.response_ids_L) > 4):
        got, batch = advantages(team, failing(team, rewards, lost), **options)
        assert all(np.isfinite(value).all() for value in got.values())
        assert not any(got[s.action_id].any() for s in team if lost(s))


@every_fair_mode
@few
@given(batches(), st.sampled_from(["role", "length", "half"]))
def test_those_that_failed_are_as_if_they_had_not_been_there(options, batch, kind):
    """Failures that depend on what failed: a whole role, long replies. They can move no mean that they are not in, and
    in a centered sum they are 0."""
    team, rewards = seen_by(options, batch)
    lost = {
        s.action_id
        for place, s in enumerate(team)
        if {"role": s.role == "y", "length": len(s.response_ids_L) > 1, "half": place % 2 == 0}[kind]
    }
    got, _ = advantages(team, failing(team, rewards, lambda s: s.action_id in lost), **options)
    left, _ = advantages([s for s in team if s.action_id not in lost], rewards, **options)
    same({key: value for key, value in got.items() if key not in lost}, left)
