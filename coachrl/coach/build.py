"""Coaches as a run's configuration names them: one model, several, with the run's statistics, and the one that walks
back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coachrl.coach import make_coach
from coachrl.coach.base import Coach
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.providers import ClientSettings
from coachrl.coach.clients.retrying import CallSettings, Exchange
from coachrl.coach.ensemble import EnsembleCoach
from coachrl.coach.prompts import load_coach_prompt
from coachrl.coach.retrospective import BackwardCoach
from coachrl.coach.strategic import StrategicCoach
from coachrl.config.sections import CoachConfig, MemberConfig
from coachrl.prompts import Prompt
from coachrl.resources import resource


def build_coach(settings: CoachConfig, pipeline: str | None, exchange: Exchange, repeat: int = 0) -> Coach:
    """The coach of a run, or its ensemble, which shares the limits of `exchange`. repeat: asks once more what repeats
    0, 1, ... before it were asked.

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
            exchange=exchange,
            repeat=repeat * settings.members.count(member) + asked[member],  # the same coach twice is asked twice
        )
        members.append(coach)
        asked[member] += 1
    coach = members[0] if len(members) == 1 else EnsembleCoach(members, settings.combine)
    strategic = settings.strategic
    if strategic.window_steps == 0:
        return coach
    return StrategicCoach(coach, window_steps=strategic.window_steps, reliable_at=strategic.reliable_at)


def build_backward_coach(settings: CoachConfig, exchange: Exchange) -> Coach:
    """Who walks back over episodes. Raises what `build_coach` raises."""
    backward = settings.backward
    api_base = backward.api_base if backward.name is not None else backward.api_base or settings.api_base
    return BackwardCoach(
        exchange.client(backward_model(settings), api_base, settings.fallbacks),
        backward_prompt(settings),
        evidence=settings.evidence,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
    )


def backward_model(settings: CoachConfig) -> str:
    """The model that walks back over episodes."""
    return settings.backward.name or settings.name


def backward_prompt(settings: CoachConfig) -> Prompt:
    """What it is asked. Raises ConfigError for a prompt that cannot be used."""
    return load_coach_prompt(settings.backward.prompt or resource("prompts", "coach", "backward.md"), "backward")


def make_exchange(settings: CoachConfig, ledger: Path | None = None) -> Exchange:
    """What makes the calls of a run, as `settings` say. What the ledger's calls have cost counts in the budget, and the
    cache lies beside the ledger unless `settings.cache` says otherwise; without a ledger there is none."""
    cache = None
    if settings.cache != "none":
        cache = settings.cache or (ledger.with_name("cache.sqlite") if ledger is not None else None)
    return Exchange(
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
