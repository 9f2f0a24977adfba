"""MAGRPO: joint returns of a task's episodes against each other (arXiv 2508.04652, Eq. 1 and 2).

    R_t = sum_{u >= t} r_u        over the agent's actions from turn t on
    A_t = R_t - mean R_t          among the episodes of one task, for each role and turn (no deviation)

The loss is each token's log-likelihood times its advantage, without ratio or clip (Eq. 2), so that nothing corrects for
data of older weights.
"""

from __future__ import annotations

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.batches import AdvantageBatch, Rewards, all_samples, mask_unscored, with_advantages
from coachrl.trainers.algorithms.groups import grouped, of_turn, relative
from coachrl.trainers.algorithms.returns import joint_returns
from coachrl.trainers.backends.base import Samples


class MAGRPOConfig(AlgorithmConfig):
    """MAGRPO has no settings of its own; how many episodes are compared is `train.group_size`."""

    name: str = "magrpo"


class MAGRPO(Algorithm):
    """Joint returns of whole episodes, side by side. A reply that was cut short still counts in sums and means."""

    Config = MAGRPOConfig
    loss = "magrpo"
    min_group_size = 2
    takes_stale_data = False

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        returns = joint_returns(everything, rewards)
        groups = grouped(everything, returns.by_action, of_turn)
        return with_advantages(batch, relative(groups, scaled=False), unknown_returns=returns.unknown, groups=groups)
