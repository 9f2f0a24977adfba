"""What a call through the gateway takes beyond its engine: median milliseconds with 64 calls in flight.

    python benchmarks/gateway_overhead.py

A stub engine answers after a fixed time, however many ask. Each of 64 episodes makes calls one after another over HTTP,
by a client that keeps its connection. Overhead is the time of a call less the engine's. Client and server share one
process and one core here, so that the client's own work is a part of the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import httpx

from coachrl.config import PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Task

ENGINE_S = 2.0
CALLS = 10
TIMES: list[float] = []


class StubEngine(ScriptedPolicy):
    """Takes as long for each reply, and no processor."""

    async def generate(self, policy, prompt_ids, sampling):
        await asyncio.sleep(ENGINE_S)
        return await super().generate(policy, prompt_ids, sampling)


async def solve(task, endpoint):
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    await asyncio.sleep(ENGINE_S * int(task.id) / 64)  # calls come as they come, not all at one instant
    async with httpx.AsyncClient(headers=headers, verify=False, timeout=None) as client:
        for number in range(CALLS):
            body = {"model": "agent", "messages": [{"role": "user", "content": f"{task.prompt} {number}"}]}
            began = time.perf_counter()
            answer = await client.post(f"{endpoint.base_url}/chat/completions", json=body)
            TIMES.append(time.perf_counter() - began)
            answer.raise_for_status()


def grade(task, result):
    return True


async def measure(in_flight: int) -> list[float]:
    options = {"run": f"{__name__}:solve", "grade": f"{__name__}:grade", "roles": {"agent": {}}}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options=options))
    specs = [EpisodeSpec(f"e{n}", Task(str(n), "k", "word " * 200), n) for n in range(in_flight)]
    episodes = await rollout(specs, RolloutContext(pipeline, StubEngine(lambda call: "reply " * 40), sandbox=None))
    assert all(len(episode.actions) == CALLS for episode in episodes)
    return [1000 * (seconds - ENGINE_S) for seconds in TIMES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in-flight", type=int, default=64, help="The number of calls at once.")
    began = time.process_time()
    overheads = sorted(asyncio.run(measure(parser.parse_args().in_flight)))
    p90 = overheads[int(0.9 * len(overheads))]
    processor = 1000 * (time.process_time() - began) / len(overheads)
    print(f"{len(overheads)} calls: median {statistics.median(overheads):.1f} ms, 90 % below {p90:.1f} ms")
    print(f"processor time of a call, the client's included: {processor:.1f} ms")


if __name__ == "__main__":
    main()
