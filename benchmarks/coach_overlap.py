"""Does the coach cost time? Real HTTP on loopback, the server in another process, latencies as in MAPPA's App. G.9.

    python benchmarks/coach_overlap.py [throughput] [step] [resume] [quota]

throughput: calls/s and processor time a call with N calls in flight, against N / mean latency and a bare loop of
HTTP requests; memory. step: wall time
of a step's rollout and scoring without a coach, with the coach in the background, with each call awaited inline.
resume: a scoring process is killed and started again; how many finished calls are repeated. quota: servers that take so
many calls in each second and refuse the rest; what is lost, asked in vain and left unused of the quota.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp

from coachrl.coach import CoachRequest, make_coach
from coachrl.coach.clients.base import ChatRequest
from coachrl.coach.clients.ledger import Message, read_ledger
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig, PipelineConfig
from coachrl.errors import CoachError
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.team.team import Team
from coachrl.prompts import parse_prompt
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Action, Episode, Outcome, Role, Task

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from scripted_server import Received, ScriptedServer, Step, say, status

TASK = Task("t", "benchmark", "A task of some length. " * 40)
ROLES = tuple(
    Role(name, name, parse_prompt("---\nfields: [given]\n---\n{{given}}", name), max_new_tokens=2000)
    for name in ("problem_solver", "code_executor", "verifier")
)
OWN_SERVER, BY_LITELLM, BY_GENAI = "hosted_vllm/judge", "openai/gpt-4o-mini", "gemini/gemini-2.5-flash"
BARE = "bare"  # HTTP requests of the same size, without coachrl


def serve(connection, latency_s: tuple[float, float]) -> None:
    """Answer until the connection says stop; then send how often each prompt was asked for."""
    asked: Counter[int] = Counter()
    draw = random.Random(0)

    def script(received: Received) -> Step:
        asked[hash(received.prompt)] += 1
        server.requests.clear()
        return say("Sound work, well explained.\nPROCESS_SCORE: 8", latency_s=draw.uniform(*latency_s))

    async def run() -> None:
        async with server:
            connection.send(server.address)
            while not connection.poll():
                await asyncio.sleep(0.1)
            connection.send(dict(asked))

    server = ScriptedServer(script)
    asyncio.run(run())


@contextmanager
def serving(latency_s: tuple[float, float], counts: Counter[int] | None = None):
    """The address of a server in a process of its own; `counts` gets its requests by prompt in the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, latency_s))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        asked = ours.recv()
        if counts is not None:
            counts.update(asked)
        process.join()


def pool_at(address: str, model: str, in_flight: int, folder: Path | None = None) -> CoachPool:
    """A pool as a run has it: ledger and cache where `folder` is given."""
    base = address if model.startswith("gemini/") else f"{address}/v1"
    settings = CoachConfig(name=model, api_base=base, concurrency=in_flight, timeout_s=60.0)
    client_factory = ChatClientFactory(settings, cache=folder / "cache.sqlite" if folder else None)
    coach = make_coach(settings, client_factory=client_factory)
    ledger = folder / "ledger.jsonl" if folder else None
    return CoachPool(coach, concurrency=in_flight, ledger=ledger, client_factory=client_factory)


def request_number(number: int) -> CoachRequest:
    text = f"Reply {number}. " + "Some words of an agent. " * 200
    ids = (1,) * 10
    action = Action(
        f"e/{number}", "e", number, ROLES[0].name, ROLES[0].policy, 0, ids, ids, (-1.0,) * 10, "stop", 0, "Go on.", text
    )
    return CoachRequest(TASK, ROLES[0], ROLES, action)


def episode_of(request: CoachRequest) -> Episode:
    return Episode("e", TASK.id, TASK.category, "benchmark", (request.action,), Outcome(True))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Throughput


@asynccontextmanager
async def scoring(address: str, model: str, in_flight: int) -> AsyncIterator[Callable[[CoachRequest], Awaitable[None]]]:
    """What scores one action: a pool with ledger and cache, or one bare request with the action's text in it."""
    if model == BARE:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def post(request: CoachRequest) -> None:
                content = request.action.text + TASK.prompt * 3
                body = {"model": "judge", "messages": [{"role": "user", "content": content}]}
                async with session.post(f"{address}/v1/chat/completions", json=body) as reply:
                    assert (await reply.json())["choices"]

            yield post
        return
    with tempfile.TemporaryDirectory() as folder:
        pool = pool_at(address, model, in_flight, Path(folder))
        await pool.check()

        async def score(request: CoachRequest) -> None:
            pool.submit(request)
            (given,) = (await pool.settle([episode_of(request)])).values()
            assert given.process_0_10 == 8.0, given.rationale

        yield score
        await pool.close()


