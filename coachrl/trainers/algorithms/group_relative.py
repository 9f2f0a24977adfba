"""Rewards relative to those of a group: what GRPO and AT-GRPO have in common.

    A_a = (r_a - mean r) / (std r + 1e-6)   among the actions of one group

with the unbiased deviation, one value for every token of an action. A group whose rewards are all equal says nothing;
where too few of a step's groups say something, `refill_up_to` plays further tasks (dynamic sampling: DAPO, arXiv
2503.14476, Sec. 3.2).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch, with_advantages
from coachrl.trainers.algorithms.advantages.groups import GroupKey, Groups
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards, known_rewards, mask_unscored
from coachrl.trainers.samples import all_samples

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
    from coachrl.config import RunConfig


class GroupRelativeConfig(AlgorithmConfig):
    """What algorithms that compare rewards inside groups have in common."""

    refill_up_to: int = Field(
        1,
        ge=1,
        description="A step plays further tasks in the place of those whose rewards are all equal, until it has "
        "train.tasks_per_step others or has played this many times as many. 1 plays none.",
    )


class GroupRelative(Algorithm):
    """A subclass says what a group is, and what becomes of one that has nothing to compare."""

    Config = GroupRelativeConfig
    settings: GroupRelativeConfig

    @property
    def skips_without_spread(self) -> bool:
        """Whether a group of one, or without spread, is masked. Else its zeros count in the mean of the loss."""
        return True

    @property
    @abstractmethod
    def group_key(self) -> GroupKey:
        """What the samples of a group share."""

    @property
    def refill_up_to(self) -> int:
        return self.settings.refill_up_to

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if self.refill_up_to > 1 and config.backend == "openrlhf" and config.openrlhf.one_step_off:
            raise ConfigError(
                f"algorithm.refill_up_to={self.refill_up_to} plays further tasks once a step is scored, and "
                "openrlhf.one_step_off=true plays the next step meanwhile: set one of them to its default"
            )

    def tasks_to_compare(self, samples: Samples, rewards: Rewards) -> set[str]:
        return self._groups(mask_unscored(samples, rewards), rewards).tasks_with_spread()

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        batch = mask_unscored(samples, rewards)
        groups = self._groups(batch, rewards)
        leave_out = groups.without_comparison() if self.skips_without_spread else {}
        return with_advantages(batch, groups.relative(scaled=True), leave_out=leave_out, groups=groups)

    def _groups(self, batch: Samples, rewards: Rewards) -> Groups:
        everything = all_samples(batch)
        return Groups(everything, known_rewards(everything, rewards), self.group_key)
