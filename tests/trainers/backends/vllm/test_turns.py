"""Who has the engine next, and what becomes of those who wait: with an engine that writes down what it is asked."""

import asyncio
import threading

import pytest

pytest.importorskip("torch")

from coachrl.config import VllmConfig
from coachrl.errors import EngineGone, PolicyError
from coachrl.trainers.backends.vllm.replies import Growing, Reply
from coachrl.trainers.backends.vllm.turns import Request, Turns, Weights
from coachrl.types import SamplingParams

A, B = Weights({}), Weights({})
CALLED = {A: "A", B: "B"}
STOPS = frozenset({9})


class Engine:
    """Draws one token a step for each request, its place in the reply, and replies are as long as they may be."""

    def __init__(self):
        self.log, self.may_step = [], threading.Semaphore(0)
        self._drawn, self._asked = {}, {}

    def load(self, weights):
        self.log.append(f"load {CALLED[weights]}")

    def add(self, name, request):
        if not request.prompt_ids:
            raise PolicyError("an empty prompt")
        assert request.stop_ids == STOPS
        self.log.append(f"add {request.policy}{request.sampling.seed}")
        self._drawn[name], self._asked[name] = [], request

    def step(self):
        assert self.may_step.acquire(timeout=60)
        outputs = []
        for name, drawn in list(self._drawn.items()):
            request = self._asked[name]
            drawn.append(len(drawn))
            if len(drawn) == request.sampling.max_new_tokens:
                outputs.append((name, Reply(tuple(self._drawn.pop(name)), (-1.0,) * len(drawn), "length")))
            elif request.told is not None:
                outputs.append((name, Growing(tuple(drawn))))
        return outputs

    def abort(self, names):
        for name in names:
            request = self._asked[name]
            self.log.append(f"abort {request.policy}{request.sampling.seed}")
            self._drawn.pop(name, None)

    def sleep(self):
        self.log.append("sleep")

    def close(self):
        self.log.append("close")


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def turns(engine):
    made = Turns(lambda: engine, VllmConfig())
    yield made
    engine.may_step.release(99)
    made.close()


def ask(turns, weights, seed, length=1, prompt=(1,), told=None):
    """A task that has asked already, though the engine's thread may not have heard of it."""
    sampling = SamplingParams(length, seed=seed)
    request = Request(weights, CALLED[weights].lower(), prompt, sampling, STOPS, told)
    return asyncio.ensure_future(turns.ask(request))


class Held:
    """The engine's thread stands still inside; what is asked for meanwhile comes to it all at once."""

    def __init__(self, turns):
        self._turns, self._gate = turns, threading.Event()

    async def __aenter__(self):
        self._turns._thread.submit(self._gate.wait)

    async def __aexit__(self, *error):
        await asyncio.sleep(0)  # the tasks ask
        self._gate.set()


async def test_policies_take_turns_and_those_that_were_asked_for_first_come_first(turns, engine):
    async with Held(turns):
        asked = [ask(turns, weights, seed) for seed, weights in enumerate((B, A, B, A))]
    engine.may_step.release(2)
    replies = await asyncio.gather(*asked)
    assert engine.log == ["load B", "add b0", "add b2", "load A", "add a1", "add a3"]
    assert replies == [Reply((0,), (-1.0,), "length")] * 4


async def test_a_request_joins_those_in_flight_and_none_joins_once_other_weights_are_asked_for(turns, engine):
    first = ask(turns, A, 0, length=3)
    while "add a0" not in engine.log:
        await asyncio.sleep(0)
    joins = ask(turns, A, 1, length=4)
    await asyncio.sleep(0)
    engine.may_step.release()
    while "add a1" not in engine.log:
        await asyncio.sleep(0)
    other, late = ask(turns, B, 2), ask(turns, A, 3)
    await asyncio.sleep(0)
    engine.may_step.release(20)
    assert [len(reply.token_ids) for reply in await asyncio.gather(first, joins, other, late)] == [3, 4, 1, 1]
    assert engine.log == ["load A", "add a0", "add a1", "load B", "add b2", "load A", "add a3"]


async def test_who_listens_is_told_of_each_step_and_others_are_told_nothing(turns, engine):
    heard = []
    async with Held(turns):
        asked = ask(turns, A, 0, length=3, told=heard.append), ask(turns, A, 1, length=2)
    engine.may_step.release(3)
    await asyncio.gather(*asked)
    assert heard == [(0,), (0, 1), (0, 1, 2)]


