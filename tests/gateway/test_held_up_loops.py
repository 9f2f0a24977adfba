"""Apps that wait in the event loop for what the loop is to give them."""

import asyncio
import urllib.request
from functools import partial

import gateway_apps
import pytest
from gateway_apps import ask, pipeline_of, user, wait_until

from coachrl.gateway import loop_watch
from coachrl.testing.scripted import ScriptedPolicy

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

gateway = partial(pipeline_of, __name__)


async def play(pipeline, policy=None, tasks=1, **context):
    return await gateway_apps.play(pipeline, policy or ScriptedPolicy(lambda call: "fine"), tasks, **context)


async def waits_in_the_loop(task, endpoint):
    ask(endpoint.openai(), "x")


async def waits_in_the_loop_later(task, endpoint):
    async with endpoint.async_openai() as client:
        await client.chat.completions.create(model="planner", messages=[user("x")])
    with urllib.request.urlopen(f"{endpoint.anthropic_base_url}/health") as answer:
        answer.read()


@pytest.mark.parametrize("run", ["waits_in_the_loop", "waits_in_the_loop_later"])
async def test_an_app_that_holds_up_the_loop_that_is_to_answer_it_is_broken_off(run, caplog, monkeypatch):
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.02)
    [episode] = await play(gateway(run))
    assert episode.infra_error.startswith(f"app: test_held_up_loops:{run} raised ")
    [told] = [record.message for record in caplog.records if "is refused" in record.message]
    assert "await an async client (endpoint.async_openai()), or make the app a plain function" in told


HELD_UP = []


async def holds_up_another(task, endpoint):
    """Its first episode waits in the loop; its second has what its agent wrote to fail on."""
    async with endpoint.async_openai() as client:
        await client.chat.completions.create(model="planner", messages=[user("x")])
    if task.id == "t0":
        await wait_until(lambda: "t1" in HELD_UP)
        try:
            await waits_in_the_loop(task, endpoint)
        finally:
            HELD_UP.append("t0")
    HELD_UP.append("t1")
    await wait_until(lambda: "t0" in HELD_UP)
    int("what its agent said")


async def test_an_app_that_is_held_up_by_another_fails_on_what_its_agent_wrote(monkeypatch):
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.02)
    HELD_UP.clear()
    waiting, other = await play(gateway("holds_up_another"), tasks=2)
    assert "raised APIConnectionError" in waiting.infra_error
    assert other.infra_error is None and "raised ValueError" in other.outcome.reason


def waits_in_a_loop_of_its_own(task, endpoint):
    async def solve():
        return ask(endpoint.openai(), "wait a while")

    return asyncio.run(solve())


async def test_an_app_may_hold_up_a_loop_of_its_own(monkeypatch):
    monkeypatch.setattr(loop_watch, "_EVERY_S", 0.02)

    class Late(ScriptedPolicy):
        async def generate(self, *given):
            await asyncio.sleep(10 * loop_watch._EVERY_S)
            return await super().generate(*given)

    [episode] = await play(gateway("waits_in_a_loop_of_its_own"), Late(lambda call: "fine"))
    assert episode.outcome.success
