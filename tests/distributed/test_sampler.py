"""Requests of an episode over engines that answer at once, through their real connections: no model, no Ray."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import vllm.v1.utils
from ray.exceptions import ActorDiedError
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.exceptions import EngineDeadError

from coachrl.errors import BackendError, EngineLost
from coachrl.trainers.backends.openrlhf.engines import connection
from coachrl.trainers.backends.openrlhf.engines.listener import Listener, let_deaths_be_told
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.types import SamplingParams

ENGINES, EPISODES, TURNS = 4, 40, 6
SLOW, SILENT, BAD, CORELESS, GARBAGE = 77, 78, 79, 80, 81  # first tokens of prompts that fare otherwise


class Engine:
    """Listens as an engine does, and keeps what it is asked. `listen.remote`, as of Ray's handles."""

    def __init__(self, mended=False):
        self.mended = mended
        self.prompts = []
        self.parameters = []
        self.given_up = []
        self.calls = 0
        self.dead = False
        self.listener = None
        self.listen = SimpleNamespace(remote=self._address)

    async def _address(self):
        self.calls += 1
        if self.dead:
            raise ActorDiedError
        self.listener = self.listener or Listener(self._answer, "127.0.0.1")
        return self.listener.address

    async def _answer(self, prompt_ids, parameters):
        self.prompts.append(prompt_ids)
        self.parameters.append(parameters)
        try:
            await asyncio.sleep({SLOW: 0.3, SILENT: 60.0}.get(prompt_ids[0], 0.001))
        except asyncio.CancelledError:
            self.given_up.append(prompt_ids)
            raise
        if prompt_ids[0] == CORELESS:
            raise EngineDeadError
        logprob = np.nan if prompt_ids[0] == GARBAGE and not self.mended else -0.1
        return output(prompt_ids, "abort" if prompt_ids[0] == BAD else "stop", logprob)

    async def die(self):
        """Its process ends, and with it its connections."""
        self.dead = True
        server = await self.listener._serving
        server.close()
        for task in asyncio.all_tasks():
            if task.get_coro().__name__ == "_serve":
                task.cancel()


def output(prompt_ids, finish_reason, logprob=-0.1):
    """One token: that of the prompt's first."""
    flat = FlatLogprobs()
    flat.append_fast([prompt_ids[0]], [logprob], iter((1,)), (None,))
    done = CompletionOutput(0, "", [prompt_ids[0]], -0.1, flat, finish_reason=finish_reason)
    return RequestOutput("r", None, prompt_ids, None, [done], finished=True)


def sampler_over(engines, mend=None, timeout_s=30.0):
    async def refuse(policy, replaced, why):
        raise AssertionError(why)

    tokenizer = SimpleNamespace(context_length=1024, eos_ids=(2,))
    sampler = Sampler({"team": tokenizer}, mend or refuse, np.random.default_rng(0), timeout_s)
    sampler.use("team", EngineSet(tuple(engines)))
    return sampler


def ask(sampler, first, seed=0):
    return asyncio.create_task(sampler.generate("team", [first, 1], SamplingParams(8, seed=seed)))


async def until(holds):
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)


async def test_turns_of_an_episode_go_to_the_engine_that_holds_its_prompts():
    engines = [Engine() for _ in range(ENGINES)]
    sampler = sampler_over(engines)
    pauses = np.random.default_rng(1)

    async def episode(number):
        async with sampler.episode():
            for turn in range(TURNS):
                await sampler.generate("team", [number] * (turn + 1), SamplingParams(8, seed=turn))
                await asyncio.sleep(pauses.uniform(0, 0.003))

    await asyncio.gather(*map(episode, range(EPISODES)))
    asked = [{prompt[0] for prompt in engine.prompts} for engine in engines]
    homes = sum(map(len, asked))  # few move, where their engine is busier than others; by chance it would be over 130
    assert all(asked) and EPISODES <= homes <= 2 * EPISODES, homes


