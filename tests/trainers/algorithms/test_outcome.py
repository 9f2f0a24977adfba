"""Outcome rewards: what an episode came to, for each of its actions."""

import pytest
from test_retrospective import episode, scored
from train_samples import advantages, algorithm, played

from coachrl.config import RewardConfig

OUTCOME = algorithm("outcome")


def test_every_action_of_an_episode_gets_10_for_a_success_and_0_for_a_failure():
    won, lost = episode("won", 2), episode("lost", 2, success=False)
    assert OUTCOME.rewards(won, {}, RewardConfig()) == {"won/0": 10.0, "won/1": 10.0}
    assert OUTCOME.rewards(lost, scored(lost, (9, 0), (9, 0)), RewardConfig()) == {"lost/0": 0.0, "lost/1": 0.0}


@pytest.mark.parametrize("source", ["coach", "environment"])
def test_neither_a_coach_nor_an_environment_is_asked(source):
    assert not OUTCOME.needs_coach(RewardConfig(source=source))
    assert not OUTCOME.needs_environment(RewardConfig(source=source))


def test_its_advantages_are_those_of_reinforce_pp():
    team = played("a", {"x": 2}) + played("b", {"x": 1})
    rewards = {"a/x0": 10.0, "a/x1": 10.0, "b/x0": 0.0}
    by_outcome, _ = advantages(team, rewards, "outcome")
    assert by_outcome == {key: pytest.approx(value) for key, value in advantages(team, rewards)[0].items()}
    assert by_outcome["a/x0"] > 0 > by_outcome["b/x0"]
