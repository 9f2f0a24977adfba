"""What a request to an engine takes of the driver's processor, with 2,000 episodes in flight, and how long one by
itself is on its way.

    OMP_NUM_THREADS=1 .venv-openrlhf/bin/python benchmarks/request_overhead.py

Episodes ask actors as they ask engines, by the sampler of the distributed backend: four turns each, first of all the
engine that holds the prompt. The stubs wait in place of computing, and answer with a reply of vLLM's own type. Then, in
the same run, the same requests as one call of Ray's each, as they once were. What is counted is processor time of this
process alone: making and sending the request, Ray's own threads, the event loop and its timers, reading the reply. Of
others on the machine it feels that they empty the processor's caches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import itertools
import pickle
import pstats
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import ray
from vllm import SamplingParams as VLLMSamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput

from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect
from coachrl.trainers.backends.openrlhf.engines.listener import Listening
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.trainers.backends.vllm.replies import Reply, read_reply
from coachrl.types import SamplingParams

ENGINES, TURNS = 8, 4
PROCESSES = 2  # in which the stubs of all engines run: each imports vLLM, for half a gigabyte


class StubEngine(Listening):
    """reply: vLLM's, pickled, since the driver's own copy of its class may not be loaded here yet."""

    def __init__(self, reply: bytes, seconds: float) -> None:
        self._reply, self._seconds = pickle.loads(reply), seconds

    async def generate(self, prompt_ids: list[int], parameters: Any) -> RequestOutput:
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.5))
        return self._reply

    async def hurry(self) -> None:
        """Answer at once from now on."""
        self._seconds = 0.0


class Tokenizer:
    context_length, eos_ids = 40_960, (2,)


def a_reply(tokens: int) -> bytes:
    ids = list(range(1000, 1000 + tokens))
    flat = FlatLogprobs()
    for token in ids:
        flat.append_fast([token], [-0.5], iter((1,)), (None,))
    done = CompletionOutput(0, "", ids, -0.5 * tokens, flat, finish_reason="length")
    return pickle.dumps(RequestOutput("r", None, [1, 2, 3], None, [done], finished=True))


class CallEach:
    """In place of the sampler: every request is a call of Ray's, with vLLM's objects pickled both ways."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = itertools.cycle(engines)

    def episode(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def generate(self, policy: str, prompt: list[int], sampling: SamplingParams) -> Reply:
        parameters = VLLMSamplingParams(
            max_tokens=sampling.max_new_tokens, seed=sampling.seed, logprobs=0, flat_logprobs=True, detokenize=False
        )
        async with asyncio.timeout(3600.0):
            return read_reply(await next(self._engines).generate.remote(list(prompt), parameters))


async def play(sampler: Sampler | CallEach, episodes: int, prompt: list[int], seconds: float) -> None:
    """All episodes at once, each turn after the one before and a pause as long."""

    async def episode(number: int) -> None:
        pause = random.Random(number)
        async with sampler.episode():
            for turn in range(TURNS):
                await asyncio.sleep(seconds * pause.uniform(0.5, 1.5))
                await sampler.generate("policy", prompt, SamplingParams(1024, seed=number * TURNS + turn))

    await asyncio.gather(*map(episode, range(episodes)))


async def one_by_one(sampler: Sampler | CallEach, prompt: list[int]) -> float:
    """Seconds of a request with no other in flight: the median of 200, after one that connects."""
    taken = []
    for number in range(201):
        began = time.perf_counter()
        await sampler.generate("policy", prompt, SamplingParams(1024, seed=number))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


async def mend(policy: str, replaced: int, why: str) -> EngineSet:
    raise RuntimeError(why)


def the_sampler(engines: Sequence[Any]) -> Sampler:
    sampler = Sampler({"policy": Tokenizer()}, mend, np.random.default_rng(0), 3600.0)  # type: ignore[dict-item]
    sampler.use("policy", EngineSet(tuple(engines)))
    return sampler


def measured(make: Callable[[Sequence[Any]], Any], args: argparse.Namespace, length: int) -> tuple[float, float]:
    """Seconds of this process's processor for a request, and seconds that one by itself takes."""
    options = {"num_cpus": 0, "max_concurrency": args.episodes}
    stubs = [ray.remote(StubEngine).options(**options).remote(a_reply(length), args.seconds) for _ in range(PROCESSES)]
    ray.get([stub.__ray_ready__.remote() for stub in stubs])
    sampler, prompt = make([stubs[number % PROCESSES] for number in range(ENGINES)]), [7] * args.prompt
    gc.collect()  # half a second for what was imported, once in a process, is no request's
    began = time.process_time()
    asyncio.run(play(sampler, args.episodes, prompt, args.seconds))
    each = (time.process_time() - began) / (args.episodes * TURNS)
    ray.get([stub.hurry.remote() for stub in stubs])
    alone = asyncio.run(one_by_one(sampler, prompt))
    for stub in stubs:
        ray.kill(stub)
    return each, alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000, help="How many are in flight.")
    parser.add_argument("--seconds", type=float, default=5.0, help="What an engine takes for a reply, on average.")
    parser.add_argument("--prompt", type=int, default=512, help="Tokens of a prompt.")
    parser.add_argument("--reply", type=int, nargs="+", default=[128, 512, 4096], help="Tokens of a reply, in turn.")
    parser.add_argument("--profile", action="store_true", help="Print what the event loop's thread spends it on.")
    args = parser.parse_args()
    connect(None)
    for length in args.reply:
        profile = cProfile.Profile(time.thread_time) if args.profile else contextlib.nullcontext()
        with profile:
            each, alone = measured(the_sampler, args, length)
        if isinstance(profile, cProfile.Profile):
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        before, before_alone = measured(CallEach, args, length)
        print(
            f"replies of {length} tokens: {1e6 * each:.0f} us of processor time a request, {1e3 * alone:.2f} ms for "
            f"one by itself; one call of Ray's each: {1e6 * before:.0f} us, {1e3 * before_alone:.2f} ms; "
            f"{before / each:.1f} times as much",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    main()
