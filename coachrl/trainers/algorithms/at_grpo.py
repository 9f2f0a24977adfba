"""AT-GRPO: candidates of one state against each other (Stronger-MAS, arXiv 2510.11062, Alg. 1).

    A_a = (r_a - mean r) / (std r + 1e-6)   among the candidates of one episode, role and turn

with the unbiased deviation, one value for every token of an action. Tree sampling draws the candidates.
"""

from __future__ import annotations

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.advantages.batches import (
    AdvantageBatch,
    Rewards,
    all_samples,
    known_rewards,
    mask_unscored,
    with_advantages,
)
from coachrl.trainers.algorithms.advantages.groups import grouped, of_state, relative, without_comparison
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.backends.base import Samples


class ATGRPOConfig(AlgorithmConfig):
    """AT-GRPO has no settings of its own; how many candidates are drawn is `sampling.candidates`."""

    name: str = "at_grpo"


class ATGRPO(Algorithm):
    """Rewards of the candidates of one state, relative to each other.

    A group of one, or without spread, gives no sample: its actions are masked, so that they do not count in the loss.
    """

    Config = ATGRPOConfig
    scheme = "tree"

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        groups = grouped(all_samples(batch), known_rewards(batch, rewards), of_state)
        return with_advantages(
            batch, relative(groups, scaled=True), leave_out=without_comparison(groups), groups=groups
        )
