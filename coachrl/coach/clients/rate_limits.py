"""How much a provider is asked at once and in a minute."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from coachrl.coach.clients.base import TransientCoachError

_MINUTE_S = 60.0
_LONGEST_SLEEP_S = 1.0
_SHORTEST_SLEEP_S = 0.001  # an event loop sleeps no shorter

# Before the first refusal (slow start) the pace grows with every call: a thousand begin within three seconds.
_FIRST_PER_S = 10.0
_FIRST_GAIN, _FIRST_GAIN_A_S = 0.05, 5.0  # of the pace, a call, and a second at most: a refusal may be on its way

# After a refusal, CUBIC's variables: the ceiling is its W_max, a cut its (1 - beta), and the time to regain its K.
_LEAST_CUT = 0.04  # of the pace, where it had held for _SURE_CALLS or more; up to a half where it had not
_SURE_CALLS = 40  # and a K has room for so many at least, so that refusals stay rare
_REGAIN_S = 30.0  # K after a least cut; after as long again the pace is as far above the ceiling
_SURE_REGAIN_S, _QUICK_REGAIN_S = 60.0, 5.0  # K where the quota is known well, and where it is not known
_IN_A_ROW = 3  # refusals within so many calls come of one pace; so many of single calls: nothing is taken at all
_LEAST_PROBES_PER_S, _LEAST_CEILING_PER_S = 1 / 15, 0.5  # where nothing is taken, and where it is again

# What was taken from one refusal to the next, against the pace that was refused.
_LIKELY, _MOST = 1.1, 1.25  # the quota is likely, and at most, so many times what was taken: some was not asked for
_LATE_S, _IDLE_S = 0.25, 1.0  # later than it could: a busy machine; a call that was not asked for
_LONGEST_PAUSE_S = 2.0  # that is not counted: what is not asked for in a short one may be lost

# Refusals that come by chance, at whatever pace.
_ODD, _SPAN_CALLS = 4, 10  # refusals that no quota explains, to tell their share; calls, to tell how fast they were
_MOST_CHANCE = 0.25  # a quota is the cause of more, so that no more than half of all calls are ever excused
_CREDIT, _CREDIT_CALLS = 2, 30  # refusals that are excused at once, beside those that so many calls earn


@dataclass(frozen=True)
class _Start:
    """When a call began, at which pace, and how many had begun with it."""

    at_s: float
    per_s: float
    number: int


@dataclass(frozen=True)
class _Mark:
    """From where on calls are counted. begun, refused: those until then."""

    at_s: float
    begun: int = 0
    refused: int = 0


class Pace:
    """How fast calls to one model may begin, learned from the refusals of its provider (429, overloaded).

    A refusal makes all calls pause, and slows those after it down, the more the sooner it came. From there the pace
    regains what it had, stays near it for long, and only then looks for more, faster and faster (CUBIC, Ha, Rhee and Xu
    2008, now RFC 9438: how TCP finds the capacity of a path). It goes by time and not by calls, so that a refusal is as
    rare under a quota of many calls a second as under one of few.

    A provider that counts by the minute, or lets calls be made up for, takes more than its quota for a while. What it
    took from one refusal to the next tells more of the quota there than the pace that was refused does.

    An example: a quota of 20 calls a second, and refusals that take 0.2 s to come back (the lag). The first calls
    begin at 10 a second, and each raises the pace. At 1.7 s a call is refused that began at 55 a second. The pace
    falls to 33, the ceiling to 36, and a mark is set: from here on it is counted what is taken. The next refusal, at
    once, halves the pace to 17. At 3.8 s another one comes, and from the mark on 19.6 calls a second were taken. The
    quota is near that, so the ceiling becomes 21.9, and the pace 20.6. At 11.5 s the ceiling is 20.0, the pace 19.2
    and the age -30 s: it grows with the time, and when it is 0 the pace is at the ceiling again. That is tried at
    31.5 s and refused. Now the ceiling is known well: the age begins at -60 s, and the next refusal comes at 80.7 s.
    Where a call came later than it could, the mark is lost: what was taken since says nothing of the quota, and the
    pace that was refused counts.

    Some providers refuse by chance, as where many customers share one quota: to ask them more slowly helps nothing.
    They are known by refusals of a pace below what they took before, which no quota explains. What was lost is then
    taken up again, and each call earns credit for twice the share of refusals that was seen. A refusal that finds
    credit makes calls pause and slows none down. One that finds none slows them down as any other, and the share is
    seen anew.

    Times are those of one clock in seconds, and are handed in.
    """

    def __init__(self) -> None:
        self.per_s = _FIRST_PER_S
        self._ceiling_per_s: float | None = None  # where it was refused
        self._regain_s = _REGAIN_S
        self._age_s = 0.0  # time since it was regained: before 0 the pace is below the ceiling
        self._begun = self._refused = 0
        self._slowed = _Mark(-math.inf)  # the last slowdown
        self._mark: _Mark | None = None
        self._taken_per_s = _LEAST_CEILING_PER_S  # when it was counted last
        self._starts = deque[_Start](maxlen=2000)
        self._next_s = -math.inf
        self._alone = 0  # refusals in a row of which each was of the first call after the last one
        self._lag_s = 0.0  # how long the last refusal took to come back
        self._refusals = deque[tuple[float, int]](maxlen=20)  # when the call began, and calls since the one before
        self._odd = list[tuple[int, int]]()  # calls begun and refused, at each refusal that no quota explains
        self._chance = 0.0  # the share of calls that the provider refuses however slowly it is asked
        self._credit = 0.0

    def wait_s(self, now_s: float) -> float:
        """How long the next call has to wait; 0 or less: it may begin."""
        return self._next_s - now_s

    def began(self, now_s: float, waited: bool) -> None:
        """A call begins. waited: it would have begun earlier if it could."""
        late_s = now_s - self._next_s
        if late_s > _IDLE_S:
            self._mark = None
        self._begun += 1
        self._credit = min(self._credit + 2 * self._chance, _CREDIT + 2 * self._chance * _CREDIT_CALLS)
        since = self._begun - self._slowed.begun
        if since == 2 and self._alone >= _IN_A_ROW and self._ceiling_per_s is not None:
            self._alone = 0  # the provider takes calls again
            self._start_over(self._ceiling_per_s / 2)
        self._starts.append(_Start(now_s, self.per_s, self._begun))
        gap_s = 1 / self.per_s
        if since == 1 and self._ceiling_per_s is not None:
            # A probe: the next call begins when its refusal would have come back.
            gap_s = 2 * self._lag_s if self._alone >= _IN_A_ROW else max(gap_s, 1.2 * self._lag_s)
        elif waited:  # a pace that nobody needed says nothing about what the provider takes
            self._grow(gap_s)
        # A busy machine lets calls begin late: those after them are not late too.
        is_late = waited and late_s < _LATE_S
        self._next_s = (self._next_s if is_late else max(self._next_s, now_s)) + gap_s

    def refused(self, began_s: float, now_s: float, asked_s: float | None) -> float:
        """A call that began at `began_s` was refused, and the provider asked to wait for `asked_s`. Returns when the
        next one may begin. Calls that were under way at the last slowdown say nothing new about the pace."""
        self._refused += 1
        self._credit -= 1
        is_excused = self._chance > 0 and self._credit >= 0
        if not is_excused and began_s > self._slowed.at_s:
            # What counts is the pace at which the refused call began: it may have grown since.
            known = (start for start in reversed(self._starts) if start.at_s <= began_s)
            at = next(known, _Start(began_s, self.per_s, self._begun))
            since = max(1, at.number - self._slowed.begun)
            if not self._comes_by_chance(at, since):
                self._slow_down(at, since)
            self._starts.clear()
            self._slowed, self._lag_s = _Mark(now_s, self._begun), now_s - began_s
        paused_s = max(self._next_s, now_s)
        self._next_s = max(paused_s, now_s + max(1 / self.per_s, asked_s or 0.0))
        if is_excused:  # to pause for it is no reason to grow more slowly
            self._grow(min(self._next_s - paused_s, _LONGEST_PAUSE_S))
        if self._mark is not None and self._mark.at_s == began_s:
            # In a short pause what is not asked for may be lost, and is no sign of a lower quota.
            self._mark = replace(self._mark, at_s=min(self._next_s, now_s + _LONGEST_PAUSE_S))
        return self._next_s

    def _comes_by_chance(self, at: _Start, since: int) -> bool:
        """Whether the share of refusals by chance is known with this one. A quota refuses nobody who asks more slowly
        than it took calls from one refusal to another."""
        self._chance = 0.0  # or there was no credit: what was known holds no longer
        taken_per_s = self._taken_between_refusals()
        self._refusals.append((at.at_s, since))
        if since > 1 and at.per_s * _LIKELY <= taken_per_s:
            self._odd.append((self._begun, self._refused))
        if len(self._odd) < _ODD:
            return False
        (begun, refused), *_, (last_begun, last_refused) = self._odd
        share = (last_refused - refused) / (last_begun - begun)
        self._odd.clear()
        if share > 2 * _MOST_CHANCE:  # the provider is out
            return False
        self._chance = min(_MOST_CHANCE, share)
        self._credit = _CREDIT + 2 * self._chance * _CREDIT_CALLS
        self._alone = 0
        self._ceiling_per_s = max(self.per_s, taken_per_s)  # what was lost since was lost for nothing
        self._regain_s = _QUICK_REGAIN_S
        self._start_over(self._ceiling_per_s)
        return True

    def _taken_between_refusals(self) -> float:
        """The most calls a second that were taken from one refusal to another, of those that are remembered."""
        most_per_s, refusals = 0.0, list(self._refusals)
        for first, (from_s, _) in enumerate(refusals):
            taken = 0
            for at_s, calls in refusals[first + 1 :]:
                taken += calls - 1
                if taken >= _SPAN_CALLS:
                    most_per_s = max(most_per_s, taken / (at_s - from_s))
                    break
        return most_per_s

    def _slow_down(self, at: _Start, since: int) -> None:
        # Of refusals in a row the later ones may come of the first pace, which used up a window of the quota.
        last_per_s = self._ceiling_per_s or math.inf
        if last_per_s < math.inf and since <= _IN_A_ROW:
            refused_per_s, ceiling_per_s = at.per_s, math.sqrt(at.per_s * last_per_s)
            regain_s = self._regain_s  # the second does not confirm the first
        else:
            refused_per_s = ceiling_per_s = self._between_per_s(at)
            regain_s = _regain_s(refused_per_s / last_per_s - 1)
        if self._alone < _IN_A_ROW:  # else not even single calls are taken: that says nothing about a pace
            self._ceiling_per_s = max(self._taken_per_s, ceiling_per_s)
        self._alone = self._alone + 1 if since == 1 else 0
        self._regain_s = max(regain_s, min(_REGAIN_S, _SURE_CALLS / refused_per_s))
        cut = min(0.5, max(_LEAST_CUT, _LEAST_CUT * _SURE_CALLS / since))
        self._start_over(max(_LEAST_PROBES_PER_S, refused_per_s * (1 - cut)))

    def _between_per_s(self, at: _Start) -> float:
        """Between the pace that was refused, which is above the quota, and what was taken since the mark, which is
        below. A new mark is set."""
        mark, self._mark = self._mark, _Mark(at.at_s, at.number, self._refused)
        passed_s = at.at_s - mark.at_s if mark is not None else 0.0
        if mark is None or passed_s <= 0:
            return at.per_s
        taken = (at.number - mark.begun) - (self._refused - mark.refused) + 1
        self._taken_per_s = max(_LEAST_CEILING_PER_S, taken / passed_s)
        return min(_MOST * self._taken_per_s, math.sqrt(at.per_s * min(at.per_s, _LIKELY * self._taken_per_s)))

    def _start_over(self, per_s: float) -> None:
        self.per_s = per_s
        if self._ceiling_per_s is not None:
            lost = 1 - per_s / self._ceiling_per_s
            self._age_s = -self._regain_s * math.cbrt(max(0.0, lost) / _LEAST_CUT)

    def _grow(self, passed_s: float) -> None:
        if self._ceiling_per_s is None:
            self.per_s *= 1 + min(_FIRST_GAIN, _FIRST_GAIN_A_S * passed_s)
            return
        self._age_s += passed_s
        found = self._ceiling_per_s * (1 + _LEAST_CUT * (self._age_s / self._regain_s) ** 3)
        self.per_s = max(self.per_s, found)


def _regain_s(change: float) -> float:
    """How long to stay below a pace that was refused. change: from the one that was refused before. What is known well
    is not tried often; what was found in a storm of refusals, or has changed, is looked for again soon."""
    if abs(change) < 0.05:
        return _SURE_REGAIN_S
    return _REGAIN_S if abs(change) < 0.2 else _QUICK_REGAIN_S


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
        """A call that began at `began_s` (the event loop's time) was refused for being one too many."""
        now_s = asyncio.get_running_loop().time()
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
        if self._lost is not None and self.pace.wait_s(asyncio.get_running_loop().time()) > 0:
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
            now_s = asyncio.get_running_loop().time()
            wait_s = self.pace.wait_s(now_s)
            if wait_s > _SHORTEST_SLEEP_S:
                self._held = True
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._let_in)
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                self.pace.began(now_s, self._held)
                self._held = False
                turn.set_result(None)


