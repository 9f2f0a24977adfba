"""The section that says what an action is rewarded for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.section import Section


class RewardConfig(Section):
    """What an action is rewarded for. Algorithms that make their rewards of the outcome alone read no source."""

    source: Literal["coach", "environment"] = Field(
        "coach", description="Who rewards an action: the coach by its score, or the pipeline's environment."
    )
    team_weight: float = Field(
        1.0,
        ge=0,
        description="The weight of the team's part of an environment's reward; an agent's own part has weight 1.",
    )
    scale: float = Field(1.0, gt=0, description="Every reward is multiplied by this number.")
    shuffle: bool = Field(
        False,
        description="A control: the rewards are permuted among the actions of each role, so nothing can be learned.",
    )
