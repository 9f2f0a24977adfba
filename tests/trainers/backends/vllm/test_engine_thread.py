"""The thread of an engine: one thing after another, and how long somebody waits for one of them."""

import asyncio
import threading
from concurrent.futures import Future
from itertools import islice

import pytest

from coachrl.errors import EngineStuck
from coachrl.trainers.backends.vllm import engine_thread
from coachrl.trainers.backends.vllm.engine_thread import EngineThread, Move

START = Move("its start", 5.0, "vllm.start_timeout_s")
STUCK = "vLLM's engine does not answer: its start has taken longer than 5 s \\(vllm.start_timeout_s\\)"


@pytest.fixture
def thread():
    made = EngineThread(START)
    yield made
    made.leave()


def test_one_thing_is_done_after_another_and_what_it_raises_is_raised_by_who_waits(thread):
    done = []
    first, second = thread.submit(done.append, 1), thread.submit(lambda: done.append(2) or "result")
    failing = thread.submit(lambda: 1 / 0)
    assert thread.wait(second) == "result" and done == [1, 2] and first.done()
    with pytest.raises(ZeroDivisionError):
        thread.wait(failing)
    assert thread.wait(thread.submit(int)) == 0, "it goes on after what has failed"


def test_what_was_cancelled_before_its_turn_is_not_done(thread):
    gate, done = threading.Event(), []
    thread.submit(gate.wait)
    cancelled = thread.submit(done.append, 1)
    assert cancelled.cancel()
    gate.set()
    thread.wait(thread.submit(done.append, 2))
    assert done == [2]


@pytest.mark.parametrize(("limit_s", "look_s", "looks"), [(5.0, 0.5, 10), (2.5, 0.25, 10), (60.0, 1.0, 60)])
def test_a_move_is_waited_for_in_looks_as_long_as_its_limit_says(thread, limit_s, look_s, looks):
    thread.begin(Move("a pass", limit_s, "vllm.answer_timeout_s"))
    waiting = thread._looks()
    assert list(islice(waiting, looks)) == [look_s] * looks
    with pytest.raises(EngineStuck, match=rf"a pass has taken longer than {limit_s:g} s \(vllm.answer_timeout_s\)"):
        next(waiting)


def test_each_move_has_its_own_limit_from_when_it_is_first_seen(thread):
    waiting = thread._looks()
    assert list(islice(waiting, 10)) == [0.5] * 10
    thread.begin(Move("a pass", 2.5, "vllm.answer_timeout_s"))
    assert list(islice(waiting, 10)) == [0.25] * 10
    with pytest.raises(EngineStuck, match=r"a pass has taken longer than 2\.5 s"):
        next(waiting)


def stuck(thread):
    """Somebody has waited too long."""
    with pytest.raises(EngineStuck, match=STUCK):
        list(thread._looks())


async def test_once_somebody_has_waited_too_long_everybody_is_told_so_at_once(thread):
    stuck(thread)
    never = Future()
    with pytest.raises(EngineStuck, match=STUCK):
        thread.wait(never)
    with pytest.raises(EngineStuck, match=STUCK):
        await thread.answer(never)
    await asyncio.sleep(0)
    assert never.cancelled(), "who stops waiting gives up what was asked for"


async def test_an_answer_is_waited_for_while_other_tasks_go_on(thread):
    gate = threading.Event()
    waiting = asyncio.ensure_future(thread.answer(thread.submit(lambda: gate.wait(60) and "drawn")))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    assert await waiting == "drawn"


async def test_who_is_cancelled_while_waiting_cancels_what_was_asked_for(thread):
    gate = threading.Event()
    thread.submit(gate.wait)
    asked = thread.submit(int)
    waiting = asyncio.ensure_future(thread.answer(asked))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    assert asked.cancelled()
    gate.set()


def test_the_end_comes_after_what_the_thread_is_at_and_raises_what_the_last_thing_raises(thread):
    done = []
    thread.submit(done.append, 1)
    thread.end(lambda: done.append(2))
    assert done == [1, 2] and not thread._thread.is_alive()
    with pytest.raises(ZeroDivisionError):
        EngineThread(START).end(lambda: 1 / 0)


def test_nobody_waits_for_the_end_of_a_thread_that_was_waited_for_too_long(thread):
    gate = threading.Event()
    thread.submit(gate.wait)
    stuck(thread)
    thread.end(lambda: None)
    assert thread._thread.is_alive() and thread._thread.daemon, "nor does the end of the program"
    gate.set()


def test_an_end_that_does_not_come_is_told_with_what_the_thread_is_at(thread, monkeypatch, caplog):
    monkeypatch.setattr(engine_thread, "_END_S", 0.01)
    gate = threading.Event()
    thread.submit(gate.wait)
    thread.end(lambda: None)
    assert "vLLM's engine has not ended within 0.01 s: its start" in caplog.text
    gate.set()
