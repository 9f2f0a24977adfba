"""The section that says what an action is rewarded for."""

from __future__ import annotations

from pydantic import Field, field_validator

from coachrl.config.choices import check_choice
from coachrl.config.section import Section

SOURCES = ("coach", "environment")


class RewardConfig(Section):
    """What an action is rewarded for. Algorithms that make their rewards of the outcome alone read no source."""

    source: str = Field(
        "coach",
        description="Who rewards an action: coach (by its score), environment (the pipeline's), or a function of your "
        "own as my_package.my_module:reward.",
    )
    team_weight: float = Field(
        1.0,
        ge=0,
        description="The weight of the team's part of an environment's reward; an agent's own part has weight 1.",
    )
    scale: float = Field(
        1.0,
        gt=0,
        description="Every reward is multiplied by this number. Algorithms that divide by a deviation undo that, but "
        "for the weight of a KL penalty beside it.",
    )
    shuffle: bool = Field(
        False,
        description="A control: the rewards are permuted among the actions of each role, so nothing can be learned.",
    )

    @field_validator("source")
    @classmethod
    def _known(cls, source: str) -> str:
        return check_choice(source, "reward", SOURCES, "my_package.my_module:reward")

    @property
    def is_own(self) -> bool:
        """Whether a function of the user's own gives the rewards."""
        return self.source not in SOURCES
