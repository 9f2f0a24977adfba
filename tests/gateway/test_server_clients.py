"""The providers' own clients, over real HTTP, against a server with a scripted answerer."""

import asyncio

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")
pytest.importorskip("openai", reason="comes with the dev extra")
pytest.importorskip("anthropic", reason="comes with the dev extra")

import anthropic
import openai
from scripted_answerer import KEY, ROLES, ScriptedAnswerer, reply

from coachrl.errors import ContextOverflow
from coachrl.gateway.calls import EngineFailed, EpisodeEnded
from coachrl.gateway.server import Server

HELLO = [{"role": "user", "content": "Hello?"}]
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "The meaning of a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
ODD_TEXT = "A family: 👩‍👩‍👧‍👦, e\u0301, \u202eodd\u202c, \0 and\n\n  data: [DONE]\n\nthe end " + "長い" * 40


def openai_client(server, key=KEY, **settings):
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, **settings)


def anthropic_client(server, key=KEY, **settings):
    return anthropic.AsyncAnthropic(base_url=server.url, api_key=key, **settings)


async def test_a_chat_completion_goes_to_the_role_that_the_model_names():
    answerer = ScriptedAnswerer(lambda call, place: reply(f"I am the {call.role}.", prompt_tokens=11))
    async with Server(answerer) as server, openai_client(server) as client:
        done = await client.chat.completions.create(
            model="coder", messages=HELLO, temperature=0.5, seed=3, max_tokens=9, stop="END"
        )
    assert done.choices[0].message.content == "I am the coder."
    assert done.choices[0].finish_reason == "stop"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (11, 4, 15)
    [call] = answerer.calls
    assert (call.role, call.messages) == ("coder", (HELLO[0],))
    assert (call.temperature, call.seed, call.max_tokens, call.stop) == (0.5, 3, 9, ("END",))


async def test_the_client_that_blocks_is_answered_from_a_thread_of_its_own():
    async with Server(ScriptedAnswerer()) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
            done = await asyncio.to_thread(client.chat.completions.create, model="planner", messages=HELLO)
            listed = await asyncio.to_thread(client.models.list)
            one = await asyncio.to_thread(client.models.retrieve, "coder")
    assert done.choices[0].message.content == "Hello there."
    assert [model.id for model in listed] == list(ROLES)
    assert one.id == "coder"


async def test_a_stream_gives_the_same_text_in_several_pieces_and_the_usage_last():
    async with Server(ScriptedAnswerer(lambda call, place: reply(ODD_TEXT))) as server, openai_client(server) as client:
        stream = await client.chat.completions.create(
            model="coder", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == ODD_TEXT
    assert len(pieces) > 5
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens) == ([], 7)


async def test_the_clients_stream_helper_puts_a_message_together_again():
    answerer = ScriptedAnswerer(
        lambda call, place: reply("Let me see.", calls=[("look_up", {"word": "Trainer 👩‍🏫"}), ("look_up", {})])
    )
    strict = {"type": "function", "function": {**LOOK_UP["function"], "strict": True}}
    async with Server(answerer) as server, openai_client(server) as client:
        async with client.chat.completions.stream(model="coder", messages=HELLO, tools=[strict]) as stream:
            async for _ in stream:
                pass
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "Let me see."
    assert [asked.function.arguments for asked in message.tool_calls] == ['{"word": "Trainer 👩‍🏫"}', "{}"]


