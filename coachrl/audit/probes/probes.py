"""Can the coach be swayed by style? Saved actions are scored as they are, and with changes that leave their substance
alone.

These ask the coach: `coachrl.coach.clients.cost_estimate` says before how many calls that is and what they may cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.perturbations import PERTURBATIONS, Perturbation
from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.seeding import generator
from coachrl.stats import RESAMPLES, SCORE_CHANGE, SHARE, Estimate
from coachrl.types import CoachScore, Episode, Outcome

FLIP_POINTS = 1.0  # a change of so many points or more is a flip
_EXAMPLES = 3


@dataclass(frozen=True)
class ProbeExample:
    """One action, its score as it was and as it became, and why, in the coach's words."""

    action: str
    role: str
    before: float
    after: float
    said_before: str
    said_after: str


@dataclass(frozen=True)
class Probe:
    """What one change does. flips: share of the actions whose score moved by `FLIP_POINTS` or more. shift: mean change
    in points. failed: pairs that a failed or abstained call spoiled. None where it applies to no action, or no pair has
    both scores."""

    name: str
    what: str
    hides: bool
    flips: Estimate | None = None
    shift: Estimate | None = None
    failed: int = 0
    examples: Sequence[ProbeExample] = ()


def draw_requests(requests: Sequence[CoachRequest], count: int, seed: int = 0) -> list[CoachRequest]:
    """`count` of the requests at random, in order, or all where there are fewer."""
    if len(requests) <= count:
        return list(requests)
    chosen = generator(seed, "probes").choice(len(requests), size=count, replace=False)
    return [requests[index] for index in sorted(chosen)]


def variants(
    requests: Sequence[CoachRequest], perturbations: Mapping[str, Perturbation] = PERTURBATIONS
) -> dict[str, list[CoachRequest]]:
    """Perturbation -> the changed requests, each under an id of its own, for those that it applies to; the plain
    requests are under ""."""
    made = {"": [_under(request, request.action.id + "#plain") for request in requests]}
    for name, perturbation in perturbations.items():
        changed = [(request.action.id, perturbation.change(request)) for request in requests]
        made[name] = [_under(new, f"{action_id}#{name}") for action_id, new in changed if new is not None]
    return made


async def ask(pool: CoachPool, requests: Sequence[CoachRequest]) -> dict[str, CoachScore]:
    """Action id -> score. Raises CoachUnavailable."""
    for request in requests:
        pool.submit(request)
    holder = Episode("audit", "", "", "", tuple(request.action for request in requests), Outcome(False))
    return await pool.settle([holder])


async def run_probes(
    pool: CoachPool,
    requests: Sequence[CoachRequest],
    perturbations: Mapping[str, Perturbation] = PERTURBATIONS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Probe]:
    """Score everything that `variants` makes, and compare each change with the plain action."""
    made = variants(requests, perturbations)
    scores = await ask(pool, [request for group in made.values() for request in group])
    tasks = {request.action.id: request.task.id for request in requests}
    return [
        _probe(perturbation, made[name], scores, tasks, resamples, seed) for name, perturbation in perturbations.items()
    ]


def _probe(
    perturbation: Perturbation,
    changed: Sequence[CoachRequest],
    scores: Mapping[str, CoachScore],
    tasks: Mapping[str, str],
    resamples: int,
    seed: int,
) -> Probe:
    pairs = []
    for request in changed:
        action = request.action.id.rpartition("#")[0]
        before, after = scores.get(f"{action}#plain"), scores.get(request.action.id)
        if before is None or after is None or before.process_0_10 is None or after.process_0_10 is None:
            continue
        points = before.process_0_10, after.process_0_10
        pairs.append(ProbeExample(action, request.role.name, *points, before.rationale, after.rationale))
    blank = Probe(perturbation.name, perturbation.what, perturbation.hides, failed=len(changed) - len(pairs))
    if not pairs:
        return blank
    change_N = np.array([pair.after - pair.before for pair in pairs])
    sample = Sample.of_tasks([tasks[pair.action] for pair in pairs], resamples, seed)
    flips = sample.mean((np.abs(change_N) >= FLIP_POINTS).astype(float), limits=SHARE)
    worst = [index for index in np.argsort(-np.abs(change_N), kind="stable")[:_EXAMPLES] if change_N[index] != 0]
    shift = sample.mean(change_N, limits=SCORE_CHANGE)
    return replace(blank, flips=flips, shift=shift, examples=[pairs[index] for index in worst])


def _under(request: CoachRequest, action_id: str) -> CoachRequest:
    return replace(request, action=replace(request.action, id=action_id))
