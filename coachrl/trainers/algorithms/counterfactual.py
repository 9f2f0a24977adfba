"""Counterfactual credit: what an action was worth, measured by replay (C3, arXiv 2603.06859).

For a decision a of an episode, M other replies of the same policy take its place, and each is played to the end R times
with the present team. With Q the share of those playouts that succeeded:

    A_a = Q(a) - mean of the others' Q        among the replies of one state, without a deviation

The others are trained on as well, each held against the rest. No coach is asked; what it costs is the tokens of the
playouts, which `tokens/replayed` counts. An episode's own outcome is one of the playouts of its own actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from coachrl.config import RewardConfig
from coachrl.config.algorithm import AlgorithmConfig
from coachrl.errors import ConfigError
from coachrl.seeding import generator
from coachrl.trainers.algorithms.advantages.batches import (
    AdvantageBatch,
    Rewards,
    all_samples,
    known_rewards,
    mask_unscored,
    with_advantages,
)
from coachrl.trainers.algorithms.advantages.groups import Groups, of_state
from coachrl.trainers.algorithms.base import Algorithm, Explored
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.rollout.replay import (
    Decision,
    Measured,
    ReplaySettings,
    check_replayable,
    decisions_of,
    measure,
)
from coachrl.types import Action, CoachScore, Episode

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
    from coachrl.config import RunConfig
    from coachrl.pipelines.base import Pipeline
    from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext


class CounterfactualConfig(AlgorithmConfig):
    """The settings of counterfactual credit."""

    name: str = "counterfactual"
    others: int = Field(3, ge=1, description="So many other replies are drawn in the place of an action (M).")
    playouts: int = Field(1, ge=1, description="So often each reply is played to the end of the episode (R).")
    decisions: int | None = Field(
        None,
        ge=1,
        description="So many actions of each episode are measured, drawn at random; the others are not trained on. By "
        "default all are.",
    )


class Counterfactual(Algorithm):
    """Replies of one state against each other, by how the episode went on from them."""

    Config = CounterfactualConfig
    settings: CounterfactualConfig
    reads_reward_source = False
    takes_stale_data = False

    def check(self, config: RunConfig) -> None:
        if config.backend == "openrlhf" and config.openrlhf.one_step_off:
            raise ConfigError(
                "algorithm.name=counterfactual plays episodes again with the team that played them: set "
                "openrlhf.one_step_off=false"
            )
        super().check(config)

    def check_pipeline(self, pipeline: Pipeline) -> None:
        check_replayable(pipeline)

    async def explore(
        self, episodes: Sequence[Episode], specs: Sequence[EpisodeSpec], context: RolloutContext
    ) -> Explored:
        """The episodes with values at their actions, and the other replies among their rejected candidates."""
        decisions = [decision for episode in episodes for decision in self._drawn(specs, episode)]
        settings = ReplaySettings(self.settings.others, self.settings.playouts, recorded_outcome=True)
        measured = await measure(decisions, context, settings)
        return Explored([_with_values(episode, measured) for episode in episodes], replay_metrics(measured))

    def rewards(self, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig) -> Rewards:
        """The measured values; none where an action was not measured."""
        return {action.id: action.value for action in episode.all_actions}

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        """A reply that was cut short is not trained on, but what it was worth counts for the others."""
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        groups = Groups(everything, known_rewards(everything, rewards, cut_short=True), of_state)
        return with_advantages(batch, groups.against_others(), groups=groups)

    def _drawn(self, specs: Sequence[EpisodeSpec], episode: Episode) -> list[Decision]:
        decisions = decisions_of(specs, [episode])
        if self.settings.decisions is None or len(decisions) <= self.settings.decisions:
            return decisions
        rng = generator(decisions[0].spec.seed, "decisions")
        chosen = rng.choice(len(decisions), self.settings.decisions, replace=False)
        return [decisions[place] for place in sorted(chosen)]


def replay_metrics(measured: Sequence[Measured]) -> dict[str, float]:
    """What replay did and cost. The other replies are among the generated tokens already: `tokens/replayed` is what
    came on top of them."""
    replies = sum(len(other.response_ids) for one in measured for other in one.others)
    return {
        "replay/decisions": float(len(measured)),
        "replay/not_reproduced": float(sum(bool(one.problem) for one in measured)),
        "replay/playouts": float(sum(one.playouts for one in measured)),
        "replay/broken": float(sum(one.broken for one in measured)),
        "tokens/replayed": float(sum(one.tokens for one in measured) - replies),
    }


def _with_values(episode: Episode, measured: Sequence[Measured]) -> Episode:
    found = {one.action.id: one for one in measured if one.action.episode_id == episode.id}

    def valued(action: Action) -> Action:
        return found[action.id].action if action.id in found else action

    others = [other for one in found.values() for other in one.others]
    return replace(episode, actions=tuple(map(valued, episode.actions)), rejected_candidates=tuple(others))
