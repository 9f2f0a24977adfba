"""Scores actions in the background while episodes go on, and keeps the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.ledger import Call, Ledger, calls_to
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.types import CoachScore, Episode

log = logging.getLogger(__name__)


@runtime_checkable
class Checkable(Protocol):
    """A coach that can tell before any rollout whether it can be used."""

    async def check(self) -> None:
        """Raises CoachUnavailable where it cannot."""


class CoachPool:
    """Asks `coach` for the scores of many actions at once.

    concurrency: actions that are being scored at once. ledger: file that every call and every score is appended to.
    """

    def __init__(self, coach: Coach, *, concurrency: int = 32, ledger: Path | None = None) -> None:
        self.coach = coach
        self._slots = asyncio.Semaphore(concurrency)
        self._ledger = Ledger(ledger) if ledger is not None else None
        self._tasks: dict[str, asyncio.Task[CoachScore]] = {}
        self._unavailable: CoachUnavailable | None = None

    async def check(self) -> None:
        """Raises CoachUnavailable where the coach cannot be used. Call it before the first rollout."""
        if isinstance(self.coach, Checkable):
            with calls_to(lambda call: self._note(call, [])):
                await self.coach.check()

    def submit(self, request: CoachRequest) -> None:
        """Begin to score an action, and return at once. Needs a running event loop. Each action is submitted once."""
        action_id = request.action.id
        if action_id in self._tasks:
            raise ValueError(f"action {action_id} was submitted to the coach twice")
        self._tasks[action_id] = asyncio.create_task(self._score(request), name=f"coach {action_id}")

    async def settle(self, episodes: Sequence[Episode]) -> dict[str, CoachScore]:
        """Action id -> its score, in the order of the episodes' actions, once all of them are there.

        Where the coach gave none, the score's status is "failed" and its rationale says why. Actions that were never
        submitted (faults, roles that are not coached) are left out. Raises CoachUnavailable where no call can go well.
        """
        ids = [action.id for episode in episodes for action in episode.actions if action.id in self._tasks]
        if not ids:
            return {}
        try:
            await asyncio.gather(*(self._tasks[action_id] for action_id in ids))
            return {action_id: self._tasks.pop(action_id).result() for action_id in ids}
        except BaseException:
            await self._cancel()
            raise

    async def close(self) -> None:
        """Stop what is still being scored, and close coach and ledger."""
        await self._cancel()
        await self.coach.close()
        if self._ledger is not None:
            self._ledger.close()

    async def _score(self, request: CoachRequest) -> CoachScore:
        calls: list[Call] = []
        async with self._slots:
            began = time.monotonic()
            if self._unavailable is not None:
                raise self._unavailable
            try:
                with calls_to(lambda call: self._note(replace(call, action_id=request.action.id), calls)):
                    score = await self.coach.score(request)
            except CoachUnavailable as error:
                self._unavailable = error  # no later call can go well either
                raise
            except CoachError as error:
                log.warning("action %s has no score: %s", request.action.id, error)
                score = CoachScore(request.action.id, "failed", rationale=str(error), model=self.coach.name)
            score = _with_all_calls(score, calls, time.monotonic() - began)
        if self._ledger is not None:
            self._ledger.score(score)
        return score

    def _note(self, call: Call, calls: list[Call]) -> None:
        calls.append(call)
        if self._ledger is not None:
            self._ledger.call(call)

    async def _cancel(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _with_all_calls(score: CoachScore, calls: Sequence[Call], latency_s: float) -> CoachScore:
    """The score with what every call for it took, those of failed attempts included. Rules make no calls."""
    if not calls:
        return replace(score, latency_s=latency_s)
    return replace(
        score,
        attempts=len(calls),
        tokens_in=sum(call.tokens_in for call in calls),
        tokens_out=sum(call.tokens_out for call in calls),
        tokens_thinking=sum(call.tokens_thinking for call in calls),
        tokens_cached=sum(call.tokens_cached for call in calls),
        calls_from_cache=sum(call.from_cache for call in calls),
        cost_usd=_sum_known([call.cost_usd for call in calls]),
        latency_s=latency_s,
    )


def _sum_known(prices: Sequence[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None
