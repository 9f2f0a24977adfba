"""The coach's section: who scores, what is shown of an action, and how calls are made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, model_validator

from coachrl.config.section import RESUMABLE, Section


class EvidenceConfig(Section):
    """What the coach is shown of an action, beside the task, the role and the agent's own words."""

    ground_truth: Literal["last", "all", "none"] = Field(
        "last",
        description="Whose actions the coach sees the measured outcome for: the last agent's (MAPPA), all, none.",
    )
    tool_log: bool = Field(True, description="What code printed, how it ended, what the environment answered.")
    files: bool = Field(True, description="Names of the files in the workspace before and after.")
    previous: bool = Field(True, description="What the agents before it wrote and ran.")
    window_tokens: int = Field(4000, ge=16, description="Of each text, about; a longer one loses its middle.")
    previous_tokens: int = Field(500, ge=16, description="The same for each text of an earlier action.")


class MemberConfig(Section):
    """One coach of an ensemble."""

    name: str = Field(description="rules, or a model, as in coach.name.")
    prompt: Path | None = Field(None, description="Coach prompt file; default prompts/coach/<pipeline>.md.")
    api_base: str | None = Field(None, description="Base URL of an OpenAI-compatible server.")


class RetrospectiveConfig(Section):
    """Who walks back over an episode (advantage.mode=retrospective)."""

    name: str | None = Field(None, description="A model; default: coach.name.")
    prompt: Path | None = Field(
        None, description="Prompt of the backward pass; default prompts/coach/retrospective.md."
    )
    api_base: str | None = Field(None, description="Base URL of its server; default: coach.api_base, for coach.name.")


class StrategicConfig(Section):
    """A coach that sees how the run goes, and how it has scored (MAPPA, Sec. 4.4 and App. E.4)."""

    window_steps: int = Field(0, ge=0, description="Steps whose statistics precede the coach's prompt; 0: none.")
    reliable_at: float = Field(
        0.8, ge=0, le=1, description="Success of every task kind from which on quality comes before reliability."
    )


class CoachConfig(Section):
    """Who scores, and how."""

    name: str = Field("rules", description="rules, or a model: gemini-2.5-pro, anthropic/…, openai/…, hosted_vllm/…")
    prompt: Path | None = Field(None, description="Coach prompt file; default prompts/coach/<pipeline>.md.")
    api_base: str | None = Field(
        None, description="Base URL of an OpenAI-compatible server.", json_schema_extra=RESUMABLE
    )
    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    suggest: bool = Field(
        False, description="Also ask for the reply that the agent should have given; coachrl export uses it."
    )
    ensemble: tuple[MemberConfig, ...] = Field(
        (), description="Several coaches in place of coach.name: a list of {name, prompt, api_base}."
    )
    combine: Literal["mean", "median", "trimmed"] = Field(
        "mean", description="How an ensemble's scores become one; trimmed: the mean without the highest and the lowest."
    )
    strategic: StrategicConfig = Field(default_factory=StrategicConfig)
    retrospective: RetrospectiveConfig = Field(default_factory=RetrospectiveConfig)
    fallbacks: tuple[str, ...] = Field(
        (), description="Models that are asked, in turn, where a call to the one before fails for good."
    )
    library: Literal["auto", "litellm", "google-genai"] = Field(
        "auto", description="auto: google-genai for Gemini, plain HTTP for own servers, LiteLLM for all others."
    )
    temperature: float = Field(0.0, ge=0, description="The temperature at which its replies are drawn.")
    max_tokens: int = Field(8192, ge=16, description="Tokens of one reply; thinking counts towards it.")
    thinking_budget: int | None = Field(
        None, ge=-1, description="Tokens of thinking (Gemini, Anthropic); 0 none, -1 the model's choice."
    )
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = Field(
        None, description="How much the model thinks, for models that are told so in words."
    )
    structured: bool | None = Field(
        None, description="Hold replies to a JSON schema; default: where the model is known to take one."
    )
    timeout_s: float = Field(60.0, gt=0, description="Of one attempt.", json_schema_extra=RESUMABLE)
    max_attempts: int = Field(
        5, ge=1, description="Attempts of one call that fails; a 429 is none.", json_schema_extra=RESUMABLE
    )
    give_up_after_s: float = Field(
        600.0, gt=0, description="One call from its first attempt on.", json_schema_extra=RESUMABLE
    )
    concurrency: int = Field(
        32, ge=1, description="Calls in flight at once; their pace is found by itself.", json_schema_extra=RESUMABLE
    )
    requests_per_minute: int | None = Field(
        None, ge=1, description="To one model; default: no limit.", json_schema_extra=RESUMABLE
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="To and from one model; default: no limit.", json_schema_extra=RESUMABLE
    )
    budget_usd: float | None = Field(
        None,
        gt=0,
        description="Dollars for the whole run; it pauses before it would pass them.",
        json_schema_extra=RESUMABLE,
    )
    usd_per_million_tokens: tuple[NonNegativeFloat, NonNegativeFloat] | None = Field(
        None, description="[input, output], for models whose price LiteLLM does not know.", json_schema_extra=RESUMABLE
    )
    cache: Literal["none"] | Path | None = Field(
        None, description="SQLite file of replies, which runs may share; default: the run's own. none: keep none."
    )
    max_failed_fraction: float = Field(
        0.25, ge=0, le=1, description="Above it the run checkpoints and stops.", json_schema_extra=RESUMABLE
    )

    @property
    def members(self) -> tuple[MemberConfig, ...]:
        """Who scores: the ensemble, or the one coach."""
        return self.ensemble or (MemberConfig(name=self.name, prompt=self.prompt, api_base=self.api_base),)

    @property
    def label(self) -> str:
        """The coach, for people: "rules", "gemini-2.5-pro", "mean of rules, gemini-2.5-pro"."""
        return f"{self.combine} of {', '.join(m.name for m in self.ensemble)}" if self.ensemble else self.name

    @model_validator(mode="after")
    def _ensemble_is_whole(self) -> CoachConfig:
        if not self.ensemble:
            return self
        if self.name != "rules" or self.prompt is not None or self.api_base is not None:
            raise ValueError("ensemble lists every coach: leave coach.name, coach.prompt and coach.api_base out")
        needed = 3 if self.combine == "trimmed" else 2
        if len(self.ensemble) < needed:
            raise ValueError(
                f"ensemble: combine={self.combine} needs {needed} coaches or more, not {len(self.ensemble)}"
            )
        return self

    @model_validator(mode="after")
    def _thinking_leaves_room(self) -> CoachConfig:
        if self.thinking_budget is not None and self.thinking_budget >= self.max_tokens:
            raise ValueError(
                f"thinking_budget of {self.thinking_budget} leaves no room for an answer in max_tokens "
                f"({self.max_tokens})"
            )
        return self

    @model_validator(mode="after")
    def _rules_read_what_they_read(self) -> CoachConfig:
        if any(member.name != "rules" for member in self.members):
            return self
        if self.evidence.model_copy(update={"ground_truth": "last"}) != EvidenceConfig():
            raise ValueError("evidence: rules read what they need; all but ground_truth is for language models")
        if self.fallbacks:
            raise ValueError("fallbacks: rules never fail; name a language model in coach.name")
        if self.strategic.window_steps:
            raise ValueError("strategic: rules read no statistics; name a language model in coach.name")
        return self
