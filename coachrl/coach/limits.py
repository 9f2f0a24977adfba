"""How much a provider is asked at once and in a minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType

_LONGEST_SLEEP_S = 1.0


class Gate:
    """Lets at most `allowed` calls through at once; callers come in order.

    `allowed` starts at `most`, halves when the provider throttles, and grows by one for as many calls that go well as
    are allowed (additive increase, multiplicative decrease: how TCP finds the capacity of a path).
    """

    def __init__(self, most: int) -> None:
        self._most, self._in_flight, self._waiting = most, 0, deque[asyncio.Future[None]]()
        self._cut_at = -1.0
        self.allowed = float(most)

    async def __aenter__(self) -> None:
        if self._in_flight < int(self.allowed) and not self._waiting:
            self._in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn  # whoever sets it has counted this call
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def throttled(self, began_s: float) -> None:
        """A call that began at `began_s` (time.monotonic) was refused for being one too many. Calls that were under way
        when the last cut was made say nothing new."""
        if began_s > self._cut_at:
            self.allowed, self._cut_at = max(1.0, self.allowed / 2), time.monotonic()

    def went_well(self) -> None:
        self.allowed = min(float(self._most), self.allowed + 1 / self.allowed)
        self._let_in()

    def _leave(self) -> None:
        self._in_flight -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._in_flight < int(self.allowed):
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)


@dataclass
class Admission:
    """One call that was let through. tokens: an estimate, until `MinuteLimits.correct` is told."""

    at_s: float
    tokens: int


class MinuteLimits:
    """No more than `requests` calls and `tokens` tokens in any minute; None: no limit. Callers come in order.

    A call that alone is over the limit of tokens goes when nothing else was asked for a minute.
    """

    def __init__(self, requests: int | None, tokens: int | None, minute_s: float = 60.0) -> None:
        self._requests, self._tokens, self._minute_s = requests, tokens, minute_s
        self._recent, self._recent_tokens = deque[Admission](), 0
        self._turn = asyncio.Lock()

    async def admit(self, tokens: int) -> Admission:
        """Wait until a call of about `tokens` tokens may go."""
        if self._requests is None and self._tokens is None:
            return Admission(time.monotonic(), tokens)
        async with self._turn:
            while (wait_s := self._wait_s(tokens)) > 0:
                await asyncio.sleep(min(wait_s, _LONGEST_SLEEP_S))  # calls that end may make room earlier
            admission = Admission(time.monotonic(), tokens)
            self._recent.append(admission)
            self._recent_tokens += tokens
            return admission

    def correct(self, admission: Admission, tokens: int) -> None:
        """What the call has really taken."""
        if self._recent and admission.at_s >= self._recent[0].at_s:
            self._recent_tokens += tokens - admission.tokens
        admission.tokens = tokens

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
            for position, admission in enumerate(self._recent):
                if excess <= 0:
                    break
                blocking, excess = max(blocking, position), excess - admission.tokens
        return max(0.0, self._recent[blocking].at_s + self._minute_s - now) if blocking >= 0 else 0.0
