"""GRPO: actions of one task against each other (DeepSeekMath, arXiv 2402.03300, Sec. 4.1.2).

    A_a = (r_a - mean r) / (std r + 1e-6)   among the actions of one task

with the unbiased deviation, one value for every token of an action. The group is all actions of the task, whatever
their roles, turns and states. With `group_by` "role" it is those of one role, so that agents whose rewards live on
different levels are not held against each other (agent-wise normalization: Dr. MAS, arXiv 2602.08847); with "turn"
those of one role and turn.

A group whose rewards are all equal says nothing. Its zeros still count in the mean of the loss, unless `without_spread`
"skip" leaves them out, and `refill_up_to` plays further tasks in their place (`group_relative`). `importance_cap`
weighs tokens by what the trainer's model makes of them (`importance`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.trainers.algorithms.advantages.groups import GroupKey, of_role, of_task, of_turn
from coachrl.trainers.algorithms.advantages.importance import weighed
from coachrl.trainers.algorithms.group_relative import GroupRelative, GroupRelativeConfig
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
    from coachrl.config import RunConfig


class GRPOConfig(GroupRelativeConfig):
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


class GRPO(GroupRelative):
    """Rewards of one task's actions, relative to each other. Groups of one and without spread say nothing."""

    Config = GRPOConfig
    settings: GRPOConfig
    min_group_size = 2

    @property
    def needs_trainer_logprobs(self) -> bool:
        return self.settings.importance_cap is not None

    @property
    def skips_without_spread(self) -> bool:
        return self.settings.without_spread == "skip"

    @property
    def group_key(self) -> GroupKey:
        return _KEYS[self.settings.group_by]

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if self.refill_up_to > 1 and not self.skips_without_spread:
            raise ConfigError(
                f"algorithm.refill_up_to={self.refill_up_to} replaces groups without spread, and "
                "algorithm.without_spread=zeros keeps them: set algorithm.without_spread=skip"
            )

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        credited = super().advantages(samples, rewards)
        if self.settings.importance_cap is None:
            return credited
        return weighed(credited, self.settings.importance_cap)
