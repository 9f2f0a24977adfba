"""Many episodes at once, some of whose apps misbehave in every way that we know: no other episode loses a sample.

    COACHRL_GATEWAY_EPISODES=1000 pytest -n 0 tests/gateway/test_pipeline_many.py

plays as many as you like; a small number by default, so that tests stay quick.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
from gateway_apps import user

from coachrl.config import PipelineConfig
from coachrl.errors import AppBroken
from coachrl.gateway.played_episode import PlayedEpisode
from coachrl.pipelines import make_pipeline
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Episode, Task

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

EPISODES = int(os.environ.get("COACHRL_GATEWAY_EPISODES", 100))
ONE_IN = 20
HANGS = "it hangs"


@dataclass(frozen=True)
class App:
    """One episode's app with a client of its own."""

    number: int
    base_url: str
    key: str
    client: httpx.AsyncClient

    def request(self, token=None, **body):
        given = {"model": "planner", "messages": [user(f"task {self.number}")], **body}
        return {"url": f"{self.base_url}/chat/completions", "json": given, "headers": bearer(token or self.key)}

    async def post(self, token=None, **body):
        return await self.client.post(**self.request(token, **body))

    async def say(self, *messages):
        answer = await self.post(messages=list(messages))
        return answer.json()["choices"][0]["message"]["content"]


def bearer(token):
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


WORLD: dict = {}


async def app(task, endpoint):
    """Two calls, the second of which goes on from the first. One app in twenty misbehaves after its first call."""
    number = int(task.id[1:])
    this = App(number, endpoint.base_url, endpoint.api_key, WORLD["client"])
    WORLD["tokens"][task.id] = endpoint.api_key
    first = await this.say(user(f"task {number}"))
    if number % ONE_IN == 7:
        await misbehaviour(number).play(this)
    return await this.say(user(f"task {number}"), {"role": "assistant", "content": first}, user("again"))


# Ways to misbehave.


async def raises(app):
    raise ValueError("a bad day")


async def exits(app):
    raise SystemExit(1)


async def hangs(app):
    await asyncio.Event().wait()


async def forks(app):
    """A process stays behind, and calls until it is refused."""
    WORLD["left"].append(subprocess.Popen([sys.executable, "-c", ORPHAN, app.base_url, app.key]))


ORPHAN = """
import json, sys, time, urllib.error, urllib.request
time.sleep(0.2)
headers = {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"}
body = json.dumps({"model": "nobody", "messages": []}).encode()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
while True:
    try:
        opener.open(urllib.request.Request(sys.argv[1] + "/chat/completions", body, headers))
    except urllib.error.HTTPError as error:
        if error.code == 403:
            sys.exit(3)
    except OSError:
        sys.exit(4)  # the server has ended
    time.sleep(0.05)
"""


async def calls_after_its_end(app):
    async def call_on():
        with contextlib.suppress(httpx.TransportError):  # the last episode is over, and with it the server
            while (answer := await app.post(messages=[])).status_code != 403:
                assert answer.status_code == 400
                await asyncio.sleep(0.01)

    WORLD["late"].append(asyncio.create_task(call_on()))


async def uses_other_tokens(app):
    """Of an episode that is over, a part of its own, and one that is longer."""
    over = await WORLD["over"].get()
    answers = [await app.post(token) for token in (over, app.key[:-1], app.key + "x", "sk-real")]
    assert [answer.status_code for answer in answers] == [403, 401, 401, 401]


async def leaves_in_mid_stream(app):
    async with app.client.stream("POST", **app.request(stream=True)) as answer:
        async for _ in answer.aiter_lines():
            break


async def sends_malformed_bodies(app):
    url, headers = f"{app.base_url}/chat/completions", bearer(app.key)
    for body in (b"", b"{", b"[]", b'{"model": "planner"}', b"\xff" * 100, b"[" * 10_000, b"{" + b" " * 100_000):
        assert (await app.client.post(url, content=body, headers=headers)).status_code == 400


