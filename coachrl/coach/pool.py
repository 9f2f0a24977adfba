"""Scores actions in the background while episodes go on: concurrency, the one retry loop, the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import tenacity

from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.client import TransientCoachError
from coachrl.coach.ledger import Call, Ledger, calls_to
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.types import CoachScore, Episode

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@runtime_checkable
class Checkable(Protocol):
    """A coach that can tell before any rollout whether it can be used."""

    async def check(self) -> None:
        """Raises CoachUnavailable where it cannot."""


class CoachPool:
    """Asks `coach` for the scores of many actions at once.

    concurrency: actions that are being scored at once; waits between attempts count, so that a provider which says 429
    is asked less. max_attempts: how often one action is tried where trying again may help. timeout_s: seconds of one
    model call; an action gets `2 * max_attempts * timeout_s` in all, waits included (an attempt may hold a repair).
    ledger: file that every call and every score is appended to.
    """

    def __init__(
        self,
        coach: Coach,
        *,
        concurrency: int = 32,
        max_attempts: int = 5,
        timeout_s: float = 60.0,
        ledger: Path | None = None,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self.coach = coach
        self._slots = asyncio.Semaphore(concurrency)
        self._max_attempts, self._total_s, self._first_wait_s = max_attempts, 2 * max_attempts * timeout_s, first_wait_s
        self._ledger = Ledger(ledger) if ledger is not None else None
        self._tasks: dict[str, asyncio.Task[CoachScore]] = {}
        self._unavailable: CoachUnavailable | None = None

    async def check(self) -> None:
        """Raises CoachUnavailable where the coach cannot be used. Call it before the first rollout."""
        if isinstance(self.coach, Checkable):
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
        attempts = 0
        async with self._slots:
            began = time.monotonic()
            if self._unavailable is not None:
                raise self._unavailable
            try:
                with calls_to(lambda call: self._note(call, calls)):
                    async with asyncio.timeout(self._total_s):
                        async for attempt in self._attempts():
                            with attempt:
                                attempts += 1
                                score = await self.coach.score(request)
            except CoachUnavailable as error:
                self._unavailable = error  # no later call can go well either
                raise
            except (CoachError, TimeoutError) as error:
                reason = str(error) or f"no score within {self._total_s:g} s"
                log.warning("action %s has no score after %d attempts: %s", request.action.id, attempts, reason)
                score = CoachScore(
                    request.action.id, "failed", rationale=reason, model=self.coach.name, attempts=attempts
                )
            score = _with_all_calls(score, calls, time.monotonic() - began)
        if self._ledger is not None:
            self._ledger.score(score)
        return score

    def _attempts(self) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(TransientCoachError),
            stop=tenacity.stop_after_attempt(self._max_attempts) | tenacity.stop_before_delay(self._total_s),
            wait=self._wait_s,
            reraise=True,
        )

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Exponential with jitter, and never shorter than what the provider asked for."""
        backoff_s = tenacity.wait_exponential_jitter(
            initial=self._first_wait_s, max=_LONGEST_WAIT_S, jitter=self._first_wait_s
        )(state)
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, TransientCoachError) else None
        return max(backoff_s, asked_s or 0.0)

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
        cost_usd=_sum_known([call.cost_usd for call in calls]),
        latency_s=latency_s,
    )


def _sum_known(prices: Sequence[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None
