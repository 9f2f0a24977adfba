"""What each provider's body becomes, and what a reply becomes in each provider's form, exactly."""

from dataclasses import replace

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from scripted_answerer import events, reply

from coachrl.gateway.calls import BadRequest, Call, EngineFailed, Piece, WrongToken
from coachrl.gateway.wire import base, chat, messages, model_list, responses
from coachrl.gateway.wire.base import Block

TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ITS = {"name": "f", "input_schema": {"type": "object"}}


def asked(id_, arguments):
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}}


def chat_call(**fields):
    return chat.read({"model": "coder", "messages": [{"role": "user", "content": "?"}], **fields}).call


def response_call(*items, **fields):
    return responses.read({"model": "coder", "input": list(items) or "?", **fields}).call


def message_call(*said, **fields):
    body = {"model": "coder", "max_tokens": 5, "messages": list(said) or [{"role": "user", "content": "?"}], **fields}
    return messages.read(body).call


def test_a_call_after_a_result_opens_a_message_of_its_own_and_calls_side_by_side_share_one():
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "output": "fine"}
    found = response_call(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "?"},
        {**call, "call_id": "1"},
        {**call, "call_id": "2"},
        {**result, "call_id": "1"},
        {**call, "call_id": "3"},
        {"type": "reasoning"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
        {**call, "call_id": "4"},
        instructions="First.",
    )
    assert found.messages == (
        {"role": "system", "content": "First."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [asked("1", {}), asked("2", {})]},
        {"role": "tool", "content": "fine", "tool_call_id": "1"},
        {"role": "assistant", "content": "", "tool_calls": [asked("3", {})]},
        {"role": "assistant", "content": "a\nb", "tool_calls": [asked("4", {})]},
    )


def test_results_of_tools_stand_before_the_text_that_came_with_them():
    text = {"type": "text", "text": "And now?"}
    results = [{"type": "tool_result", "tool_use_id": id_, "content": id_ * 2} for id_ in "ab"]
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    read = [{"role": "tool", "content": id_ * 2, "tool_call_id": id_} for id_ in "ab"]
    found = message_call(
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, text, use]},
        {"role": "user", "content": [text, *results, text]},
        {"role": "user", "content": results},
        system=[text, text],
    )
    assert found.messages == (
        {"role": "system", "content": "And now?\nAnd now?"},
        {"role": "assistant", "content": "And now?", "tool_calls": [asked("a", {"x": 1})]},
        *read,
        {"role": "user", "content": "And now?\nAnd now?"},
        *read,
    )


def test_a_refusal_is_what_was_said_where_there_is_no_text():
    said = [
        {"role": "developer", "content": "Be brief.", "name": "me"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": "Yes.", "refusal": "No."},
        {"role": "tool", "content": "fine", "tool_call_id": "1"},
    ]
    assert chat_call(messages=said).messages == (
        {"role": "system", "content": "Be brief.", "name": "me"},
        {"role": "assistant", "content": "No."},
        {"role": "assistant", "content": "Yes."},
        {"role": "tool", "content": "fine", "tool_call_id": "1"},
    )


def test_the_newer_limit_counts_where_an_app_gives_both():
    assert chat_call(max_tokens=7, max_completion_tokens=5).max_tokens == 5
    assert chat_call(max_tokens=7).max_tokens == 7
    assert response_call(max_output_tokens=6).max_tokens == 6


@pytest.mark.parametrize(
    ("call", "choice"),
    [
        (chat_call(tools=[TOOL]), ("auto", "", True)),
        (chat_call(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}), ("required", "f", True)),
        (chat_call(tools=[TOOL], tool_choice="none", parallel_tool_calls=False), ("none", "", False)),
        (response_call(tools=[FLAT], tool_choice={"type": "function", "name": "f"}), ("required", "f", True)),
        (response_call(tools=[FLAT], parallel_tool_calls=False), ("auto", "", False)),
        (message_call(tools=[ITS], tool_choice={"type": "any"}), ("required", "", True)),
        (message_call(tools=[ITS], tool_choice={"type": "tool", "name": "f"}), ("required", "f", True)),
        (
            message_call(tools=[ITS], tool_choice={"type": "auto", "name": "f", "disable_parallel_tool_use": False}),
            ("auto", "", True),
        ),
        (
            message_call(tools=[ITS], tool_choice={"type": "none", "disable_parallel_tool_use": True}),
            ("none", "", False),
        ),
    ],
)
def test_which_tool_is_to_be_called(call, choice):
    assert (call.tool_choice, call.tool_name, call.parallel_tool_calls) == choice
    assert call.tools == (TOOL,)