async def test_n_replies_come_as_n_choices_also_in_a_stream():
    answerer = ScriptedAnswerer(lambda call, place: reply(f"Number {place}."))
    async with Server(answerer) as server, openai_client(server) as client:
        done = await client.chat.completions.create(model="coder", messages=HELLO, n=3)
        stream = await client.chat.completions.create(model="coder", messages=HELLO, n=3, stream=True)
        texts = {0: "", 1: "", 2: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    expected = ["Number 0.", "Number 1.", "Number 2."]
    assert [choice.message.content for choice in done.choices] == expected
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    assert list(texts.values()) == expected
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (7, 6)


async def test_logprobs_come_for_each_token_also_in_a_stream():
    answerer = ScriptedAnswerer(lambda call, place: reply("one two \ufffd"))
    async with Server(answerer) as server, openai_client(server) as client:
        done = await client.chat.completions.create(model="coder", messages=HELLO, logprobs=True)
        stream = await client.chat.completions.create(model="coder", messages=HELLO, logprobs=True, stream=True)
        choices = [chunk.choices[0] async for chunk in stream]
        without = await client.chat.completions.create(model="coder", messages=HELLO)
    streamed = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    tokens = done.choices[0].logprobs.content
    assert [(token.token, token.logprob) for token in tokens] == [("one", 0.0), (" two", -0.5), (" \ufffd", -1.0)]
    assert [token.bytes for token in tokens] == [list(b"one"), list(b" two"), None]
    assert streamed == tokens
    assert without.choices[0].logprobs is None


def looking_up(first):
    """Says `first` and asks for a word's meaning, then says what it means."""

    def answer(call, place):
        if call.messages[-1]["role"] == "tool":
            return reply("It means one who trains.")
        return reply(first, calls=[("look_up", {"word": "trainer"})])

    return ScriptedAnswerer(answer)


async def test_a_conversation_with_tools_goes_there_and_back():
    answerer = looking_up("")
    async with Server(answerer) as server, openai_client(server) as client:
        first = await client.chat.completions.create(
            model="coder",
            messages=HELLO,
            tools=[LOOK_UP],
            tool_choice={"type": "function", "function": {"name": "look_up"}},
        )
        message = first.choices[0].message
        [asked] = message.tool_calls
        result = {"role": "tool", "tool_call_id": asked.id, "content": [{"type": "text", "text": "one who trains"}]}
        second = await client.chat.completions.create(
            model="coder", messages=[*HELLO, message, result], tools=[LOOK_UP], tool_choice="none"
        )
    assert (message.content, first.choices[0].finish_reason) == (None, "tool_calls")
    assert second.choices[0].message.content == "It means one who trains."
    assert [(call.tool_choice, call.tool_name) for call in answerer.calls] == [("required", "look_up"), ("none", "")]
    assert answerer.calls[0].tools == (LOOK_UP,)
    assert answerer.calls[1].messages[1]["tool_calls"] == [
        {"id": asked.id, "type": "function", "function": {"name": "look_up", "arguments": {"word": "trainer"}}}
    ]
    assert answerer.calls[1].messages[2] == {"role": "tool", "tool_call_id": asked.id, "content": "one who trains"}


async def test_a_response_of_text_and_calls_is_an_item_each_and_goes_back_as_input():
    def answer(call, place):
        if call.messages[-1]["role"] == "tool":
            return reply("It means one who trains.")
        return reply("Let me see.", calls=[("look_up", {"word": "trainer"}), ("look_up", {"word": "coach"})])

    answerer = ScriptedAnswerer(answer)
    tool = {"type": "function", **LOOK_UP["function"]}
    async with Server(answerer) as server, openai_client(server) as client:
        first = await client.responses.create(
            model="coder", instructions="Be brief.", input="What is a trainer?", tools=[tool], tool_choice="required"
        )
        calls = [item for item in first.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": asked.call_id, "output": "one"} for asked in calls]
        asked_before = {"role": "user", "content": [{"type": "input_text", "text": "What is a trainer?"}]}
        second = await client.responses.create(
            model="coder", input=[asked_before, *first.output, *results], tools=[tool], max_output_tokens=99
        )
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert (first.output_text, second.output_text) == ("Let me see.", "It means one who trains.")
    assert (first.status, first.usage.input_tokens, first.usage.output_tokens) == ("completed", 7, 3)
    assert answerer.calls[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a trainer?"},
    )
    roles = [message["role"] for message in answerer.calls[1].messages]
    assert roles == ["user", "assistant", "tool", "tool"]
    spoken = answerer.calls[1].messages[1]
    assert (spoken["content"], len(spoken["tool_calls"])) == ("Let me see.", 2)
    assert answerer.calls[1].max_tokens == 99


async def test_a_response_in_a_stream_ends_with_what_the_whole_one_holds():
    answerer = ScriptedAnswerer(lambda call, place: reply(ODD_TEXT, calls=[("look_up", {"word": "é"})]))
    async with Server(answerer) as server, openai_client(server) as client:
        async with client.responses.stream(model="coder", input="?", tools=[]) as stream:
            seen = [event async for event in stream]
        final = await stream.get_final_response()
        cut = ScriptedAnswerer(lambda call, place: reply("And so", finish_reason="length"))
        async with Server(cut) as other, openai_client(other) as second:
            stream = await second.responses.create(model="coder", input="?", stream=True)
            last = [event async for event in stream][-1]
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == ODD_TEXT
    assert final.output_text == ODD_TEXT
    assert final.output[1].arguments == '{"word": "é"}'
    assert (last.type, last.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")


async def test_an_anthropic_message_with_tools_goes_there_and_back():
    answerer = looking_up("Let me see.")
    tools = [{"name": "look_up", "description": "x", "input_schema": LOOK_UP["function"]["parameters"]}]
    async with Server(answerer) as server, anthropic_client(server) as client:
        asked = {"role": "user", "content": "What is a trainer?"}
        first = await client.messages.create(
            model="coder",
            system=[{"type": "text", "text": "Be brief."}],
            max_tokens=50,
            messages=[asked],
            tools=tools,
            tool_choice={"type": "any"},
        )
        use = first.content[1]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "one"}]}
        second = await client.messages.create(
            model="coder",
            max_tokens=50,
            messages=[asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}],
            tools=tools,
        )
    assert (first.stop_reason, first.content[0].text, use.input) == ("tool_use", "Let me see.", {"word": "trainer"})
    assert (second.stop_reason, second.usage.input_tokens, second.usage.output_tokens) == ("end_turn", 7, 5)
    assert answerer.calls[0].tool_choice == "required"
    assert [message["role"] for message in answerer.calls[0].messages] == ["system", "user"]
    assert answerer.calls[1].messages[1:] == (
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": use.id, "type": "function", "function": {"name": "look_up", "arguments": {"word": "trainer"}}}
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": use.id},
    )


