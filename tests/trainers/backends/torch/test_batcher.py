from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("torch")

from coachrl.trainers.backends.torch.engine.batcher import LockstepBatcher
from coachrl.trainers.backends.torch.engine.decode import Request
from coachrl.types import Generation, SamplingParams

PATIENCE_S = 20  # a deadlock fails the test rather than hanging it


class EchoModel:
    """Answers with the prompt, and remembers what ran together and on which thread."""

    def __init__(self, fails: set[int] = frozenset()) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.threads: set[int] = set()
        self.fails = fails
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, policy, requests):
        self.begun.set()
        self.gate.wait(PATIENCE_S)
        seeds = [request.sampling.seed for request in requests]
        self.batches.append((policy, seeds))
        self.threads.add(threading.get_ident())
        if self.fails & set(seeds):
            raise RuntimeError("the model broke")
        return [Generation(request.prompt_ids, (0.0,), "stop", 0) for request in requests]


@pytest.fixture
def model():
    return EchoModel()


@pytest.fixture
def batcher(model):
    made = LockstepBatcher(model)
    yield made
    made.close()


def ask(batcher, seed, policy="solver", prompt=(1,)):
    return batcher.submit(policy, Request(tuple(prompt), SamplingParams(4, seed=seed)))


async def together(*coroutines):
    return await asyncio.wait_for(asyncio.gather(*coroutines, return_exceptions=True), PATIENCE_S)


async def test_requests_of_all_episodes_run_as_one_batch_per_turn(batcher, model):
    async def episode(seed):
        async with batcher.episode():
            await ask(batcher, seed)
            await asyncio.sleep(0.01 * (seed % 3))  # code that takes its own time
            await ask(batcher, 100 + seed)

    await together(*(episode(seed) for seed in (3, 1, 2, 0)))
    assert model.batches == [("solver", [0, 1, 2, 3]), ("solver", [100, 101, 102, 103])]


async def test_the_order_of_arrival_does_not_change_the_batch(batcher, model):
    async def episode(seed, delay_s, prompt):
        async with batcher.episode():
            await asyncio.sleep(delay_s)
            return await ask(batcher, seed, prompt=prompt)

    for delays in ((0, 0.01, 0.02), (0.02, 0.01, 0)):
        replies = await together(
            *(episode(seed, delay, (9,) * (3 - seed)) for seed, delay in zip((0, 1, 2), delays, strict=True))
        )
        assert [reply.token_ids for reply in replies] == [(9, 9, 9), (9, 9), (9,)]
    assert model.batches[0] == model.batches[1] == ("solver", [2, 1, 0])  # shortest prompt first


async def test_batches_are_split_by_policy(model):
    batcher = LockstepBatcher(model)
    await together(*(ask(batcher, seed, policy) for seed in range(3) for policy in ("verifier", "solver")))
    batcher.close()
    assert model.batches == [("solver", [0, 1, 2]), ("verifier", [0, 1, 2])]


async def test_outside_of_an_episode_a_request_does_not_wait(batcher, model):
    async with batcher.episode():
        outside = asyncio.get_running_loop().create_task
        reply = await asyncio.wait_for(_outside_of_any_episode(outside, batcher), PATIENCE_S)
    assert reply.token_ids == (1,)
    assert model.batches == [("solver", [7])]


async def _outside_of_any_episode(create_task, batcher):
    import contextvars

    return await create_task(ask(batcher, 7), context=contextvars.Context())


