"""The pipeline `gateway`: apps that call their team by HTTP, with the clients that people use."""

import json
import pickle
import socket

import pytest

pytest.importorskip("openai", reason="comes with the dev extra")

import openai
from gateway_apps import LOOK_UP, play, said, user

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError
from coachrl.gateway.calls import Call
from coachrl.gateway.conversation_tokens import read_reply
from coachrl.pipelines import make_pipeline
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import SamplingParams

SEEN = {}


def gateway(run=None, grade="right", roles=("planner", "coder"), **options):
    chosen = {"run": f"{__name__}:{run}"} if run else {}
    settings = {**chosen, "grade": f"{__name__}:{grade}", "roles": {r: {} for r in roles}, **options}
    return make_pipeline(PipelineConfig(name="gateway", options=settings))


def right(task, result):
    return result == f"plan of {task.ground_truth.removeprefix('truth ')}"


# One call of each of two roles, by a plain function with the plain client.


def two_roles(task, endpoint):
    assert task.ground_truth is None
    client = endpoint.openai()
    said(client, "coder", user("anything"))
    return said(client, "planner", user(task.prompt)).content


async def test_the_models_name_says_which_role_answers_and_each_call_is_one_action():
    submitted = []
    policy = ScriptedPolicy(lambda call: f"plan of {call.prompt[-13]}" if call.policy == "planner" else "code")
    episodes = await play(gateway("two_roles", roles=["coder", "planner"]), policy, 3, submit=submitted.append)
    assert [episode.outcome.success for episode in episodes] == [True] * 3
    for number, episode in enumerate(episodes):
        assert [(a.role, a.policy, a.text) for a in episode.actions] == [
            ("coder", "coder", "code"),
            ("planner", "planner", f"plan of {number}"),
        ]
        planned = episode.actions[1]
        assert bytes(planned.prompt_ids).decode() == f"<user>task {number}\n<assistant>"
        assert planned.response_ids == (*map(ord, planned.text), 0)
        assert len(planned.logprobs) == len(planned.response_ids)
        assert planned.prompt_text == f"task {number}"
        assert episode.outcome.metrics == {"calls": 2.0, "calls_overflowed": 0.0, "calls_given_up": 0.0}
    # The last role's call waits for the outcome, the other's was scored at once.
    assert len(submitted) == 6
    assert {request.action.role: request.outcome is None for request in submitted} == {"coder": True, "planner": False}


# A conversation that goes on, and one that was rewritten.


async def converse(task, endpoint):
    async with endpoint.async_openai() as client:
        talk = [{"role": "system", "content": "Be brief."}, user("one")]
        for word in ("two", "three"):
            reply = (await client.chat.completions.create(model="planner", messages=talk)).choices[0].message
            talk += [{"role": "assistant", "content": reply.content}, user(word)]
        await client.chat.completions.create(model="planner", messages=talk)
        talk[2]["content"] = "something else that the app makes of the first reply"
        await client.chat.completions.create(model="planner", messages=talk)
    return ""


async def test_a_conversation_that_goes_on_is_read_with_the_ids_that_were_written():
    # Hidden thinking is not shown to the app, and stays in what the model reads.
    [episode] = await play(gateway("converse"), ScriptedPolicy(lambda call: "<think>hm</think>yes"))
    first, second, third, rewritten = episode.actions
    for earlier, later in ((first, second), (second, third)):
        read = (*earlier.prompt_ids, *earlier.response_ids)
        assert later.prompt_ids[: len(read)] == read
    assert [first.prompt_text, second.prompt_text] == ["[system]\nBe brief.\n\n[user]\none", "two"]
    text = "".join(map(chr, rewritten.prompt_ids))
    assert text.startswith("<system>Be brief.\n<user>one\n<assistant>something else") and "hm" not in text


def hands_over(task, endpoint):
    """What one role has said is shown to another, as if it were the other's own."""
    client = endpoint.openai()
    plan = said(client, "planner", user("one")).content
    return said(client, "coder", user("one"), {"role": "assistant", "content": plan}, user("two")).content