async def test_a_request_that_was_cancelled_is_not_begun_or_forgotten_by_the_engine(turns, engine):
    async with Held(turns):
        kept, begun, waiting = ask(turns, A, 0, length=3), ask(turns, A, 1, length=9), ask(turns, B, 2)
    while "add a1" not in engine.log:
        await asyncio.sleep(0)
    for task in (begun, waiting):
        task.cancel()
    await asyncio.gather(begun, waiting, return_exceptions=True)
    engine.may_step.release(3)
    assert len((await kept).token_ids) == 3
    await asyncio.to_thread(turns.rest)
    assert engine.log == ["load A", "add a0", "add a1", "abort a1", "sleep"]


async def test_what_the_engine_refuses_fails_alone(turns, engine):
    async with Held(turns):
        asked = ask(turns, A, 0, prompt=()), ask(turns, A, 1)
    engine.may_step.release()
    refused, drawn = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(refused, PolicyError) and drawn.token_ids == (0,)


@pytest.mark.parametrize("method", ["load", "step", "add"])
async def test_an_engine_that_fails_is_told_to_all_who_wait_and_may_go_on(turns, engine, monkeypatch, method):
    def lost(*_):
        raise RuntimeError("illegal memory access.\nmore lines")

    with monkeypatch.context() as patch:
        patch.setattr(engine, method, lost)
        async with Held(turns):
            asked = [ask(turns, weights, seed) for seed, weights in enumerate((A, A, B))]
        ends = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(end) for end in ends} == {EngineGone}
    assert {str(end) for end in ends} == {"vLLM's engine failed: RuntimeError: illegal memory access"}
    assert {type(end.__cause__) for end in ends} == {RuntimeError}
    turns._thread.wait(turns._thread.submit(int))  # who waits is answered before the engine is told
    if method == "step":
        assert engine.log == ["load A", "add a0", "add a1", "abort a0", "abort a1"]
    engine._drawn.clear()
    engine.may_step.release(9)
    assert (await ask(turns, A, 5)).token_ids == (0,)


async def test_the_engine_rests_once_everything_is_answered(turns, engine):
    async with Held(turns):
        asked = [ask(turns, weights, seed, length=2) for seed, weights in enumerate((A, B))]
        await asyncio.sleep(0)
        resting = asyncio.ensure_future(asyncio.to_thread(turns.rest))
    engine.may_step.release(4)
    await resting
    assert [len((await task).token_ids) for task in asked] == [2, 2]
    assert engine.log == ["load A", "add a0", "load B", "add b1", "sleep"]
    turns._thread.wait(turns._thread.submit(int))
    assert not turns._stepping, "there is nothing left to do"


async def test_who_waits_can_be_told_what_the_engine_is_at(turns, engine, monkeypatch):
    moves, limits = [], VllmConfig()
    monkeypatch.setattr(turns._thread, "begin", moves.append)
    async with Held(turns):
        asked = [ask(turns, A, seed, length=1 + seed) for seed in range(2)]
    engine.may_step.release(2)
    await asyncio.gather(*asked)
    await asyncio.to_thread(turns.rest)
    assert [move.what for move in moves] == [
        "taking weights",
        "a pass for 2 requests",
        "a pass for 1 request",
        "leaving the GPU's memory",
    ]
    assert {(move.limit_s, move.setting) for move in moves} == {(limits.answer_timeout_s, "vllm.answer_timeout_s")}


async def test_an_engine_that_cannot_rest_is_lost(turns, engine, monkeypatch):
    monkeypatch.setattr(engine, "sleep", lambda: 1 / 0)
    with pytest.raises(EngineGone, match="ZeroDivisionError"):
        turns.rest()


async def test_what_waits_when_the_engine_is_closed_is_cancelled(engine):
    turns = Turns(lambda: engine, VllmConfig())
    async with Held(turns):
        asked = [ask(turns, weights, seed) for seed, weights in enumerate((A, B))]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(turns.close))
        while turns._thread._jobs.qsize() < 4:  # two that ask, the end, and nothing after that
            await asyncio.sleep(0)
    await closing
    await asyncio.wait(asked)
    assert all(task.cancelled() for task in asked) and engine.log == ["close"]


def test_an_engine_that_does_not_start_is_told():
    with pytest.raises(ZeroDivisionError):
        Turns(lambda: 1 / 0, VllmConfig())