def _copied(error: TransientCoachError) -> TransientCoachError:
    """The same error, for one more caller to raise."""
    return TransientCoachError(str(error), error.retry_after_s, error.answered, error.throttled)


@dataclass
class Permit:
    """One call that was let through. tokens: an estimate, until `RateLimiter.correct` is told."""

    at_s: float
    tokens: int


class RateLimiter:
    """The limits that the user sets: no more than `requests` calls and `tokens` tokens in any minute; None: no limit.
    Callers come in order. What a provider refuses (429) slows calls down in `ConcurrencyLimiter`.

    A call that alone is over the limit of tokens goes when nothing else was asked for a minute.
    """

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests = requests
        self._tokens = tokens
        self._recent = deque[Permit]()
        self._recent_tokens = 0
        self._turn = asyncio.Lock()

    async def admit(self, tokens: int) -> Permit:
        """Wait until a call of about `tokens` tokens may go."""
        if self._requests is None and self._tokens is None:
            return Permit(asyncio.get_running_loop().time(), tokens)
        async with self._turn:
            while (wait_s := self._wait_s(tokens)) > 0:
                await asyncio.sleep(min(wait_s, _LONGEST_SLEEP_S))  # calls that end may make room earlier
            permit = Permit(asyncio.get_running_loop().time(), tokens)
            self._recent.append(permit)
            self._recent_tokens += tokens
            return permit

    def correct(self, permit: Permit, tokens: int) -> None:
        """What the call has really taken."""
        if self._recent and permit.at_s >= self._recent[0].at_s:
            self._recent_tokens += tokens - permit.tokens
        permit.tokens = tokens

    def _wait_s(self, tokens: int) -> float:
        """Until the oldest call is a minute old, where there is no room for another one; else 0."""
        now = asyncio.get_running_loop().time()
        while self._recent and self._recent[0].at_s <= now - _MINUTE_S:
            self._recent_tokens -= self._recent.popleft().tokens
        too_many = self._requests is not None and len(self._recent) >= self._requests
        too_large = self._tokens is not None and self._recent_tokens + tokens > self._tokens
        if not self._recent or not (too_many or too_large):
            return 0.0
        return self._recent[0].at_s + _MINUTE_S - now
