"""Requests of an episode over engines that answer at once: no model, no Ray."""

import asyncio
from types import SimpleNamespace

import numpy as np
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput

from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.types import SamplingParams

ENGINES, EPISODES, TURNS = 4, 40, 6


class Engine:
    """Keeps what it is asked. `generate.remote`, as of Ray's handles."""

    def __init__(self):
        self.prompts = []
        self.parameters = []
        self.generate = SimpleNamespace(remote=self._answer)

    async def _answer(self, prompt_ids, parameters):
        self.prompts.append(prompt_ids)
        self.parameters.append(parameters)
        await asyncio.sleep(0.001)
        flat = FlatLogprobs()
        flat.append_fast([5], [-0.5], iter((1,)), (None,))
        done = CompletionOutput(0, "", [5], -0.5, flat, finish_reason="stop")
        return RequestOutput("r", None, prompt_ids, None, [done], finished=True)


def sampler_over(engines):
    async def mend(policy, replaced, why):
        raise AssertionError(why)

    tokenizer = SimpleNamespace(context_length=1024, eos_ids=(2,))
    sampler = Sampler({"team": tokenizer}, mend, np.random.default_rng(0), timeout_s=60.0)
    sampler.use("team", EngineSet(tuple(engines)))
    return sampler


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
    assert all(asked) and EPISODES <= homes <= 1.5 * EPISODES, homes


async def test_an_engine_is_asked_for_the_last_state_of_a_reply_and_flat_log_probabilities():
    """One message for each reply, in place of one for each token with all that were before."""
    engine = Engine()
    reply = await sampler_over([engine]).generate("team", [1, 2], SamplingParams(8, temperature=0.7, seed=3))
    assert reply.token_ids == (5,) and reply.logprobs == (-0.5,)
    [given] = engine.parameters
    assert given.output_kind.name == "FINAL_ONLY" and given.flat_logprobs and given.logprobs == 0
    assert (given.max_tokens, given.temperature, given.seed, given.stop_token_ids) == (8, 0.7, 3, [2])