async def test_an_engine_is_asked_for_the_last_state_of_a_reply_and_flat_log_probabilities():
    """One message for each reply, in place of one for each token with all that were before."""
    engine = Engine()
    reply = await sampler_over([engine]).generate("team", [5, 2], SamplingParams(8, temperature=0.7, seed=3))
    assert (reply.token_ids, reply.logprobs, reply.finish_reason) == ((5,), (-0.1,), "stop")
    assert engine.prompts == [[5, 2]]
    [given] = engine.parameters
    assert given.output_kind.name == "FINAL_ONLY" and given.flat_logprobs and given.logprobs == 0
    assert (given.max_tokens, given.temperature, given.seed, given.stop_token_ids) == (8, 0.7, 3, [2])


async def test_the_most_likely_tokens_are_certain_as_in_the_other_backends():
    reply = await sampler_over([Engine()]).generate("team", [5, 2], SamplingParams(8, temperature=0.0))
    assert (reply.token_ids, reply.logprobs) == ((5,), (0.0,))


async def test_all_requests_go_over_one_connection_and_each_gets_its_own_reply():
    engine = Engine()
    sampler = sampler_over([engine])
    replies = await asyncio.gather(*(ask(sampler, 100 + n) for n in range(200)))
    assert [reply.token_ids for reply in replies] == [(100 + n,) for n in range(200)]
    assert engine.calls == 1  # of Ray's, for two hundred requests


async def test_a_quick_reply_is_not_held_back_by_a_slow_one():
    sampler = sampler_over([Engine()])
    slow = ask(sampler, SLOW)
    assert (await ask(sampler, 5)).token_ids == (5,) and not slow.done()
    assert (await slow).token_ids == (SLOW,)


async def test_what_is_given_up_is_given_up_in_the_engine_and_counts_as_in_flight_no_more():
    engine = Engine()
    sampler = sampler_over([engine], timeout_s=1.0)
    cancelled = ask(sampler, SILENT)
    await until(lambda: engine.prompts)
    cancelled.cancel()
    await until(lambda: engine.given_up)
    with pytest.raises(EngineLost, match="engine 0 of policy team has not answered a request for 1 s"):
        await ask(sampler, SILENT, seed=1)
    await until(lambda: len(engine.given_up) == 2)
    assert sampler._lines["team"].choice.in_flight == [0]
    assert (await ask(sampler, 5)).token_ids == (5,)  # the connection lives on


async def test_a_request_that_an_engine_refuses_fails_alone():
    sampler = sampler_over([Engine()])
    good, bad = ask(sampler, 5), ask(sampler, BAD)
    with pytest.raises(BackendError, match="vLLM ended a reply with 'abort'"):
        await bad
    assert (await good).token_ids == (5,)


@pytest.mark.parametrize("core_alone", [False, True])
async def test_an_engine_that_dies_is_mended_once_for_all_that_it_was_asked(core_alone):
    """Its process, or vLLM's within it, which the engine tells of by itself."""
    first, second, mended = Engine(), Engine(), []

    async def mend(policy, replaced, why):
        mended.append((policy, replaced))
        await asyncio.sleep(0.01)
        return EngineSet((second,), replaced + 1)

    sampler = sampler_over([first], mend)
    asked = [ask(sampler, CORELESS if core_alone else SILENT) for _ in range(10)]
    await until(lambda: len(first.prompts) == 10)
    if not core_alone:
        await first.die()
    await until(lambda: len(second.prompts) == 10)
    assert mended[0] == ("team", 0)
    for request in asked:
        request.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_an_engine_that_draws_from_logits_that_are_no_numbers_is_as_good_as_dead():
    first, second, mended = Engine(), Engine(mended=True), []

    async def mend(policy, replaced, why):
        mended.append((first.listener.drew_garbage, why))
        return EngineSet((second,), replaced + 1)

    sampler = sampler_over([first], mend)
    assert (await ask(sampler, 5)).token_ids == (5,) and not first.listener.drew_garbage
    assert (await ask(sampler, GARBAGE)).logprobs == (-0.1,)
    [(known, why)] = mended
    assert known and "log-probabilities are no numbers" in why
    assert not second.listener.drew_garbage