async def test_what_one_role_wrote_is_read_by_another_as_the_app_tells_it():
    """The other has a model of its own, and no part in what the first one thought."""
    [episode] = await play(gateway("hands_over"), ScriptedPolicy(lambda call: "<think>hm</think>yes"))
    planned, coded = episode.actions
    assert "hm" in planned.text and "hm" not in "".join(map(chr, coded.prompt_ids))
    assert coded.prompt_text == "[user]\none\n\n[assistant]\nyes\n\n[user]\ntwo"


# Functions of the app.


def with_a_tool(task, endpoint):
    client = endpoint.openai()
    talk = [user("How high is the Teide?")]
    asked = said(client, "planner", *talk, tools=[LOOK_UP])
    [function] = asked.tool_calls
    assert asked.content is None and json.loads(function.function.arguments) == {"mountain": "Teide"}
    talk += [asked.model_dump(exclude_none=True)]
    talk += [{"role": "tool", "tool_call_id": function.id, "content": "3715 m"}]
    return said(client, "planner", *talk, tools=[LOOK_UP]).content


ASKS = '<think>\nlook\n</think>\n<tool_call>{"name": "height_of", "arguments": {"mountain": "Teide"}}</tool_call>'


async def test_results_of_functions_are_what_came_of_the_action_that_asked_for_them():
    submitted = []
    policy = ScriptedPolicy(lambda call: "It is 3715 m." if "3715" in call.prompt else ASKS)
    [episode] = await play(gateway("with_a_tool", roles=["planner", "last"]), policy, submit=submitted.append)
    asked, answered = episode.actions
    [called] = asked.tool_calls
    assert (called.name, json.loads(called.call)["mountain"], called.result) == ("height_of", "Teide", "3715 m")
    assert answered.prompt_ids[: len(asked.prompt_ids) + len(asked.response_ids)] == (
        *asked.prompt_ids,
        *asked.response_ids,
    )
    assert [request.action for request in submitted] == [asked, answered]  # the coach saw what came of it
    assert [len(request.previous) for request in submitted] == [0, 1]


OTHER = {"type": "function", "function": {"name": "weight_of", "parameters": {"type": "object", "properties": {}}}}


