"""What it will take to ask a coach, before it is asked: for a run, a dry run says so; for an audit, `coachrl audit`.

Both count the same way: calls and tokens, each with the least and the most that they may come to, and their price.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean

from coachrl.coach.base import CoachRequest, is_language_model
from coachrl.coach.build import retrospective_member, retrospective_prompt
from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.providers import known_price
from coachrl.coach.prompt_rendering import find_coach_prompt
from coachrl.config import CoachConfig, EvidenceConfig
from coachrl.config.coach import ToolsConfig
from coachrl.prompts import Prompt
from coachrl.text import dollars
from coachrl.types import CoachScore, Role, Usage

CHARACTERS_A_TOKEN = 4
_SHORT_REPLY_TOKENS = 100  # a score with its reasons in two sentences
_USUAL_REPLY_TOKENS = 500
_USUAL_PROMPT_TOKENS = 3000  # where nothing is at hand to go by
_RUBRIC_TOKENS = 1000  # of a coach's prompt, beside what it shows

Range = tuple[int, int]


@dataclass(frozen=True)
class CostEstimate:
    """(least, most), about; both are the same where one figure is all that there is. Repairs and attempts after faults
    come on top. usd: None where a price is not known. assumed_reply_tokens: the length of a reply that was taken for
    one that nobody has seen yet, else 0."""

    calls: Range
    tokens_in: Range
    tokens_out: Range
    usd: tuple[float, float] | None
    assumed_reply_tokens: int = 0

    def __add__(self, other: CostEstimate) -> CostEstimate:
        usd = None
        if self.usd is not None and other.usd is not None:
            usd = (self.usd[0] + other.usd[0], self.usd[1] + other.usd[1])
        return CostEstimate(
            _added(self.calls, other.calls),
            _added(self.tokens_in, other.tokens_in),
            _added(self.tokens_out, other.tokens_out),
            usd,
            max(self.assumed_reply_tokens, other.assumed_reply_tokens),
        )

    @property
    def is_free(self) -> bool:
        return self.usd is not None and self.usd[1] == 0

    def __str__(self) -> str:
        """The most, on one line, for people."""
        usd = None if self.usd is None else self.usd[1]
        price = "price not known" if usd is None else "free" if self.is_free else f"about {dollars(usd)}"
        guess = f" at {self.assumed_reply_tokens} tokens a reply" if usd and self.assumed_reply_tokens else ""
        return f"{self.calls[1]:,} coach calls, about {self.tokens_in[1]:,} prompt tokens, {price}{guess}"


def estimate(
    calls: Range, tokens_in: Range, tokens_out: Range, price: Price | None, assumed_reply_tokens: int = 0
) -> CostEstimate:
    """The estimate of so much at `price`; None: it is not known."""
    usd = None
    if price is not None:
        least, most = (
            into * price.input_usd + out * price.output_usd for into, out in zip(tokens_in, tokens_out, strict=True)
        )
        usd = (least, most)
    return CostEstimate(calls, tokens_in, tokens_out, usd, assumed_reply_tokens)


@dataclass(frozen=True)
class TeamWorkload:
    """How much there is to judge. roles act `rounds` times at most, each up to its turns. task_tokens: of the longest
    task. rollouts: episodes, or candidates of each turn where a tree draws them; (least, most)."""

    roles: Sequence[Role]
    rounds: int
    task_tokens: int
    rollouts: Range


def estimate_run(
    settings: CoachConfig, pipeline: str, workload: TeamWorkload, retrospective: bool
) -> CostEstimate | None:
    """What the language models of a coach will take in a run; None where none is asked. Least: every agent ends its
    part after one turn, runs no program, and every reply of the coach is short. Most: all turns are taken, all windows
    are full, all replies reach coach.max_tokens, before each score the coach runs all the programs that it may.
    retrospective: an attribution of each episode's outcome comes on top.

    Raises ConfigError for a prompt that cannot be used, CoachUnavailable for an unknown model."""
    asked = [
        (member.name, find_coach_prompt(member.prompt, pipeline), settings)
        for member in settings.members
        if is_language_model(member.name)
    ]
    if retrospective:
        without_tools = settings.model_copy(update={"tools": ToolsConfig()})
        attributing = retrospective_member(settings)
        asked.append((attributing.name, retrospective_prompt(attributing), without_tools))
    estimates = []
    for name, prompt, own in asked:
        price = known_price(settings.model_copy(update={"name": name, "ensemble": ()}))
        estimates.append(_of_one(own, prompt, workload, price))
    return reduce(operator.add, estimates) if estimates else None


def estimate_requests(
    asked: Sequence[CoachRequest], saved: Sequence[CoachScore], price: Price | None = None
) -> CostEstimate:
    """What single requests will take. saved: scores that the same coach gave before; their mean price and tokens are
    taken. Without them, tokens are guessed from the length of what is shown, and dollars from `price` (None: not
    known)."""
    calls = len(asked)
    given = [score.usage for score in saved if score.status != "failed"]
    seen = [usage.tokens_in for usage in given if usage.tokens_in]
    shown = [_shown_tokens(request) for request in asked]
    prompt_tokens = round(calls * fmean(seen or shown or [_USUAL_PROMPT_TOKENS]))
    paid = sum(given, Usage())
    if given and paid.cost_usd is not None:
        usd = calls * paid.cost_usd / len(given)
        reply_tokens = round(calls * paid.tokens_out / len(given))
        return CostEstimate(_about(calls), _about(prompt_tokens), _about(reply_tokens), (usd, usd))
    reply_tokens = calls * _USUAL_REPLY_TOKENS
    return estimate(_about(calls), _about(prompt_tokens), _about(reply_tokens), price, _USUAL_REPLY_TOKENS)


def _of_one(settings: CoachConfig, prompt: Prompt, workload: TeamWorkload, price: Price | None) -> CostEstimate:
    """One model's part of a run."""
    rubric = len(prompt.body) // CHARACTERS_A_TOKEN
    turns = [workload.rounds * role.max_turns for role in workload.roles]
    earlier = _earlier(workload.roles, sum(turns), settings.evidence)
    longest = [rubric + earlier + _shown(role, workload.task_tokens, settings.evidence) for role in workload.roles]
    fewest, all_rollouts = workload.rollouts
    least = fewest * len(turns)
    programs = settings.tools.turns
    calls = 1 + programs  # each is shown again what was said and printed before it
    again = programs * calls // 2 * (settings.max_tokens + settings.evidence.window_tokens)
    most = all_rollouts * sum(turns) * calls
    most_in = all_rollouts * sum(count * (calls * size + again) for count, size in zip(turns, longest, strict=True))
    tokens_out = (least * _SHORT_REPLY_TOKENS, most * settings.max_tokens)
    return estimate((least, most), (least * rubric, most_in), tokens_out, price)


def _shown(role: Role, task_tokens: int, evidence: EvidenceConfig) -> int:
    """Tokens of the task, of what the agent read, wrote and ran, at most."""
    window = evidence.window_tokens
    log = window if role.python and evidence.tool_log else 0
    return min(task_tokens, window) + window + min(role.max_new_tokens, window) + log


def _earlier(roles: Sequence[Role], turns: int, evidence: EvidenceConfig) -> int:
    """Tokens of the actions before the last one."""
    if not evidence.previous:
        return 0
    texts = 2 if evidence.tool_log and any(role.python for role in roles) else 1
    return (turns - 1) * texts * evidence.previous_tokens


def _shown_tokens(request: CoachRequest) -> int:
    """Tokens of one request's prompt, about."""
    texts = [request.task.prompt, request.action.prompt_text, request.action.text]
    texts += [earlier.text for earlier in request.previous]
    if request.action.execution is not None:
        texts += [request.action.execution.stdout, request.action.execution.stderr]
    return _RUBRIC_TOKENS + sum(map(len, texts)) // CHARACTERS_A_TOKEN


def _about(count: int) -> Range:
    return count, count


def _added(one: Range, other: Range) -> Range:
    return one[0] + other[0], one[1] + other[1]