@pytest.mark.parametrize("disabled", [True, False, None])
def test_a_message_may_forbid_calls_side_by_side(disabled):
    choice = {"type": "auto", "disable_parallel_tool_use": disabled}
    assert message_call(tool_choice=choice).parallel_tool_calls is (disabled is not True)


def test_one_stop_text_is_a_list_of_one_and_unset_fields_are_the_roles():
    assert chat_call(stop="END").stop == ("END",) and chat_call(stop=["a", "b"]).stop == ("a", "b")
    most = [str(number) for number in range(64)]
    assert chat_call(stop=most).stop == message_call(stop_sequences=most).stop == tuple(most)
    assert chat_call() == Call("coder", ({"role": "user", "content": "?"},)) == response_call()
    assert chat_call(n=None, seed=0, temperature=0, logprobs=True, stream=True) == Call(
        "coder", ({"role": "user", "content": "?"},), seed=0, temperature=0, logprobs=True, stream=True
    )


def test_limits_are_taken_up_to_their_ends():
    most = {"temperature": 2, "top_p": 1, "max_tokens": 2**31 - 1, "n": 128, "seed": 2**63 - 1}
    found = chat_call(**most)
    assert most == {name: getattr(found, name) for name in most}
    assert chat_call(seed=-(2**63), top_p=0, n=1).seed == -(2**63)
    assert response_call(max_output_tokens=2**31 - 1).max_tokens == 2**31 - 1


@pytest.mark.parametrize(
    ("options", "counts"), [({}, 0), ({"stream_options": {"include_usage": False}}, 0), (None, 0), (True, 1)]
)
def test_a_stream_ends_with_a_count_where_it_is_asked_for(options, counts):
    fields = {"stream_options": {"include_usage": options}} if not isinstance(options, dict) else options
    made = chat.read({"model": "coder", "messages": [{"role": "user", "content": "?"}], "stream": True, **fields})
    sent = "".join(made.rest([reply("One two.")]))
    chunks = [data for _, data in events(sent)]
    assert [chunk["usage"]["total_tokens"] for chunk in chunks[:-1] if chunk.get("usage")] == [9] * counts
    assert sent.endswith("\n\ndata: [DONE]\n\n") and all(("usage" in chunk) is bool(counts) for chunk in chunks[:-1])


def test_a_response_says_what_was_asked_for():
    drawn = {"temperature": 0.5, "top_p": 0.25, "max_output_tokens": 9, "parallel_tool_calls": False}
    choice = {"type": "function", "name": "f"}
    asked = {"instructions": "Be brief.", "metadata": {"a": "b"}, "tools": [FLAT], "tool_choice": choice, **drawn}
    body = responses.read({"model": "coder", "input": "?", **asked}).body([reply("a")])
    tool = {**FLAT, "description": "", "strict": False}
    assert {name: body[name] for name in asked} == {**asked, "tools": [tool]}
    assert (body["model"], body["status"], body["incomplete_details"]) == ("coder", "completed", None)
    cut = responses.read({"model": "coder", "input": "?"}).body([reply("a", finish_reason="length")])
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"} and cut["tool_choice"] == "auto"
    assert cut["parallel_tool_calls"] is True


def test_several_replies_count_their_prompt_once():
    body = chat.read({"model": "coder", "messages": [{"role": "user", "content": "?"}], "n": 2}).body(
        [reply("One two."), reply("And three more."), reply("", calls=[("f", {"x": "é"})])]
    )
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    assert [(choice["index"], choice["finish_reason"], choice["logprobs"]) for choice in body["choices"]] == [
        (0, "stop", None),
        (1, "stop", None),
        (2, "tool_calls", None),
    ]
    assert body["choices"][2]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [asked("call_0", '{"x": "é"}')],
    }


@pytest.mark.parametrize(
    ("given", "status", "reason", "stop_reason"),
    [
        (reply("a"), "completed", None, "end_turn"),
        (reply("a", finish_reason="length"), "incomplete", {"reason": "max_output_tokens"}, "max_tokens"),
        (reply("a", finish_reason="content_filter"), "incomplete", {"reason": "content_filter"}, "refusal"),
        (reply("a", calls=[("f", {})]), "completed", None, "tool_use"),
        (reply("a", stop_text="END"), "completed", None, "stop_sequence"),
    ],
)
def test_how_a_reply_ended(given, status, reason, stop_reason):
    response = responses.ResponsesExchange(Call("coder", ())).body([given])
    assert (response["status"], response["incomplete_details"]) == (status, reason)
    assert {item["status"] for item in response["output"]} == {status}
    assert response["usage"]["total_tokens"] == 8
    message = messages.MessagesExchange(Call("coder", ())).body([given])
    assert (message["stop_reason"], message["stop_sequence"]) == (stop_reason, given.stop_text)
    assert message["usage"] == {"input_tokens": 7, "output_tokens": 1}


