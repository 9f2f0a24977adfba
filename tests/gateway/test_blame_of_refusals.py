"""A call that was refused leaves an episode out only where no agent can have made it so: not by what it wrote, which an
app passes on, and not where the app copes with it and then fails on what its agent said."""

import asyncio
import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("openai", reason="comes with the dev extra")

import httpx
import openai
from gateway_apps import LOOK_UP, play, said, user

from coachrl.config import PipelineConfig
from coachrl.errors import PolicyError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.generation import token_listener
from coachrl.testing.scripted import CharacterTokenizer, ScriptedPolicy

DEEP = 60  # of 64 levels that a call may have, and a body
APP = {}
BUSY, GIVEN_UP = threading.Event(), threading.Event()
PICTURE = "https://pictures.org/a/matterhorn.png"


def solve(task, endpoint):
    return APP["solve"](endpoint.openai(), endpoint)


def kept(task, result):
    return result == "fine"


async def episode_of(app, reply="fine", policy=ScriptedPolicy):
    APP["solve"] = app
    options = {"run": f"{__name__}:solve", "grade": f"{__name__}:kept", "roles": {"planner": {}}}
    [episode] = await play(make_pipeline(PipelineConfig(name="gateway", options=options)), policy(lambda call: reply))
    return episode


class Alternating(ScriptedPolicy):
    """Its chat template takes a user's message and a reply in turn, and no tools."""

    def tokenizer(self, policy):
        tokenizer = super().tokenizer(policy)
        encode = CharacterTokenizer.encode_chat

        def encode_chat(messages, *given, **named):
            if [message["role"] for message in messages] != (["user", "assistant"] * len(messages))[: len(messages)]:
                raise PolicyError("roles must alternate")
            return encode(tokenizer, messages, *given, **named)

        tokenizer.encode_chat = encode_chat
        return tokenizer


# What an agent wrote, passed on as apps do.


def names_a_model(client, endpoint):
    said(client, said(client, "planner", user("who is next?")).content, user("go on"))


def names_a_part_of_a_model(client, endpoint):
    said(client, f"{json.loads(said(client, 'planner', user('?')).content)['next']}-planner", user("go on"))


def names_a_model_by_number(client, endpoint):
    said(client, f"planner{said(client, 'planner', user('?')).content}", user("go on"))


def gives_a_limit(client, endpoint):
    said(client, "planner", user("go on"), max_tokens=int(said(client, "planner", user("?")).content))


def has_a_limit_left(client, endpoint):
    reply = said(client, "planner", user("?")).content
    said(client, "planner", user("go on"), max_tokens=20 - len(reply))


def names_a_tool(client, endpoint):
    name = said(client, "planner", user("?")).content
    said(client, "planner", user("go on"), tools=[{"type": "function", "function": {"name": name}}])


def chooses_a_tool(client, endpoint):
    name = said(client, "planner", user("?")).content
    chosen = {"type": "function", "function": {"name": name}}
    said(client, "planner", user("go on"), tools=[LOOK_UP], tool_choice=chosen)


def takes_a_part(client, endpoint):
    said(client, "planner", {"role": said(client, "planner", user("?")).content, "content": "go on"})


def shows_a_picture(client, endpoint):
    part = {"type": "image_url", "image_url": {"url": said(client, "planner", user("?")).content}}
    said(client, "planner", {"role": "user", "content": [part]})


def shows_a_picture_of_its_own_server(client, endpoint):
    name = said(client, "planner", user("?")).content.split()[-1]
    picture = {"type": "input_image", "image_url": f"https://here.org/files/{name}", "detail": "auto"}
    client.responses.create(model="planner", input=[{"role": "user", "content": [picture]}])


def shows_a_picture_that_was_asked_for(client, endpoint):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    reply = said(client, "planner", user("?"))
    said(client, "planner", user("?"), reply.model_dump(), {"role": "user", "content": [part]})


def leaves_an_empty_reply_out(client, endpoint):
    history = [user("x")]
    if reply := said(client, "planner", *history).content:
        history.append({"role": "assistant", "content": reply})
    said(client, "planner", *history, user("y"))


def sends_megabytes(client, endpoint):
    said(client, "planner", user(said(client, "planner", user("x")).content * 2**20))


def writes_its_own_json(client, endpoint):
    reply = said(client, "planner", user("x")).content
    body = f'{{"model": "planner", "messages": [{{"role": "user", "content": "{reply}"}}]}}'
    headers = {"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"}
    answer = httpx.post(f"{endpoint.base_url}/chat/completions", content=body, headers=headers)
    raise RuntimeError(answer.text)


