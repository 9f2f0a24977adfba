"""What the language models of a coach will read and write in a run, and what that may cost, before any is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from coachrl.coach.build import retrospective_model, retrospective_prompt
from coachrl.coach.clients.providers import known_price
from coachrl.coach.prompts import find_coach_prompt
from coachrl.config import CoachConfig, EvidenceConfig
from coachrl.prompts import Prompt
from coachrl.types import Role

CHARACTERS_A_TOKEN = 4
_SHORT_REPLY_TOKENS = 100  # a score with its reasons in two sentences

Range = tuple[int, int]
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class TeamWorkload:
    """How much there is to judge. roles act `rounds` times at most, each up to its turns. task_tokens: of the longest
    task. rollouts: episodes, or candidates of each turn where a tree draws them."""

    roles: Sequence[Role]
    rounds: int
    task_tokens: int
    rollouts: int


@dataclass(frozen=True)
class CostEstimate:
    """(least, most), about. Least: every agent ends its part after one turn, and every reply of the coach is short.
    Most: all turns are taken, all windows are full, all replies reach coach.max_tokens. Repairs and attempts after
    faults come on top. usd: None where a price is not known."""

    tokens_in: Range
    tokens_out: Range
    usd: tuple[float, float] | None


def forecast(settings: CoachConfig, pipeline: str, talk: TeamWorkload, retrospective: bool) -> CostEstimate | None:
    """None where no language model is asked. retrospective: a walk back over each episode comes on top.

    Raises ConfigError for a prompt that cannot be used, CoachUnavailable for an unknown model."""
    asked = [(m.name, find_coach_prompt(m.prompt, pipeline)) for m in settings.members if m.name != "rules"]
    if retrospective:
        asked.append((retrospective_model(settings), retrospective_prompt(settings)))
    if not asked:
        return None
    parts = [
        _of_one(settings.model_copy(update={"name": name, "ensemble": ()}), prompt, talk) for name, prompt in asked
    ]
    prices = [part.usd for part in parts if part.usd is not None]
    return CostEstimate(
        _summed([part.tokens_in for part in parts]),
        _summed([part.tokens_out for part in parts]),
        _summed(prices) if len(prices) == len(parts) else None,
    )


def _of_one(settings: CoachConfig, prompt: Prompt, talk: TeamWorkload) -> CostEstimate:
    """One model's part. settings: with its name."""
    rubric = len(prompt.body) // CHARACTERS_A_TOKEN
    turns = [talk.rounds * role.max_turns for role in talk.roles]
    earlier = _earlier(talk.roles, sum(turns), settings.evidence)
    longest = [rubric + earlier + _shown(role, talk.task_tokens, settings.evidence) for role in talk.roles]
    into = (
        talk.rollouts * len(talk.roles) * rubric,
        talk.rollouts * sum(count * size for count, size in zip(turns, longest, strict=True)),
    )
    out = talk.rollouts * len(turns) * _SHORT_REPLY_TOKENS, talk.rollouts * sum(turns) * settings.max_tokens
    price = known_price(settings)
    if price is None:
        return CostEstimate(into, out, None)
    usd = [
        tokens_in * price.input_usd + tokens_out * price.output_usd
        for tokens_in, tokens_out in zip(into, out, strict=True)
    ]
    return CostEstimate(into, out, (usd[0], usd[1]))


def _shown(role: Role, task_tokens: int, evidence: EvidenceConfig) -> int:
    """Tokens of the task, of what the agent read, wrote and ran."""
    window = evidence.window_tokens
    log = window if role.python and evidence.tool_log else 0
    return min(task_tokens, window) + window + min(role.max_new_tokens, window) + log


def _earlier(roles: Sequence[Role], turns: int, evidence: EvidenceConfig) -> int:
    """Tokens of the actions before the last one."""
    if not evidence.previous:
        return 0
    texts = 2 if evidence.tool_log and any(role.python for role in roles) else 1
    return (turns - 1) * texts * evidence.previous_tokens


def _summed(ranges: Sequence[tuple[_Number, _Number]]) -> tuple[_Number, _Number]:
    return sum(least for least, _ in ranges), sum(most for _, most in ranges)
