"""Lock-step batching: many episodes each ask for one reply at a time; the model answers them all side by side.

While an episode runs code or waits for something else, the others' requests are parked. Once every episode in flight
has parked a request, all of them run as one batch in a worker thread, and the event loop goes on. What is in a batch
therefore depends on the episodes alone, not on timing, and a seeded run can be repeated: as long as an
episode's agents act one after another, or ask in the same instant.

What an episode with a patience does between two replies is not ours, and may hang. So many seconds are its share of the
wait: who has parked waits for the shares of all that are busy together, from when one of them last came or went. Many
that wait for the same processor are therefore given the time that they need one after another, on a slow machine too.
Those that have not come by then are waited for no more until they ask.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import groupby

from coachrl.trainers.backends.torch.engine.decode import Request
from coachrl.types import Generation

Run = Callable[[str, Sequence[Request]], Sequence[Generation]]  # policy, requests -> replies in their order

_current_episode: ContextVar[_InFlight | None] = ContextVar("current_episode", default=None)


@dataclass(eq=False)
class _InFlight:
    """One episode in flight. patience_s: its share of how long the others wait for those that are busy."""

    patience_s: float
    is_awaited: bool = True


@dataclass(frozen=True, eq=False)
class _Parked:
    policy: str
    request: Request
    episode: _InFlight | None
    reply: asyncio.Future[Generation]

    @property
    def key(self) -> tuple[str, int, int, tuple[int, ...]]:
        """Requests of like length side by side waste least padding; seed and ids make the order the same every time."""
        return self.policy, len(self.request.prompt_ids), self.request.sampling.seed, self.request.prompt_ids


class LockstepBatcher:
    """Collects requests and hands them to `run`, one policy at a time.

    An episode must not wait for another one while it is in flight (a lock, a slot of a pool): the other may be parked
    until this one asks for a reply. Enter `episode()` with such things in hand.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batches = 0
        self._forget()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")

    @asynccontextmanager
    async def episode(self, patience_s: float | None = None) -> AsyncIterator[None]:
        """What happens inside belongs to one episode in flight. Inside another it changes nothing. patience_s: its
        share of how long the others wait for those that are busy; None is as long as it takes."""
        if _current_episode.get() in self._in_flight:
            yield
            return
        self._belong_to_running_loop()
        episode = _InFlight(math.inf if patience_s is None else patience_s)
        token = _current_episode.set(episode)
        self._in_flight.add(episode)
        self._moved()
        try:
            yield
        finally:
            _current_episode.reset(token)
            self._in_flight.discard(episode)
            self._moved()

    async def submit(self, policy: str, request: Request) -> Generation:
        """The reply to one request. Outside of an episode it runs with what else is asked for in the same instant.
        Cancelled, it is given up, also where it is being drawn already."""
        self._belong_to_running_loop()
        episode = _current_episode.get()
        episode = episode if episode in self._in_flight else None
        parked = _Parked(policy, request, episode, asyncio.get_running_loop().create_future())
        self._parked.append(parked)
        self._moved()
        try:
            return await parked.reply
        except asyncio.CancelledError:
            request.given_up.set()
            raise
        finally:
            if episode is not None:
                episode.is_awaited = True
            if parked in self._parked:
                self._parked.remove(parked)
            self._moved()

    def close(self) -> None:
        """Wait for the batch that runs, if any, and end the worker thread."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _belong_to_running_loop(self) -> None:
        """What an event loop that was interrupted left behind can never be answered: start afresh in a new one."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._forget()

    def _forget(self) -> None:
        self._in_flight: set[_InFlight] = set()
        self._parked: list[_Parked] = []
        self._batch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # wakes where patience ends
        self._moved_at = -math.inf

    def _moved(self) -> None:
        """An episode came, went, asked or was answered: those that are busy have their time from now."""
        self._moved_at = asyncio.get_running_loop().time()
        self._wake()

    def _wake(self) -> None:
        # One tick later: requests that are being made side by side right now still join.
        asyncio.get_running_loop().call_soon(self._start_batch)

    def _start_batch(self) -> None:
        if self._batch is not None:
            return
        alive = [parked for parked in self._parked if not parked.reply.done()]
        busy = self._in_flight - {parked.episode for parked in alive}
        loop, waits_until = asyncio.get_running_loop(), self._waits_until(busy)
        all_wait = waits_until <= loop.time()
        batch = [parked for parked in alive if all_wait or parked.episode not in self._in_flight]
        if batch and all_wait:
            for late in busy:
                late.is_awaited = False
        if batch:
            self._parked = [parked for parked in alive if parked not in batch]
            self._batch = asyncio.create_task(self._answer(batch))
        elif alive and waits_until < math.inf:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(waits_until, self._start_batch)

    def _waits_until(self, busy: Iterable[_InFlight]) -> float:
        """The time of the loop up to which the parked episodes wait for those that are busy."""
        shares = [episode.patience_s for episode in busy if episode.is_awaited]
        return self._moved_at + sum(shares) if shares else -math.inf

    async def _answer(self, batch: list[_Parked]) -> None:
        self._batches += 1
        place = self._batches, len(batch)
        try:
            batch.sort(key=lambda parked: parked.key)
            for policy, group in groupby(batch, key=lambda parked: parked.policy):
                await self._answer_group(policy, list(group), place)
        finally:
            for parked in batch:
                parked.reply.cancel()  # only what a shutdown left unanswered
            self._batch = None
            self._wake()

    async def _answer_group(self, policy: str, group: list[_Parked], place: tuple[int, int]) -> None:
        group = [parked for parked in group if not parked.reply.done()]
        if not group:
            return
        requests = [parked.request for parked in group]
        replies = asyncio.get_running_loop().run_in_executor(self._worker, self._run, policy, requests)
        await asyncio.wait([replies])
        error = replies.exception()
        for index, parked in enumerate(group):
            if parked.reply.done():
                continue
            if error is not None:
                parked.reply.set_exception(error)
            else:
                parked.reply.set_result(replace(replies.result()[index], batch=place))
