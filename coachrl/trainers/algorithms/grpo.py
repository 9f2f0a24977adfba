"""GRPO: actions of one task against each other (DeepSeekMath, arXiv 2402.03300, Sec. 4.1.2).

    A_a = (r_a - mean r) / (std r + 1e-6)   among the actions of one task

with the unbiased deviation, one value for every token of an action. The group is all actions of the task, whatever
their roles, turns and states. With `group_by` "role" it is those of one role, so that agents whose rewards live on
different levels are not held against each other (agent-wise normalization: Dr. MAS, arXiv 2602.08847); with "turn"
those of one role and turn.

A group whose rewards are all equal says nothing. Its zeros still count in the mean of the loss, unless `without_spread`
"skip" leaves them out (dynamic sampling without its refill: DAPO, arXiv 2503.14476, Sec. 3.2). `importance_cap` weighs
tokens by what the trainer's model makes of them (`importance`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.advantages.batches import (
    AdvantageBatch,
    Rewards,
    all_samples,
    known_rewards,
    mask_unscored,
    with_advantages,
)
from coachrl.trainers.algorithms.advantages.groups import (
    grouped,
    of_role,
    of_task,
    of_turn,
    relative,
    without_comparison,
)
from coachrl.trainers.algorithms.advantages.importance import TruncatedImportance
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.backends.base import Samples


class GRPOConfig(AlgorithmConfig):
    """The settings of GRPO."""

    name: str = "grpo"
    group_by: Literal["task", "role", "turn"] = Field(
        "task", description="Compare all actions of a task, those of one task and role, or of one task, role and turn."
    )
    without_spread: Literal["zeros", "skip"] = Field(
        "zeros",
        description="What becomes of a group that has nothing to compare. zeros: its actions count in the loss, with "
        "no advantage. skip: they are left out, and counted as masked.",
    )
    importance_cap: float | None = Field(
        None,
        ge=1,
        description="Each token's advantage is multiplied by the ratio of the trainer's probability to the sampler's, "
        "cut at this value (2 is usual), which takes a forward pass more. By default it is not.",
    )


_KEYS = {"task": of_task, "role": of_role, "turn": of_turn}


class GRPO(Algorithm):
    """Rewards of one task's actions, relative to each other. Groups of one and without spread say nothing."""

    Config = GRPOConfig
    settings: GRPOConfig
    min_group_size = 2

    @property
    def needs_trainer_logprobs(self) -> bool:
        return self.settings.importance_cap is not None

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        groups = grouped(all_samples(batch), known_rewards(batch, rewards), _KEYS[self.settings.group_by])
        leave_out = without_comparison(groups) if self.settings.without_spread == "skip" else {}
        credited = with_advantages(batch, relative(groups, scaled=True), leave_out=leave_out, groups=groups)
        if self.settings.importance_cap is None:
            return credited
        return TruncatedImportance(self.settings.importance_cap).weigh(credited)
