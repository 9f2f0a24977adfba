"""Episodes of a step that are played while the step before it is trained."""

import asyncio
import threading

import pytest

from coachrl.trainers.rollout.prefetch import RolloutPrefetcher


def prefetcher(ahead=True, last_step=3):
    """One whose episodes of a step end once their gate is opened; and the steps that it has begun."""
    begun, gate = [], asyncio.Event()

    async def start(step):
        begun.append(step)
        await gate.wait()
        return [f"episode of step {step}"]

    return RolloutPrefetcher(start, ahead, last_step), begun, gate


@pytest.mark.parametrize(("ahead", "step", "plays"), [(True, 3, [3]), (True, 4, []), (False, 3, [])])
async def test_no_step_after_the_last_is_begun_and_none_where_nothing_is_played_ahead(ahead, step, plays):
    rollouts, begun, _ = prefetcher(ahead)
    rollouts.begin(step)
    await asyncio.sleep(0)
    assert begun == plays
    await rollouts.stop()


async def test_what_was_begun_is_taken_once_and_is_one_update_old():
    rollouts, begun, gate = prefetcher()
    gate.set()
    rollouts.begin(2)
    assert await rollouts.take(2) == (["episode of step 2"], 1)
    assert await rollouts.take(2) == (["episode of step 2"], 0)
    assert begun == [2, 2]


async def test_weights_wait_until_nothing_is_being_played_and_what_failed_is_raised_by_who_takes_it():
    rollouts, _, gate = prefetcher()
    await rollouts.settle()
    rollouts.begin(2)
    settling = asyncio.create_task(rollouts.settle())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not settling.done()
    gate.set()
    await settling

    async def fails(step):
        raise ValueError("no episode")

    failing = RolloutPrefetcher(fails, True, 3)
    failing.begin(2)
    await failing.settle()
    with pytest.raises(ValueError, match="no episode"):
        await failing.take(2)


async def test_what_computes_for_long_leaves_this_thread_to_the_episodes_where_some_are_played():
    rollouts, _, _ = prefetcher()
    assert await rollouts.run(threading.get_ident) == threading.get_ident()
    rollouts.begin(2)
    assert await rollouts.run(threading.get_ident) != threading.get_ident()
    await rollouts.stop()
    assert await rollouts.run(threading.get_ident) == threading.get_ident()


async def test_what_is_given_up_has_ended_when_stop_returns():
    ended = []

    async def start(step):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(step)

    rollouts = RolloutPrefetcher(start, True, 3)
    rollouts.begin(2)
    await asyncio.sleep(0)
    await rollouts.stop()
    assert ended == [2]
