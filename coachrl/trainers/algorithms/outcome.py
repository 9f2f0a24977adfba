"""Outcome rewards: what an episode came to, given to each of its actions. The control against process rewards.

    r_a = 10 for every action of an episode that succeeded, 0 for every action of one that failed

credited as by REINFORCE++ (the outcome-only control of MAPPA, arXiv 2601.23228). No coach is asked, and
`reward.source` is not read.
"""

from __future__ import annotations

from collections.abc import Mapping

from coachrl.config import RewardConfig
from coachrl.trainers.algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig
from coachrl.trainers.masking import Rewards
from coachrl.types import HIGHEST_SCORE, CoachScore, Episode


class OutcomeConfig(ReinforcePPConfig):
    """The settings of outcome rewards: those of REINFORCE++."""

    name: str = "outcome"


class Outcome(ReinforcePP):
    """REINFORCE++ on the outcome in place of scores."""

    Config = OutcomeConfig
    reads_reward_source = False

    def rewards(self, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig) -> Rewards:
        """The outcome to every action."""
        worth = HIGHEST_SCORE * float(episode.outcome.success)
        return {action.id: worth for action in episode.all_actions}
