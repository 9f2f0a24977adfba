"""What a request asks for and does not get is refused with the field's name; hints that change no reply are ignored."""

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from pydantic import ValidationError

from coachrl.gateway.calls import BadRequest
from coachrl.gateway.wire import base, chat, messages, responses

USER = {"role": "user", "content": "?"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": None}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
NAN = {"type": "function", "function": {"name": "f", "parameters": {"default": float("nan")}}}


def chat_body(**fields):
    return {"model": "coder", "messages": [USER], **fields}


def responses_body(**fields):
    return {"model": "coder", "input": "?", **fields}


def messages_body(**fields):
    return {"model": "coder", "max_tokens": 5, "messages": [USER], **fields}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": ["x" * 1001]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "?"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "tool", "content": "?"}]}, "messages[1].tool_call_id"),
        ({"messages": [IMAGE]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": ""}, "model"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.05}, "repetition_penalty"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"regex": "[0-9]+"}, "regex"),
        ({"ebnf": "root ::= [0-9]"}, "ebnf"),
        ({"json_schema": {"type": "object"}}, "json_schema"),
        ({"grammar": "root ::= [0-9]"}, "grammar"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "</tools>"}}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [NAN]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "ff"}}}, "tool_choice"),
    ],
)
def test_a_chat_completion_is_refused_with_the_name_of_the_field(fields, param):
    with pytest.raises(BadRequest) as refused:
        chat.read(chat_body(**fields))
    assert refused.value.param == param
    assert str(refused.value).startswith(param)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": ["?"]}, "messages[0]: Input should be an object"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: Input should be a valid string or a valid list",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text: Input should be a valid string",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "?"}]}]}, "messages[0].content[0].type: Field required"),
        ({"stop": ["a", 5]}, "stop[1]: Input should be a valid string"),
        ({"tool_choice": "any"}, "tool_choice: Input should be 'auto', 'none' or 'required' or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function: Field required"),
    ],
)
def test_of_a_field_that_may_be_several_things_the_error_is_of_the_one_that_was_given(fields, said):
    with pytest.raises(BadRequest) as refused:
        chat.read(chat_body(**fields))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
    ],
)
def test_a_response_is_refused_with_the_name_of_the_field(fields, param):
    with pytest.raises(BadRequest) as refused:
        responses.read(responses_body(**fields))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_k": 5}, "top_k"),
        ({"messages": [USER, {"role": "assistant", "content": "It is"}]}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "f"}]}]}, "messages[0].content"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x" * 1001]}, "stop_sequences"),
    ],
)
def test_a_message_is_refused_with_the_name_of_the_field(fields, param):
    with pytest.raises(BadRequest) as refused:
        messages.read(messages_body(**fields))
    assert refused.value.param == param


def test_hints_that_change_no_reply_are_ignored():
    harmless = {
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "top_logprobs": 0,
        "reasoning_effort": "low",
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "guided_json": None,
        "bad_words": [],
        "allowed_token_ids": None,
        "ignore_eos": False,
        "include_stop_str_in_output": False,
        "truncate_prompt_tokens": None,
        "use_beam_search": False,
        "echo": False,
        "chat_template": None,
        "grammar": "",
        "chat_template_kwargs": {"enable_thinking": False},
        "new_next_year": {"x": 1},
    }
    assert chat.read(chat_body(**harmless)).call == chat.read(chat_body()).call
    hints = {"store": True, "truncation": "auto", "reasoning": {"effort": "low"}, "service_tier": "auto"}
    assert responses.read(responses_body(**hints)).call == responses.read(responses_body()).call
    hints = {"metadata": {"user_id": "me"}, "service_tier": "auto", "thinking": {"type": "disabled"}}
    assert messages.read(messages_body(**hints)).call == messages.read(messages_body()).call


def test_a_tool_without_parameters_takes_none():
    [tool] = chat.read(chat_body(tools=[TOOL])).call.tools
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}


