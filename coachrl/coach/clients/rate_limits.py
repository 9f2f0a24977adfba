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

# Before the first refusal the pace grows with every call: a thousand begin within three seconds.
_FIRST_PER_S = 10.0
_FIRST_GAIN = 0.05  # of the pace, a call
_FIRST_GAIN_A_S = 5.0  # of the pace, a second at most: a refusal may be on its way
_MOST_PER_S = 1e6

# After a refusal, CUBIC's variables: the ceiling is its W_max, a cut its (1 - beta), and the time to regain its K.
_LEAST_CUT = 0.04  # of the pace, where it had held for long; up to a half where it had not
_REGAIN_S = 30.0  # K after a least cut; after as long again the pace is as far above the ceiling
_SURE_REGAIN_S = 60.0  # K where the refused pace is within _AS_BEFORE of the one refused before
_QUICK_REGAIN_S = 5.0  # K where it is further than _FAR from that one: the quota has changed, or was not found yet
_AS_BEFORE, _FAR = 0.05, 0.2
_QUICK_CALLS = 40  # a K has room for so many calls at least, so that refusals stay rare
_SURE_CALLS = 20  # so many taken since the last refusal say that the pace is near what the provider takes
_IN_A_ROW = 3  # refusals within so many calls come of one and the same pace
_LONGEST_STEP_S = 2.0  # of age that the curve gains with one call: a longer gap was not tried

# Refusals that come by chance, at whatever pace.
_ODD, _ODD_S = 5, 3.0  # so many refusals that no quota explains, over so long, tell their share
_CHANCES = 6  # of the last ones are looked at together
_SLOWER = 1.15  # times slower than calls were taken before: a quota would not refuse that
_SPAN_CALLS, _SPAN_S = 10, 0.5  # that were taken between two refusals, at least, to count on how fast they were
_ODD_CUT = 0.2  # of the pace at most, for a refusal that no quota explains
_MOST_CHANCE = 0.5  # of a larger share of refusals a quota is the cause
_TOO_FEW = 1 / 3  # of the calls that chance lets through: it would let through fewer one time in thirty
_TOO_MANY = 7  # times the calls that come to one of them: one time in a thousand
_STORM = 8  # refusals, between a few that count, and more than chance has
_CHANCE_GAIN = 1.1  # of the pace, with each of them

# Where the provider takes nothing at all.
_OUT = 3  # refusals of single calls in a row
_LEAST_PROBES_PER_S = 1 / 15
_LEAST_CEILING_PER_S = 0.5

# What was taken between two refusals, against the pace that was refused.
_LIKELY, _MOST = 1.1, 1.25  # the quota is likely, and at most, so many times what was taken: some was not asked for
_IDLE_S = 1.0  # a call that comes so much later than it could was not asked for

_LATE_S = 0.25  # a waiting call that begins so late does so for a busy machine
_REMEMBERED = 2000  # calls whose pace is known


@dataclass(frozen=True)
class _Start:
    """When a call began, at which pace, and how many had begun with it."""

    at_s: float
    per_s: float
    number: int


@dataclass(frozen=True)
class _Refusal:
    """When, and after how many calls since the last one. no_quota: no quota explains it."""

    at_s: float
    calls: int
    no_quota: bool


@dataclass(frozen=True)
class _Mark:
    """From where on it is counted what the provider takes. begun, refused: calls until then."""

    at_s: float
    begun: int = 0
    refused: int = 0


