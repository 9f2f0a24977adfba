"""GRPO and MAGRPO on the outcome of an episode, in place of scores: what a team has without a coach.

coachrl train --config quickstart 'algorithm={name: outcome_groups:OutcomeGRPO}' train.group_size=4
"""

from __future__ import annotations

from coachrl.trainers.algorithms.grpo import GRPO
from coachrl.trainers.algorithms.magrpo import MAGRPO
from coachrl.trainers.algorithms.outcome import Outcome


class OutcomeGRPO(GRPO):
    """GRPO among the episodes of a task, by role: each action earns what its episode came to."""

    reads_reward_source = False
    rewards = Outcome.rewards


class OutcomeMAGRPO(MAGRPO):
    """MAGRPO whose joint reward is the outcome. Of roles that act once, it is the return of every action."""

    reads_reward_source = False
    rewards = Outcome.rewards
