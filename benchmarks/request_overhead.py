"""What a request to an engine takes of the driver's processor, with 2,000 episodes in flight.

    OMP_NUM_THREADS=1 .venv-openrlhf/bin/python benchmarks/request_overhead.py

Episodes ask Ray's actors as they ask engines, by the sampler of the distributed backend: four turns each, first of all
the engine that holds the prompt. The stubs wait in place of computing, and answer with a real reply of vLLM's, pickled
beforehand. What is counted is processor time of this process alone, so that others on the machine change nothing:
making and sending the request, Ray's own threads, the event loop, reading the reply.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput

# OpenRLHF asks for flash-attn, for which this stands in where there is no GPU.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "openrlhf_cpu"))

from coachrl.trainers.backends.openrlhf.cluster import connect
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.types import SamplingParams

ENGINES, TURNS = 8, 4
PROCESSES = 2  # in which the stubs of all engines run: each imports vLLM, for half a gigabyte


class Sent:
    """Becomes what was pickled when it is read, so that who sends it needs nothing of vLLM."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return pickle.loads, (self.payload,)


class StubEngine:
    def __init__(self, payload: bytes, seconds: float) -> None:
        self._payload, self._seconds = payload, seconds

    async def load(self) -> None:
        """What a request is read with."""
        import vllm  # noqa: F401

    async def generate(self, prompt_ids: list[int], parameters: Any) -> Sent:
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.5))
        return Sent(self._payload)


class Tokenizer:
    context_length, eos_ids = 40_960, (2,)


def a_reply(tokens: int) -> bytes:
    ids = list(range(1000, 1000 + tokens))
    flat = FlatLogprobs()
    for token in ids:
        flat.append_fast([token], [-0.5], iter((1,)), (None,))
    done = CompletionOutput(0, "", ids, -0.5 * tokens, flat, finish_reason="length")
    return pickle.dumps(RequestOutput("r", None, [1, 2, 3], None, [done], finished=True))


async def play(sampler: Sampler, episodes: int, prompt: list[int], seconds: float) -> None:
    """All episodes at once, each turn after the one before and a pause as long."""

    async def episode(number: int) -> None:
        pause = random.Random(number)
        async with sampler.episode():
            for turn in range(TURNS):
                await asyncio.sleep(seconds * pause.uniform(0.5, 1.5))
                await sampler.generate("policy", prompt, SamplingParams(1024, seed=number * TURNS + turn))

    await asyncio.gather(*map(episode, range(episodes)))


async def mend(policy: str, replaced: int, why: str) -> EngineSet:
    raise RuntimeError(why)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000, help="How many are in flight.")
    parser.add_argument("--seconds", type=float, default=5.0, help="What an engine takes for a reply, on average.")
    parser.add_argument("--prompt", type=int, default=512, help="Tokens of a prompt.")
    parser.add_argument("--reply", type=int, nargs="+", default=[128, 512, 4096], help="Tokens of a reply, in turn.")
    args = parser.parse_args()
    connect(None)
    for length in args.reply:
        options = {"num_cpus": 0, "max_concurrency": args.episodes}
        payload = a_reply(length)
        stubs = [ray.remote(StubEngine).options(**options).remote(payload, args.seconds) for _ in range(PROCESSES)]
        ray.get([stub.load.remote() for stub in stubs])
        sampler = Sampler({"policy": Tokenizer()}, mend, np.random.default_rng(0), 3600.0)  # type: ignore[dict-item]
        sampler.use("policy", EngineSet(tuple(stubs[number % PROCESSES] for number in range(ENGINES))))
        began = time.process_time()
        asyncio.run(play(sampler, args.episodes, [7] * args.prompt, args.seconds))
        each = (time.process_time() - began) / (args.episodes * TURNS)
        print(f"replies of {length} tokens: {1e6 * each:.0f} us a request", flush=True)
        for stub in stubs:
            ray.kill(stub)
    ray.shutdown()


if __name__ == "__main__":
    main()