def test_tokens_that_a_providers_model_wrote_count_though_nobody_saw_them():
    unseen = replace(reply("One two."), token_ids=(), logprobs=(), token_texts=(), unseen_tokens=4)
    call = Call("coder", ())
    assert chat.ChatExchange(call).body([unseen])["usage"]["completion_tokens"] == 4
    assert responses.ResponsesExchange(call).body([unseen])["usage"]["output_tokens"] == 4
    assert messages.MessagesExchange(call).body([unseen])["usage"]["output_tokens"] == 4


def test_what_a_message_asks_for_is_what_the_call_says():
    drawn = {"temperature": 0.5, "top_p": 0.25, "stream": True}
    found = message_call(stop_sequences=["x"], **drawn)
    assert found == Call("coder", ({"role": "user", "content": "?"},), max_tokens=5, stop=("x",), **drawn)
    logged = response_call(include=["message.output_text.logprobs", "other"], **drawn)
    assert logged == Call("coder", ({"role": "user", "content": "?"},), logprobs=True, **drawn)
    assert not response_call(include=["other"]).logprobs


def test_a_reply_of_nothing_is_an_empty_message_and_one_of_calls_alone_has_none():
    response = responses.ResponsesExchange(Call("coder", ()))
    assert [item["content"][0]["text"] for item in response.body([reply("")])["output"]] == [""]
    called = response.body([reply("", calls=[("f", {}), ("g", {})])])["output"]
    assert [(item["type"], item["call_id"], item["name"]) for item in called] == [
        ("function_call", "call_0", "f"),
        ("function_call", "call_1", "g"),
    ]
    assert messages.MessagesExchange(Call("coder", ())).body([reply("")])["content"] == []


@pytest.mark.parametrize("exchange", [chat.ChatExchange, responses.ResponsesExchange, messages.MessagesExchange])
def test_a_stream_sends_each_piece_of_the_text_once(exchange):
    made = exchange(Call("coder", ()))
    sent = "".join(
        [*made.more(Piece(0, "One ", 7)), *made.more(Piece(0, "two", 7)), *made.rest([reply("One two three")])]
    )
    texts = []
    for _, data in events(sent):
        if data != "[DONE]":
            delta = data["choices"][0]["delta"] if "choices" in data else data.get("delta", "")
            texts.append(delta if isinstance(delta, str) else delta.get("content") or delta.get("text") or "")
    assert [text for text in texts if text] == ["One ", "two", " three"]


def test_a_message_is_begun_once_and_each_of_its_blocks_too():
    made = messages.MessagesExchange(Call("coder", ()))
    whole = reply("One two", calls=[("f", {})])
    sent = events("".join([*made.more(Piece(0, "One ", 7)), *made.more(Piece(0, "two", 7)), *made.rest([whole])]))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [name for name, _ in sent] == [
        "message_start",
        *block[:2],
        *block[1:],
        *block,
        "message_delta",
        "message_stop",
    ]
    assert sent[0][1]["message"]["usage"] == {"input_tokens": 7, "output_tokens": 0}
    assert [data["index"] for _, data in sent[1:-2]] == [0, 0, 0, 0, 1, 1, 1]
    assert sent[-2][1]["usage"]["output_tokens"] == 2


TEXT_ITEM = ["response.output_item.added", "response.content_part.added", "response.output_text.delta"]
TEXT_DONE = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
CALL_ITEM = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


@pytest.mark.parametrize("grows", [True, False])
def test_a_response_is_begun_once_and_its_items_are_numbered(grows):
    made = responses.ResponsesExchange(Call("coder", ()))
    whole = reply("One", calls=[("f", {})])
    pieces = [*made.more(Piece(0, "One", 7))] if grows else []
    sent = events("".join([*pieces, *made.rest([whole])]))
    begun = ["response.created", "response.in_progress"]
    assert [name for name, _ in sent] == [*begun, *TEXT_ITEM, *TEXT_DONE, *CALL_ITEM, "response.completed"]
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    assert [data["output_index"] for _, data in sent[2:-1]] == [0] * 6 + [1] * 4
    assert {data["content_index"] for _, data in sent if "content_index" in data} == {0}
    assert [item["type"] for item in sent[-1][1]["response"]["output"]] == ["message", "function_call"]
    assert sent[2][1]["item"]["content"] == [] and sent[2][1]["item"]["status"] == "in_progress"