async def throughput(address: str, model: str, in_flight: int, seconds: float, latency_s: tuple[float, float]) -> dict:
    """Completions between the time when every first call has ended and the end, with a new call for each that ends."""
    done, numbers = 0, iter(range(10**9))
    async with scoring(address, model, in_flight) as score:
        stop_at = time.monotonic() + seconds

        async def work() -> None:
            nonlocal done
            while time.monotonic() < stop_at:
                await score(request_number(next(numbers)))
                done += 1

        workers = [asyncio.create_task(work()) for _ in range(in_flight)]
        await asyncio.sleep(latency_s[1] + 1.0)
        began, done_before, cpu_before, mb_before = time.monotonic(), done, time.process_time(), resident_mb()
        await asyncio.sleep(stop_at - time.monotonic())
        wall_s, calls = time.monotonic() - began, done - done_before
        cpu_s, mb_after = time.process_time() - cpu_before, resident_mb()
        await asyncio.gather(*workers)
    ideal = in_flight / (sum(latency_s) / 2)
    return {
        "model": model,
        "in_flight": in_flight,
        "calls_per_s": round(calls / wall_s, 1),
        "ideal_per_s": round(ideal, 1),
        "of_ideal": round(calls / wall_s / ideal, 3),
        "cpu_ms_per_call": round(1000 * cpu_s / max(1, calls), 2),
        "processor_share": round(cpu_s / wall_s, 2),
        "memory_mb_before_after": [round(mb_before), round(mb_after)],
    }


# A step


