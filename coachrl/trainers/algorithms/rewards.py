"""From coach scores, environments or outcomes to one reward per action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coachrl.config import AdvantageConfig, RetrospectiveCreditConfig
from coachrl.tasks.tabular.grading import FAILED
from coachrl.types import Action, CoachScore, Episode, Outcome

OUTCOME_REWARD = 10.0  # a success, on the coach's own 0-10 scale


def action_rewards(
    episodes: Sequence[Episode],
    scores: Mapping[str, CoachScore],
    config: AdvantageConfig,
    rng: np.random.Generator,
) -> dict[str, float | None]:
    """Action id -> reward, or None where there is none to be had: that action is not trained on.

    Mode "outcome" broadcasts 10 for success and 0 for failure to every action; "retrospective" gives
    alpha * score + beta * contribution; all others take the coach's 0-10 score or, with `rewards` "environment",
    alpha * team + local. All are multiplied by `reward_scale`. `shuffle_scores` permutes the rewards among the actions
    of each role: the control that keeps every distribution and removes what the scores know.
    """
    rewards: dict[str, float | None] = {}
    for episode in episodes:
        retrospective = contributions(episode, scores, config.backprop) if config.mode == "retrospective" else {}
        for action in episode.all_actions:
            value = _reward(episode, action, scores.get(action.id), config)
            if config.mode == "retrospective":
                value = _backpropagated(value, retrospective[action.id], config.backprop)
            rewards[action.id] = None if value is None else value * config.reward_scale
    return _shuffled(episodes, rewards, rng) if config.shuffle_scores else rewards


def contributions(
    episode: Episode, scores: Mapping[str, CoachScore], config: RetrospectiveCreditConfig
) -> dict[str, float | None]:
    """Action id -> signed contribution c_k to the episode's outcome (MAPPA, App. F); None where the retrospective pass
    gave none. With consistency "normalize" all are None where one is, or where they cannot be made to sum to the
    outcome.
    """
    found = {a.id: score.contribution if (score := scores.get(a.id)) is not None else None for a in episode.actions}
    if config.consistency == "none":
        return found
    given = [value for value in found.values() if value is not None]
    scaled = consistent(given, outcome_worth(episode.outcome)) if len(given) == len(found) else None
    return dict.fromkeys(found) if scaled is None else dict(zip(found, scaled, strict=True))


def consistent(contributions_K: Sequence[float], worth: float) -> list[float] | None:
    """The contributions, rescaled so that they sum to `worth` (MAPPA, Eq. 7).

    What is missing, or too much, is shared out in proportion to their sizes: c + |c| * (worth - sum c) / sum |c|. Where
    all have the sign of `worth` that is one common factor; contributions that cancel out do not blow up, and an action
    without a contribution keeps none. None where there is nothing to share out to.
    """
    size = sum(map(abs, contributions_K))
    if size == 0:
        return list(contributions_K) if worth == 0 else None
    factor = (worth - sum(contributions_K)) / size
    return [value + abs(value) * factor for value in contributions_K]


def outcome_worth(outcome: Outcome) -> float:
    """The outcome as one number, -10 to 10 (s(y) of MAPPA, Eq. 7): -10 for a failure and 10 for a success; a success
    that is measured by degrees counts 0 where it is no better than what needs no skill: 10 * (2 * ROC-AUC - 1), or
    10 * (1 - RMSE / 50 % of the range of the targets), never below 0."""
    if not outcome.success:
        return -OUTCOME_REWARD
    quality = 1.0
    if "roc_auc" in outcome.metrics:
        quality = 2 * outcome.metrics["roc_auc"] - 1
    elif "rmse_pct_range" in outcome.metrics:
        quality = 1 - outcome.metrics["rmse_pct_range"] / FAILED["regression"]["rmse_pct_range"]
    return OUTCOME_REWARD * max(0.0, quality)


def _backpropagated(
    process: float | None, contribution: float | None, config: RetrospectiveCreditConfig
) -> float | None:
    """r_k = alpha * p_k + beta * c_k (MAPPA, Eq. 6); none of it where one of the two is missing."""
    if process is None or contribution is None:
        return None
    return config.alpha * process + config.beta * contribution


def _reward(episode: Episode, action: Action, score: CoachScore | None, config: AdvantageConfig) -> float | None:
    if config.mode == "outcome":
        return _outcome(episode)
    return environment_reward(action, config.alpha) if config.rewards == "environment" else score_reward(score)


def environment_reward(action: Action, alpha: float) -> float | None:
    """Stronger-MAS, Eq. 3: `alpha * team + local`, where the environment gave anything."""
    return None if action.reward is None else alpha * action.reward.team + action.reward.local


def score_reward(score: CoachScore | None) -> float | None:
    """The coach's 0-10 score, where there is one."""
    return score.process_0_10 if score is not None and score.status == "scored" else None


def _outcome(episode: Episode) -> float | None:
    return None if episode.infra_error else OUTCOME_REWARD * float(episode.outcome.success)


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
