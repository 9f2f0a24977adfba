"""Dollars: what models cost, and a limit that is never overspent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coachrl.coach.clients.base import ChatRequest
from coachrl.coach.clients.ledger import Call, read_ledger
from coachrl.errors import BudgetExceeded
from coachrl.types import Usage

_LONG = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")  # of LiteLLM's table: some charge more from there on


@dataclass(frozen=True)
class Price:
    """Dollars a token. cached_usd: of input that the provider read from its own cache. The long_ ones hold for calls
    with more than `long_tokens` of input."""

    input_usd: float
    output_usd: float
    cached_usd: float
    thinking_usd: float
    long_input_usd: float
    long_output_usd: float
    long_tokens: int = 200_000

    @classmethod
    def from_table(cls, entry: Mapping[str, Any]) -> Price | None:
        """From an entry of LiteLLM's price table; None where it does not price tokens of text."""
        into, out = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        if into is None or out is None:
            return None
        long = min((int(found[1]) for name in entry if (found := _LONG.fullmatch(name))), default=200)
        return cls(
            input_usd=into,
            output_usd=out,
            cached_usd=entry.get("cache_read_input_token_cost") or into,
            thinking_usd=entry.get("output_cost_per_reasoning_token") or out,
            long_input_usd=entry.get(f"input_cost_per_token_above_{long}k_tokens") or into,
            long_output_usd=entry.get(f"output_cost_per_token_above_{long}k_tokens") or out,
            long_tokens=long * 1000,
        )

    @classmethod
    def flat(cls, input_usd: float, output_usd: float) -> Price:
        return cls(input_usd, output_usd, input_usd, output_usd, input_usd, output_usd)

    def of(self, usage: Usage) -> float:
        """Dollars of one call."""
        if usage.tokens_in > self.long_tokens:
            return usage.tokens_in * self.long_input_usd + usage.tokens_out * self.long_output_usd
        return (
            (usage.tokens_in - usage.tokens_cached) * self.input_usd
            + usage.tokens_cached * self.cached_usd
            + (usage.tokens_out - usage.tokens_thinking) * self.output_usd
            + usage.tokens_thinking * self.thinking_usd
        )

    def most(self, request: ChatRequest) -> float:
        """Dollars that the call costs at most: the reply has a limit."""
        output_usd = max(self.output_usd, self.thinking_usd, self.long_output_usd)
        input_usd = max(self.input_usd, self.long_input_usd)
        return request.most_tokens_in * input_usd + request.max_tokens * output_usd


@dataclass
class CostReservation:
    """What one call has cost. At first the most that it may; set it to what it did."""

    usd: float

    def failed(self, call: Call, latency_s: float, may_be_billed: bool) -> Call:
        """The record of a call that gave no reply. What may have been billed keeps its reservation: the budget counts
        the most that it may have cost."""
        if not may_be_billed:
            self.usd = 0.0
        usage = Usage(attempts=1, cost_usd=None if may_be_billed else 0.0, latency_s=latency_s)
        return replace(call, usage=usage, reserved_usd=self.usd)


class Budget:
    """Spent dollars, and a limit on them. Each call reserves the most that it may cost before it begins; near the limit
    calls wait for others to end and give back what they did not use, so that the limit is met and never passed.

    limit_usd None: no limit. spent_usd: what an earlier process of the same run has spent.
    """

    def __init__(self, limit_usd: float | None = None, spent_usd: float = 0.0) -> None:
        self.limit_usd = limit_usd
        self.spent_usd = spent_usd
        self._reserved_usd = 0.0
        self._in_flight = 0
        self._exceeded = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserved(self, most_usd: float) -> AsyncIterator[CostReservation]:
        """Around one call. Raises BudgetExceeded where it does not fit although no other is under way."""
        if self.limit_usd is not None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._exceeded or self._fits(most_usd) or self._in_flight == 0)
                if self._exceeded or not self._fits(most_usd):
                    self._exceeded = True
                    self._changed.notify_all()
                    raise BudgetExceeded(
                        f"coach.budget_usd of ${self.limit_usd:g} is reached: ${self.spent_usd:.4f} are spent, and the "
                        f"next call may cost ${most_usd:.4f}"
                    )
        self._reserved_usd += most_usd
        self._in_flight += 1
        reservation = CostReservation(most_usd)
        try:
            yield reservation
        finally:
            self._reserved_usd -= most_usd
            self._in_flight -= 1
            self.spent_usd += reservation.usd
            if self.limit_usd is not None:
                async with self._changed:
                    self._changed.notify_all()

    def _fits(self, most_usd: float) -> bool:
        return self.limit_usd is None or self.spent_usd + self._reserved_usd + most_usd <= self.limit_usd


def spent_in(ledger: Path) -> float:
    """Dollars of the calls in a ledger. Where a price is not known, what the budget had reserved counts."""
    spent_usd = 0.0
    for line in read_ledger(ledger) if ledger.is_file() else ():
        if line["kind"] == "call" and not line["usage"]["calls_from_cache"]:
            cost_usd = line["usage"]["cost_usd"]
            spent_usd += line["reserved_usd"] if cost_usd is None else cost_usd
    return spent_usd
