"""The one place where coaches are made, from the `coach` section of a configuration: rules, a model, a coach of the
user's own, several of them, one with the run's statistics, and the one of retrospective credit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coachrl.coach.base import Coach, is_import_path, is_language_model
from coachrl.coach.clients.base import ChatClient
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.providers import check_key
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.kinds.calibrated import CalibratedCoach, read_calibration
from coachrl.coach.kinds.ensemble import EnsembleCoach
from coachrl.coach.kinds.investigating import InvestigatingCoach
from coachrl.coach.kinds.listwise import ListwiseCoach
from coachrl.coach.kinds.llm import LLMCoach
from coachrl.coach.kinds.own import OwnCoach, find_own_coach
from coachrl.coach.kinds.retrospective import RetrospectiveCoach
from coachrl.coach.kinds.strategic import StrategicCoach
from coachrl.coach.prompt_rendering import find_coach_prompt, load_coach_prompt, with_preface
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.coach.verdict import NAMES_SCORE
from coachrl.config import CoachConfig, MemberConfig, SandboxConfig
from coachrl.errors import ConfigError
from coachrl.prompts import Prompt
from coachrl.resources import resource
from coachrl.sandbox import Sandbox, make_sandbox

log = logging.getLogger(__name__)


def make_coach(
    settings: CoachConfig,
    pipeline: str | None = None,
    client_factory: ChatClientFactory | None = None,
    repeat: int = 0,
    sandbox: SandboxConfig | None = None,
    players: int = 1,
) -> Coach:
    """The coach that `settings` name, or their ensemble.

    pipeline: its own coach prompt is taken where `settings` name none. client_factory: makes the calls; coaches that
    are given the same one share its limits. repeat: asks once more what repeats 0, 1, ... before it were asked.
    sandbox: where a coach with tools runs its programs; by default as the settings' defaults say. players: how many
    sandboxes of agents share the machine with it.

    Raises ConfigError for a prompt or an import path that cannot be used, CoachUnavailable for an unknown model or a
    missing key.
    """
    if settings.fallbacks and not any(is_language_model(member.name) for member in settings.members):
        raise ConfigError(f"coach '{settings.label}' takes no fallbacks; name a model to use them")
    client_factory = client_factory or make_client_factory(settings)
    open_sandbox = partial(make_sandbox, sandbox or SandboxConfig(), sharers=players + sandboxes_of(settings))
    asked: Counter[MemberConfig] = Counter()
    models: list[str] = []
    several = sum(is_language_model(member.name) for member in settings.members) > 1
    members: list[Coach] = []
    for member in settings.members:
        # What stands in for each: a name that stays where its server moves.
        stands_for = f"{member.name} {models.count(member.name)}" if several else ""
        make_client = partial(client_factory.client, member.name, member.api_base, settings.fallbacks, stands_for)
        models.append(member.name)
        # The same coach twice is asked twice: its second reply is no copy of the first one's, from the cache.
        repeats = repeat * settings.members.count(member) + asked[member]
        members.append(_make_member(member, settings, pipeline, make_client, repeats, open_sandbox))
        asked[member] += 1
    coach: Coach = members[0] if len(members) == 1 else EnsembleCoach(members, settings.combine)
    if settings.calibration is not None:
        coach = CalibratedCoach(coach, read_calibration(settings.calibration, settings.label))
    strategic = settings.strategic
    if strategic.window_steps == 0:
        return coach
    return StrategicCoach(coach, window_steps=strategic.window_steps, reliable_at=strategic.reliable_at)


def sandboxes_of(settings: CoachConfig) -> int:
    """How many sandboxes of their own the coaches have: each model that may run programs has one."""
    return sum(is_language_model(member.name) for member in settings.members) if settings.tools.turns else 0


def check_access(settings: CoachConfig, pipeline: str, retrospective: bool) -> None:
    """What `make_coach` would raise for mistyped coaches, prompts and missing keys, said before a client library is
    imported. retrospective: whether the coach of retrospective credit is asked too."""
    for member in settings.members:
        if is_language_model(member.name):
            find_coach_prompt(member.prompt, pipeline)
            check_key(member.name, member.api_base, settings)
        elif is_import_path(member.name):
            find_own_coach(member.name)
    for name in settings.fallbacks:
        check_key(name, None, settings)
    attributing = retrospective_member(settings)
    if retrospective and is_language_model(attributing.name):
        check_key(attributing.name, attributing.api_base, settings)


def _make_member(
    member: MemberConfig,
    settings: CoachConfig,
    pipeline: str | None,
    make_client: Callable[[], ChatClient],
    repeat: int,
    open_sandbox: Callable[[], Sandbox],
) -> Coach:
    if is_language_model(member.name):
        prompt = find_coach_prompt(member.prompt, pipeline)
        if settings.strategic.window_steps and "statistics" not in prompt.fields:
            preface = load_coach_prompt(resource("prompts", "coach", "strategic.md"), "preface")
            prompt = with_preface(preface, prompt)
        client = make_client()
        if settings.compare != "siblings" and not client.structured and repeat == 0:
            _warn_of_its_ending(prompt)
        if settings.tools.turns:
            return InvestigatingCoach(client, prompt, settings, open_sandbox(), repeat)
        coach_class = ListwiseCoach if settings.compare == "siblings" else LLMCoach
        return coach_class(client, prompt, settings, repeat)
    if member.prompt is not None or member.api_base is not None:
        raise ConfigError(f"coach '{member.name}' takes no prompt and no API base; name a model to use them")
    if is_import_path(member.name):
        return OwnCoach(member.name, settings.give_up_after_s)
    if settings.suggest:
        raise ConfigError("coach 'rules' suggests no replies; name a model, or set coach.suggest=false")
    return RulesCoach()


def _warn_of_its_ending(prompt: Prompt) -> None:
    """Nothing else would tell a model how to answer that is held to no schema: each reply would be asked for twice."""
    if "criteria" not in prompt.fields and not NAMES_SCORE.search(prompt.body):
        log.warning("coach prompt %s: it does not say that a reply ends in a line PROCESS_SCORE: n", prompt.name)


def make_retrospective_coach(settings: CoachConfig, client_factory: ChatClientFactory | None = None) -> Coach:
    """Who attributes the outcomes of episodes to their actions. Raises what `make_coach` raises."""
    member = retrospective_member(settings)
    if not is_language_model(member.name):
        raise ConfigError(
            f"coach.retrospective.name: '{member.name}' is no language model, which retrospective credit needs"
        )
    client_factory = client_factory or make_client_factory(settings)
    client = client_factory.client(member.name, member.api_base, settings.fallbacks)
    return RetrospectiveCoach(client, retrospective_prompt(member), settings)


def retrospective_member(settings: CoachConfig) -> MemberConfig:
    """The model that attributes outcomes: one of its own, or the coach's at the coach's address."""
    own = settings.retrospective
    if own.name is not None:
        return MemberConfig(name=own.name, prompt=own.prompt, api_base=own.api_base)
    return MemberConfig(name=settings.name, prompt=own.prompt, api_base=own.api_base or settings.api_base)


def retrospective_prompt(member: MemberConfig) -> Prompt:
    """What it is asked. Raises ConfigError for a prompt that cannot be used."""
    return load_coach_prompt(member.prompt or resource("prompts", "coach", "retrospective.md"), "retrospective")


def make_client_factory(settings: CoachConfig, ledger: Path | None = None) -> ChatClientFactory:
    """What makes the calls of a run. What the ledger's calls have cost counts in the budget, and the cache lies beside
    the ledger unless `settings.cache` says otherwise; without a ledger there is none."""
    cache = None
    if settings.cache != "none":
        cache = settings.cache or (ledger.with_name("cache.sqlite") if ledger is not None else None)
    spent_usd = spent_in(ledger) if ledger is not None else 0.0
    return ChatClientFactory(settings, budget=Budget(settings.budget_usd, spent_usd), cache=cache)
