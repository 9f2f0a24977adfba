"""The coach's section: who scores, what is shown of an action, and how calls are made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, ValidationInfo, model_validator

from coachrl.config.algorithm import SAVED
from coachrl.config.section import MAX_SECONDS, Resumable, Section


class EvidenceConfig(Section):
    """What the coach is shown of an action, beside the task, the role and the agent's own words."""

    ground_truth: Literal["last", "all", "none"] = Field(
        "last",
        description="Whose actions the coach sees the measured outcome for: those of the last agent, the role "
        "that the pipeline declares last (MAPPA), all, none.",
    )
    tool_log: bool = Field(
        True, description="The coach sees what the code printed, how it ended, and what the environment answered."
    )
    files: bool = Field(
        True, description="The coach sees the names of the files in the workspace before and after the action."
    )
    previous: bool = Field(True, description="The coach sees what the agents before this one wrote and ran.")
    window_tokens: int = Field(
        4000, ge=16, description="About so many tokens of each text are shown. A longer text loses its middle."
    )
    previous_tokens: int = Field(
        500, ge=16, description="About so many tokens of each text of an earlier action are shown."
    )


class MemberConfig(Section):
    """One coach of an ensemble."""

    name: str = Field(description="The rules, a model, or a class of your own, as in coach.name.")
    prompt: Path | None = Field(
        None, description="The file of the coach's prompt. By default it is prompts/coach/<pipeline>.md."
    )
    api_base: str | None = Field(None, description="The base URL of an OpenAI-compatible server.")


class RetrospectiveConfig(Section):
    """Who attributes an episode's outcome to its actions (algorithm.name=retrospective)."""

    name: str | None = Field(None, description="The model that is asked. By default it is coach.name.")
    prompt: Path | None = Field(
        None, description="Prompt of the retrospective pass; default prompts/coach/retrospective.md."
    )
    api_base: Resumable[str | None] = Field(
        None, description="Base URL of its server; default: coach.api_base, for coach.name."
    )


class StrategicConfig(Section):
    """A coach that sees how the run goes, and how it has scored (MAPPA, Sec. 4.4 and App. E.4)."""

    window_steps: int = Field(
        0, ge=0, description="The statistics of so many steps precede the coach's prompt; 0 shows none."
    )
    reliable_at: float = Field(
        0.8, ge=0, le=1, description="Success of every task kind from which on quality comes before reliability."
    )


class ToolsConfig(Section):
    """What a coach may do before it scores: run programs of its own on a copy of the agents' workspace."""

    turns: int = Field(0, ge=0, le=20, description="It may run so many programs for one action; 0: none.")
    seconds: float = Field(
        60.0,
        gt=0,
        le=MAX_SECONDS,
        description="The time that all its programs for one action may take together, in seconds.",
    )
    usd: float | None = Field(
        None, gt=0, description="It runs no further program once its calls for one action have cost so many dollars."
    )
    native: bool | None = Field(
        None,
        description="Programs come as calls of a function, else as blocks. By default that is so where the "
        "model is known to call functions and there are no fallbacks; a server of your own is told with true.",
    )


