"""What a provider's answer to an external role holds that it should not: it moves no budget, ends no run, and reaches
the app as JSON that every client reads."""

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest
from gateway_apps import LOOK_UP, user
from scripted_answerer import KEY
from scripted_server import CUT, ScriptedServer, Step, say, status

from coachrl.coach.build import make_client_factory
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.clients.litellm import ending_in
from coachrl.config import CoachConfig
from coachrl.errors import CoachUnavailable, ConfigError, ProviderFailed
from coachrl.gateway import external
from coachrl.gateway.calls import BadRequest, Call
from coachrl.gateway.conversation_tokens import asked_functions
from coachrl.gateway.external import GatewayRole, LiteLLMProviders
from coachrl.gateway.server import Server
from coachrl.testing.actions import make_action

pytest.importorskip("litellm", reason="needs the llm extra")

PRICES = CoachConfig(usd_per_million_tokens=(1.0, 1000.0), budget_usd=10.0, max_attempts=1, give_up_after_s=0.1)
COUNTS = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")


def answer(message, usage=COUNTS, choices=1):
    all_choices = [{"index": place, "message": message, "finish_reason": "stop"} for place in range(choices)]
    fixed = {"id": "x", "object": "chat.completion", "created": 1, "model": "judge"}
    return Step(body=json.dumps({**fixed, "choices": all_choices, "usage": usage}))


def says(text):
    return {"role": "assistant", "content": text}


def asks(arguments, name="height_of", id_="1"):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id_, "type": "function", "function": function}]}


async def complete(step, model="openai/judge", **more):
    """The replies to one call, and the dollars that the budget counts for it."""
    async with ScriptedServer([step]) as server:
        providers = LiteLLMProviders(
            {"critic": GatewayRole(external=model, api_base=server.openai_base, max_new_tokens=100)}
        )
        factory = make_client_factory(PRICES, None)
        providers.connect(factory, None)
        return await providers.complete(Call("critic", (user("?"),), **more)), factory.budget.spent_usd


@pytest.mark.parametrize(
    "usage",
    [
        {**COUNTS, "completion_tokens": -1_000_000},
        {**COUNTS, "prompt_tokens": -1_000_000},
        {**COUNTS, "prompt_tokens": 10**400},
        {**COUNTS, "completion_tokens": 10**300},
        {**COUNTS, "completion_tokens": 0},
        {**COUNTS, "completion_tokens": 900_000_000},
    ],
    ids=[
        "less than nothing",
        "a prompt of less",
        "beyond a float",
        "beyond any model",
        "a text of none",
        "all at once",
    ],
)
async def test_counts_that_cannot_be_cost_what_was_reserved(usage):
    [reply], spent = await complete(answer(says("well"), usage))
    assert reply.text == "well" and 0.1 < spent < 0.2  # 100 tokens at $1000 a million, and the prompt
    assert min(reply.prompt_tokens, reply.unseen_tokens) == 0


async def test_a_stream_gives_no_dollars_back():
    last = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "judge", "choices": []}
    step = Step(
        deltas=(says("well"),), last={**last, "usage": {**COUNTS, "completion_tokens": -(9**9)}}, is_counted=False
    )
    [reply], spent = await complete(step, tell=lambda piece: None)
    assert reply.text == "well" and 0.1 < spent < 0.2


async def test_a_key_that_a_provider_repeats_reaches_neither_app_nor_record(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key := "sk-ours-and-secret")
    monkeypatch.setenv("POSTGRES_PASSWORD", "mountain")  # which may be any word
    asked = asks(json.dumps({"mountain": [key], key: 1}).replace("secret", "\\u0073ecret"), f"f_{key}", f"call_{key}")
    [reply], _ = await complete(answer({**asked, "content": f"It is {key}."}))
    assert reply.text == "It is [OPENAI_API_KEY]."
    [call] = reply.tool_calls
    assert (call.id, call.name) == ("call_[OPENAI_API_KEY]", "f_[OPENAI_API_KEY]")
    assert call.arguments == {"mountain": ["[OPENAI_API_KEY]"], "[OPENAI_API_KEY]": 1}


async def failed_call(step, ledger, n=1):
    """The error of a call that a provider answers so, and its line in the ledger."""
    async with ScriptedServer([step]) as server:
        providers = LiteLLMProviders(
            {"critic": GatewayRole(external="openai/judge", api_base=server.openai_base, max_new_tokens=100)}
        )
        factory = make_client_factory(PRICES, None)
        providers.connect(factory, ledger)
        with pytest.raises((BadRequest, ProviderFailed)) as failed:
            await providers.complete(Call("critic", (user("?"),), n=n))
    [line] = read_ledger(ledger)
    assert factory.budget.spent_usd == line["reserved_usd"] and line["error"] and line["usage"]["attempts"] == 1
    return failed.type, line


