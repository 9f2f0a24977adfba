"""Apps that do not wait for a reply: the call is given up, and is nobody's failure."""

import asyncio
import contextlib
import functools
import threading
import time

import pytest

pytest.importorskip("openai", reason="comes with the dev extra")

import openai
from gateway_apps import SEEN, ask, pipeline_of, play, user, wait_until

from coachrl.runs.frames import EpisodeFrames, PlacedEpisode
from coachrl.runs.records import ScoredEpisode
from coachrl.testing.scripted import ScriptedPolicy

gateway = functools.partial(pipeline_of, __name__)


class SlowPolicy(ScriptedPolicy):
    """Answers where the prompt does not say "wait"; else it never does."""

    waiting = given_up = 0

    async def generate(self, policy, prompt_ids, sampling):
        if "wait" in self._tokenizer.decode(prompt_ids):
            self.waiting += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up += 1
                raise
        return await super().generate(policy, prompt_ids, sampling)


async def goes_away(task, endpoint):
    async with endpoint.async_openai() as client:
        call = asyncio.create_task(client.chat.completions.create(model="planner", messages=[user("wait for it")]))
        await wait_until(lambda: SEEN["policy"].waiting == 1)
        call.cancel()
        await wait_until(lambda: SEEN["policy"].given_up == 1)
        return (await client.chat.completions.create(model="planner", messages=[user("y")])).choices[0].message.content


async def test_a_reply_that_nobody_waits_for_is_given_up_and_the_action_says_so(caplog):
    submitted = []
    SEEN["policy"] = policy = SlowPolicy(lambda call: "fine")
    [episode] = await play(gateway("goes_away"), policy, submit=submitted.append)
    gone, answered = episode.actions
    assert gone.result == "Nobody waited for this reply: the client went away."
    assert gone.response_ids == () and gone.prompt_text == "wait for it"
    assert [request.action for request in submitted] == [answered]
    assert episode.outcome.success and episode.outcome.metrics["calls_given_up"] == 1
    [note] = [record.message for record in caplog.records if "given_up" in record.message]
    assert note.startswith("role planner: its app left a call before it was answered")
    assert EpisodeFrames([PlacedEpisode("train", 1, ScoredEpisode(episode, {}))]).actions["left_out"].tolist() == [
        "given_up",
        None,
    ]


async def test_that_a_role_is_left_is_told_of_once(caplog):
    pipeline = gateway("goes_away")
    for _ in range(2):
        SEEN["policy"] = policy = SlowPolicy(lambda call: "fine")
        await play(pipeline, policy)
    assert caplog.text.count("role planner: its app left a call") == 1


def gives_up_and_fails(task, endpoint):
    ask(endpoint.openai().with_options(timeout=0.5, max_retries=0), "wait")


async def test_an_app_that_fails_since_it_did_not_wait_is_no_fault_of_its_agents():
    [episode] = await play(gateway("gives_up_and_fails"), SlowPolicy(lambda call: "fine"))
    assert "APITimeoutError" in episode.infra_error and episode.infra_error.startswith("app: ")


class SlowToGiveUp(SlowPolicy):
    """As an engine that is in the midst of a step when it is told to end."""

    async def generate(self, policy, prompt_ids, sampling):
        try:
            return await super().generate(policy, prompt_ids, sampling)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise


def is_answered_gives_up_and_fails(task, endpoint):
    ask(endpoint.openai(), "x")
    gives_up_and_fails(task, endpoint)


async def test_that_an_app_did_not_wait_is_seen_also_where_its_error_is_there_before_the_news_of_it():
    [episode] = await play(gateway("is_answered_gives_up_and_fails"), SlowToGiveUp(lambda call: "fine"))
    assert episode.infra_error.endswith("(after a call that it did not wait for)")


def asks_beside(endpoint):
    with contextlib.suppress(openai.APIError):
        ask(endpoint.openai(), "wait")


def fails_on_a_time_out_of_its_own(task, endpoint):
    threading.Thread(target=asks_beside, args=(endpoint,), daemon=True).start()
    raise TimeoutError(ask(endpoint.openai(), "x"))


async def test_a_time_out_of_something_else_is_no_call_that_an_app_did_not_wait_for():
    policy = SlowPolicy(lambda call: "fine")
    [episode] = await play(gateway("fails_on_a_time_out_of_its_own"), policy)
    assert episode.infra_error is None and "raised TimeoutError: fine" in episode.outcome.reason


def gives_up_copes_and_fails(task, endpoint):
    with contextlib.suppress(openai.APITimeoutError):
        ask(endpoint.openai().with_options(timeout=0.5, max_retries=0), "wait")
    while not SEEN["policy"].given_up:
        time.sleep(0.01)
    int(ask(endpoint.openai(), "x"))


async def test_an_app_that_copes_with_what_it_did_not_wait_for_fails_on_what_its_agent_wrote():
    SEEN["policy"] = policy = SlowPolicy(lambda call: "fine")
    [episode] = await play(gateway("gives_up_copes_and_fails"), policy)
    assert episode.infra_error is None and "raised ValueError" in episode.outcome.reason


async def leaves_calls(task, endpoint):
    client = endpoint.async_openai()
    task = asyncio.create_task(client.chat.completions.create(model="planner", messages=[user("wait")]))
    await wait_until(lambda: SEEN["policy"].waiting == 1)
    SEEN["left"] = task
    return "fine"


async def test_calls_under_way_end_with_their_episode():
    SEEN["policy"] = policy = SlowPolicy(lambda call: "fine")
    [episode] = await play(gateway("leaves_calls"), policy)
    assert policy.given_up == 1 and episode.outcome.success
    with pytest.raises(openai.APIError):
        await SEEN.pop("left")