def test_arguments_that_are_no_object_stay_as_the_app_wrote_them():
    asked = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
        for text in ('{"a": 1}', "[1]", "{", "")
    ]
    spoken = {"role": "assistant", "content": None, "tool_calls": asked}
    found = chat.read(chat_body(messages=[USER, spoken])).call.messages[1]["tool_calls"]
    assert [one["function"]["arguments"] for one in found] == [{"a": 1}, "[1]", "{", ""]


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (chat, chat_body(messages=[{}] * 100)),
        (chat, chat_body(messages=[{"role": "user", "content": [{}] * 100}])),
        (chat, chat_body(messages=[{"role": "assistant", "tool_calls": [{}] * 100}])),
        (chat, chat_body(stop=[1] * 100)),
        (chat, chat_body(tools=[{}] * 100)),
        (messages, messages_body(messages=[{"role": "nobody"}] * 100)),
        (messages, messages_body(system=[{}] * 100)),
        (messages, messages_body(stop_sequences=[1] * 100)),
        (responses, responses_body(input=[1] * 100)),
        (responses, responses_body(include=[1] * 100)),
    ],
)
def test_the_first_of_many_wrong_items_ends_the_reading(wire, body):
    """A million of them would hold the event loop, and everybody with it, for a minute."""
    with pytest.raises(ValidationError) as error:
        wire._Body.model_validate(body)
    assert error.value.error_count() <= 3  # of a text or a list, each is told


@pytest.mark.parametrize(
    ("wire", "body", "said"),
    [
        (chat, chat_body(messages=[USER, {"role": "tool", "content": "?"}]), "a tool's message must say which call it"),
        (chat, chat_body(tools=[NAN]), "NaN and Infinity are no JSON"),
        (chat, chat_body(stop=""), "at most 64 texts, none of them empty or of over 1,000 characters"),
        (chat, chat_body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "ff"}}), "no tool is ca"),
        (messages, messages_body(tool_choice={"type": "tool"}), "say which tool"),
        (messages, messages_body(output_config={"format": {"type": "json_schema"}}), "replies are not held to a form"),
        (messages, messages_body(messages=[USER, {"role": "assistant", "content": "I"}]), "the last one is the assist"),
        (responses, responses_body(text={"format": {"type": "json_schema"}}), "replies are not held to a form"),
        (responses, responses_body(input=[{"type": "item_reference"}]), "nothing is stored here: send the whole"),
        (responses, responses_body(input=[{"type": "computer_call"}]), "items are messages, function_call and functio"),
        (responses, responses_body(input=[{"type": "function_call", "name": "f"}]), "a field of this function_call is"),
        (responses, responses_body(input=[]), "there is nothing in it"),
        (responses, responses_body(tools=[{"type": "web_search"}]), "the provider's own tools are not here"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_be_right(wire, body, said):
    with pytest.raises(BadRequest) as refused:
        wire.read(body)
    assert f": {said}" in str(refused.value)


def test_values_in_arguments_of_functions_count_all_together():
    """In a body they are texts: to read them would hold up everybody, as a body of so many values would."""
    arguments = '{"a": [' + "1," * 60_000 + "1]}"
    calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
    items = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}]
    assert base.arguments_of(arguments)["a"][-1] == 1
    for read, body in (
        (chat.read, chat_body(messages=[USER, {"role": "assistant", "tool_calls": calls * 2}])),
        (responses.read, responses_body(input=items * 2)),
    ):
        with pytest.raises(BadRequest, match=r"^arguments of functions hold more than 100,000 values"):
            read(body)


def test_arguments_of_more_values_than_a_body_may_have_stay_text():
    assert base.arguments_of(many := '{"a": [' + "1," * 100_000 + "1]}") == many
    assert base.arguments_of('{"a": "' + "1," * 100_000 + '"}')["a"].startswith("1,1,")


def test_metadata_beyond_what_openai_takes_is_not_looked_at_one_by_one():
    with pytest.raises(BadRequest, match=r"^metadata: Dictionary should have at most 16 items"):
        responses.read(responses_body(metadata={f"k{place}": 1 for place in range(17)}))
    with pytest.raises(BadRequest, match=r"^metadata: its values should be texts$"):
        responses.read(responses_body(metadata={"a": 1}))
