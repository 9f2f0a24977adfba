"""MAGRPO: joint returns of a task's episodes against each other (arXiv 2508.04652, Eq. 1 and 2).

    A_t = sum_{u >= t} (r_u - mean r_u)    over the agent's actions from turn t on

each mean among the episodes of one task, for the role and turn, and no deviation. Where all episodes take equally many
turns this is the paper's

    A_t = R_t - mean R_t,   R_t = sum_{u >= t} r_u

Where some end early, that one as written pays for turns: rewards are not negative, so that an episode that solves its
task at once returns less than one that collects halves for long. `returns: sum_as_in_the_paper` has it.

The loss is each token's log-likelihood times its advantage, without ratio or clip (Eq. 2), so that nothing corrects for
data of older weights.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch, with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_turn
from coachrl.trainers.algorithms.advantages.returns import centered_joint_returns, joint_returns
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards, mask_unscored
from coachrl.trainers.samples import all_samples


class MAGRPOConfig(AlgorithmConfig):
    """The settings of MAGRPO; how many episodes are compared is `train.group_size`."""

    name: str = "magrpo"
    returns: Literal["centered_sum", "sum_as_in_the_paper"] = Field(
        "centered_sum",
        description="centered_sum: each reward is held against the mean of its turn, then summed over later turns "
        "of the agent. sum_as_in_the_paper: summed first, which pays for turns where episodes take unequally many.",
    )


class MAGRPO(Algorithm):
    """Joint returns of whole episodes, side by side. A reply that was cut short still counts in sums and means."""

    Config = MAGRPOConfig
    settings: MAGRPOConfig
    loss = "policy_gradient"
    min_group_size = 2
    takes_stale_data = False

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        centered = self.settings.returns == "centered_sum"
        returns = (centered_joint_returns if centered else joint_returns)(everything, rewards)
        groups = Groups(everything, returns.by_action, of_turn)
        advantages = returns.by_action if centered else groups.relative(scaled=False)
        return with_advantages(batch, advantages, unknown_returns=returns.unknown, groups=groups)
