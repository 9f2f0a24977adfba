"""Counterfactual credit: what an action was worth, measured by replay (C3, arXiv 2603.06859).

For a decision a of an episode, M other replies of the same policy take its place, and each is played to the end R times
with the present team. With Q the share of those playouts that succeeded:

    A_a = Q(a) - mean of the others' Q        among the replies of one state, without a deviation

The others are trained on as well, each held against the rest. What it costs is the tokens of the playouts, which
`tokens/replayed` counts. An episode's own outcome is one of the playouts of its own actions.

The two may be mixed: actions of `coach_roles` are not replayed. With s their score, 0 to 10 as the chance of success:

    A_a = s(a) / 10 - mean of the others' s / 10        among the actions of that role and turn in the batch

which is in the unit of Q, and 0 for a coach that says the same of all.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from coachrl.config import RewardConfig
from coachrl.config.algorithm import AlgorithmConfig
from coachrl.errors import ConfigError
from coachrl.seeding import generator
from coachrl.text import brief, nearest
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch, with_advantages
from coachrl.trainers.algorithms.advantages.groups import Groups, of_state
from coachrl.trainers.algorithms.advantages.rewards import score_reward
from coachrl.trainers.algorithms.base import Algorithm, Explored
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards, known_rewards, mask_unscored
from coachrl.trainers.rollout.replay import (
    Decision,
    Measured,
    ReplaySettings,
    check_replayable,
    decisions_of,
    measure,
)
from coachrl.trainers.samples import all_samples
from coachrl.types import HIGHEST_SCORE, Action, CoachScore, Episode, TrainSample

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
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
    coach_roles: tuple[str, ...] = Field(
        (),
        description="Roles whose actions the coach credits by its scores, in the place of replay: those of which "
        "`coachrl audit --replay` finds that it is faithful. By default none, and no coach is asked.",
    )


class Counterfactual(Algorithm):
    """Replies of one state against each other, by how the episode went on from them; or by the coach, where it is
    trusted with a role."""

    Config = CounterfactualConfig
    settings: CounterfactualConfig
    reads_reward_source = False
    takes_stale_data = False

    def check_pipeline(self, pipeline: Pipeline) -> None:
        check_replayable(pipeline)
        names = [role.name for role in pipeline.roles]
        for name in self.settings.coach_roles:
            if name not in names:
                raise ConfigError(
                    f"algorithm.coach_roles: pipeline {pipeline.name} has no role {brief(name)}{nearest(name, names)}"
                )
        if set(self.settings.coach_roles) == set(names):
            raise ConfigError(
                "algorithm.coach_roles names all roles, so that nothing would be replayed: take "
                "algorithm.name=reinforce_pp"
            )

    def needs_coach(self, reward: RewardConfig) -> bool:
        return bool(self.settings.coach_roles)

    def scores_role(self, role: str) -> bool:
        return role in self.settings.coach_roles

    async def explore(
        self, episodes: Sequence[Episode], specs: Sequence[EpisodeSpec], context: RolloutContext
    ) -> Explored:
        """The episodes with values at their actions, and the other replies among their rejected candidates."""
        decisions = [decision for episode in episodes for decision in self._drawn(specs, episode)]
        settings = ReplaySettings(self.settings.others, self.settings.playouts, recorded_outcome=True)
        measured = await measure(decisions, context, settings)
        return Explored([_with_values(episode, measured) for episode in episodes], replay_metrics(measured))

    def rewards(self, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig) -> Rewards:
        """The measured values, and the scores of `coach_roles`; none where there is neither."""
        return {action.id: self._worth(action, scores) for action in episode.all_actions}

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        """A reply that was cut short is not trained on, but what it was worth counts for the others."""
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        replayed = [sample for sample in everything if not self.scores_role(sample.role)]
        judged = [sample for sample in everything if self.scores_role(sample.role)]
        groups = Groups(replayed, known_rewards(replayed, rewards, cut_short=True), of_state)
        by_coach = Groups(judged, known_rewards(judged, rewards), _of_place)
        return with_advantages(batch, groups.against_others() | by_coach.against_others(), groups=groups)

    def _worth(self, action: Action, scores: Mapping[str, CoachScore]) -> float | None:
        if not self.scores_role(action.role):
            return action.value
        score = score_reward(scores.get(action.id))
        return None if score is None else score / HIGHEST_SCORE

    def _drawn(self, specs: Sequence[EpisodeSpec], episode: Episode) -> list[Decision]:
        decisions = [d for d in decisions_of(specs, [episode]) if not self.scores_role(d.action.role)]
        if self.settings.decisions is None or len(decisions) <= self.settings.decisions:
            return decisions
        rng = generator(decisions[0].spec.seed, "decisions")
        chosen = rng.choice(len(decisions), self.settings.decisions, replace=False)
        return [decisions[place] for place in sorted(chosen)]


def _of_place(sample: TrainSample) -> Hashable:
    return sample.role, sample.turn


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