async def test_candidates_of_one_episode_run_together(batcher, model):
    async def episode(seed):
        async with batcher.episode():
            await asyncio.gather(*(ask(batcher, seed + k) for k in range(3)))

    await together(episode(0), episode(10))
    assert model.batches == [("solver", [0, 1, 2, 10, 11, 12])]


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled"])
async def test_an_episode_that_ends_frees_the_parked_ones(batcher, model, ending):
    parked = asyncio.Event()

    async def waits():
        async with batcher.episode():
            parked.set()
            return await ask(batcher, 0)

    async def ends():
        async with batcher.episode():
            await parked.wait()
            await asyncio.sleep(0.01)
            assert model.batches == []  # the other one is still waiting for this one
            if ending == "raises":
                raise ValueError("the pipeline broke")
            if ending == "is cancelled":
                asyncio.current_task().cancel()
                await asyncio.sleep(1)

    reply, _ = await together(waits(), ends())
    assert reply.token_ids == (1,)


async def test_a_cancelled_request_leaves_the_queue(batcher, model):
    release = asyncio.Event()

    async def busy():
        async with batcher.episode():
            await release.wait()
            return await ask(batcher, 1)

    async def impatient():
        async with batcher.episode():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(batcher, 2), 0.01)
        release.set()

    await together(busy(), impatient())
    assert model.batches == [("solver", [1])]


async def test_a_request_that_is_cancelled_while_it_is_drawn_is_given_up(batcher, model):
    model.gate.clear()
    requests = [Request((1,), SamplingParams(4, seed=seed)) for seed in range(2)]
    asked, kept = (asyncio.create_task(batcher.submit("solver", request)) for request in requests)
    async with asyncio.timeout(PATIENCE_S):
        while not model.begun.is_set():
            await asyncio.sleep(0.001)
    asked.cancel()
    await asyncio.wait([asked])
    assert [request.given_up.is_set() for request in requests] == [True, False]
    model.gate.set()
    assert (await kept).token_ids == (1,)


async def test_an_episode_cancelled_while_its_batch_runs_disturbs_nobody(batcher, model):
    model.gate.clear()

    async def episode(seed):
        async with batcher.episode():
            first = await ask(batcher, seed)
            return first, await ask(batcher, 10 + seed)

    kept, dropped = asyncio.create_task(episode(0)), asyncio.create_task(episode(1))
    assert await asyncio.to_thread(model.begun.wait, PATIENCE_S)
    dropped.cancel()
    model.gate.set()
    first, second = await asyncio.wait_for(kept, PATIENCE_S)
    assert first.token_ids == second.token_ids == (1,)
    assert model.batches == [("solver", [0, 1]), ("solver", [10])]


async def test_an_error_of_the_model_reaches_only_its_batch():
    model = EchoModel(fails={1})
    batcher = LockstepBatcher(model)
    replies = await together(*(ask(batcher, seed, policy) for seed, policy in enumerate(("a", "b", "c"))))
    batcher.close()
    assert [type(reply) for reply in replies] == [Generation, RuntimeError, Generation]


async def test_the_event_loop_goes_on_while_the_model_runs(batcher, model):
    model.gate.clear()
    reply = asyncio.create_task(ask(batcher, 0))
    assert await asyncio.to_thread(model.begun.wait, PATIENCE_S)  # the loop goes on, though the model is held
    assert not reply.done()
    model.gate.set()
    await asyncio.wait_for(reply, PATIENCE_S)
    assert threading.get_ident() not in model.threads


async def test_an_episode_inside_an_episode_is_the_same_one(batcher):
    async with batcher.episode(), batcher.episode():
        reply = await asyncio.wait_for(ask(batcher, 0), PATIENCE_S)
    assert reply.token_ids == (1,)


def test_one_event_loop_after_another(batcher, model):
    async def interrupted():
        other = asyncio.create_task(_hold(batcher))
        await asyncio.sleep(0)
        async with batcher.episode():
            waiting = asyncio.create_task(ask(batcher, 0))
            await asyncio.sleep(0.01)
            assert not waiting.done() and not other.done()

    asyncio.run(interrupted())  # ends with a request parked; asyncio cancels it
    reply = asyncio.run(asyncio.wait_for(ask(batcher, 5), PATIENCE_S))
    assert reply.token_ids == (1,)
    assert model.batches == [("solver", [5])]


