"""The protocol of an algorithm: what it declares about itself, and how it makes advantages of rewards.

Whatever a run has to know of its algorithm is asked of it here. No other module compares an algorithm's name. This
module holds all that the author of one needs to import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from coachrl.config import RewardConfig
from coachrl.config.algorithm import SHIPPED, AlgorithmConfig, Loss, Scheme, find_algorithm
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch, with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_role, of_task, of_turn
from coachrl.trainers.algorithms.advantages.rewards import asks_coach, source_rewards
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards, known_rewards, mask_unscored
from coachrl.trainers.samples import all_samples
from coachrl.types import CoachScore, Episode

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
    from coachrl.config import RunConfig
    from coachrl.pipelines.base import Pipeline
    from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext

__all__ = [
    "AdvantageBatch",
    "Algorithm",
    "AlgorithmConfig",
    "Explored",
    "Groups",
    "Rewards",
    "Samples",
    "all_samples",
    "known_rewards",
    "mask_unscored",
    "of_role",
    "of_task",
    "of_turn",
    "with_advantages",
]


@dataclass(frozen=True)
class Explored:
    """The episodes of a step with what was found out about them, and metrics of it by their whole names."""

    episodes: Sequence[Episode]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Algorithm(ABC):
    """Turns the rewards of actions into advantages of tokens, and says what it needs for that.

    A subclass declares what differs from the class attributes below, implements `advantages`, and names the class of
    its own settings in `Config`; a run makes it with those settings. docs/algorithms.md has an example.
    """

    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    """The section of the configuration that holds its own keys."""
    loss: ClassVar[Loss] = "ppo"
    """What the backend minimizes: PPO's clipped ratio ("ppo"), or without a ratio the log-likelihood times the
    advantage, negated ("policy_gradient", as in MAGRPO). Tokens are averaged by `train.loss_aggregation`."""
    scheme: ClassVar[Scheme] = "parallel"
    """How episodes must be sampled (`sampling.scheme`): "tree" where it compares candidates of one state."""
    min_group_size: ClassVar[int] = 1
    """Episodes of one task that a step must hold (`train.group_size`): 2 where it compares them with each other."""
    takes_stale_data: ClassVar[bool] = True
    """Whether it may train on what weights one update old have written (`openrlhf.one_step_off`)."""
    needs_retrospective_pass: ClassVar[bool] = False
    """Whether the coach has to walk back over every episode, and give contributions beside scores."""
    reads_reward_source: ClassVar[bool] = True
    """Whether its rewards come from `reward.source`. False where it makes them of the episodes alone."""

    def __init__(self, settings: AlgorithmConfig) -> None:
        self.settings = settings

    @property
    def needs_reference(self) -> bool:
        """Whether samples need the log-probabilities of the initial weights (for a KL term)."""
        return False

    @property
    def needs_trainer_logprobs(self) -> bool:
        """Whether samples need the log-probabilities that the weights to be trained give them, beside the sampler's."""
        return False

    @property
    def refill_up_to(self) -> int:
        """How many times its tasks a step may play, to replace those that are not among `tasks_to_compare`."""
        return 1

    def needs_coach(self, reward: RewardConfig) -> bool:
        return self.reads_reward_source and asks_coach(reward)

    def rewarded_by(self, config: RunConfig) -> str:
        """Who rewards the actions, for people."""
        if not self.reads_reward_source:
            return "made by the algorithm, of what episodes came to; no coach"
        return f"coach `{config.coach.label}`" if config.reward.source == "coach" else f"`{config.reward.source}`"

    def scores_role(self, role: str) -> bool:
        """Whether the coach is asked for scores of this role's actions, where it is asked at all."""
        return True

    def needs_environment(self, reward: RewardConfig) -> bool:
        """Whether the pipeline's environment has to reward its actions."""
        return self.reads_reward_source and reward.source == "environment"

    def check(self, config: RunConfig) -> None:  # noqa: B027  most go with any
        """Raises ConfigError where the rest of the configuration does not go with this algorithm. What follows from the
        class attributes above is checked before."""

    def check_declared(self, config: RunConfig) -> None:
        """Raises ConfigError where the configuration does not go with what this class declares."""
        name, sampling = self.settings.name, config.sampling
        if config.train.group_size < self.min_group_size:
            raise ConfigError(
                f"algorithm.name={name} compares episodes of one task: set train.group_size to "
                f"{self.min_group_size} or more"
            )
        if self.scheme == "tree" and (sampling.scheme != "tree" or sampling.candidates < 2):
            raise ConfigError(
                f"algorithm.name={name} compares candidates of one state: set sampling.scheme=tree and "
                f"sampling.candidates to 2 or more (they are {sampling.scheme} and {sampling.candidates})"
            )
        if config.backend == "openrlhf" and config.openrlhf.one_step_off and not self.takes_stale_data:
            raise ConfigError(
                f"openrlhf.one_step_off=true trains on what older weights wrote, and algorithm.name={name} "
                "has no correction for that: set openrlhf.one_step_off=false"
            )
        if sampling.scheme == "tree":
            self._check_tree(config)

    def _check_tree(self, config: RunConfig) -> None:
        if self.scheme != "tree":
            takers = [other for other in SHIPPED if find_algorithm(other).scheme == "tree"]
            raise ConfigError(
                f"sampling.scheme=tree draws candidates that only algorithm.name={' or '.join(takers)} compares "
                f"(it is {self.settings.name})"
            )
        if self.reads_reward_source and config.reward.is_own:
            raise ConfigError(
                "sampling.scheme=tree rewards candidates before the episode has ended, and a reward of your own is of "
                "a whole episode: take reward.source=coach or environment"
            )
        shown = config.coach.evidence.ground_truth
        if self.needs_coach(config.reward) and shown != "none":
            raise ConfigError(
                "sampling.scheme=tree needs each score before the episode goes on, when its outcome is not known yet: "
                f"set coach.evidence.ground_truth=none (it is {shown}), or reward.source=environment"
            )

    def check_pipeline(self, pipeline: Pipeline) -> None:  # noqa: B027  most go with any
        """Raises ConfigError where this algorithm cannot train with `pipeline`."""

    def rewards(self, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig) -> Rewards:
        """The reward of each action of `episode`, candidates too, before scaling and shuffling: here the one of
        `reward.source`. None where there is none: that action is not trained on."""
        return source_rewards(episode, scores, reward)

    async def explore(
        self, episodes: Sequence[Episode], specs: Sequence[EpisodeSpec], context: RolloutContext
    ) -> Explored:
        """What it has to find out with the team before rewards can be made of `episodes`, which came of `specs`: here
        nothing."""
        return Explored(episodes)

    def tasks_to_compare(self, samples: Samples, rewards: Rewards) -> set[str]:
        """The tasks whose rewards say anything, by id: here all. Asked where `refill_up_to` is above 1."""
        return {sample.task_id for group in samples.values() for sample in group}

    def state(self) -> Mapping[str, Any]:
        """What it carries from step to step beside its settings, such as a running mean: plain data, as JSON holds it.
        A checkpoint keeps it. It may change in `advantages` alone, so that it is always that of a whole step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027  most have none
        """Take up the `state` that a checkpoint kept."""

    @abstractmethod
    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        """The same samples with `advantages_L` filled. Actions whose reward is None are masked, and counted."""
