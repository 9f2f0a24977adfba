"""AT-GRPO: candidates of one state against each other (Stronger-MAS, arXiv 2510.11062, Alg. 1).

    A_a = (r_a - mean r) / (std r + 1e-6)   among the candidates of one episode, role and turn

with the unbiased deviation, one value for every token of an action. Tree sampling draws the candidates.
"""

from __future__ import annotations

from coachrl.trainers.algorithms.advantages.groups import GroupKey, of_state
from coachrl.trainers.algorithms.group_relative import GroupRelative, GroupRelativeConfig


class ATGRPOConfig(GroupRelativeConfig):
    """The settings of AT-GRPO; how many candidates are drawn is `sampling.candidates`."""

    name: str = "at_grpo"


class ATGRPO(GroupRelative):
    """Rewards of the candidates of one state, relative to each other.

    A group of one, or without spread, gives no sample: its actions are masked, so that they do not count in the loss.
    """

    Config = ATGRPOConfig
    scheme = "tree"

    @property
    def group_key(self) -> GroupKey:
        return of_state