def claude(endpoint, *messages, **more):
    body = {"model": "planner", "max_tokens": 900, "messages": list(messages), **more}
    answer = httpx.post(f"{endpoint.base_url}/messages", json=body, headers={"x-api-key": endpoint.api_key})
    if answer.status_code != 200:
        raise RuntimeError(answer.text)
    return {"role": "assistant", "content": answer.json()["content"]}


TOOL = {"name": "height_of", "input_schema": {"type": "object"}}


def calls_tools_of_claude(client, endpoint):
    history = [user("?")]
    history.append(claude(endpoint, *history, tools=[TOOL]))
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "4478 m"}
        for block in history[-1]["content"]
        if block["type"] == "tool_use"
    ]
    claude(endpoint, *history, {"role": "user", "content": results or "go on"}, tools=[TOOL])


def shows_what_a_tool_saw(client, endpoint):
    reply = said(client, "planner", user("?"), tools=[LOOK_UP])
    seen = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": seen}
    said(client, "planner", user("?"), reply.model_dump(exclude_none=True), result, tools=[LOOK_UP])


def call(arguments):
    return f'<tool_call>{{"name": "height_of", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("app", "reply", "policy"),
    [
        (names_a_model, "The Critic", ScriptedPolicy),
        (names_a_part_of_a_model, '{"next": "math"}', ScriptedPolicy),
        (names_a_model_by_number, "7", ScriptedPolicy),
        (gives_a_limit, "0", ScriptedPolicy),
        (has_a_limit_left, "many words " * 9, ScriptedPolicy),
        (names_a_tool, "look up", ScriptedPolicy),
        (chooses_a_tool, "height-of", ScriptedPolicy),
        (takes_a_part, "critic", ScriptedPolicy),
        (shows_a_picture, PICTURE, ScriptedPolicy),
        (shows_a_picture_of_its_own_server, "Please show matterhorn.png", ScriptedPolicy),
        (shows_a_picture_that_was_asked_for, "Please show it", ScriptedPolicy),
        (shows_what_a_tool_saw, call("{}"), ScriptedPolicy),
        (leaves_an_empty_reply_out, "", Alternating),
        (sends_megabytes, "a reply of some size", ScriptedPolicy),
        (writes_its_own_json, 'so he said "no"', ScriptedPolicy),
        (calls_tools_of_claude, "", ScriptedPolicy),
        (calls_tools_of_claude, call(f'{{"a": {"[" * DEEP}{"]" * DEEP}}}'), ScriptedPolicy),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
async def test_what_an_agent_wrote_and_the_app_passed_on_is_its_own_doing(app, reply, policy, caplog):
    episode = await episode_of(app, reply, policy)
    assert episode.infra_error is None and not episode.outcome.success
    assert len(episode.actions) == 1, "the second call is refused"
    assert "a call of the app is refused: " in caplog.text


# What it cannot have written.


def is_misspelt(client, endpoint):
    said(client, "planner", user("x"))
    said(client, "plannr", user("y"))


def asks_for_a_form(client, endpoint):
    said(client, "planner", user("x"))
    said(client, "planner", user("y"), response_format={"type": "json_object"})


def shows_a_picture_of_its_own(client, endpoint):
    said(client, "planner", user("x"))
    part = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}}
    said(client, "planner", {"role": "user", "content": [part]})


def shows_claude_a_picture_of_its_own(client, endpoint):
    said(client, "planner", user("x"))
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    claude(endpoint, {"role": "user", "content": [{"type": "image", "source": source}]})


def asks_for_vectors(client, endpoint):
    said(client, "planner", user("x"))
    client.embeddings.create(model="planner", input="x")


def searches_the_web(client, endpoint):
    said(client, "planner", user("x"))
    said(client, "planner", user("x"), tools=[{"type": "web_search"}])


def is_refused_beside_others(client, endpoint):
    said(client, "planner", user("x"))
    BUSY.clear()
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(said, client, "planner", user("y"))
        BUSY.wait(60)
        wrong = pool.submit(said, client, "plannr", user("y"))
        slow.result()
        wrong.result()


def is_refused_in_a_group(client, endpoint):
    said(client, "planner", user("x"))

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(said, client, "plannr", user("y")))

    asyncio.run(both())


