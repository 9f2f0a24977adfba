"""Asks a coach for an audit: what it would take first, then the probes and the planted faults."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from coachrl.audit.faults.localization import localize_faults
from coachrl.audit.faults.play import PlayedFaults, play_faults
from coachrl.audit.probes.asked import Asked
from coachrl.audit.probes.perturbations import perturbations_for
from coachrl.audit.probes.probes import draw_requests, run_probes, variants
from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.budget import spent_in
from coachrl.coach.clients.cost_estimate import CostEstimate, estimate_requests
from coachrl.coach.clients.providers import known_price
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.reading import requests_of, tasks_of, team_of, training_episodes
from coachrl.sandbox import make_sandbox
from coachrl.storage.jsonl import drop_torn_line
from coachrl.text import dollars
from coachrl.types import CoachScore


@dataclass(frozen=True)
class ProbeSettings:
    """probe_actions: saved actions to probe, 0 for none. faults: planted faults to be played, 0 for none."""

    probe_actions: int = 0
    faults: int = 0
    resamples: int = 1000
    seed: int = 0


def saved_requests(run: Run, config: RunConfig) -> tuple[list[CoachRequest], list[CoachScore]]:
    """What the run's coach was asked about each action, and what the same coach said.

    Raises ConfigError where the run's tasks or team cannot be found again."""
    team, tasks = team_of(run), tasks_of(run, config)
    requests: list[CoachRequest] = []
    scores: list[CoachScore] = []
    for scored in training_episodes(run):
        requests += requests_of(scored.episode, tasks, team, config.coach.evidence.ground_truth)
        scores += scored.scores.values()
    if not requests:
        raise ConfigError(f"{run.folder} holds no action of a training step: there is nothing to probe")
    return requests, [score for score in scores if score.model == config.coach.name] or _free(config)


async def ask_coach(
    run: Run,
    config: RunConfig,
    wanted: ProbeSettings,
    ledger: Path,
    agreed: Callable[[CostEstimate], None],
    make_pool: Callable[[RunConfig, Path], CoachPool],
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> Asked:
    """config: the run's, with the coach to ask. agreed: told of the cost before any call; it raises to stop. make_pool:
    makes the pool of the coach that a configuration names, which notes its calls in a ledger. meanwhile: what takes
    long and may fail, done once all is agreed to and the coach can be reached, before it is asked.

    Raises ConfigError, CoachUnavailable, SandboxError, BudgetExceeded."""
    requests: list[CoachRequest] = []
    saved = _free(config)
    if wanted.probe_actions:
        requests, saved = saved_requests(run, config)
        requests = draw_requests(requests, wanted.probe_actions, wanted.seed)
    played = await _played(config, wanted) if wanted.faults else None
    perturbations = perturbations_for(
        [request.task.category for request in requests], [request.role.name for request in requests]
    )
    asked = [request for group in variants(requests, perturbations).values() for request in group]
    price = None if saved else known_price(config.coach)
    cost = estimate_requests([*asked, *(played.requests if played is not None else ())], saved, price=price)
    drop_torn_line(ledger)
    _check_budget(config.coach.budget_usd, spent_in(ledger), cost)
    agreed(cost)
    pool = make_pool(config, ledger)
    try:
        await pool.check()
        if meanwhile is not None:
            await meanwhile()
        probes = await run_probes(pool, requests, perturbations, wanted.resamples, wanted.seed) if requests else None
        localized = None
        if played is not None:
            localized = await localize_faults(pool, played, wanted.resamples, wanted.seed)
    finally:
        await pool.close()
    return Asked(config.coach.label, config.pipeline.name, cost, probes, localized)


def _check_budget(limit_usd: float | None, spent_usd: float, cost: CostEstimate) -> None:
    """Raises ConfigError where the money would run out before the last reply, and be spent for nothing. An estimate
    that rests on a guess refuses nothing: who says yes has read it."""
    if limit_usd is None or cost.usd is None or cost.assumed_reply_tokens:
        return
    if cost.usd[1] > limit_usd - spent_usd:
        raise ConfigError(
            f"this audit asks: {cost}; coach.budget_usd={limit_usd:g} does not reach so far, of which earlier audits "
            f"have spent {dollars(spent_usd)}: ask less, or raise it in the run's config.yaml"
        )


async def _played(config: RunConfig, wanted: ProbeSettings) -> PlayedFaults:
    """Planted faults in the run's own pipeline, each action with what the run's coach is shown of the outcome."""
    sandbox, outcome_to = make_sandbox(config.sandbox), config.coach.evidence.ground_truth
    try:
        await sandbox.start()
        with tempfile.TemporaryDirectory(prefix="coachrl-faults-") as folder:
            return await play_faults(config.pipeline, sandbox, Path(folder), wanted.faults, outcome_to, wanted.seed)
    finally:
        await sandbox.close()


def _free(config: RunConfig) -> list[CoachScore]:
    """What the rules cost, so that an estimate can say so; nothing is known of a model that was never asked."""
    return [CoachScore("", "scored", 0.0)] if config.coach.label == "rules" else []
