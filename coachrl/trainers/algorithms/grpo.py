"""GRPO: actions of one task against each other (DeepSeekMath, arXiv 2402.03300, Sec. 4.1.2).

    A_a = (r_a - mean r) / (std r + 1e-6)   among the actions of one task

with the unbiased deviation, one value for every token of an action. The group is all actions of the task, whatever
their roles, turns and states; with `group_by` "turn" those of one role and turn.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.batches import (
    AdvantageBatch,
    Rewards,
    all_samples,
    known_rewards,
    mask_unscored,
    with_advantages,
)
from coachrl.trainers.algorithms.groups import grouped, of_task, of_turn, relative
from coachrl.trainers.backends.base import Samples


class GRPOConfig(AlgorithmConfig):
    """The settings of GRPO."""

    name: str = "grpo"
    group_by: Literal["task", "turn"] = Field(
        "task", description="Compare all actions of a task, or those of one task, role and turn."
    )


class GRPO(Algorithm):
    """Rewards of one task's actions, relative to each other. Groups of one and without spread give zeros."""

    Config = GRPOConfig
    settings: GRPOConfig
    min_group_size = 2

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        key = of_turn if self.settings.group_by == "turn" else of_task
        groups = grouped(all_samples(batch), known_rewards(batch, rewards), key)
        return with_advantages(batch, relative(groups, scaled=True), groups=groups)
