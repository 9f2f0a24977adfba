"""Coaches as a run's configuration names them: one model, several, with the run's statistics, and the one that walks
back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coachrl.coach import make_coach
from coachrl.coach.base import Coach
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.providers import ClientSettings
from coachrl.coach.clients.retrying import CallSettings, ChatClientFactory
from coachrl.coach.ensemble import EnsembleCoach
from coachrl.coach.prompts import load_coach_prompt
from coachrl.coach.retrospective import RetrospectiveCoach
from coachrl.coach.strategic import StrategicCoach
from coachrl.config import CoachConfig, MemberConfig
from coachrl.prompts import Prompt
from coachrl.resources import resource


def build_coach(
    settings: CoachConfig, pipeline: str | None, client_factory: ChatClientFactory, repeat: int = 0
) -> Coach:
    """The coach of a run, or its ensemble, which shares the limits of `client_factory`. repeat: asks once more what
    repeats 0, 1, ... before it were asked.

    Raises ConfigError for a prompt that cannot be used, CoachUnavailable for an unknown model or a missing key.
    """
    asked: Counter[MemberConfig] = Counter()
    members: list[Coach] = []
    for member in settings.members:
        coach = make_coach(
            member.name,
            prompt=member.prompt,
            pipeline=pipeline,
            api_base=member.api_base,
            fallbacks=settings.fallbacks if member.name != "rules" else (),
            evidence=settings.evidence,
            suggest=settings.suggest,
            statistics=settings.strategic.window_steps > 0,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            client_factory=client_factory,
            repeat=repeat * settings.members.count(member) + asked[member],  # the same coach twice is asked twice
        )
        members.append(coach)
        asked[member] += 1
    coach = members[0] if len(members) == 1 else EnsembleCoach(members, settings.combine)
    strategic = settings.strategic
    if strategic.window_steps == 0:
        return coach
    return StrategicCoach(coach, window_steps=strategic.window_steps, reliable_at=strategic.reliable_at)


def build_retrospective_coach(settings: CoachConfig, client_factory: ChatClientFactory) -> Coach:
    """Who walks back over episodes. Raises what `build_coach` raises."""
    retrospective = settings.retrospective
    api_base = retrospective.api_base if retrospective.name is not None else retrospective.api_base or settings.api_base
    return RetrospectiveCoach(
        client_factory.client(retrospective_model(settings), api_base, settings.fallbacks),
        retrospective_prompt(settings),
        evidence=settings.evidence,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
    )


def retrospective_model(settings: CoachConfig) -> str:
    """The model that walks back over episodes."""
    return settings.retrospective.name or settings.name


def retrospective_prompt(settings: CoachConfig) -> Prompt:
    """What it is asked. Raises ConfigError for a prompt that cannot be used."""
    return load_coach_prompt(
        settings.retrospective.prompt or resource("prompts", "coach", "retrospective.md"), "retrospective"
    )


def make_client_factory(settings: CoachConfig, ledger: Path | None = None) -> ChatClientFactory:
    """What makes the calls of a run, as `settings` say. What the ledger's calls have cost counts in the budget, and the
    cache lies beside the ledger unless `settings.cache` says otherwise; without a ledger there is none."""
    cache = None
    if settings.cache != "none":
        cache = settings.cache or (ledger.with_name("cache.sqlite") if ledger is not None else None)
    return ChatClientFactory(
        CallSettings(
            concurrency=settings.concurrency,
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            max_attempts=settings.max_attempts,
            give_up_after_s=settings.give_up_after_s,
            usd_per_million_tokens=settings.usd_per_million_tokens,
            client=ClientSettings(
                timeout_s=settings.timeout_s,
                thinking_budget=settings.thinking_budget,
                reasoning_effort=settings.reasoning_effort,
                structured=settings.structured,
                library=settings.library,
            ),
        ),
        budget=Budget(settings.budget_usd, spent_in(ledger) if ledger is not None else 0.0),
        cache=cache,
    )