def must_call(task, endpoint):
    client, talk = endpoint.openai(), [user("How high is the Teide?")]
    first = said(client, "planner", *talk, tools=[LOOK_UP, OTHER], tool_choice="required")
    talk += [first.model_dump(exclude_none=True)]
    talk += [{"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "3715 m"}]
    named = {"type": "function", "function": {"name": "height_of"}}
    again = said(client, "planner", *talk, tools=[LOOK_UP, OTHER], tool_choice=named)
    return [(call.function.name, call.function.arguments) for reply in (first, again) for call in reply.tool_calls]


@pytest.mark.parametrize("before", ["", "<think>"])
async def test_a_tool_that_is_required_is_called_and_what_was_forced_is_read_and_not_drawn(before):
    """before: what the model's chat template ends each prompt with."""

    def answer(call):
        return ' {"mountain": "Teide"}}</tool_call>' if "3715" in call.prompt else ' "weight_of"}</tool_call>'

    policy = ScriptedPolicy(answer)
    encode = policy.tokenizer("planner").encode_chat
    policy.tokenizer("planner").encode_chat = lambda *given, **more: (*encode(*given, **more), *map(ord, before))
    [episode] = await play(gateway("must_call", "is_said", roles=["planner", "last"]), policy)
    assert SEEN["result"] == [("weight_of", "{}"), ("height_of", '{"mountain": "Teide"}')]
    for action, forced in zip(
        episode.actions, ('<tool_call>{"name":', '<tool_call>{"name": "height_of", "arguments":'), strict=True
    ):
        assert "".join(map(chr, action.prompt_ids)).endswith(forced)
        assert action.text.endswith(forced + "".join(map(chr, action.response_ids[:-1])))
        assert len(action.logprobs) == len(action.response_ids)
    first, again = episode.actions
    assert again.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


def is_said(task, result):
    SEEN["result"] = result
    return True


# What a reply may be.


def bounded(task, endpoint):
    client = endpoint.openai()
    two = client.chat.completions.create(model="planner", messages=[user("x")], n=2, stop=["END"])
    short = said(client, "planner", user("x"), max_tokens=3)
    SEEN["bounded"] = [choice.message.content for choice in two.choices], short.content


def test_an_app_that_takes_one_function_call_at_a_time_is_shown_the_first_alone():
    call = '<tool_call>{"name": "height_of", "arguments": {"mountain": "MOUNTAIN"}}</tool_call>'
    asked = call.replace("MOUNTAIN", "K2") + call.replace("MOUNTAIN", "Eiger")
    written = make_action("coder", asked)
    several, one = (
        read_reply(written, Call("coder", (), (LOOK_UP,), parallel_tool_calls=parallel), tokenizer=None).tool_calls
        for parallel in (True, False)
    )
    assert [function.arguments["mountain"] for function in several] == ["K2", "Eiger"]
    assert one == several[:1]


async def test_stop_and_length_are_kept_with_exact_ids():
    policy = ScriptedPolicy(lambda call: f"seed {call.sampling.seed % 2} END and more")
    [episode] = await play(gateway("bounded"), policy)
    replies, short = SEEN["bounded"]
    assert [text[:5] for text in replies] == ["seed "] * 2 and short == "see"
    first, second, cut = episode.actions
    assert first.text == f"{replies[0]} END" and first.finish_reason == "stop"
    assert first.response_ids == tuple(map(ord, first.text)) and len(first.logprobs) == len(first.response_ids)
    assert first.prompt_ids == second.prompt_ids and policy.calls[0].sampling.seed != policy.calls[1].sampling.seed
    assert cut.finish_reason == "length" and len(cut.response_ids) == 3


# Whose doing it is.


def raises_first(task, endpoint):
    raise KeyError("config")


def raises_later(task, endpoint):
    json.loads(said(endpoint.openai(), "planner", user("JSON, please")).content)


def exits(task, endpoint):
    said(endpoint.openai(), "planner", user("x"))
    raise SystemExit(3)


async def exits_async(task, endpoint):
    async with endpoint.async_openai() as client:
        await client.chat.completions.create(model="planner", messages=[user("x")])
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("run", "options", "infra_error", "reason"),
    [
        ("raises_first", {}, "app: test_pipeline:raises_first raised KeyError: 'config' (before", ""),
        ("raises_later", {}, None, "app: test_pipeline:raises_later raised JSONDecodeError: Expecting value"),
        ("raises_later", {"crashes": "leave_out"}, "app: test_pipeline:raises_later raised JSONDecodeError", ""),
        ("exits", {}, None, "app: test_pipeline:exits raised RuntimeError: SystemExit: 3"),
        ("exits_async", {}, None, "app: test_pipeline:exits_async raised RuntimeError: SystemExit: 3"),
    ],
)
async def test_an_app_that_fails_on_a_reply_fails_the_episode_and_else_it_is_left_out(
    run, options, infra_error, reason
):
    [episode] = await play(gateway(run, **options), ScriptedPolicy(lambda call: "no"))
    assert not episode.outcome.success
    assert (episode.infra_error or "").startswith(infra_error or "") and (episode.infra_error is None) is (
        infra_error is None
    )
    assert episode.outcome.reason.startswith(reason)


def too_long(task, endpoint):
    with pytest.raises(openai.BadRequestError) as caught:
        said(endpoint.openai(), "planner", user("word " * 200))
    assert caught.value.code == "context_length_exceeded"
    SEEN["copes"] = True
    if task.id == "t1":
        raise caught.value


async def test_a_prompt_that_does_not_fit_is_the_providers_own_error_and_the_episode_says_so():
    policy = ScriptedPolicy(lambda call: "x", context_length=500)
    pipeline = make_pipeline(
        PipelineConfig(name="gateway", max_new_tokens=10, options=pipeline_options("too_long", "always"))
    )
    copes, fails = await play(pipeline, policy, 2)
    assert SEEN.pop("copes")
    assert copes.outcome.success and copes.outcome.metrics["calls_overflowed"] == 1 and not copes.overflowed
    assert fails.overflowed and fails.infra_error is None and fails.outcome.reason.startswith("context overflow: ")


def pipeline_options(run, grade):
    return {"run": f"{__name__}:{run}", "grade": f"{__name__}:{grade}", "roles": {"planner": None}}


def always(task, result):
    return True


def unknown_role(task, endpoint):
    with pytest.raises(openai.NotFoundError) as caught:
        said(endpoint.openai(), "plannr", user("x"))
    return str(caught.value)


async def test_an_unknown_model_is_answered_with_the_roles():
    await play(gateway("unknown_role", "is_said"), ScriptedPolicy(lambda call: "x"))
    assert "plannr" in SEEN["result"] and "planner, coder" in SEEN["result"]


def anything(task, endpoint):
    said(endpoint.openai(), "planner", user("x"))


def broken_grader(task, result):
    raise ZeroDivisionError("no tasks")


def partly(task, result):
    return 0.4


async def test_a_grade_is_enough_from_the_limit_of_the_options_up_and_none_where_the_grader_breaks():
    policy = ScriptedPolicy(lambda call: "x")
    [number] = await play(gateway("anything", "partly"), policy)
    assert not number.outcome.success and number.outcome.metrics["grade"] == 0.4
    [enough] = await play(gateway("anything", "partly", success_at=0.4), policy)
    assert enough.outcome.success
    [broken] = await play(gateway("anything", "broken_grader"), policy)
    assert broken.infra_error.startswith("grader: test_pipeline:broken_grader raised ZeroDivisionError: no tasks")


# What the run decides.


def wants_cold(task, endpoint):
    for _ in range(2):
        said(endpoint.openai(), "planner", user("x"), temperature=0.2, seed=5)


async def test_replies_are_drawn_as_the_run_says_and_another_wish_is_noted_once(caplog):
    policy = ScriptedPolicy(lambda call: "x")
    await play(gateway("wants_cold", "always"), policy, 3, sampling=SamplingParams(temperature=0.8))
    assert {call.sampling.temperature for call in policy.calls} == {0.8}
    assert len({call.sampling.seed for call in policy.calls}) == 6  # an episode's own, not the app's
    [note] = [record.message for record in caplog.records if "temperature" in record.message]
    assert note.startswith("role planner: its app asks for temperature 0.2; replies are drawn at the run's own, 0.8")


async def test_the_pipeline_can_be_sent_to_other_processes_also_while_it_plays():
    pipeline = gateway("two_roles", roles=["coder", "planner"])
    policy = ScriptedPolicy(lambda call: "plan of 0")
    [here] = await play(pipeline, policy)
    [there] = await play(pickle.loads(pickle.dumps(pipeline)), policy)
    assert here.outcome.success and there.outcome.success


def test_a_port_is_one_that_there_is():
    assert gateway("says_where", "is_said", port=65535)
    with pytest.raises(ConfigError, match="port: Input should be less than or equal to 65535"):
        gateway("says_where", "is_said", port=65536)


async def test_a_port_of_ones_own_serves_one_rollout_after_the_other():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipeline = gateway("says_where", "is_said", port=port, concurrency=1)
    for _ in range(3):
        await play(pipeline, ScriptedPolicy(lambda call: "x"), 3)
        assert SEEN["result"] == f"http://127.0.0.1:{port}/v1"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        pipeline = gateway("says_where", "is_said", port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="cannot be used: Address already in use"):
            await play(pipeline, ScriptedPolicy(lambda call: "x"), 3)


def says_where(task, endpoint):
    said(endpoint.openai(), "planner", user("x"))
    return endpoint.base_url
