"""From coach scores or environments to one reward per action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coachrl.config import RewardConfig
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.own_reward import OwnReward
from coachrl.types import Action, CoachScore, Episode

_MOST = 1e38  # near the largest number of 32 bits
RewardsOfEpisode = Callable[[Episode, Mapping[str, CoachScore], RewardConfig], Mapping[str, float | None]]


def action_rewards(
    of_episode: RewardsOfEpisode,
    episodes: Sequence[Episode],
    scores: Mapping[str, CoachScore],
    config: RewardConfig,
    rng: np.random.Generator,
) -> dict[str, float | None]:
    """Action id -> reward, or None where there is none: that action is not trained on.

    of_episode: `Algorithm.rewards`. It is not asked about an episode that broke for no fault of the agents: what that
    came to nobody measured, and of its returns later actions are missing. A call that was given up has none, whatever
    its episode came to. All are multiplied by `scale`. `shuffle` permutes the rewards among the actions of each role:
    the control that keeps every distribution and removes what the scores know.

    Raises ConfigError where a reward is not finite.
    """
    rewards: dict[str, float | None] = {}
    for episode in episodes:
        if episode.infra_error is not None:
            rewards |= dict.fromkeys((action.id for action in episode.all_actions), None)
            continue
        for action_id, value in of_episode(episode, scores, config).items():
            rewards[action_id] = None if value is None else _finite(value * config.scale, action_id)
        rewards |= dict.fromkeys((action.id for action in episode.all_actions if action.is_given_up), None)
    return _shuffled(episodes, rewards, rng) if config.shuffle else rewards


def _finite(reward: float, action_id: str) -> float:
    """One reward that is no number would make all advantages that it is compared with none, and one beyond the numbers
    of training, whose deviation has no end, would make all of them 0."""
    if not abs(reward) <= _MOST:  # NaN fails this too
        raise ConfigError(
            f"the reward of action {action_id} is {reward:g}: rewards must be finite, and at most {_MOST:g} in size; "
            "look at what reward.source gives, and at reward.scale"
        )
    return reward


def source_rewards(episode: Episode, scores: Mapping[str, CoachScore], config: RewardConfig) -> dict[str, float | None]:
    """The rewards of an episode's actions, candidates too, as `config.source` gives them."""
    if config.is_own:
        return OwnReward(config.source).of(episode, scores)
    if config.source == "environment":
        return {action.id: environment_reward(action, config.team_weight) for action in episode.all_actions}
    return {action.id: score_reward(scores.get(action.id)) for action in episode.all_actions}


def asks_coach(config: RewardConfig) -> bool:
    """Whether rewards are made of the coach's scores."""
    return OwnReward(config.source).takes_scores if config.is_own else config.source == "coach"


def environment_reward(action: Action, team_weight: float) -> float | None:
    """Stronger-MAS, Eq. 3: `team_weight * team + local`, where the environment gave anything."""
    return None if action.reward is None else team_weight * action.reward.team + action.reward.local


def score_reward(score: CoachScore | None) -> float | None:
    """The coach's 0-10 score, where there is one."""
    return score.process_0_10 if score is not None and score.status == "scored" else None


def _shuffled(
    episodes: Sequence[Episode], rewards: Mapping[str, float | None], rng: np.random.Generator
) -> dict[str, float | None]:
    by_role: dict[str, list[str]] = {}
    for episode in episodes:
        for action in episode.all_actions:
            if rewards[action.id] is not None:
                by_role.setdefault(action.role, []).append(action.id)
    shuffled = dict(rewards)
    for ids in by_role.values():
        for action_id, source in zip(ids, rng.permutation(len(ids)), strict=True):
            shuffled[action_id] = rewards[ids[source]]
    return shuffled