async def _hold(batcher):
    async with batcher.episode():
        await asyncio.sleep(PATIENCE_S)


async def test_an_episode_with_a_patience_is_waited_for_that_long_only(batcher, model):
    """One hangs between two replies: it holds up a batch once, and none after that until it asks again."""
    hung, others_are_done = asyncio.Event(), asyncio.Event()

    async def hangs():
        async with batcher.episode(patience_s=0.05):
            hung.set()
            await others_are_done.wait()
            return await ask(batcher, 9)

    async def asks(seed):
        await hung.wait()
        async with batcher.episode(patience_s=0.05):
            for turn in range(3):
                await ask(batcher, 10 * turn + seed)

    async def both():
        await asyncio.gather(asks(1), asks(2))
        others_are_done.set()

    assert (await together(hangs(), both()))[0].token_ids == (1,)
    seeds = sorted(seed for _, batch in model.batches for seed in batch)
    assert seeds == [1, 2, 9, 11, 12, 21, 22] and model.batches[-1] == ("solver", [9])


async def test_without_a_patience_an_episode_is_waited_for_as_long_as_it_takes(batcher, model):
    others_wait = asyncio.Event()

    async def slow():
        async with batcher.episode():
            await others_wait.wait()
            for _ in range(100):  # nothing may run meanwhile
                await asyncio.sleep(0)
            return await ask(batcher, 1)

    async def quick():
        async with batcher.episode(patience_s=0.0):
            asyncio.get_running_loop().call_soon(others_wait.set)
            return await ask(batcher, 2)

    await together(slow(), quick())
    assert model.batches == [("solver", [1, 2])]


class Clock:
    """The time of an event loop, which goes on only where it is told to, until it is let go."""

    def __init__(self, monkeypatch):
        self.now, self._real, self._let_go_at = 0.0, asyncio.get_running_loop().time, None
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self._time)

    async def go_on(self, seconds):
        await self._what_is_due()
        self.now += seconds
        await self._what_is_due()

    def let_go(self):
        self._let_go_at = self._real()

    async def _what_is_due(self):
        for _ in range(20):
            await asyncio.sleep(0)

    def _time(self):
        return self.now + (0.0 if self._let_go_at is None else self._real() - self._let_go_at)


async def test_apps_that_share_a_processor_are_waited_for_until_each_has_had_its_time(batcher, model, monkeypatch):
    """Each needs three seconds of a processor on a busy machine, and so the last of four comes after twelve."""
    clock, turns = Clock(monkeypatch), [asyncio.Event() for _ in range(4)]

    async def episode(seed):
        async with batcher.episode(patience_s=2):
            await turns[seed].wait()
            return await ask(batcher, seed)

    episodes = [asyncio.create_task(episode(seed)) for seed in range(4)]
    for seed, seconds in enumerate((3, 3, 3, 1.9)):
        await clock.go_on(seconds)
        assert model.batches == []
        turns[seed].set()
    clock.let_go()
    await together(*episodes)
    assert model.batches == [("solver", [0, 1, 2, 3])]


async def test_of_those_that_hang_each_adds_its_time_to_one_batch_and_to_none_after_that(batcher, model, monkeypatch):
    clock, release, asked = Clock(monkeypatch), asyncio.Event(), []

    async def hangs():
        async with batcher.episode(patience_s=2):
            await release.wait()

    async def asks():
        async with batcher.episode(patience_s=2):
            for turn in range(3):
                asked.append(await ask(batcher, turn))

    hung = [asyncio.create_task(hangs()) for _ in range(3)]
    asking = asyncio.create_task(asks())
    await clock.go_on(5.9)
    assert model.batches == []
    await clock.go_on(0.2)
    assert await asyncio.to_thread(model.begun.wait, PATIENCE_S)
    while len(asked) < 3:  # at once: no time goes by any more
        await asyncio.sleep(0)
    release.set()
    clock.let_go()
    await together(asking, *hung)