class SlowPolicy(ScriptedPolicy):
    """Generation that takes time, as a GPU elsewhere does."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda call: "A reply. " * 20)
        self._seconds, self._draw = seconds, random.Random(1)

    async def generate(self, policy, prompt_ids, sampling):
        await asyncio.sleep(self._seconds * self._draw.uniform(0.8, 1.2))
        return await super().generate(policy, prompt_ids, sampling)


class Team3(Pipeline):
    """Three agents of several turns each. inline: waits for each score before it goes on, where there is a pool."""

    name = "three-agents"
    roles = ROLES

    def __init__(self, turns: int, inline: CoachPool | None = None) -> None:
        super().__init__(PipelineConfig())
        self._turns, self._inline = turns, inline

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        for role in ROLES:
            for _ in range(self._turns):
                part = await getattr(team, role.name).act(given=task.prompt)
                if self._inline is not None:
                    await self._inline.scores([part.actions[-1].id])
        return Outcome(True, {"correct": 1.0})


async def step_s(address: str, way: str, arguments: argparse.Namespace) -> float:
    pool = None
    if way != "none":
        pool = pool_at(address, OWN_SERVER, 1000)
        await pool.check()
    context = RolloutContext(
        pipeline=Team3(arguments.turns, pool if way == "inline" else None),
        backend=SlowPolicy(arguments.generation_s),
        sandbox=None,
        submit=pool.submit if pool is not None else None,
        outcome_to="none" if way == "inline" else "last",
    )
    began = time.monotonic()
    episodes = await rollout([EpisodeSpec(f"e{n}", TASK, n) for n in range(arguments.episodes)], context)
    if pool is not None:
        scores = await pool.settle(episodes)
        assert len(scores) == arguments.episodes * 3 * arguments.turns
    seconds = time.monotonic() - began
    if pool is not None:
        await pool.close()
    return seconds


# Kill and resume


def score_all(address: str, folder: Path, count: int) -> None:
    async def run() -> None:
        pool = pool_at(address, OWN_SERVER, 32, folder)
        requests = [request_number(number) for number in range(count)]
        for request in requests:
            pool.submit(request)
        await pool.scores([request.action.id for request in requests])
        await pool.close()

    asyncio.run(run())


def killed_and_resumed(count: int) -> dict:
    asked: Counter[int] = Counter()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving((0.1, 0.4), asked) as address:
            first = context.Process(target=score_all, args=(address, folder, count))
            first.start()
            while finished(folder) < count // 2:
                time.sleep(0.05)
            os.kill(first.pid, signal.SIGKILL)
            first.join()
            before = finished(folder)
            second = context.Process(target=score_all, args=(address, folder, count))
            second.start()
            second.join()
        cached = sum(
            line["kind"] == "call" and line["usage"]["calls_from_cache"] > 0
            for line in read_ledger(folder / "ledger.jsonl")
        )
    return {
        "actions": count,
        "finished_before_the_kill": before,
        "requests_at_the_server": sum(asked.values()),
        "asked_twice": sum(times > 1 for times in asked.values()),
        "from_cache": cached,
        "finished_calls_repeated": before - cached,
    }


# Quota


async def quotas(seconds: float) -> list[dict]:
    cases = [
        (per_s, number, lag_s, retry_after_s)
        for per_s in (1, 3, 20)
        for number, lag_s, retry_after_s in ((429, 0.0, None), (529, 0.3, None), (429, 0.3, 1.0))
    ]
    return await asyncio.gather(*(under_quota(*case, seconds) for case in cases))


async def under_quota(per_s: int, number: int, lag_s: float, retry_after_s: float | None, seconds: float) -> dict:
    """As many calls as are taken within `seconds`, 32 at once, of a server that takes `per_s` in each second."""
    taken: Counter[int] = Counter()

    def script(_: Received) -> Step:
        second = int(time.monotonic())
        if taken[second] >= per_s:
            return replace(status(number, "too many", retry_after_s), latency_s=lag_s)
        taken[second] += 1
        return say("PROCESS_SCORE: 8", latency_s=0.5)

    lost = 0
    async with ScriptedServer(script) as server:
        made = ChatClientFactory(CoachConfig(name=OWN_SERVER, concurrency=32))
        client = made.client(OWN_SERVER, server.openai_base)

        async def work(name: int) -> None:
            nonlocal lost
            while True:
                try:
                    await client.complete(ChatRequest((Message("user", f"Reply {name}."),)))
                except CoachError:
                    lost += 1

        workers = [asyncio.create_task(work(name)) for name in range(32)]
        await asyncio.sleep(seconds)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await client.close()
        asked, took = len(server.requests), taken.total()
    return {
        "quota_per_s": per_s,
        "refusal": number,
        "comes_after_s": lag_s,
        "retry_after_s": retry_after_s,
        "taken": took,
        "of_the_quota": round(took / per_s / seconds, 3),
        "requests_per_call": round(asked / took, 3),
        "lost": lost,
    }


def finished(folder: Path) -> int:
    path = folder / "ledger.jsonl"
    return sum('"kind": "call"' in line for line in path.open()) if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("components", nargs="*", choices=["throughput", "step", "resume", "quota", []], default=[])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[32, 100, 300, 1000])
    parser.add_argument("--models", nargs="+", default=[BARE, OWN_SERVER, BY_LITELLM, BY_GENAI])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of throughput")
    parser.add_argument("--latency-s", type=float, nargs=2, default=[2.0, 5.0])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4, help="of each of three agents")
    parser.add_argument("--generation-s", type=float, default=9.0, help="of one reply")
    arguments = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "not-needed")
    os.environ.setdefault("GEMINI_API_KEY", "not-needed")
    components, latency_s = arguments.components or ["throughput", "step", "resume"], tuple(arguments.latency_s)
    if "throughput" in components:
        for model in arguments.models:
            for in_flight in arguments.in_flight:
                with serving(latency_s) as address:
                    report(asyncio.run(throughput(address, model, in_flight, arguments.seconds, latency_s)))
    if "step" in components:
        with serving(latency_s) as address:
            seconds = {way: asyncio.run(step_s(address, way, arguments)) for way in ("none", "background", "inline")}
        report({f"{way}_s": round(value, 1) for way, value in seconds.items()})
        report({f"{way}_over_none": round(seconds[way] / seconds["none"], 3) for way in ("background", "inline")})
    if "quota" in components:
        for figures in asyncio.run(quotas(arguments.seconds)):
            report(figures)
    if "resume" in components:
        report(killed_and_resumed(400))


def report(figures: dict) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