@pytest.mark.parametrize("finish_reason", ["tool_calls", "length"])
def test_what_a_response_streams_adds_up_to_its_items(finish_reason):
    """A client puts an item together from what it is opened with and its deltas: nothing comes twice."""
    whole = reply("One two", calls=[("f", {"x": 1}), ("g", {})], finish_reason=finish_reason)
    made = responses.ResponsesExchange(Call("coder", ()))
    sent = events("".join([*made.more(Piece(0, "One", 7)), *made.rest([whole])]))
    built, done = {}, {}
    for name, data in sent:
        if name == "response.output_item.added":
            assert data["item"]["status"] == "in_progress"
            built[data["output_index"]] = data["item"].get("arguments", "")
        elif name == "response.content_part.added":
            assert data["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        elif name.endswith(".delta"):
            built[data["output_index"]] += data["delta"]
        elif name.endswith((".text.done", ".arguments.done")):
            assert data.get("text", data.get("arguments")) == built[data["output_index"]]
        elif name == "response.output_item.done":
            done[data["output_index"]] = data["item"]
    assert built == {0: "One two", 1: '{"x": 1}', 2: "{}"}
    last, ended = sent[-1]
    status = "incomplete" if finish_reason == "length" else "completed"
    assert (last, ended["response"]["output"]) == (f"response.{status}", list(done.values()))
    assert [item["status"] for item in done.values()] == [status] * 3
    assert done[0]["content"][0]["text"] == "One two" and [done[i]["arguments"] for i in (1, 2)] == ['{"x": 1}', "{}"]


def test_what_a_message_streams_adds_up_to_its_blocks():
    made = messages.MessagesExchange(Call("coder", ()))
    whole = reply("One two", calls=[("f", {"x": 1}), ("g", {})])
    sent = events("".join([*made.more(Piece(0, "One", 7)), *made.rest([whole])]))
    opened = [data["content_block"] for name, data in sent if name == "content_block_start"]
    assert opened == [
        {"type": "text", "text": "", "citations": None},
        {"type": "tool_use", "id": "call_0", "name": "f", "input": {}},
        {"type": "tool_use", "id": "call_1", "name": "g", "input": {}},
    ]
    built = ["", "", ""]
    for name, data in sent:
        if name == "content_block_delta":
            [what] = {"text", "partial_json"} & set(data["delta"])
            assert data["delta"]["type"] == ("text_delta" if what == "text" else "input_json_delta")
            built[data["index"]] += data["delta"][what]
    assert built == ["One two", '{"x": 1}', "{}"]
    assert sent[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_what_was_sent_of_a_text_is_not_sent_again():
    assert base.rest_of("One two", "One") == " two" and base.rest_of("One", "") == "One"
    assert base.rest_of("Two", "One") == ""  # what was sent cannot be taken back
    long = "a" * 50
    assert base.pieces(f"Hi  {long}\n ") == ["Hi", "  " + "a" * 24, "a" * 24, "aa", "\n "]


def test_bytes_of_a_part_of_a_character_are_not_known():
    found = base.token_logprobs(reply("é \ufffd"), None)
    assert [(token["token"], token["logprob"], token["bytes"]) for token in found] == [
        ("é", 0.0, [195, 169]),
        (" \ufffd", -0.5, None),
    ]


def test_a_text_of_parts_has_a_line_for_each_and_nothing_else_is_read():
    assert base.text_of([Block(type="text", text="a"), Block(type="refusal", refusal="b")], "x") == "a\nb"
    assert base.text_of(None, "x") == ""
    with pytest.raises(BadRequest, match=r"x: a part of type 'image' cannot be read here"):
        base.text_of([Block(type="image", text="a")], "x")


def test_errors_have_the_providers_kind():
    wrong = BadRequest("n: no", "n")
    assert base.openai_error(wrong)["error"] == {
        "message": "n: no",
        "type": "invalid_request_error",
        "param": "n",
        "code": None,
    }
    kinds = [messages.error(error)["error"]["type"] for error in (wrong, WrongToken("no"), EngineFailed("no"))]
    assert kinds == ["invalid_request_error", "authentication_error", "api_error"]


def test_models_are_listed_with_both_ends():
    listed = model_list.anthropic(["a", "b"])
    assert (listed["first_id"], listed["last_id"], [one["id"] for one in listed["data"]]) == ("a", "b", ["a", "b"])
    assert model_list.anthropic([])["last_id"] is None
    assert [one["id"] for one in model_list.openai(["a", "b"])["data"]] == ["a", "b"]
    assert model_list.openai(["a", "b"], "b")["id"] == "b"
