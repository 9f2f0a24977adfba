"""From scores and environments to one reward per action."""

from dataclasses import replace

import numpy as np
import pytest
from test_retrospective import episode, scored

from coachrl.config import RewardConfig
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.rewards import (
    action_rewards,
    environment_reward,
    score_reward,
    source_rewards,
)
from coachrl.types import GIVEN_UP, CoachScore, Reward

RNG = np.random.default_rng(0)


def test_a_score_that_failed_or_was_not_asked_for_is_no_number():
    assert score_reward(CoachScore("a", "scored", 7.0)) == 7.0
    assert score_reward(CoachScore("a", "failed", None)) is None and score_reward(None) is None


def test_an_environments_reward_weighs_the_teams_part():
    [action, unrewarded] = episode("e", 2).actions
    assert environment_reward(replace(action, reward=Reward(team=2.0, local=0.25)), 0.5) == 1.25
    assert environment_reward(unrewarded, 0.5) is None


def test_the_source_decides_and_candidates_are_rewarded_too():
    played = episode("e", 2)
    candidate = replace(played.actions[0], id="e/0.1", reward=Reward(1.0, 1.0))
    played = replace(played, rejected_candidates=(candidate,))
    scores = scored(played, (8, None), (6, None))
    assert source_rewards(played, scores, RewardConfig()) == {"e/0": 8, "e/1": 6, "e/0.1": None}
    by_environment = source_rewards(played, scores, RewardConfig(source="environment"))
    assert by_environment == {"e/0": None, "e/1": None, "e/0.1": 2.0}


def test_scale_multiplies_what_there_is():
    played = episode("e", 2)
    scores = scored(played, (8, None), (None, None))
    assert action_rewards(source_rewards, [played], scores, RewardConfig(scale=0.5), RNG) == {"e/0": 4.0, "e/1": None}


def test_an_episode_that_broke_has_no_reward_whoever_gives_it_and_nobody_is_asked():
    broken, whole = replace(episode("b", 2), infra_error="timeout: 9 s"), episode("w", 1)
    asked = []

    def by_outcome(played, scores, config):
        asked.append(played.id)
        return {action.id: float(played.outcome.success) for action in played.actions}

    rewards = action_rewards(by_outcome, [broken, whole], {}, RewardConfig(), RNG)
    assert rewards == {"b/0": None, "b/1": None, "w/0": 1.0} and asked == ["w"]


def test_a_call_that_its_app_left_has_no_reward_whatever_its_episode_came_to():
    played = episode("e", 2)
    left = replace(played.actions[1], text="", response_ids=(), result=GIVEN_UP)
    played = replace(played, actions=(played.actions[0], left))

    def by_outcome(played, scores, config):
        return {action.id: 10.0 for action in played.actions}

    assert action_rewards(by_outcome, [played], {}, RewardConfig(), RNG) == {"e/0": 10.0, "e/1": None}
    assert not replace(left, text="what it was told").is_given_up, "an agent's own words are no sign of it"
    assert not replace(left, response_ids=(2,)).is_given_up


def test_shuffling_keeps_each_roles_rewards_and_what_is_unknown():
    episodes = [episode(str(i), 2) for i in range(6)]
    scores = {}
    for number, played in enumerate(episodes):
        scores |= scored(played, (number, None), (None if number == 0 else number + 10, None))
    plain = action_rewards(source_rewards, episodes, scores, RewardConfig(), RNG)
    shuffled = action_rewards(source_rewards, episodes, scores, RewardConfig(shuffle=True), np.random.default_rng(1))
    assert plain == {f"{n}/0": n for n in range(6)} | {f"{n}/1": n + 10 if n else None for n in range(6)}
    assert shuffled != plain and shuffled["0/1"] is None
    for place in ("0", "1"):
        ids = [f"{number}/{place}" for number in range(6) if plain[f"{number}/{place}"] is not None]
        assert sorted(shuffled[i] for i in ids) == sorted(plain[i] for i in ids)


@pytest.mark.parametrize("override", [{"scale": 0}, {"team_weight": -1}, {"source": "world"}])
def test_settings_out_of_bounds_are_refused(override):
    with pytest.raises(ValueError, match=next(iter(override))):
        RewardConfig(**override)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 1e308, 1e200, -1e200])
def test_a_reward_that_is_no_finite_number_is_refused_in_one_line(given):
    played = episode("e", 1)
    played = replace(played, actions=(replace(played.actions[0], reward=Reward(given, 0.0)),))
    config = RewardConfig(source="environment", scale=10.0)
    message = r"the reward of action e/0 is (nan|inf|-?1e.2..): rewards must be finite.*at what reward.source gives"
    with pytest.raises(ConfigError, match=message):
        action_rewards(source_rewards, [played], {}, config, RNG)