async def test_an_engine_whose_machine_is_gone_is_known_by_rays_word_alone(monkeypatch):
    """Nothing ends the connection then: it only falls silent."""
    monkeypatch.setattr(connection, "_LOOK_S", 0.05)
    first, second = Engine(), Engine()

    async def mend(policy, replaced, why):
        return EngineSet((second,), replaced + 1)

    sampler = sampler_over([first], mend)
    request = ask(sampler, SILENT)
    await until(lambda: first.prompts)
    first.dead = True
    await until(lambda: second.prompts)
    request.cancel()


async def test_a_connection_that_ends_while_its_engine_lives_is_not_waited_for():
    engine, told = Engine(), []

    async def mend(policy, replaced, why):
        told.append(why)
        return EngineSet((engine,), replaced + 1)

    sampler = sampler_over([engine], mend)
    request = ask(sampler, SLOW)
    await until(lambda: engine.prompts)
    sampler._lines["team"].asked[0]._connection._writer.transport.abort()
    assert (await request).token_ids == (SLOW,) and "connection" in told[0]
    await until(lambda: engine.given_up)  # what the engine was asked over it


async def test_who_does_not_know_the_secret_is_not_answered():
    engine = Engine()
    address = await engine._address()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    assert len(await reader.readexactly(32)) == 32
    writer.write(bytes(32) + b"\x00\x00\x00\x01\x80")
    assert await reader.read() == b""
    assert not engine.prompts
    writer.close()


async def test_a_machine_that_cannot_be_reached_is_named():
    engine = Engine()
    sampler = sampler_over([engine])
    address = await engine._address()
    (await engine.listener._serving).close()
    with pytest.raises(EngineLost, match=rf"{address.host}:{address.port}, which cannot be reached from this machine"):
        await ask(sampler, 5)


def test_another_event_loop_connects_anew():
    engine = Engine()
    sampler = sampler_over([engine])
    for first in (5, 6):
        engine.listener = None  # its loop ends with ours
        assert asyncio.run(sampler.generate("team", [first], SamplingParams(8))).token_ids == (first,)


async def test_closing_leaves_no_connection():
    engine = Engine()
    sampler = sampler_over([engine])
    await ask(sampler, 5)
    silent = ask(sampler, SILENT)
    await until(lambda: len(engine.prompts) == 2)
    silent.cancel()
    sampler.close()
    await until(lambda: not any(task.get_coro().__name__ == "_serve" for task in asyncio.all_tasks()))


def test_a_process_that_asks_needs_none_of_the_engines_packages():
    """Half a gigabyte and ten seconds for each rollout worker."""
    worker = "coachrl.trainers.backends.openrlhf.rollout.worker"
    asks = f"import {worker}, sys; print({{'vllm', 'deepspeed'}} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", asks], text=True).splitlines()[-1] == "set()"


def test_a_dead_engine_that_is_gone_while_it_is_cleared_away_does_not_end_the_watch_over_it(monkeypatch):
    def gone(process, recursive):
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(vllm.v1.utils, "kill_process_tree", vllm.v1.utils.kill_process_tree)  # put back afterwards
    monkeypatch.setattr(psutil.Process, "children", gone)
    with subprocess.Popen(["sleep", "60"]) as dying:
        try:
            with pytest.raises(psutil.NoSuchProcess):
                vllm.v1.utils.kill_process_tree(dying.pid)
            let_deaths_be_told()
            vllm.v1.utils.kill_process_tree(dying.pid)
        finally:
            dying.kill()
