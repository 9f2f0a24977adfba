"""Engines and trainers take turns in the memory of two GPUs: it is empty when it must be, and engines may die in it."""

import asyncio
import os

import ledger
import pytest
from drawing import draw, fresh

from coachrl.trainers.algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig


@pytest.fixture(scope="module")
def backend(start):
    shape = {"engines": 2, "gpus": 2, "zero_stage": 3, "gradient_checkpointing": True, "micro_batch_tokens": 64}
    return start("solver", colocate=True, sleep=True, keep_reference=True, **shape)


def gpu_of(actor):
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_policies_that_share_gpus_have_engines_on_different_ones_and_one_optimizer_at_a_time(
    start, ray_cluster, tmp_path
):
    begin = len(ledger.read())
    both = start("coder", "judge", colocate=True, sleep=True, engines=None, gpus=2)
    handles = [handle for pool in both.processes.engines.values() for handle in pool.handles]
    assert len(handles) == 2
    assert len(set(ray_cluster.get([handle.__ray_call__.remote(gpu_of) for handle in handles]))) == 2
    for step in range(2):
        stats = both.update({policy: fresh(both, policy, 4, step) for policy in ("coder", "judge")})
        both.sync_weights()
    assert max(stats[f"sampler_trainer_logprob_gap/{policy}"] for policy in ("coder", "judge")) < 0.01
    both.save(tmp_path)
    both.load(tmp_path)
    both.close()
    assert ledger.optimizers_at_once(ledger.read(begin)) == 1


def take_step(backend, samples):
    rewards = {sample.action_id: float(i % 5) for i, sample in enumerate(samples)}
    algorithm = ReinforcePP(ReinforcePPConfig(kl_beta=0.01))
    batch = algorithm.advantages(backend.with_reference({"solver": samples}), rewards)
    stats = backend.update(batch.samples)
    backend.sync_weights()
    return stats


def test_nobody_keeps_memory_that_an_engine_needs_to_wake(backend):
    begin = len(ledger.read())
    for step in range(2):
        assert take_step(backend, fresh(backend, "solver", 8, step))["sampler_trainer_logprob_gap/solver"] < 0.01
    draw(backend, "solver", 1)
    blocked, wakings = ledger.caches_in_the_way(ledger.read(begin))
    assert wakings >= 4 and not blocked, blocked


def test_an_engine_that_dies_asleep_is_replaced_and_all_get_weights_once_they_are_awake(backend, ray_cluster):
    samples = fresh(backend, "solver", 8, 3)
    backend.with_reference({"solver": samples})  # puts engines to sleep
    ray_cluster.kill(backend.processes.engines["solver"].handles[0])
    take_step(backend, samples)
    assert take_step(backend, fresh(backend, "solver", 8, 4))["sampler_trainer_logprob_gap/solver"] < 0.01


@pytest.fixture
def updated(backend):
    """An engine is replaced once between two updates."""
    take_step(backend, fresh(backend, "solver", 8, 5))
    return backend


async def test_others_go_on_while_an_engine_is_replaced_and_one_that_gives_up_does_not_end_it(updated, ray_cluster):
    backend = updated
    pool = backend.processes.engines["solver"]
    before = pool.replaced
    ray_cluster.kill(pool.handles[1])
    while not pool.dead():  # who asks for a mend has found it dead
        await asyncio.sleep(0.01)
    asking = [asyncio.create_task(backend.mend("solver", before, "it was killed")) for _ in range(3)]
    turns = 0
    while not asking[2].done():
        await asyncio.sleep(0.01)
        turns += 1
        if turns == 2:
            asking[0].cancel()
    assert turns > 10
    assert (await asking[1]).replaced == (await asking[2]).replaced == before + 1
    assert asking[0].cancelled()
    assert len(ray_cluster.get(pool.loaded())) == 2
