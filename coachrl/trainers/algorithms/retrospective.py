"""Retrospective credit: a coach walks back over each episode from its outcome (MAPPA, arXiv 2601.23228, App. F).

Each action k gets a process score p_k (0 to 10) that was made without the outcome, and a signed contribution c_k
(-10 to 10) from a coach that walks back from the last action to the first and sees the outcome:

    r_k = alpha p_k + beta c_k                                                    (Eq. 6)

credited as by REINFORCE++. With `consistency` "normalize" an episode's contributions sum to its outcome's worth s(y):

    c_k <- c_k + |c_k| (s(y) - sum c) / sum |c|                                   (Eq. 7)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coachrl.config import RewardConfig
from coachrl.errors import ConfigError
from coachrl.tasks.tabular.grading import FAILED
from coachrl.trainers.algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig
from coachrl.trainers.masking import Rewards
from coachrl.types import CoachScore, Episode, Outcome

if TYPE_CHECKING:  # the configuration loads this module by name, to check itself
    from coachrl.config import RunConfig

MOST = 10.0  # the worth of a success, on the scale of contributions


class RetrospectiveCreditConfig(ReinforcePPConfig):
    """The settings of retrospective credit: its own weights, and those of REINFORCE++."""

    name: str = "retrospective"
    alpha: float = Field(1.0, gt=0, description="Weight of the 0-10 score that was made without the outcome.")
    beta: float = Field(1.0, gt=0, description="Weight of the contribution to the outcome, -10 to 10.")
    consistency: Literal["none", "normalize"] = Field(
        "none", description="normalize: an episode's contributions are rescaled to sum to its outcome's worth."
    )


class Retrospective(ReinforcePP):
    """REINFORCE++ on scores and contributions together."""

    Config = RetrospectiveCreditConfig
    settings: RetrospectiveCreditConfig
    needs_retrospective_pass = True

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.reward.source != "coach":
            raise ConfigError("algorithm.name=retrospective takes the coach's scores: leave reward.source=coach")
        walker = config.coach.retrospective.name or ("" if config.coach.ensemble else config.coach.name)
        if walker in ("", "rules"):
            raise ConfigError(
                "algorithm.name=retrospective walks back over episodes with a language model: name it in "
                f"coach.retrospective.name ({'an ensemble' if config.coach.ensemble else 'coach rules'} cannot)"
            )
        if config.coach.evidence.ground_truth != "none":
            raise ConfigError(
                "algorithm.name=retrospective scores forward without the outcome: set "
                f"coach.evidence.ground_truth=none (it is {config.coach.evidence.ground_truth})"
            )

    def rewards(self, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig) -> Rewards:
        """Eq. 6; none of it where one of the two parts is missing."""
        found = contributions(episode, scores, self.settings.consistency)
        rewards: dict[str, float | None] = {}
        for action_id, process in super().rewards(episode, scores, reward).items():
            contribution = found[action_id]
            if process is None or contribution is None:
                rewards[action_id] = None
            else:
                rewards[action_id] = self.settings.alpha * process + self.settings.beta * contribution
        return rewards


def contributions(
    episode: Episode, scores: Mapping[str, CoachScore], consistency: Literal["none", "normalize"]
) -> dict[str, float | None]:
    """Action id -> signed contribution c_k to the episode's outcome; None where the retrospective pass gave none. With
    consistency "normalize" all are None where one is, but for calls that were given up (no pass is asked about them),
    or where they cannot be made to sum to the outcome.
    """
    found = {a.id: score.contribution if (score := scores.get(a.id)) is not None else None for a in episode.actions}
    if consistency == "none":
        return found
    asked = [action.id for action in episode.actions if not action.is_given_up]
    given = [value for action_id in asked if (value := found[action_id]) is not None]
    scaled = consistent(given, outcome_worth(episode.outcome)) if len(given) == len(asked) else None
    return dict.fromkeys(found) | ({} if scaled is None else dict(zip(asked, scaled, strict=True)))


def consistent(contributions_K: Sequence[float], worth: float) -> list[float] | None:
    """The contributions, rescaled so that they sum to `worth` (Eq. 7).

    What is missing, or too much, is shared out in proportion to their sizes: c + |c| * (worth - sum c) / sum |c|. Where
    all have the sign of `worth` that is one common factor; contributions that cancel out do not blow up, and an action
    without a contribution keeps none. None where there is nothing to share out to.
    """
    size = sum(map(abs, contributions_K))
    if size == 0:
        return list(contributions_K) if worth == 0 else None
    factor = (worth - sum(contributions_K)) / size
    return [value + abs(value) * factor for value in contributions_K]


def outcome_worth(outcome: Outcome) -> float:
    """The outcome as one number, -10 to 10 (s(y) of Eq. 7): -10 for a failure and 10 for a success; a success that is
    measured by degrees counts 0 where it is no better than what needs no skill: 10 * (2 * ROC-AUC - 1), or
    10 * (1 - RMSE / 50 % of the range of the targets), never below 0."""
    if not outcome.success:
        return -MOST
    quality = 1.0
    if "roc_auc" in outcome.metrics:
        quality = 2 * outcome.metrics["roc_auc"] - 1
    elif "rmse_pct_range" in outcome.metrics:
        quality = 1 - outcome.metrics["rmse_pct_range"] / FAILED["regression"]["rmse_pct_range"]
    return MOST * max(0.0, quality)