async def asks_for_nobody(app):
    for name in ("plannr", "gpt-4o", "planner ", "plan\u0435r", "../planner", "a" * 10_000):
        assert (await app.post(model=name)).status_code == 404


@dataclass(frozen=True)
class Misbehaviour:
    """play: what the app does after its first call. actions: how many its episode has. ends: what becomes of it."""

    play: Callable
    actions: int
    ends: Callable[[Episode], bool]


def failed(episode):
    return episode.infra_error is None and not episode.outcome.success


def left_out(episode):
    return episode.infra_error == f"app: {HANGS}"


def succeeded(episode):
    return episode.infra_error is None and episode.outcome.success


MISBEHAVIOURS = (
    Misbehaviour(raises, 1, failed),
    Misbehaviour(hangs, 1, left_out),
    Misbehaviour(forks, 2, succeeded),
    Misbehaviour(calls_after_its_end, 2, succeeded),
    Misbehaviour(uses_other_tokens, 2, succeeded),
    Misbehaviour(leaves_in_mid_stream, 3, succeeded),
    Misbehaviour(sends_malformed_bodies, 2, succeeded),
    Misbehaviour(asks_for_nobody, 2, succeeded),
    Misbehaviour(exits, 1, failed),
)


def misbehaviour(number):
    return MISBEHAVIOURS[number // ONE_IN % len(MISBEHAVIOURS)]


def grade(task, result):
    return result == f"the second answer to {task.prompt}"


def answer(call):
    number = call.prompt.partition("task ")[2].partition("\n")[0]
    return f"the {'second' if 'again' in call.prompt else 'first'} answer to task {number}"


async def test_of_many_episodes_at_once_those_that_misbehave_cost_no_other_its_sample(monkeypatch):
    ended = []
    hanging = sum(misbehaviour(n).play is hangs for n in range(7, EPISODES, ONE_IN))
    all_others = asyncio.Event()
    WORLD.update(left=[], late=[], tokens={}, over=asyncio.Queue())

    async def stuck(self, idle_timeout_s):
        """Time, for this test: who has not ended when all the others have is late."""
        await all_others.wait()
        raise AppBroken(HANGS)

    def on_episode(episode):
        ended.append(episode.id)
        WORLD["over"].put_nowait(WORLD["tokens"][episode.task_id])
        if len(ended) == EPISODES - hanging:
            all_others.set()

    monkeypatch.setattr(PlayedEpisode, "stuck", stuck)
    options = {"run": f"{__name__}:app", "grade": f"{__name__}:grade", "roles": {"planner": {}}}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options={**options, "concurrency": EPISODES}))
    specs = [EpisodeSpec(f"e{n}", Task(f"t{n}", "k", f"task {n}"), n) for n in range(EPISODES)]
    submitted = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as WORLD["client"]:
        context = RolloutContext(
            pipeline, ScriptedPolicy(answer), sandbox=None, submit=submitted.append, on_episode=on_episode
        )
        episodes = await rollout(specs, context)
        await asyncio.wait_for(asyncio.gather(*WORLD["late"]), 60)
    for number, episode in enumerate(episodes):
        texts = [action.text for action in episode.actions]
        first, second = f"the first answer to task {number}", f"the second answer to task {number}"
        if number % ONE_IN == 7:
            kind = misbehaviour(number)
            assert kind.ends(episode) and len(texts) == kind.actions, (kind, episode)
        else:
            assert succeeded(episode) and texts == [first, second], episode.outcome
            began, went_on = episode.actions
            assert went_on.prompt_ids[: len(began.prompt_ids)] == began.prompt_ids
    sampled = {request.action.id for request in submitted}
    valid = [episode for episode in episodes if episode.infra_error is None]
    assert sampled == {action.id for episode in valid for action in episode.actions if action.response_ids}
    assert {orphan.wait(60) for orphan in WORLD["left"]} <= {3, 4}
