"""Apps that misbehave: each costs its own episode, and no other's."""

import asyncio
import contextlib
import functools
import multiprocessing
import os
import re
import threading

import pytest

pytest.importorskip("openai", reason="comes with the dev extra")

import gateway_apps
import httpx
import openai
from gateway_apps import SEEN, ask, kept, pipeline_of, user, wait_until

from coachrl.errors import BackendError, PolicyError
from coachrl.gateway import apps
from coachrl.testing.scripted import CharacterTokenizer, ScriptedPolicy

LONG_S = 60.0
gateway = functools.partial(pipeline_of, __name__)


async def play(pipeline, policy=None, tasks=1, **context):
    return await gateway_apps.play(pipeline, policy or ScriptedPolicy(lambda call: "fine"), tasks, **context)


# An app that asks for what there is not.


def asks_for_json(client):
    ask(client, "x", response_format={"type": "json_object"})


def asks_nobody(client):
    client.chat.completions.create(model="plannr", messages=[user("x")])


def asks_for_vectors(client):
    client.embeddings.create(model="planner", input="x")


def asks_with_an_image(client):
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    client.responses.create(model="planner", input=[{"role": "user", "content": [picture]}])


REFUSED = {
    asks_for_json: "response_format: this is not supported here",
    asks_nobody: "there is no model 'plannr'",
    asks_for_vectors: "POST /v1/embeddings: there is no such path",
    asks_with_an_image: "a part of type 'input_image' cannot be read here",
}
ASKED = {}


def answered_then_refused(task, endpoint):
    client = endpoint.openai()
    ask(client, "x")
    try:
        ASKED["next"](client)
    except openai.APIStatusError as error:
        if task.id == "t1":
            raise RuntimeError("my framework has failed") from error
        raise


def refused_then_answered(task, endpoint):
    client = endpoint.openai()
    with contextlib.suppress(openai.APIStatusError):
        ASKED["next"](client)
    ask(client, "x")
    raise ValueError("what its agent said")


@pytest.mark.parametrize("asks", list(REFUSED), ids=lambda asks: asks.__name__)
async def test_an_app_that_fails_since_it_was_refused_is_no_fault_of_its_agents(asks, caplog):
    ASKED["next"] = asks
    pipeline = gateway("answered_then_refused")
    plain, in_other_words = await play(pipeline, tasks=2)
    assert "my framework has failed (after a call that was refused: " in in_other_words.infra_error
    for episode in (plain, in_other_words):
        assert episode.infra_error.startswith("app: ") and episode.infra_error.count(REFUSED[asks]) == 1
    assert plain.infra_error.endswith("(after a call that was refused)")
    assert len([record for record in caplog.records if "a call of the app is refused: " in record.message]) == 1


async def test_an_app_that_copes_with_a_refusal_and_then_fails_has_failed_and_the_log_says_so(caplog):
    ASKED["next"] = asks_for_json
    for episode in await play(gateway("refused_then_answered"), tasks=2):
        assert episode.infra_error is None and "raised ValueError: what its agent said" in episode.outcome.reason
    refused, failed = [record.message for record in caplog.records]
    assert refused.startswith("a call of the app is refused: response_format")
    assert failed.startswith("an app failed, and with it its episode (pipeline.options.crashes): ")


class _Strict(ScriptedPolicy):
    """Its chat template takes one message of a user's after the other, and nothing else."""

    def tokenizer(self, policy):
        tokenizer = super().tokenizer(policy)
        encode = CharacterTokenizer.encode_chat

        def encode_chat(messages, *given, **named):
            if [message["role"] for message in messages] != ["user"]:
                raise PolicyError("this template takes a user's message alone")
            return encode(tokenizer, messages, *given, **named)

        tokenizer.encode_chat = encode_chat
        return tokenizer


def has_a_system_prompt_later(task, endpoint):
    client = endpoint.openai()
    ask(client, "x")
    system = {"role": "system", "content": "Be brief."}
    client.chat.completions.create(model="planner", messages=[system, user("y")])


async def test_a_conversation_that_no_template_takes_is_no_fault_of_the_agents():
    [episode] = await play(gateway("has_a_system_prompt_later"), _Strict(lambda call: "fine"))
    assert episode.infra_error.endswith("(after a call that was refused)")


# An app that hangs.

HANGING = threading.Event()


def hangs(task, endpoint):
    ask(endpoint.openai(), "x")
    HANGING.wait(LONG_S)


async def hangs_async(task, endpoint):
    await asyncio.Event().wait()


@pytest.mark.parametrize("run", ["hangs", "hangs_async"])
async def test_an_app_that_hangs_is_given_up_and_its_episode_left_out(run):
    [episode] = await play(gateway(run, idle_timeout_s=0.3))
    assert episode.infra_error == "app: it made no call and came to no end for 0.3 s"
    HANGING.set()


def grades_for_ever(task, result):
    HANGING.wait(LONG_S)


async def grades_for_ever_async(task, result):
    await asyncio.Event().wait()


@pytest.mark.parametrize("grade", ["grades_for_ever", "grades_for_ever_async"])
async def test_a_grader_that_hangs_is_given_up_and_its_episode_left_out(grade):
    HANGING.clear()
    [episode] = await play(gateway("asks", grade=f"{__name__}:{grade}", grade_timeout_s=0.3))
    assert re.fullmatch(rf"grader: .*:{grade} did not end within 0\.3 s for the result 'fine'", episode.infra_error)
    HANGING.set()


