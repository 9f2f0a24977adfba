"""Can the coach be talked round? Saved actions are scored as they are, and with changes that leave their substance
alone.

These ask the coach: `estimate_cost` says before how many calls that is and what they may cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.perturbations import PERTURBATIONS, Perturbation
from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.budget import Price
from coachrl.coach.pool import CoachPool
from coachrl.seeding import generator
from coachrl.stats import RESAMPLES, SCORE_CHANGE, SHARE, Estimate
from coachrl.types import CoachScore, Episode, Outcome

FLIP_POINTS = 1.0  # a change of so many points or more is a flip
_EXAMPLES = 3
_CHARACTERS_A_TOKEN = 4
_RUBRIC_TOKENS = 1000  # of a coach's prompt, beside what it shows
_USUAL_PROMPT_TOKENS = 3000  # where nothing is at hand to go by
_REPLY_TOKENS = 500


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
    flips: Estimate | None
    shift: Estimate | None
    failed: int
    examples: Sequence[ProbeExample]


@dataclass(frozen=True)
class ProbeCost:
    """What asking would take. prompt_tokens: about so many in all. usd: None where no price is known. reply_tokens: the
    length of a reply that was assumed, where the coach has not been asked before; else 0."""

    calls: int
    prompt_tokens: int
    usd: float | None
    reply_tokens: int = 0

    def __str__(self) -> str:
        price = "price not known" if self.usd is None else "free" if self.usd == 0 else f"about ${self.usd:,.2f}"
        guess = f" at {self.reply_tokens} tokens a reply" if self.usd and self.reply_tokens else ""
        return f"{self.calls:,} coach calls, about {self.prompt_tokens:,} prompt tokens, {price}{guess}"


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


def estimate_cost(
    asked: Sequence[CoachRequest], saved: Sequence[CoachScore], more_calls: int = 0, price: Price | None = None
) -> ProbeCost:
    """saved: scores that the same coach gave before; their mean price and tokens are taken. Without them, tokens are
    guessed from the length of what is shown, and dollars from `price` (None: not known). more_calls: beside `asked`."""
    paid = [score for score in saved if score.status != "failed"]
    prices = [score.cost_usd for score in paid]
    known = [cost for cost in prices if cost is not None]
    tokens = [score.tokens_in for score in paid if score.tokens_in]
    mean_tokens = float(np.mean(tokens or [_shown_tokens(request) for request in asked] or [_USUAL_PROMPT_TOKENS]))
    calls = len(asked) + more_calls
    if known and len(known) == len(prices):
        return ProbeCost(calls, round(calls * mean_tokens), calls * float(np.mean(known)))
    usd = None if price is None else calls * (mean_tokens * price.input_usd + _REPLY_TOKENS * price.output_usd)
    return ProbeCost(calls, round(calls * mean_tokens), usd, _REPLY_TOKENS)


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
        if before is not None and after is not None and None not in (before.process_0_10, after.process_0_10):
            pairs.append((action, request.role.name, before, after))
    head = (perturbation.name, perturbation.what, perturbation.hides)
    failed = len(changed) - len(pairs)
    if not pairs:
        return Probe(*head, None, None, failed, [])
    change_N = np.array([(after.process_0_10 or 0.0) - (before.process_0_10 or 0.0) for *_, before, after in pairs])
    frame = pd.DataFrame(
        {"task": [tasks[action] for action, *_ in pairs], "score": change_N, "outcome": np.nan, "step": 0}
    )
    frame["task"] = frame["task"].astype("category")
    sample = Sample.of(frame, resamples, seed)
    flips = sample.means((), (np.abs(change_N) >= FLIP_POINTS).astype(float), limits=SHARE)[0]
    worst = [index for index in np.argsort(-np.abs(change_N), kind="stable")[:_EXAMPLES] if change_N[index] != 0]
    return Probe(
        *head, flips, sample.mean(change_N, limits=SCORE_CHANGE), failed, [_example(*pairs[index]) for index in worst]
    )


def _example(action: str, role: str, before: CoachScore, after: CoachScore) -> ProbeExample:
    return ProbeExample(
        action, role, before.process_0_10 or 0.0, after.process_0_10 or 0.0, before.rationale, after.rationale
    )


def _under(request: CoachRequest, action_id: str) -> CoachRequest:
    return replace(request, action=replace(request.action, id=action_id))


def _shown_tokens(request: CoachRequest) -> int:
    shown = [request.task.prompt, request.action.prompt_text, request.action.text]
    shown += [earlier.text for earlier in request.previous]
    if request.action.execution is not None:
        shown.append(json.dumps(asdict(request.action.execution)))
    return _RUBRIC_TOKENS + sum(map(len, shown)) // _CHARACTERS_A_TOKEN
