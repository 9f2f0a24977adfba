"""How much a provider is asked at once and in a minute."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coachrl.coach.clients.base import TransientCoachError

_LONGEST_SLEEP_S = 1.0
_SHORTEST_SLEEP_S = 0.001  # an event loop sleeps no shorter
_FIRST_PER_S = 10.0  # grows by _FIRST_GAIN a call: a thousand calls have begun within three seconds, if none is refused
_FIRST_GAIN = 0.05
_FIRST_GAIN_A_S = 5.0  # not without limit while a refusal is on its way
_LONGEST_STEP_S = 2.0  # that a call which was taken tells about the time before it
_LEAST_PROBES_PER_S = 1 / 30
_MOST_PER_S = 1e6
_LEAST_CUT = 0.08
_REGAIN_S = 30.0  # until a least cut is made good, and as long again until the pace is as far above
_REMEMBERED = 2000  # calls whose pace is known
_OUT = 3  # refusals of single calls in a row, from which on the provider takes nothing
_LEAST_CEILING_PER_S = 0.5
_IN_A_ROW = 3  # calls since the last refusal
_SURE_CALLS = 20  # so many taken since the last refusal say that the pace is near what the provider takes


class Pace:
    """How fast calls to one model may begin, learned from the refusals of its provider (429, overloaded).

    A refusal makes all calls pause, and slows those after it down, the more the sooner it came. From there the pace
    regains what it had, stays near it for long, and only then looks for more, faster and faster (CUBIC, Ha, Rhee and Xu
    2008: how TCP finds the capacity of a path). It goes by time and not by calls, so that a refusal is as rare under a
    quota of many calls a second as under one of few. Times are those of one clock in seconds, and are handed in.
    """

    def __init__(self) -> None:
        self.per_s = _FIRST_PER_S
        self._ceiling_per_s: float | None = None  # where it was refused
        self._age_s = -math.inf  # time since it was regained: before 0 the pace is below the ceiling
        self._begun = 0  # calls since the last slowdown
        self._paces = deque[tuple[float, float, int]](maxlen=_REMEMBERED)  # when each began, how fast, the how many
        self._next_s = self._slowed_s = -math.inf
        self._alone = 0  # refusals in a row of which each was of the first call after the last one
        self._lag_s = 0.0  # how long the last refusal took to come back

    def wait_s(self, now_s: float) -> float:
        """How long the next call has to wait; 0 or less: it may begin."""
        return self._next_s - now_s

    def began(self, now_s: float, waited: bool) -> None:
        """A call begins. waited: it would have begun earlier if it could."""
        self._begun += 1
        self._paces.append((now_s, self.per_s, self._begun))
        gap_s = 1 / self.per_s
        if self._begun == 1 and self._ceiling_per_s is not None:
            # A probe: the next call begins when its refusal would have come back.
            gap_s = max(gap_s, 1.2 * self._lag_s)
        elif waited:  # a pace that nobody needed says nothing about what the provider takes
            self._grow(gap_s)
        self._next_s = max(self._next_s, now_s) + gap_s

    def refused(self, began_s: float, now_s: float, asked_s: float | None) -> float:
        """A call that began at `began_s` was refused, and the provider asked to wait for `asked_s`. Returns when the
        next one may begin. Calls that were under way at the last slowdown say nothing new about the pace."""
        if began_s > self._slowed_s:
            # What counts is the pace at which the refused call began: it may have grown since.
            known = [(per_s, nth) for at_s, per_s, nth in self._paces if at_s <= began_s]
            refused_per_s, begun = known[-1] if known else (self.per_s, self._begun)
            cut = min(0.5, max(_LEAST_CUT, _LEAST_CUT * _SURE_CALLS / max(1, begun)))
            # Of refusals in a row the later ones may come of the first pace, which used up a window of the quota.
            in_a_row = self._ceiling_per_s is not None and begun <= _IN_A_ROW
            before_per_s = self._ceiling_per_s if in_a_row and self._ceiling_per_s is not None else refused_per_s
            is_out = self._alone >= _OUT  # not even single calls are taken: that says nothing about a pace
            self._alone = self._alone + 1 if begun == 1 else 0
            if not is_out:
                self._ceiling_per_s = max(_LEAST_CEILING_PER_S, math.sqrt(refused_per_s * before_per_s))
            self.per_s = max(_LEAST_PROBES_PER_S, refused_per_s * (1 - cut))
            lost = 1 - self.per_s / self._ceiling_per_s if self._ceiling_per_s is not None else cut
            self._age_s = -_REGAIN_S * math.cbrt(max(0.0, lost) / _LEAST_CUT)
            self._begun = 0
            self._paces.clear()
            self._slowed_s = now_s
            self._lag_s = now_s - began_s
        self._next_s = max(self._next_s, now_s + max(0.7 / self.per_s, asked_s or 0.0))
        return self._next_s

    def _grow(self, passed_s: float) -> None:
        if self._ceiling_per_s is None:
            self.per_s = min(_MOST_PER_S, self.per_s * (1 + min(_FIRST_GAIN, _FIRST_GAIN_A_S * passed_s)))
            return
        self._age_s += min(passed_s, _LONGEST_STEP_S)
        found = self._ceiling_per_s * (1 + _LEAST_CUT * (self._age_s / _REGAIN_S) ** 3)
        self.per_s = min(_MOST_PER_S, max(self.per_s, found))


class ConcurrencyLimiter:
    """Lets calls to one model begin: at most `most` in flight, at the `pace` that the provider takes them, in the order
    in which they came. A call that was refused comes back ahead of those that were never sent.

    Where the provider has taken no call for give_up_after_s, or asks to be left alone for longer than that, those who
    wait are told so.
    """

    def __init__(self, most: int, give_up_after_s: float = math.inf) -> None:
        self.pace = Pace()
        self._most = most
        self._give_up_after_s = give_up_after_s
        self._in_flight = 0
        self._waiting = deque[asyncio.Future[None]]()
        self._held = False  # the first of those who wait does so for the pace
        self._timer: asyncio.TimerHandle | None = None
        self._refused_since_s: float | None = None  # the first refusal after the last call that was taken
        self._lost: TransientCoachError | None = None

    @asynccontextmanager
    async def turn(self, again: bool = False) -> AsyncIterator[None]:
        """Around one attempt of a call. again: it was sent before. Raises TransientCoachError where it would wait for
        too long."""
        await self._enter(again)
        try:
            yield
        finally:
            self._in_flight -= 1
            self._let_in()

    def refused(self, began_s: float, error: TransientCoachError) -> None:
        """A call that began at `began_s` (time.monotonic) was refused for being one too many."""
        now_s = time.monotonic()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        next_s = self.pace.refused(began_s, now_s, error.retry_after_s)
        self._lost = error if next_s - self._refused_since_s > self._give_up_after_s else None
        while self._lost is not None and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(_copied(error))

    def taken(self) -> None:
        """A call was not refused."""
        self._refused_since_s = self._lost = None

    async def _enter(self, again: bool) -> None:
        if self._lost is not None and self.pace.wait_s(time.monotonic()) > 0:
            raise _copied(self._lost)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.appendleft(turn) if again else self._waiting.append(turn)
        self._let_in()
        try:
            await turn  # whoever sets it has counted this call
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._in_flight -= 1
                self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and self._in_flight < self._most:
            now_s = time.monotonic()
            wait_s = self.pace.wait_s(now_s)
            if wait_s > _SHORTEST_SLEEP_S:
                self._held = True
                self._let_in_after(wait_s)
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                self.pace.began(now_s, self._held)
                self._held = False
                turn.set_result(None)

    def _let_in_after(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._let_in)


def _copied(error: TransientCoachError) -> TransientCoachError:
    """The same error, for one more caller to raise."""
    return TransientCoachError(str(error), error.retry_after_s, error.answered, error.throttled)


@dataclass
class Permit:
    """One call that was let through. tokens: an estimate, until `RateLimiter.correct` is told."""

    at_s: float
    tokens: int


class RateLimiter:
    """No more than `requests` calls and `tokens` tokens in any minute; None: no limit. Callers come in order.

    A call that alone is over the limit of tokens goes when nothing else was asked for a minute.
    """

    def __init__(self, requests: int | None, tokens: int | None, minute_s: float = 60.0) -> None:
        self._requests = requests
        self._tokens = tokens
        self._minute_s = minute_s
        self._recent = deque[Permit]()
        self._recent_tokens = 0
        self._turn = asyncio.Lock()

    async def admit(self, tokens: int) -> Permit:
        """Wait until a call of about `tokens` tokens may go."""
        if self._requests is None and self._tokens is None:
            return Permit(time.monotonic(), tokens)
        async with self._turn:
            while (wait_s := self._wait_s(tokens)) > 0:
                await asyncio.sleep(min(wait_s, _LONGEST_SLEEP_S))  # calls that end may make room earlier
            permit = Permit(time.monotonic(), tokens)
            self._recent.append(permit)
            self._recent_tokens += tokens
            return permit

    def correct(self, permit: Permit, tokens: int) -> None:
        """What the call has really taken."""
        if self._recent and permit.at_s >= self._recent[0].at_s:
            self._recent_tokens += tokens - permit.tokens
        permit.tokens = tokens

    def _wait_s(self, tokens: int) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0].at_s <= now - self._minute_s:
            self._recent_tokens -= self._recent.popleft().tokens
        if not self._recent:
            return 0.0
        blocking = -1
        if self._requests is not None:
            blocking = len(self._recent) - self._requests
        if self._tokens is not None:
            excess = self._recent_tokens + tokens - self._tokens
            for position, permit in enumerate(self._recent):
                if excess <= 0:
                    break
                blocking, excess = max(blocking, position), excess - permit.tokens
        return max(0.0, self._recent[blocking].at_s + self._minute_s - now) if blocking >= 0 else 0.0
