"""From coach scores or outcomes to one reward per action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coachrl.config import AdvantageConfig
from coachrl.types import CoachScore, Episode

OUTCOME_REWARD = 10.0  # a success, on the coach's own 0-10 scale


def action_rewards(
    episodes: Sequence[Episode],
    scores: Mapping[str, CoachScore],
    config: AdvantageConfig,
    rng: np.random.Generator,
) -> dict[str, float | None]:
    """Action id -> reward, or None where there is none to be had: that action is not trained on.

    Mode "outcome" broadcasts 10 for success and 0 for failure to every action; all others take the coach's 0-10 score.
    Both are multiplied by `reward_scale`. `shuffle_scores` permutes the rewards among the actions of each role: the
    control that keeps every distribution and removes what the scores know.
    """
    rewards: dict[str, float | None] = {}
    for episode in episodes:
        for action in episode.actions:
            value = _outcome(episode) if config.mode == "outcome" else _score(scores.get(action.id))
            rewards[action.id] = None if value is None else value * config.reward_scale
    return _shuffled(episodes, rewards, rng) if config.shuffle_scores else rewards


def _outcome(episode: Episode) -> float | None:
    return None if episode.fault else OUTCOME_REWARD * float(episode.outcome.success)


def _score(score: CoachScore | None) -> float | None:
    return score.process_0_10 if score is not None and score.status == "scored" else None


def _shuffled(
    episodes: Sequence[Episode], rewards: Mapping[str, float | None], rng: np.random.Generator
) -> dict[str, float | None]:
    by_role: dict[str, list[str]] = {}
    for episode in episodes:
        for action in episode.actions:
            if rewards[action.id] is not None:
                by_role.setdefault(action.role, []).append(action.id)
    shuffled = dict(rewards)
    for ids in by_role.values():
        for action_id, source in zip(ids, rng.permutation(len(ids)), strict=True):
            shuffled[action_id] = rewards[ids[source]]
    return shuffled