async def cancels_itself(*_):
    asyncio.current_task().cancel()
    await asyncio.sleep(LONG_S)


async def test_what_cancels_its_own_task_costs_its_own_episode():
    [episode] = await play(gateway("cancels_itself"))
    assert episode.infra_error.startswith("app: ") and "cancels_itself raised CancelledError" in episode.infra_error
    [episode] = await play(gateway("asks", grade=f"{__name__}:cancels_itself"))
    assert "cancels_itself raised CancelledError" in episode.infra_error


async def ends_for_nobody(*_):
    while not HANGING.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


async def test_what_swallows_its_cancellation_is_waited_for_no_longer(monkeypatch, caplog):
    monkeypatch.setattr(apps, "_ENDING_S", 0.2)
    HANGING.clear()
    [episode] = await play(gateway("ends_for_nobody", idle_timeout_s=0.3))
    assert episode.infra_error == "app: it made no call and came to no end for 0.3 s"
    [episode] = await play(gateway("asks", grade=f"{__name__}:ends_for_nobody", grade_timeout_s=0.3))
    assert "ends_for_nobody did not end within 0.3 s" in episode.infra_error
    assert [name in caplog.text for name in ("coachrl-app does not end", "coachrl-grader does not end")] == [True] * 2
    HANGING.set()


class Mute:
    def __repr__(self):
        raise LookupError("its session is closed")


def gives_what_has_no_text(task, endpoint):
    return Mute()


def needs_a_number(task, result):
    return result + 1


async def test_a_result_without_a_text_leaves_out_its_episode_alone():
    [episode] = await play(gateway("gives_what_has_no_text", grade=f"{__name__}:needs_a_number"))
    assert "needs_a_number raised TypeError" in episode.infra_error and "the result a Mute (" in episode.infra_error


def asks(task, endpoint):
    return ask(endpoint.openai(), "x")


async def test_the_time_limit_of_an_episode_holds_for_apps_too():
    [episode] = await play(gateway("hangs_async"), episode_timeout_s=0.3)
    assert episode.infra_error.startswith("timeout: ")


# Calls that are not the episode's.

LEFT_BEHIND: dict = {}


async def calls_too_late(task, endpoint):
    """Its first episode leaves a token behind, with which the second one calls."""
    if task.id == "t0":
        LEFT_BEHIND["token"] = endpoint.api_key
        LEFT_BEHIND["done"] = asyncio.Event()
        return "fine"
    await wait_until(lambda: "token" in LEFT_BEHIND)
    while True:
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=LEFT_BEHIND["token"]) as other:
            try:
                await other.chat.completions.create(model="planner", messages=[user("late")])
            except openai.PermissionDeniedError as error:
                return str(error)
        await asyncio.sleep(0.01)


async def test_a_call_after_its_episode_is_refused():
    _, second = await play(gateway("calls_too_late"), tasks=2)
    assert "this episode is over" in SEEN["t1"]
    assert not second.actions and all("late" not in action.prompt_text for action in second.actions)


def foreign_tokens(task, endpoint):
    refused = []
    for token in ("sk-real-key", "", "coachrl-x"):
        answer = httpx.post(
            f"{endpoint.base_url}/chat/completions",
            json={"model": "planner", "messages": [user("x")]},
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        refused.append(answer.status_code)
    return refused


async def test_a_foreign_token_opens_nothing():
    [episode] = await play(gateway("foreign_tokens"))
    assert SEEN["t0"] == [401, 401, 401] and not episode.actions


# A machinery that breaks.


class BrokenPolicy(ScriptedPolicy):
    async def generate(self, policy, prompt_ids, sampling):
        raise BackendError("the engine burnt down")


def copes(task, endpoint):
    try:
        ask(endpoint.openai(), "x")
    except openai.InternalServerError as error:
        SEEN["said"] = str(error)
    return "fine"


async def test_a_machinery_that_breaks_ends_the_run_whatever_the_app_makes_of_it():
    with pytest.raises(BackendError, match="burnt down"):
        await play(gateway("copes"), BrokenPolicy(lambda call: ""))


# Forks.


def _child(queue):
    queue.put(os.getpid())


def forks(task, endpoint):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=LONG_S) != os.getpid()
    child.join(LONG_S)
    if (pid := os.fork()) == 0:
        return "a second trainer"
    os.waitpid(pid, 0)
    return ask(endpoint.openai(), "x")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_an_app_that_forks_leaves_one_trainer():
    [episode] = await play(gateway("forks"))
    assert episode.outcome.success and len(episode.actions) == 1


# An app that does not look as if it were async.


def decorated(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)

    return inner


@decorated
async def asks_behind_a_decorator(task, endpoint):
    async with endpoint.async_openai() as client:
        reply = await client.chat.completions.create(model="planner", messages=[user("x")])
    return reply.choices[0].message.content


@decorated
async def keeps_behind_a_decorator(task, result):
    return kept(task, result)


async def test_what_is_async_behind_a_decorator_is_awaited():
    pipeline = gateway("asks_behind_a_decorator", grade=f"{__name__}:keeps_behind_a_decorator")
    [episode] = await play(pipeline)
    assert episode.outcome.success and len(episode.actions) == 1