@pytest.mark.parametrize(
    "app",
    [
        is_misspelt,
        asks_for_a_form,
        shows_a_picture_of_its_own,
        shows_claude_a_picture_of_its_own,
        asks_for_vectors,
        searches_the_web,
        is_refused_beside_others,
        is_refused_in_a_group,
    ],
)
async def test_what_no_agent_wrote_is_the_apps(app):
    class Late(ScriptedPolicy):
        async def generate(self, *given):
            BUSY.set()
            await asyncio.sleep(0.05)
            return await super().generate(*given)

    reply = "Automatic planning: the picture type is high, the image detail of the web page is a tool."
    episode = await episode_of(app, reply, Late)
    assert episode.infra_error.startswith("app: ") and "(after a call that was refused" in episode.infra_error


# An app that copes, and fails on what its agent wrote.


def copes_and_then_reads(client, endpoint):
    reply = said(client, "planner", user("x")).content
    with contextlib.suppress(openai.NotFoundError):  # a memory that is switched on by default
        client.embeddings.create(model="planner", input=reply)
    json.loads(reply)


def reads_while_it_copes(client, endpoint):
    reply = said(client, "planner", user("x")).content
    try:
        said(client, "planner", user("y"), response_format={"type": "json_object"})
    except openai.BadRequestError:
        json.loads(reply)


@pytest.mark.parametrize("app", [copes_and_then_reads, reads_while_it_copes])
async def test_an_app_that_copes_with_a_refusal_fails_on_what_its_agent_wrote(app):
    episode = await episode_of(app)
    assert episode.infra_error is None and "JSONDecodeError" in episode.outcome.reason


# An app that reads as much of a stream as it likes.


class Telling(ScriptedPolicy):
    """Tells its first reply token by token, and never ends it; the next ones it gives whole."""

    async def generate(self, policy, prompt_ids, sampling):
        tell = token_listener()
        if tell is None:
            return await super().generate(policy, prompt_ids, sampling)
        for letter in "The next is: Critic. ":
            tell(ord(letter))
        try:
            await asyncio.Event().wait()
        finally:
            GIVEN_UP.set()


def reads_up_to_a_full_stop(client, endpoint):
    said(client, "planner", user("x"))
    read = ""
    with client.chat.completions.create(model="planner", messages=[user("x")], stream=True) as stream:
        for chunk in stream:
            read += chunk.choices[0].delta.content or ""
            if "." in read:
                break
    GIVEN_UP.wait(60)  # the server sees in its own time that nobody reads on
    return read.partition(":")[2].strip(" .")


def fails_on_a_stream(client, endpoint):
    int(reads_up_to_a_full_stop(client, endpoint))


def calls_whom_a_stream_names(client, endpoint):
    said(client, reads_up_to_a_full_stop(client, endpoint), user("z"))


@pytest.mark.parametrize("app", [fails_on_a_stream, calls_whom_a_stream_names])
async def test_an_app_that_stops_reading_at_what_its_agent_wrote_and_then_fails_has_failed(app):
    GIVEN_UP.clear()
    episode = await episode_of(app, policy=Telling)
    assert episode.infra_error is None and "raised" in episode.outcome.reason


# A command, whose error is what it writes of it.

CLIENT = """
import os, openai
client = openai.OpenAI()
def said(model, **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}], **more)
said("planner")
"""
FAILS = """
said("plannr")
"""
IN_OTHER_WORDS = """
try:
    said("plannr")
except openai.NotFoundError as error:
    error.add_note("while it played")
    raise RuntimeError("my framework has failed") from error
"""
COPES = """
try:
    said("plannr")
except openai.NotFoundError as error:
    import sys, traceback
    traceback.print_exc()
    int("what its agent said")
"""
SAYS_IT_IN_A_LINE = """
try:
    said("plannr")
except openai.NotFoundError as error:
    raise SystemExit(f"it fell: {error}")
"""


@pytest.mark.parametrize(
    ("rest", "is_left_out"), [(FAILS, True), (IN_OTHER_WORDS, True), (SAYS_IT_IN_A_LINE, True), (COPES, False)]
)
async def test_a_command_fails_on_a_refusal_where_its_traceback_says_so(rest, is_left_out, tmp_path):
    (tmp_path / "app.py").write_text(CLIENT + rest)
    options = {"command": f"{sys.executable} {tmp_path / 'app.py'}", "grade": f"{__name__}:kept"}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options={**options, "roles": {"planner": {}}}))
    [episode] = await play(pipeline, ScriptedPolicy(lambda call: "fine"))
    assert (episode.infra_error is not None) is is_left_out, episode