class CoachConfig(Section):
    """Who scores, and how."""

    name: str = Field(
        "rules",
        description="The rules, a model (gemini-2.5-pro, anthropic/…, openai/…, hosted_vllm/…), or my_module:MyCoach.",
    )
    prompt: Path | None = Field(
        None, description="The file of the coach's prompt. By default it is prompts/coach/<pipeline>.md."
    )
    api_base: Resumable[str | None] = Field(None, description="The base URL of an OpenAI-compatible server.")
    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    suggest: bool = Field(
        False,
        description="The coach also writes the reply that the agent should have given, which coachrl export uses.",
    )
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    compare: Literal["none", "siblings"] = Field(
        "none",
        description="siblings: one call scores the actions of one state, or of one task and turn, against each other.",
    )
    ensemble: tuple[MemberConfig, ...] = Field(
        (), description="Several coaches score in place of coach.name: a list of {name, prompt, api_base}."
    )
    combine: Literal["mean", "median", "trimmed"] = Field(
        "mean", description="How an ensemble's scores become one; trimmed: the mean without the highest and the lowest."
    )
    calibration: Path | None = Field(
        None,
        description="A file that puts this coach's scores on people's scale, as coachrl audit --calibrate writes it.",
    )
    strategic: StrategicConfig = Field(default_factory=StrategicConfig)
    retrospective: RetrospectiveConfig = Field(default_factory=RetrospectiveConfig)
    fallbacks: tuple[str, ...] = Field(
        (), description="These models are asked, in turn, where a call to the one before fails for good."
    )
    library: Literal["auto", "litellm", "google-genai"] = Field(
        "auto", description="auto: google-genai for Gemini, plain HTTP for own servers, LiteLLM for all others."
    )
    temperature: float = Field(0.0, ge=0, description="The temperature at which its replies are drawn.")
    max_tokens: int = Field(8192, ge=16, description="The most tokens of one reply; thinking counts towards it.")
    thinking_budget: int | None = Field(
        None, ge=-1, description="The tokens of thinking (Gemini, Anthropic). 0 allows none, -1 leaves it to the model."
    )
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = Field(
        None, description="How much the model thinks, for models that take this as a word."
    )
    structured: bool | None = Field(
        None,
        description="Replies are held to a JSON schema. By default that is so where the model is known to take one.",
    )
    timeout_s: Resumable[float] = Field(60.0, gt=0, description="The longest that one attempt may take, in seconds.")
    max_attempts: Resumable[int] = Field(
        5,
        ge=1,
        description="A call that fails is tried so many times. A refusal for haste (429) counts for none of them.",
    )
    give_up_after_s: Resumable[float] = Field(
        600.0, gt=0, description="A call is given up so many seconds after its first attempt."
    )
    concurrency: Resumable[int] = Field(
        32, ge=1, description="The most calls in flight at once. Their pace is found by itself."
    )
    requests_per_minute: Resumable[int | None] = Field(
        None, ge=1, description="The most requests to one model in a minute. By default there is no limit."
    )
    tokens_per_minute: Resumable[int | None] = Field(
        None, ge=1, description="The most tokens to and from one model in a minute. By default there is no limit."
    )
    budget_usd: Resumable[float | None] = Field(
        None,
        gt=0,
        description="The dollars that the whole run may spend. It pauses, with a checkpoint, before it passes them.",
    )
    usd_per_million_tokens: Resumable[tuple[NonNegativeFloat, NonNegativeFloat] | None] = Field(
        None, description="The price as [input, output], where LiteLLM does not know it."
    )
    cache: Literal["none"] | Path | None = Field(
        None,
        description="The SQLite file of replies, which runs may share. By default each run has one; none keeps none.",
    )
    max_failed_fraction: Resumable[float] = Field(
        0.25, ge=0, le=1, description="Where a larger share of calls fails, the run writes a checkpoint and stops."
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
    def _settings_fit_together(self, info: ValidationInfo) -> CoachConfig:
        if self.ensemble:
            if self.name != "rules" or self.prompt is not None or self.api_base is not None:
                raise ValueError("ensemble lists every coach: leave coach.name, coach.prompt and coach.api_base out")
            needed, given = 3 if self.combine == "trimmed" else 2, len(self.ensemble)
            if given < needed:
                raise ValueError(f"ensemble: combine={self.combine} needs {needed} coaches or more, not {given}")
        if self.compare != "none":
            if self.ensemble or ":" in self.name:
                raise ValueError("compare: siblings are compared by the rules or by one language model")
            calibrated = self.calibration is not None and info.context != SAVED  # older runs may be
            if self.suggest or self.strategic.window_steps or calibrated:
                raise ValueError(
                    "compare: siblings are not compared with suggest, strategic or calibration; leave these out"
                )
            if self.tools.turns:
                raise ValueError("tools: a coach that compares siblings runs no programs; leave tools or compare out")
        if self.calibration is not None and self.fallbacks:
            raise ValueError("calibration: its curves are coach.name's, and no fallback's; leave one of the two out")
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
        if self.tools.turns:
            raise ValueError("tools: rules run no programs; name a language model in coach.name")
        if self.strategic.window_steps:
            raise ValueError("strategic: rules read no statistics; name a language model in coach.name")
        return self