@pytest.mark.parametrize("code", [400, 413, 422])
async def test_a_request_that_the_provider_refuses_is_the_apps_fault_and_costs_nothing(code, tmp_path):
    kind, line = await failed_call(status(code, "no"), tmp_path / "ledger")
    assert kind is BadRequest and line["usage"]["cost_usd"] == line["reserved_usd"] == 0.0


@pytest.mark.parametrize("code", [307, 401, 404, 405, 429, 500])
async def test_what_else_a_provider_refuses_is_its_own_fault_and_costs_nothing(code, tmp_path):
    kind, line = await failed_call(status(code, "no"), tmp_path / "ledger")
    assert kind is ProviderFailed and line["usage"]["cost_usd"] == line["reserved_usd"] == 0.0


@pytest.mark.parametrize("word", ["abort", "error"])
async def test_a_reply_that_something_broke_off_is_none(word, tmp_path):
    choice = {"index": 0, "message": says("Half an"), "finish_reason": word}
    body = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
    kind, line = await failed_call(Step(body=body), tmp_path / "ledger")
    assert kind is ProviderFailed and line["usage"]["cost_usd"] is None and "the reply broke off" in line["error"]


@pytest.mark.parametrize(
    ("said", "ending"),
    [("MALFORMED_RESPONSE", "malformed_response"), ("STOP", "stop"), (["x"], "stop"), (None, "stop")],
)
def test_an_ending_that_litellm_takes_for_a_stop_is_the_providers(said, ending):
    choice = SimpleNamespace(provider_specific_fields={"native_finish_reason": said}, finish_reason="stop")
    assert ending_in(choice) == ending


async def test_so_much_is_reserved_for_each_of_several_replies(tmp_path):
    (_, one), (_, three) = [await failed_call(CUT, tmp_path / f"ledger{n}", n) for n in (1, 3)]
    assert one["usage"]["cost_usd"] is None and 0.1 < one["reserved_usd"] < 0.2
    assert three["reserved_usd"] == pytest.approx(3 * one["reserved_usd"], rel=0.01)


async def test_a_known_price_is_what_was_counted_and_gives_back_the_rest():
    _, spent = await complete(answer(says("well")))
    assert spent == pytest.approx((10 * 1.0 + 3 * 1000.0) / 1e6)


