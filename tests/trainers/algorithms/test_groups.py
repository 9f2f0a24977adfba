"""What must hold of every algorithm that compares actions with each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_samples import advantages, sample

from coachrl.trainers.algorithms.advantages.groups import Groups, Places, of_role, of_state, of_task, of_turn


def test_keys_tell_tasks_turns_and_states_apart():
    team = [
        sample("a", task="p", episode="1"),
        sample("b", task="p", episode="2"),
        sample("c", task="p", episode="1", role="b"),
        sample("d", task="q", episode="3"),
    ]

    def told_apart(key):
        numbers = {}
        return [numbers.setdefault(key(s), len(numbers)) for s in team]

    assert told_apart(of_task) == [0, 0, 0, 1]
    assert told_apart(of_role) == told_apart(of_turn) == [0, 0, 1, 2]
    assert told_apart(of_state) == [0, 1, 2, 3]


def test_what_is_not_known_is_in_no_mean_and_is_0_after_centering():
    """a: 1, 3 and one that is not known; b: 5 alone; c: nothing is known."""
    places, unknown = Places("aaabc"), 99.0
    values, known = np.array([1.0, 3.0, unknown, 5.0, unknown]), np.array([True, True, False, True, False])
    centered, means = places.center(values, known, leave_one_out=False)
    assert centered.tolist() == [-1.0, 1.0, 0.0, 0.0, 0.0] and means == {"a": 2.0, "b": 5.0}
    against_others, means = places.center(values, known, leave_one_out=True)
    assert against_others.tolist() == [-2.0, 2.0, 0.0, 0.0, 0.0] and means == {"a": 2.0, "b": 5.0}
    assert places.means(values, known).tolist() == [2.0, 2.0, 2.0, 5.0, 0.0]
    assert places.means(values, known, -7.0).tolist() == [2.0, 2.0, 2.0, 5.0, -7.0]
    assert places.sums(known).tolist() == [2.0, 1.0, 0.0]
    pivots, differences = places.from_one(values, known)
    assert differences[known].tolist() == [value - pivots[place] for place, value in ((0, 1), (0, 3), (1, 5))]
    assert differences[~known].tolist() == [0.0, 0.0] and pivots[1] == 5.0 and pivots[0] in (1.0, 3.0)


def test_the_tasks_that_have_something_to_compare_are_told_and_no_others():
    team = [sample(name, task=task) for name, task in zip("abcdef", "pqqrrr", strict=True)]
    values = {"a": 3.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 4.0}
    assert Groups(team, values, of_task).tasks_with_spread() == {"r"}
    assert Groups(team, values | {"c": 2.0}, of_task).tasks_with_spread() == {"q", "r"}
    assert Groups([], {}, of_task).tasks_with_spread() == set()


def test_what_has_nothing_to_compare_with_is_not_in_the_advantages():
    team = [sample(name, task=task) for name, task in zip("abcdef", "pqqrrr", strict=True)]
    groups = Groups(team, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 4.0}, of_task)
    assert groups.relative(scaled=False) == {"d": -2.0, "e": 2.0}
    assert groups.relative(scaled=True)["e"] == pytest.approx(2 / (np.sqrt(8) + 1e-6))
    assert groups.against_others() == {"d": -4.0, "e": 4.0}
    assert groups.without_comparison() == {"a": "group_of_one", "b": "no_spread", "c": "no_spread"}
    assert (groups.count, groups.of_one, groups.without_spread) == (3, 1, 1)


def one_group_after_the_other(team, values, key, compare):
    """The formulas as they are written: a loop over groups, and over the members of each."""
    groups = {}
    for s in team:
        if s.action_id in values:
            groups.setdefault(key(s), []).append(s.action_id)
    found = {}
    for members in groups.values():
        given_ = [values[name] for name in members]
        if len(set(given_)) > 1:
            found |= {name: compare(values[name], given_) for name in members}
    return found


FORMULAS = {
    "less the mean": lambda value, given_: value - np.mean(given_),
    "over the deviation": lambda value, given_: (value - np.mean(given_)) / (np.std(given_, ddof=1) + 1e-6),
    "less the mean of the others": lambda value, given_: value - (sum(given_) - value) / (len(given_) - 1),
}


@pytest.mark.parametrize("key", [of_task, of_role, of_turn, of_state])
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"),
            st.sampled_from("ab"),
            st.integers(0, 1),
            st.none() | st.integers(-40, 40),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_arrays_over_all_groups_give_what_a_loop_over_groups_gives(key, drawn):
    team = [
        sample(str(i), task=task, episode=task, role=role, turn=turn) for i, (task, role, turn, *_) in enumerate(drawn)
    ]
    values = {str(i): value / 4 + 1000 * far for i, (*_, value, far) in enumerate(drawn) if value is not None}
    groups = Groups(team, values, key)
    found = {
        "less the mean": groups.relative(scaled=False),
        "over the deviation": groups.relative(scaled=True),
        "less the mean of the others": groups.against_others(),
    }
    for name, formula in FORMULAS.items():
        plain = one_group_after_the_other(team, values, key, formula)
        assert found[name] == {
            action_id: pytest.approx(value, rel=1e-12, abs=1e-12) for action_id, value in plain.items()
        }


GROUPED = {"at_grpo": {}, "magrpo": {}, "grpo": {"group_by": "turn"}}


@pytest.mark.parametrize("name", GROUPED)
@given(
    st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("ab"), st.integers(0, 1), st.floats(0, 3)), max_size=24),
    st.floats(-100, 100),
)
def test_groups_never_mix_problems_turns_or_roles(name, drawn, far):
    """What happens to rewards of one problem, role and turn moves no advantage of another one."""
    team = [
        sample(str(i), task=task, episode=f"{task}{turn if name == 'at_grpo' else i}", role=role, turn=turn, index=i)
        for i, (task, role, turn, _) in enumerate(drawn)
    ]
    rewards = {str(i): reward for i, (*_, reward) in enumerate(drawn)}
    moved = {s.action_id: far if (s.task_id, s.role, s.turn) == ("p", "a", 0) else rewards[s.action_id] for s in team}
    before, _ = advantages(team, rewards, name=name, **GROUPED[name])
    after, _ = advantages(team, moved, name=name, **GROUPED[name])
    for s in team:
        if (s.task_id, s.role, s.turn) != ("p", "a", 0):
            np.testing.assert_array_equal(before[s.action_id], after[s.action_id])


@pytest.mark.parametrize("name", [*GROUPED, "task"])
@given(st.lists(st.integers(0, 40), min_size=2, max_size=8), st.randoms(use_true_random=False), st.integers(-9, 9))
def test_permuting_permutes_and_a_constant_changes_nothing(name, quarters, random, constant):
    options = {"name": "grpo"} if name == "task" else {"name": name, **GROUPED[name]}
    values = [quarter / 4 for quarter in quarters]
    team = [sample(str(i), episode="e" if name == "at_grpo" else str(i)) for i in range(len(values))]
    order = list(range(len(values)))
    random.shuffle(order)
    plain, _ = advantages(team, {str(i): values[i] for i in order}, **options)
    permuted, _ = advantages(team, {str(i): values[order[i]] for i in order}, **options)
    lifted, _ = advantages(team, {str(i): values[i] + constant for i in order}, **options)
    for i in range(len(values)):
        assert permuted[str(i)] == pytest.approx(plain[str(order[i])], abs=1e-6)
        assert lifted[str(i)] == pytest.approx(plain[str(i)], abs=1e-6)
    assert sum(float(value[0]) for value in plain.values()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", [*GROUPED, "task"])
@given(st.floats(-5, 5), st.integers(1, 5))
def test_a_group_with_no_spread_contributes_nothing(name, value, size):
    options = {"name": "grpo"} if name == "task" else {"name": name, **GROUPED[name]}
    team = [sample(str(i), episode="e" if name == "at_grpo" else str(i)) for i in range(size)]
    got, batch = advantages(team, {str(i): value for i in range(size)}, **options)
    assert not any(advantage.any() for advantage in got.values())
    assert batch.groups_of_one + batch.groups_without_spread == batch.groups == 1


@pytest.mark.parametrize("name", ["at_grpo", "magrpo", "grpo", "reinforce_pp"])
def test_every_token_of_a_reply_has_credit_its_last_one_too(name):
    team = [sample("x", length=5, episode="1"), sample("y", length=2, episode="1" if name == "at_grpo" else "2")]
    got, _ = advantages(team, {"x": 1.0, "y": 0.0}, name=name)
    assert got["x"].shape == (5,) and (got["x"] > 0).all() and (got["y"] < 0).all()