class Pace:
    """How fast calls to one model may begin, learned from the refusals of its provider (429, overloaded).

    A refusal makes all calls pause, and slows those after it down, the more the sooner it came. From there the pace
    regains what it had, stays near it for long, and only then looks for more, faster and faster (CUBIC, Ha, Rhee and Xu
    2008: how TCP finds the capacity of a path). It goes by time and not by calls, so that a refusal is as rare under a
    quota of many calls a second as under one of few.

    A provider that counts by the minute, or lets calls be made up for, takes more than its quota for a while. What it
    took from one refusal to the next tells more of the quota there than the pace that was refused does.

    An example: a quota of 20 calls a second, and refusals that take 0.2 s to come back (the lag). The first calls
    begin at 10 a second, and each raises the pace. At 1.7 s a call is refused that began at 55 a second. The pace
    falls to 33, the ceiling to 36, and a mark is set: from here on it is counted what is taken. The next refusal, at
    once, halves the pace to 17. At 3.8 s another one comes, and from the mark on 19.6 calls a second were taken. The
    quota is near that, so the ceiling becomes 21.9, and the pace 20.6. At 11.5 s the ceiling is 20.0, the pace 19.2
    and the age -30 s: it grows with the time, and when it is 0 the pace is at the ceiling again. That is tried at
    31.5 s and refused. Now the ceiling is known well: the age begins at -60 s, and the next refusal comes at 80.7 s.
    Where a call came later than it could since the mark (spare), what was taken since says nothing of the quota, and
    the pace that was refused counts.

    Some providers refuse by chance, as where many customers share one quota: to ask them more slowly helps nothing.
    Such refusals make calls pause; once their share is known they slow none down, and little before.

    Times are those of one clock in seconds, and are handed in.
    """

    def __init__(self) -> None:
        self.per_s = _FIRST_PER_S
        self._ceiling_per_s: float | None = None  # where it was refused
        self._regain_s = _REGAIN_S
        self._age_s = -math.inf  # time since it was regained: before 0 the pace is below the ceiling
        self._begun = self._refused = 0
        self._slowed = _Mark(-math.inf)  # the last slowdown
        self._mark: _Mark | None = None
        self._taken_per_s = _LEAST_CEILING_PER_S  # when it was counted last
        self._spare = False  # since the mark, calls have come slower than they could
        self._starts = deque[_Start](maxlen=_REMEMBERED)
        self._next_s = -math.inf
        self._alone = 0  # refusals in a row of which each was of the first call after the last one
        self._lag_s = 0.0  # how long the last refusal took to come back
        self._refusals = deque[_Refusal](maxlen=40)  # those that slowed calls down, or would have
        self._counts = deque[tuple[int, int]](maxlen=_IN_A_ROW + 1)  # calls begun and refused, at the last of them
        self._chance = 0.0  # the share of calls that the provider refuses however slowly it is asked

    def wait_s(self, now_s: float) -> float:
        """How long the next call has to wait; 0 or less: it may begin."""
        return self._next_s - now_s

    def began(self, now_s: float, waited: bool) -> None:
        """A call begins. waited: it would have begun earlier if it could."""
        self._spare = self._spare or now_s - self._next_s > _IDLE_S
        self._begun += 1
        since = self._begun - self._slowed.begun
        if since == 2 and self._alone >= _OUT:
            self._alone = 0  # the provider takes calls again
            if self._ceiling_per_s is not None:
                self._start_over(max(self.per_s, self._ceiling_per_s / 2))
        self._starts.append(_Start(now_s, self.per_s, self._begun))
        gap_s = 1 / self.per_s
        if since == 1 and self._ceiling_per_s is not None:
            # A probe: the next call begins when its refusal would have come back.
            is_out = self._alone >= _OUT
            gap_s = 2 * self._lag_s if is_out else max(gap_s, 1.2 * self._lag_s)
        elif waited:  # a pace that nobody needed says nothing about what the provider takes
            self._grow(gap_s)
        # A busy machine lets calls begin late: those after them are not late too.
        is_late = waited and now_s - self._next_s < _LATE_S
        self._next_s = (self._next_s if is_late else max(self._next_s, now_s)) + gap_s

    def refused(self, began_s: float, now_s: float, asked_s: float | None) -> float:
        """A call that began at `began_s` was refused, and the provider asked to wait for `asked_s`. Returns when the
        next one may begin. Calls that were under way at the last slowdown say nothing new about the pace."""
        self._refused += 1
        if began_s > self._slowed.at_s:
            # What counts is the pace at which the refused call began: it may have grown since.
            known = [start for start in self._starts if start.at_s <= began_s]
            self._slow_down(known[-1] if known else _Start(began_s, self.per_s, self._begun))
            self._slowed = _Mark(now_s, self._begun)
            self._lag_s = now_s - began_s
        self._next_s = max(self._next_s, now_s + max(1 / self.per_s, asked_s or 0.0))
        if self._mark is not None and self._mark.at_s == began_s:
            # In a short pause what is not asked for may be lost, and is no sign of a lower quota.
            self._mark = replace(self._mark, at_s=min(self._next_s, now_s + _LONGEST_STEP_S))
        return self._next_s

    def _comes_by_chance(self, at: _Start) -> bool:
        """Whether the refusal of `at` is one of those that come however slowly the provider is asked.

        A quota is used up at each refusal, so what it takes from one to another is its own pace, and it refuses nobody
        who asks more slowly. Where some of those are refused all the same, their share is the provider's own: the pace
        at which calls were taken is taken up again, and what counts from then on is whether there are many more. The
        last few are looked at together: three come twice as close as their share says one time in five, and a pace
        that is cut so often comes to a crawl."""
        calls = max(1, at.number - self._slowed.begun)
        self._counts.append((self._begun, self._refused))
        begun, refused = (last - first for first, last in zip(self._counts[0], self._counts[-1], strict=True))
        is_storm = refused > _STORM and refused > _MOST_CHANCE * begun
        if is_storm or calls * self._chance > _TOO_MANY:  # of so many calls chance would have refused some
            self._chance = 0.0
            self._refusals.clear()
        taken_per_s = self._taken_between_refusals()
        self._refusals.append(_Refusal(at.at_s, calls, calls > 1 and at.per_s * _SLOWER <= taken_per_s))
        odd = [one for one in self._refusals if one.no_quota][-_ODD:]
        share = len(odd) / max(1, sum(one.calls for one in odd))
        if len(odd) == _ODD and odd[-1].at_s - odd[0].at_s >= _ODD_S and share <= _MOST_CHANCE:
            if self._chance == 0:
                self.per_s = max(self.per_s, taken_per_s)  # what was lost since was lost for nothing
            self._chance = share
        last = list(self._refusals)[-_CHANCES:]
        taken = sum(one.calls - 1 for one in last)
        return self._chance > 0 and taken * self._chance >= _TOO_FEW * len(last) * (1 - self._chance)

    def _taken_between_refusals(self) -> float:
        """The most calls a second that were taken from one refusal to another, of those that are remembered."""
        most_per_s, refusals = 0.0, list(self._refusals)
        for first, start in enumerate(refusals):
            taken = 0
            for one in refusals[first + 1 :]:
                taken, passed_s = taken + one.calls - 1, one.at_s - start.at_s
                if taken >= _SPAN_CALLS and passed_s >= _SPAN_S:
                    most_per_s = max(most_per_s, taken / passed_s)
                    break
        return most_per_s

    def _slow_down(self, at: _Start) -> None:
        since = at.number - self._slowed.begun
        if self._comes_by_chance(at):
            self._alone = 0
            self.per_s = min(_MOST_PER_S, max(self.per_s, at.per_s) * _CHANCE_GAIN)
            self._ceiling_per_s = max(self._ceiling_per_s or 0.0, self.per_s)
            self._start_over(self.per_s)
            self._starts.clear()
            return
        # Of refusals in a row the later ones may come of the first pace, which used up a window of the quota.
        in_a_row = self._ceiling_per_s is not None and since <= _IN_A_ROW
        refused_per_s = at.per_s if in_a_row else self._between_per_s(at)
        before_per_s = self._ceiling_per_s if in_a_row and self._ceiling_per_s is not None else refused_per_s
        is_out = self._alone >= _OUT  # not even single calls are taken: that says nothing about a pace
        self._alone = self._alone + 1 if since == 1 else 0
        last_per_s = self._ceiling_per_s or math.inf
        if not is_out:
            self._ceiling_per_s = max(self._taken_per_s, math.sqrt(refused_per_s * before_per_s))
        # Refusals in a row come of one pace: the second does not confirm the first.
        regain_s = min(self._regain_s, _REGAIN_S) if in_a_row else _regain_s(refused_per_s / last_per_s - 1)
        self._regain_s = max(regain_s, min(_REGAIN_S, _QUICK_CALLS / refused_per_s))
        most_cut = _ODD_CUT if self._refusals[-1].no_quota else 0.5
        cut = min(most_cut, max(_LEAST_CUT, 2 * _LEAST_CUT * _SURE_CALLS / max(1, since)))
        self._start_over(max(_LEAST_PROBES_PER_S, refused_per_s * (1 - cut)))
        self._starts.clear()

    def _between_per_s(self, at: _Start) -> float:
        """Between the pace that was refused, which is above the quota, and what was taken since the mark, which is
        below. A new mark is set."""
        mark, spare = self._mark, self._spare
        self._mark, self._spare = _Mark(at.at_s, at.number, self._refused), False
        passed_s = at.at_s - mark.at_s if mark is not None else 0.0
        if mark is None or spare or passed_s <= 0:
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
            self.per_s = min(_MOST_PER_S, self.per_s * (1 + min(_FIRST_GAIN, _FIRST_GAIN_A_S * passed_s)))
            return
        self._age_s += min(passed_s, _LONGEST_STEP_S)
        found = self._ceiling_per_s * (1 + _LEAST_CUT * (self._age_s / self._regain_s) ** 3)
        self.per_s = min(_MOST_PER_S, max(self.per_s, found))


def _regain_s(change: float) -> float:
    """How long to stay below a pace that was refused. change: from the one that was refused before. What is known well
    is not tried often; what was found in a storm of refusals, or has changed, is looked for again soon."""
    if abs(change) < _AS_BEFORE:
        return _SURE_REGAIN_S
    return _REGAIN_S if abs(change) < _FAR else _QUICK_REGAIN_S


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
