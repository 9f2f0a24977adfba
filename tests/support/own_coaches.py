"""Coaches as users write them, good and bad. Tests copy this file into the folder in which coachrl runs."""

import asyncio
import threading

import numpy

from coachrl.errors import CoachUnavailable
from coachrl.types import CoachScore, Usage

CLOSED = []


def nobody():
    return 5.0


def two(request, more):
    return 5.0


def length(request):
    return len(request.action.text)


async def later(request):
    return CoachScore(request.action.id, "abstained", rationale="not now")


def broken(request):
    return 1 / 0


def gone(request):
    raise CoachUnavailable("the judge has left")


def too_high(request):
    return 11


def a_little_too_high(request):
    return 10.0000001


def not_a_number(request):
    return float("nan")


class Guarded(float):
    def __float__(self):
        raise LookupError("ask for its value")


def guarded(request):
    return Guarded(5.0)


def guarded_inside(request):
    class Compared(float):
        def __ge__(self, other):
            raise LookupError("ask for its value")

    return CoachScore(request.action.id, "scored", Compared(5.0))


def earns(request):
    return CoachScore(request.action.id, "scored", 5.0, usage=Usage(attempts=1, cost_usd=-5.0))


def endless(request):
    return CoachScore(request.action.id, "scored", 5.0, usage=Usage(attempts=10**400))


def yes(request):
    return True


def nothing(request):
    pass


def other(request):
    return CoachScore("another/0", "scored", 5.0)


def torn(request):
    return CoachScore(request.action.id, "failed", 5.0)


class Mine:
    async def check(self):
        raise CoachUnavailable("no such judge")

    async def score(self, request):
        return CoachScore(request.action.id, "scored", 4.0, rationale="said so", suggestion="12")

    async def close(self):
        CLOSED.append(True)


def of_numpy(request):
    return numpy.float32(6)


class Plain:
    def score(self, request):
        return 3


class Needy:
    def __init__(self, judge):
        pass

    def score(self, request):
        return 3


class Empty:
    pass


PLENTY = 7


def leaves(request):
    raise SystemExit(4)


def drawn(request):
    yield 5


async def drawn_later(request):
    yield 5


class Leaver:
    def __init__(self):
        raise SystemExit(3)

    def score(self, request):
        return 5


class Faulty:
    def check(self):
        raise RuntimeError("the server is down")

    def close(self):
        raise RuntimeError("the server is gone")

    def score(self, request):
        return 5


class PlainCheck:
    def check(self):
        return None

    def score(self, request):
        return 5


def of_numpys_numbers(request):
    return CoachScore(request.action.id, "scored", numpy.float32(8.5), outcome_0_1=numpy.int64(1))


def half_there(request):
    return CoachScore(request.action.id, "scored", 5.0, outcome_0_1=float("nan"))


def of_bytes(request):
    return CoachScore(request.action.id, "scored", 5.0, rationale=b"well")


def of_words(request):
    return CoachScore(request.action.id, "scored", "8")


def of_another_model(request):
    return CoachScore(request.action.id, "scored", 5.0, model=4)


async def waits(request):
    await asyncio.sleep(60)


async def mute(request):
    class Mute(Exception):
        def __str__(self):
            return 1 / 0

    raise Mute


async def generator_exit(request):
    raise GeneratorExit


class Endless:
    async def check(self):
        await asyncio.sleep(60)

    async def close(self):
        await asyncio.sleep(60)

    async def score(self, request):
        await asyncio.sleep(60)


async def out_of_time(request):
    raise TimeoutError("of its own")


WARNED = threading.Event()


def blocks(request):
    return 5 if WARNED.wait(60) else 0


async def cancelled(request):
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def cancels(request):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


class Priced:
    usd = 0.25

    def score(self, request):
        return CoachScore(request.action.id, "scored", 5.0, usage=Usage(attempts=1, cost_usd=self.usd))


class Free(Priced):
    usd = 0.0


def beyond_floats(request):
    return 10**400


def clock_set_back(request):
    return CoachScore(request.action.id, "scored", 5.0, usage=Usage(attempts=1, latency_s=-0.5))
