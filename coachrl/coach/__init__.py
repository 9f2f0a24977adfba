"""Coaches: score every action of every agent from 0 to 10. `make_coach` finds one by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.clients.retrying import CallSettings, ChatClientFactory
from coachrl.coach.llm import LLMCoach
from coachrl.coach.prompts import find_coach_prompt, load_coach_prompt, with_preface
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.config import EvidenceConfig
from coachrl.errors import ConfigError
from coachrl.resources import resource

__all__ = ["CallSettings", "ChatClientFactory", "Coach", "CoachRequest", "make_coach"]


def make_coach(
    name: str,
    *,
    prompt: Path | None = None,
    pipeline: str | None = None,
    api_base: str | None = None,
    fallbacks: Sequence[str] = (),
    evidence: EvidenceConfig | None = None,
    suggest: bool = False,
    statistics: bool = False,
    temperature: float = 0.0,
    max_tokens: int = 8192,
    client_factory: ChatClientFactory | None = None,
    repeat: int = 0,
) -> Coach:
    """The coach `name`: "rules", or a model ("gemini-2.5-pro", "anthropic/...", "hosted_vllm/..." with `api_base`).

    prompt: coach prompt file; default: the pipeline's own, else the generic one. evidence: what it is shown. suggest:
    ask for the agent's better reply too. fallbacks: models that are asked, in turn, where a call to the first fails for
    good. statistics: a prompt without a place for the run's statistics gets them as a preface. client_factory: makes
    the calls; coaches that are given the same one share its limits. repeat: as in `ChatRequest`.

    Raises ConfigError for a prompt that cannot be used, CoachUnavailable for an unknown model or a missing key.
    """
    if name == "rules":
        if prompt is not None or api_base is not None or fallbacks:
            raise ConfigError("coach 'rules' takes no prompt, no API base and no fallbacks; name a model to use them")
        if suggest:
            raise ConfigError("coach 'rules' suggests no replies; name a model, or set coach.suggest=false")
        return RulesCoach()
    loaded = find_coach_prompt(prompt, pipeline)
    if statistics and "statistics" not in loaded.fields:
        loaded = with_preface(load_coach_prompt(resource("prompts", "coach", "strategic.md"), "preface"), loaded)
    client = (client_factory or ChatClientFactory()).client(name, api_base, fallbacks)
    return LLMCoach(
        client,
        loaded,
        evidence=evidence,
        suggest=suggest,
        temperature=temperature,
        max_tokens=max_tokens,
        repeat=repeat,
    )