async def test_an_anthropic_stream_puts_together_the_whole_message():
    answerer = ScriptedAnswerer(lambda call, place: reply(ODD_TEXT, calls=[("look_up", {"word": "長い👩‍🏫" * 9})]))
    async with Server(answerer) as server, anthropic_client(server) as client:
        async with client.messages.stream(model="coder", max_tokens=50, messages=HELLO) as stream:
            pieces = [piece async for piece in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(pieces) == ODD_TEXT
    assert len(pieces) > 5
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert (final.content[0].text, final.content[1].input) == (ODD_TEXT, {"word": "長い👩‍🏫" * 9})
    assert (final.stop_reason, final.usage.input_tokens) == ("tool_use", 7)


async def test_an_anthropic_message_says_which_text_stopped_it():
    answerer = ScriptedAnswerer(lambda call, place: reply("And so", stop_text="END"))
    async with Server(answerer) as server, anthropic_client(server) as client:
        done = await client.messages.create(model="coder", max_tokens=50, messages=HELLO, stop_sequences=["END"])
        listed = await client.models.list()
        one = await client.models.retrieve("planner")
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", "END")
    assert answerer.calls[0].stop == ("END",)
    assert [model.id for model in listed.data] == list(ROLES)
    assert one.id == "planner"


FAULTS = [
    (EpisodeEnded("the episode has ended"), "PermissionDeniedError", "episode_ended", "permission_error"),
    (ContextOverflow("too long"), "BadRequestError", "context_length_exceeded", "invalid_request_error"),
    (EngineFailed("the engine died"), "InternalServerError", "engine_failed", "api_error"),
    (ZeroDivisionError("secret"), "InternalServerError", "engine_failed", "api_error"),
]


@pytest.mark.parametrize(("fault", "kind", "code", "anthropic_type"), FAULTS)
async def test_a_fault_is_an_error_of_the_providers_own_client_and_is_asked_once(fault, kind, code, anthropic_type):
    asked = []

    def answer(call, place):
        asked.append(call)
        raise fault

    async with Server(ScriptedAnswerer(answer)) as server:
        async with openai_client(server) as client:
            with pytest.raises(getattr(openai, kind)) as chat:
                await client.chat.completions.create(model="coder", messages=HELLO, stream=True)
            with pytest.raises(getattr(openai, kind)) as responses:
                await client.responses.create(model="coder", input="?")
        async with anthropic_client(server) as client:
            with pytest.raises(getattr(anthropic, kind)) as message:
                await client.messages.create(model="coder", max_tokens=5, messages=HELLO)
    assert (chat.value.code, responses.value.code) == (code, code)
    assert message.value.body["error"]["type"] == anthropic_type
    assert len(asked) == 3
    assert "secret" not in f"{chat.value.body}{message.value.body}"


async def test_an_unknown_model_is_told_the_roles_and_a_wrong_key_is_told_nothing():
    async with Server(ScriptedAnswerer()) as server:
        async with openai_client(server) as client:
            with pytest.raises(openai.NotFoundError, match="planner, coder") as unknown:
                await client.chat.completions.create(model="coda", messages=HELLO)
            with pytest.raises(openai.NotFoundError, match="planner, coder"):
                await client.models.retrieve("coda")
        async with openai_client(server, "another") as client:
            with pytest.raises(openai.AuthenticationError) as wrong:
                await client.chat.completions.create(model="coda", messages=HELLO)
            assert "planner" not in str(wrong.value.body)
        async with anthropic_client(server, "another") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="coder", max_tokens=5, messages=HELLO)
            with pytest.raises(anthropic.AuthenticationError):
                await client.models.list()
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
