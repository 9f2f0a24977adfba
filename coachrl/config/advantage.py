"""The section that turns scores into advantages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.section import Section


class RetrospectiveCreditConfig(Section):
    """Retrospective credit: alpha * process score + beta * contribution (MAPPA, App. F)."""

    alpha: float = Field(1.0, gt=0, description="Weight of the 0-10 score that was made without the outcome.")
    beta: float = Field(1.0, gt=0, description="Weight of the contribution to the outcome, -10 to 10.")
    consistency: Literal["none", "normalize"] = Field(
        "none", description="normalize: an episode's contributions are rescaled to sum to its outcome's worth."
    )


class AdvantageConfig(Section):
    """From scores to per-token advantages; the only part that names an algorithm."""

    mode: Literal["reinforce_pp", "retrospective", "at_grpo", "magrpo", "grpo", "outcome"] = Field(
        "reinforce_pp",
        description="reinforce_pp (MAPPA), retrospective (the same with the coach's backward pass), at_grpo (groups "
        "of tree sampling), magrpo (groups of joint episodes), grpo (groups by task), outcome (the outcome to every "
        "action).",
    )
    rewards: Literal["coach", "environment"] = Field(
        "coach",
        description="Who rewards an action: the coach's score, or the pipeline's environment. (Not in outcome.)",
    )
    alpha: float = Field(
        1.0, ge=0, description="environment: weight of the team's reward; an agent's own has weight 1."
    )
    group_by: Literal["task", "turn"] = Field(
        "task", description="grpo: compare all actions of a task, or those of one task, role and turn."
    )
    backprop: RetrospectiveCreditConfig = Field(default_factory=RetrospectiveCreditConfig)
    return_scope: Literal["agent", "action"] = Field(
        "agent", description="reinforce_pp, retrospective, outcome: add rewards of the same agent's later actions?"
    )
    normalize_over: Literal["batch", "policy", "role"] = Field(
        "batch", description="reinforce_pp, retrospective, outcome: tokens that share mean and deviation."
    )
    kl_beta: float = Field(
        0.01,
        ge=0,
        description="reinforce_pp, retrospective, outcome: KL penalty in token rewards; 0 keeps no reference.",
    )
    reward_scale: float = Field(1.0, gt=0, description="Multiplies every reward.")
    mask_truncated: bool = Field(True, description="Leave replies that hit the length limit out of the update.")
    shuffle_scores: bool = Field(
        False, description="Control: permute scores within each role. Nothing must be learned."
    )