def test_a_key_is_asked_for_where_the_model_is_its_providers_own(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    LiteLLMProviders({"critic": GatewayRole(external="openai/judge", api_base="http://127.0.0.1:1/v1")}).check()
    with pytest.raises(ConfigError, match="'openai/judge' needs a key: set OPENAI_API_KEY"):
        LiteLLMProviders({"critic": GatewayRole(external="openai/judge")}).check()


def test_a_key_that_cannot_be_sent_names_its_variable(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours\n")
    with pytest.raises(CoachUnavailable, match="OPENAI_API_KEY holds a line end"):
        LiteLLMProviders({"critic": GatewayRole(external="openai/judge", api_base="http://127.0.0.1:1/v1")}).check()


async def test_replies_that_nobody_asked_for_are_no_actions():
    replies, _ = await complete(answer(says("well"), choices=50), n=2)
    assert len(replies) == 2


async def test_an_answer_that_litellm_cannot_read_is_one_line():
    with pytest.raises(ProviderFailed) as failed:
        await complete(answer(says(7)))
    assert "Traceback" not in str(failed.value)


async def test_a_model_in_a_loop_is_no_fault_of_its_provider():
    """LiteLLM breaks a stream off that says the same a hundred times; without a stream nobody does."""
    [reply], _ = await complete(Step(deltas=({"content": " word"},) * 150), tell=lambda piece: None)
    assert reply.text == " word" * 150


SECOND = {"content": "Not asked for.", "of_choice": {"index": 1}}
SECOND_ENDS = {"of_choice": {"index": 1, "finish_reason": "length"}}


@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
async def test_a_second_reply_in_a_stream_is_none_of_the_first(model):
    """OpenAI's clients tell replies apart by their number; LiteLLM makes one of all."""
    told = []
    step = Step(deltas=(SECOND, says("well"), SECOND, {"content": " done"}, SECOND_ENDS))
    [reply], _ = await complete(step, model, tell=lambda piece: told.append(piece.text))
    assert reply.text == "well done" == "".join(told) and reply.finish_reason == "stop"


async def test_a_stream_in_which_only_a_second_reply_ends_broke_off():
    step = Step("end", deltas=(says("well"), SECOND_ENDS))
    with pytest.raises(ProviderFailed, match=r"ended (in the middle|before a finish_reason)"):  # ours, LiteLLM 1.110's
        await complete(step, tell=lambda piece: None)


@pytest.mark.parametrize(("bound", "most"), [("UNSEEN_TOKENS", -80), ("_MOST_STREAMED", 100)])
async def test_a_stream_that_goes_on_and_on_is_given_up(bound, most, monkeypatch):
    """LiteLLM would keep all of it, some gigabytes an hour."""
    told = []
    step = say(" ".join(map(str, range(90))))
    assert (await complete(step, tell=lambda piece: None))[0][0].text == step.text
    monkeypatch.setattr(external, bound, most)
    with pytest.raises(ProviderFailed, match="its stream goes on for longer than any reply"):
        await complete(step, tell=lambda piece: told.append(piece.text))
    assert 10 < len(told) < 80


async def test_a_stream_that_comes_all_at_once_leaves_others_their_turns():
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def at_once():
        for _ in range(100):
            yield SimpleNamespace(choices=[])

    beside = asyncio.create_task(others())
    assert len([chunk async for chunk in external._Chunks(at_once(), 200)]) == 100
    beside.cancel()
    assert turns >= 100


def function(**more):
    return {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}


@pytest.mark.parametrize("model", ["openai/judge", "hosted_vllm/judge"])
@pytest.mark.parametrize(
    "delta",
    [
        *[{"content": odd} for odd in (7, 0, True, [], {}, [{"type": "text", "text": "well"}])],
        *[{"tool_calls": odd} for odd in (7, {"a": 1}, [function(index="z")], [function(id=1)])],
        {"tool_calls": [function(function={"name": 7, "arguments": "{}"})]},
    ],
    ids=str,
)
async def test_a_chunk_that_cannot_be_read_is_the_providers_fault(model, delta):
    """As it is in a whole reply. LiteLLM passes over most of them, and the reply would lack what they held."""
    with pytest.raises(ProviderFailed):
        await complete(Step(deltas=(says("A "), delta, {"content": "b"})), model, tell=lambda piece: None)


async def test_a_model_without_streams_has_its_calls_of_functions_once():
    """LiteLLM makes a stream of a whole answer of OpenAI's Responses, and doubles the arguments in it."""
    call = {
        "type": "function_call",
        "id": "f",
        "call_id": "1",
        "name": "f",
        "arguments": '{"a": 1}',
        "status": "completed",
    }
    counts = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    body = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [call]}
    step = Step(body=json.dumps({**body, "usage": counts, "parallel_tool_calls": True, "tools": [], "metadata": {}}))
    for model in ("openai/o1-pro", "openai/responses/mine"):
        [reply], _ = await complete(step, model, tell=lambda piece: None)
        assert [dict(asked.arguments) for asked in reply.tool_calls] == [{"a": 1}]


DEEP = "[" * 100_000
STREAMED = Step(deltas=({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": DEEP}}]},))


async def test_arguments_too_deep_to_read_are_passed_on_as_text():
    [reply], _ = await complete(STREAMED, tell=lambda piece: None)
    assert reply.tool_calls[0].arguments == {"arguments": DEEP}


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "message",
    [says("half \ud800 a character"), asks('{"mountain": NaN}'), asks('{"mountain": "\\ud800"}'), asks("{}", "\udfff")],
    ids=["text", "NaN", "arguments", "name"],
)
async def test_what_no_json_can_hold_reaches_no_client(path, stream, message):
    class Passing:
        def models(self, token):
            return ("critic",)

        async def answer(self, call, token):
            return (await complete(answer(message)))[0]

    talk = {"input": "?"} if path == "/v1/responses" else {"messages": [user("?")], "max_tokens": 5}
    async with Server(Passing()) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        told = await client.post(path, json={"model": "critic", "stream": stream, **talk}, headers={"x-api-key": KEY})
    assert told.status_code == 200, told.text
    lines = [line[6:] for line in told.text.splitlines() if line.startswith("data: {")] if stream else [told.text]
    assert lines and all(json.loads(line, parse_constant=no_constant) for line in lines)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_that_no_json_can_hold_is_told_in_the_providers_form(stream):
    class Passing:
        def models(self, token):
            return ("critic",)

        async def answer(self, call, token):
            return (await complete(status(400, "half \ud800 a reason")))[0]

    asked = {"model": "critic", "messages": [user("?")], "stream": stream}
    async with Server(Passing()) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        told = await client.post("/v1/chat/completions", json=asked)
    assert told.status_code == 400 and "half \ufffd a reason" in told.json()["error"]["message"]


@pytest.mark.parametrize("odd", ["NaN", "1e999", "[-Infinity]"])
def test_a_call_of_a_function_whose_arguments_are_no_json_stays_text(odd):
    text = f'<tool_call>{{"name": "height_of", "arguments": {{"mountain": {odd}}}}}</tool_call>'
    call = Call("critic", (user("?"),), tools=(LOOK_UP,))
    assert asked_functions(text, call, make_action("critic", text)) == ()


async def test_an_app_that_asks_for_more_than_the_model_can_write_does_not_end_the_run():
    async with ScriptedServer([say("well")]) as server:
        providers = LiteLLMProviders({"critic": GatewayRole(external="openai/gpt-4", api_base=server.openai_base)})
        providers.connect(make_client_factory(PRICES, None), None)
        await providers.complete(Call("critic", (user("?"),), max_tokens=10**9))
    assert server.requests[0].body["max_tokens"] == 4096
