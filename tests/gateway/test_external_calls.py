"""What a provider is asked for a call, and what its answer becomes, exactly: nothing is sent."""

import pytest
from gateway_apps import LOOK_UP, user

from coachrl.coach.clients.secrets import keyless
from coachrl.config import CoachConfig
from coachrl.gateway.calls import Call, FunctionCall, Piece
from coachrl.gateway.external import (
    _MOST_TOKENS,
    GatewayRole,
    LiteLLMProviders,
    _asked,
    _ExternalModel,
    _request,
    _Telling,
)

litellm = pytest.importorskip("litellm", reason="needs the llm extra")


def test_what_the_app_left_open_is_left_to_the_provider():
    assert _asked(Call("critic", (user("?"),))) == {"messages": [user("?")]}
    drawn = {"seed": 0, "max_tokens": 5, "temperature": 0.0, "top_p": 0.5}
    asked = _asked(Call("critic", (user("?"),), n=2, stop=("END", "x"), **drawn))
    assert asked == {"messages": [user("?")], "n": 2, "stop": ["END", "x"], **drawn}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "auto"),
        ({"tool_choice": "none"}, "none"),
        ({"tool_choice": "required"}, "required"),
        ({"tool_choice": "required", "tool_name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_and_the_choice_among_them_are_passed_on(fields, choice):
    asked = _asked(Call("critic", (user("?"),), tools=(LOOK_UP,), **fields))
    assert (asked["tools"], asked["tool_choice"]) == ([LOOK_UP], choice)
    assert "tool_choice" not in _asked(Call("critic", (user("?"),), tool_choice="none"))


def test_calls_of_an_earlier_reply_are_told_as_text_and_an_empty_list_of_them_not_at_all():
    function = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    said = {"role": "assistant", "content": "", "tool_calls": [function]}
    plain = {"role": "assistant", "content": "well", "tool_calls": []}
    first, second = _asked(Call("critic", (said, plain)))["messages"]
    assert first["tool_calls"][0] == {**function, "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert second == {"role": "assistant", "content": "well"}
    assert function["function"]["arguments"] == {"a": 1}, "what was given is not changed"


def test_tools_count_in_what_a_call_may_cost():
    plain, tooled = (_request(Call("critic", (user("?"),), tools, max_tokens=9)) for tools in ((), (LOOK_UP,)))
    assert plain.messages[0].content == "?" and "height_of" in tooled.messages[0].content
    assert plain.max_tokens == 9 and _request(Call("critic", (user("?"),))).max_tokens == _MOST_TOKENS
    assert _request(Call("critic", (user("?"),), max_tokens=9, n=3)).max_tokens == 27


def answer(*choices, usage=(10, 4)):
    listed = [
        {"index": place, "message": {"role": "assistant", **said}, "finish_reason": ending}
        for place, (said, ending) in enumerate(choices)
    ]
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return litellm.ModelResponse(choices=listed, usage=counts)


def read(given, n=1):
    model = _ExternalModel("openai/judge", "http://127.0.0.1:1/v1", CoachConfig())
    return model._read(given, _request(Call("critic", (user("?"),), n=n)))


def test_one_count_is_given_for_all_replies_and_stands_with_the_first():
    given = answer(({"content": "one"}, "stop"), ({"content": "two"}, "length"), ({"content": "three"}, "stop"))
    counted = read(given, n=2)
    replies = counted.replies
    assert [(reply.text, reply.finish_reason) for reply in replies] == [("one", "stop"), ("two", "length")]
    assert [(reply.prompt_tokens, reply.written_tokens) for reply in replies] == [(10, 4), (10, 0)]
    assert counted.text == "one\n\ntwo"
    assert (counted.usage.tokens_in, counted.usage.tokens_out, counted.usage_known) == (10, 4, True)


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
    ],
)
def test_how_a_reply_ended(ending, told):
    [reply] = read(answer(({"content": "a"}, ending))).replies
    assert reply.finish_reason == told


def test_every_function_that_a_reply_asks_for_is_read():
    asked = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in (("1", "f", '{"a": 1}'), ("2", "g", ""), ("3", "h", "[1]"))
    ]
    counted = read(answer(({"content": None, "tool_calls": asked}, "tool_calls")))
    [reply] = counted.replies
    assert reply.text == "" and reply.tool_calls == (
        FunctionCall("1", "f", {"a": 1}),
        FunctionCall("2", "g", {}),
        FunctionCall("3", "h", {"arguments": "[1]"}),
    )
    assert '"name": "g"' in counted.text


def told(pieces):
    pieces_told = []
    telling = _Telling(pieces_told.append)
    for text in pieces:
        telling(Piece(0, text, 0))
    return [piece.text for piece in pieces_told], telling.has_begun


def test_a_key_that_comes_in_pieces_is_told_to_nobody(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key := "sk-0123456789abcdef")
    monkeypatch.setenv("OTHER_API_KEY", longer := f"{key}-and-more")
    assert told(["It is ", "sk", "y-high", " or s", "o."]) == (["It is ", "sky-high", " or ", "so."], True)
    assert told(["s", "k-0123"]) == ([], False)
    for whole in (f"{key}.", f"{longer}.", f"sk-{key}{longer}{key}s."):
        assert "".join(told(list(whole))[0]) == "".join(told([whole])[0]) == keyless(whole)


@pytest.mark.parametrize(
    ("own", "bound", "asked", "sent"),
    [
        (None, None, None, None),
        (300, None, None, 300),
        (300, 4096, 400, 300),
        (300, None, 20, 20),
        (None, None, 10**6, 10**6),
        (None, 4096, 10**6, 4096),
        (None, 4096, None, 4096),
        (None, 10**6, None, _MOST_TOKENS),
        (20_000, 10**6, None, 20_000),
    ],
)
def test_a_reply_is_as_long_as_role_app_and_a_budgets_bound_let_it(own, bound, asked, sent):
    role = GatewayRole(external="openai/judge", max_new_tokens=own)
    providers = LiteLLMProviders({"critic": role})
    providers._bounds = {} if bound is None else {"critic": bound}
    assert providers._longest(role, Call("critic", (), max_tokens=asked)) == sent
