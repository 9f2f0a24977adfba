"""Which earlier reply a conversation goes on from, and what the app is told of one: one token a character."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter

import pytest
from gateway_apps import LOOK_UP, user
from thinking import ThinkingTokenizer

from coachrl.errors import ContextOverflow, PolicyError
from coachrl.gateway.calls import BadRequest, Call, FunctionCall, Reply
from coachrl.gateway.conversation_tokens import (
    Conversations,
    as_message,
    before_stop,
    read_reply,
    templated,
    text_of,
    with_own_ids,
)
from coachrl.gateway.played_episode import _Asked, _with_results
from coachrl.pipelines.team.tools import told_of
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import CharacterTokenizer
from coachrl.types import Role

TOKENS = CharacterTokenizer()
NAME = LOOK_UP["function"]["name"]


def reply(text, *calls):
    """A reply whose ids are those of its text in capitals, so that it can be told from the text."""
    return Reply(text, "stop", 1, tuple(map(ord, text.upper())), tool_calls=calls)


def ids(text):
    return tuple(map(ord, text))


def read(conversations, *messages, role="planner", **fields):
    return "".join(map(chr, conversations.prompt(Call(role, messages, **fields), TOKENS).ids))


def led(conversations, text, *messages, **fields):
    """The app is answered `text`: the conversation as it goes on."""
    answer = reply(text)
    conversations.remember(Call("planner", messages, **fields), answer, ids(f"[{text}?]"))
    return (*messages, as_message(answer))


def test_a_conversation_goes_on_from_the_latest_of_several_replies():
    known = Conversations()
    talk = (*led(known, "one", user("a")), user("b"))
    talk = (*led(known, "two", *talk), user("c"))
    assert read(known, *talk) == "[two?]TWO\n<user>c\n<assistant>"
    assert read(known, *talk[:3]) == "[one?]ONE\n<user>b\n<assistant>"
    assert known.prompt(Call("planner", talk), TOKENS).text == "c", "what is new alone is shown"


def test_what_was_led_with_other_tools_or_is_another_episodes_is_read_afresh():
    known = Conversations()
    talk = (*led(known, "one", user("a"), tools=(LOOK_UP,)), user("b"))
    assert read(known, *talk, tools=(LOOK_UP,)).startswith("[one?]ONE")
    assert read(known, *talk) == read(Conversations(), *talk) == "<user>a\n<assistant>one\n<user>b\n<assistant>"
    assert read(known, *talk, role="coder", tools=(LOOK_UP,)).startswith("<user>")


def test_who_says_something_counts_in_what_is_asked_and_not_in_a_reply():
    """Some templates show names; some clients give replies the name of their agent."""
    known = Conversations()
    question, reply = led(known, "one", {**user("a"), "name": "Ann"})
    talk = (question, {**reply, "name": "planner"}, user("b"))
    assert read(known, *talk).startswith("[one?]ONE")
    assert read(known, {**question, "name": "Bob"}, *talk[1:]).startswith("<user>")


def test_thinking_is_opened_before_each_reply_but_one_that_must_begin_with_a_call():
    known = Conversations()
    first, on = (user("a"),), (*led(known, "one", user("a")), user("b"))

    def opened(messages, thinking, **fields):
        prompt = known.prompt(Call("planner", messages, **fields), ThinkingTokenizer(), thinking)
        return "".join(map(chr, prompt.ids)).count("<thinks>")

    assert [opened(talk, thinking) for talk in (first, on) for thinking in (True, False)] == [1, 0, 1, 0]
    assert opened(first, True, tools=(LOOK_UP,), tool_choice="required") == 0


OTHER = {"type": "function", "function": {"name": "weight_of", "parameters": {"type": "object", "properties": {}}}}


class ToolTokenizer(CharacterTokenizer):
    """Its template knows tools."""

    knows_tools = True


@pytest.mark.parametrize(
    ("tokenizer", "tools", "named", "opening"),
    [
        (TOKENS, (LOOK_UP,), "", f'<tool_call>{{"name": "{NAME}", "arguments":'),
        (TOKENS, (LOOK_UP, OTHER), "", '<tool_call>{"name":'),
        (TOKENS, (LOOK_UP, OTHER), "weight_of", '<tool_call>{"name": "weight_of", "arguments":'),
        (ToolTokenizer(), (LOOK_UP, OTHER), "", '<tool_call>\n{"name":'),
    ],
)
def test_a_reply_that_must_call_is_opened_up_to_where_there_is_something_to_choose(tokenizer, tools, named, opening):
    fields = {"tools": tools, "tool_name": named}
    free, forced = (
        Conversations().prompt(Call("planner", (user("a"),), tool_choice=choice, **fields), tokenizer)
        for choice in ("auto", "required")
    )
    assert (free.opening, forced.opening) == ("", opening)
    assert forced.ids == (*free.ids, *ids(opening)) and forced.text == free.text == "a"


def test_tools_are_told_before_the_first_message_where_the_template_knows_none():
    messages = ({"role": "system", "content": "Be brief."}, user("a"))
    shown = read(Conversations(), *messages, tools=(LOOK_UP,))
    assert shown == f"<system>{told_of([LOOK_UP])}\n\nBe brief.\n<user>a\n<assistant>"
    assert messages[0]["content"] == "Be brief."
    assert read(Conversations(), *messages, tools=(LOOK_UP,), tool_choice="none") == read(Conversations(), *messages)


class Strict(CharacterTokenizer):
    """Its template takes no two messages of the user's alone, and no odd one after a reply."""

    def encode_chat(self, messages, thinking=False, tools=()):
        if [message["role"] for message in messages] == ["user", "user"]:
            raise PolicyError("roles must alternate")
        return super().encode_chat(messages)

    def continue_chat(self, prompt_ids, response_ids, messages, thinking=False):
        if messages[0]["content"] == "odd":
            raise PolicyError("no such thing here")
        return super().continue_chat(prompt_ids, response_ids, messages)


def test_what_a_template_refuses_is_the_apps_to_mend_and_a_continuation_it_refuses_is_read_afresh():
    known = Conversations()
    with pytest.raises(BadRequest, match="roles must alternate") as refused:
        known.prompt(Call("planner", (user("a"), user("b"))), Strict())
    assert refused.value.param == "messages"
    talk = led(known, "one", user("a"))
    prompt = known.prompt(Call("planner", (*talk, user("odd"))), Strict())
    assert "".join(map(chr, prompt.ids)) == "<user>a\n<assistant>one\n<user>odd\n<assistant>"
    assert known.prompt(Call("planner", (*talk, user("b"))), Strict()).ids[:6] == ids("[one?]")


def test_the_stop_text_that_comes_first_ends_a_text():
    assert before_stop("one STOP two END", ("END", "STOP", "NEVER")) == ("one ", "STOP")
    assert before_stop("one", ("END",)) == ("one", None) and before_stop("END", ("END",)) == ("", "END")


def test_the_oldest_of_too_many_conversations_are_forgotten():
    known = Conversations(most=2)
    talks = [(*led(known, text, user(text)), user("b")) for text in ("one", "two", "three")]
    assert [read(known, *talk).startswith("[") for talk in talks] == [False, True, True]


def test_the_oldest_are_forgotten_where_all_together_hold_too_many_ids():
    known, question = Conversations(most_ids=20), user("a")
    for _ in range(3):  # again and again the same is one
        led(known, "one", question)
    talks = [(*led(known, text, user(text)), user("b")) for text in ("two", "six", "ten")]  # of 9 ids each
    assert [read(known, *talk).startswith("[") for talk in ((question,), *talks)] == [False, False, True, True]
    led(known, "x" * 30, question)  # more than is ever kept
    assert not any(read(known, *talk).startswith("[") for talk in talks)


def test_a_server_that_runs_for_long_keeps_few_bytes_of_what_it_was_asked():
    known, call = Conversations(most_ids=100_000), Call("planner", (user("a"),))
    tracemalloc.start()
    try:
        for place in range(100):
            prompt = tuple(range(1000 + place, 11_000 + place))  # numbers of their own, as a tokenizer gives them
            known.remember(call, reply(f"reply {place}"), prompt)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_500_000


def test_white_space_and_ids_of_calls_may_change_on_the_way_and_what_is_asked_may_not():
    known, asked = Conversations(), FunctionCall("call_1", NAME, {"mountain": "K2"})
    answer = reply("look", asked)
    known.remember(Call("planner", (user("a"),)), answer, ids("[look?]"))

    def told(call_id, arguments, content="look"):
        function = {"name": NAME, "arguments": arguments}
        return {"role": "assistant", "content": content, "tool_calls": [{"id": call_id, "function": function}]}

    result = {"role": "tool", "tool_call_id": "x", "content": "high"}
    again = told("another", {"mountain": "K2"}, " look\n")
    assert read(known, user("a"), again, result).startswith("[look?]LOOK")
    assert not read(known, user("a"), told("call_1", {"mountain": "Eiger"}), result).startswith("[")


def test_results_of_one_reply_stand_in_one_message_where_a_template_knows_no_tools():
    asked = as_message(reply("look", FunctionCall("1", NAME, {"mountain": "K2"})))
    results = [{"role": "tool", "tool_call_id": key, "content": said} for key, said in (("1", "x"), ("2", "y"))]
    messages = [user("a"), asked, *results]
    before = json.dumps(messages)
    plain = templated(messages, TOKENS)
    assert [message["role"] for message in plain] == ["user", "assistant", "user"]
    assert (
        plain[1]["content"] == f'look\n<tool_call>{{"name": "{NAME}", "arguments": {{"mountain": "K2"}}}}</tool_call>'
    )
    assert plain[2]["content"] == "x\ny" and json.dumps(messages) == before
    assert text_of([user("a"), results[0]]) == "[user]\na\n\n[tool]\nx" and text_of([user("a")]) == "a"


def answered(text, **fields):
    written = make_action("planner", text, response_ids=(7, 8), logprobs=(-0.5, -0.25), finish_reason="length")
    return read_reply(written, Call("planner", (), **fields), TOKENS)


def test_functions_are_asked_for_all_together_or_not_at_all():
    good, other = (f'<tool_call>{{"name": "{name}", "parameters": {{"a": 1}}}}</tool_call>' for name in (NAME, "rm"))
    several = answered(f"<think>x</think>first {good}{good}", tools=(LOOK_UP,))
    assert [call.arguments for call in several.tool_calls] == [{"a": 1}] * 2
    assert several.tool_calls[0].id != several.tool_calls[1].id and several.finish_reason == "tool_calls"
    assert several.text.strip() == "first"
    for unmade in (answered(good + other, tools=(LOOK_UP,)), answered(good, tools=(LOOK_UP,), tool_choice="none")):
        assert unmade.tool_calls == () and unmade.finish_reason == "length" and good in unmade.text
    assert answered(good).tool_calls == ()
    assert len(answered(good * 9, tools=(LOOK_UP,)).tool_calls) == 9, "who makes them decides how many are too many"


def test_a_stop_text_ends_a_reply_in_the_midst_of_thinking_too():
    found = answered("<think>so END far</think>7", stop=("END",))
    assert (found.text, found.stop_text) == ("", "END")


def test_texts_of_tokens_are_told_to_who_asks_for_log_probabilities():
    assert answered("x", logprobs=True).token_texts == (chr(7), chr(8)) and answered("x").token_texts == ()
    assert answered("x").logprobs == (-0.5, -0.25) and answered("x").prompt_tokens == 1


def test_of_several_functions_each_has_its_own_result_and_one_that_was_not_told_is_not_well():
    calls = [FunctionCall(key, NAME, {"mountain": mountain}) for key, mountain in (("1", "K2"), ("2", "Eiger"))]
    role = Role("planner", "planner", tool_result_chars=40)
    first, second = _with_results(_Asked(0, role, reply("look", *calls)), {"2": "y" * 500, "3": "of another"})
    assert (first.result, first.ok) == ("(the app told no result)", False)
    assert second.ok and len(second.result) < 100 and json.loads(second.call) == {"mountain": "Eiger"}


class CountingTokenizer(CharacterTokenizer):
    """Notes how many characters it is given."""

    def __init__(self, context_length=100):
        super().__init__(context_length)
        self.given = 0

    def encode_chat(self, messages, thinking=False, tools=()):
        self.given += sum(len(message["content"]) for message in messages)
        return super().encode_chat(messages)

    def encode_opening(self, text):
        self.given += len(text)
        return super().encode_opening(text)


class SpacesTokenizer(CountingTokenizer):
    """A token may hold a hundred blanks, as those of models do."""

    def encode_opening(self, text):
        return super().encode_opening(text)[::100]


def test_a_text_of_long_tokens_is_measured_by_its_tokens():
    tokenizer, blanks = SpacesTokenizer(), user(" " * 5000)
    assert len(Conversations().prompt(Call("planner", (blanks,)), tokenizer).ids) > 5000
    with pytest.raises(ContextOverflow, match="has more than 256 tokens"):
        Conversations().prompt(Call("planner", (user(" " * 1_000_000),)), tokenizer)


LONG = "x" * 100_000
TAG = "</think>"


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ((user("a"), *(user("x" * 10_000) for _ in range(500))), ()),
        ((user(f"</think>{LONG}"),), ()),
        ((user("a"), {"role": "assistant", "content": f"well</think>{LONG}"}, user("b")), ()),
        ((user("a"), as_message(Reply("", "stop", 1, (), tool_calls=(FunctionCall("c", NAME, {"x": LONG}),)))), ()),
        ((user("a"), as_message(Reply(LONG, "stop", 1, (), tool_calls=(FunctionCall("c", NAME, {"x": TAG}),)))), ()),
        ((user("a"),), ({"type": "function", "function": {**LOOK_UP["function"], "description": LONG}},)),
    ],
    ids=[
        "many messages",
        "what only looks like thoughts",
        "what follows thoughts",
        "arguments",
        "before a tag in arguments",
        "tools",
    ],
)
def test_whatever_makes_a_conversation_long_no_more_than_its_beginning_is_read(messages, tools):
    """An app that hands over a file of megabytes by mistake would hold up all episodes while its tokens are counted."""
    tokenizer = CountingTokenizer()
    with pytest.raises(ContextOverflow, match=r"has more than 1600 tokens, and planner's context is 100 tokens"):
        Conversations().prompt(Call("planner", messages, tools=tools), tokenizer)
    assert tokenizer.given == 1600


THOUGHT = {"role": "assistant", "content": f"<think>{LONG}</think>yes"}


class ForgetfulTokenizer(CountingTokenizer):
    """Its template leaves the thoughts of earlier replies out."""

    def encode_chat(self, messages, thinking=False, tools=()):
        kept = [{**message, "content": message["content"].rpartition("</think>")[2]} for message in messages]
        return super().encode_chat(kept)


def test_thoughts_that_the_template_leaves_out_are_not_counted():
    tokenizer, messages = ForgetfulTokenizer(), (user("a"), THOUGHT, user("b"))
    prompt = Conversations().prompt(Call("planner", messages), tokenizer)
    assert "".join(map(chr, prompt.ids)) == "<user>a\n<assistant>yes\n<user>b\n<assistant>"
    assert tokenizer.given < 100


class NamingTokenizer(CountingTokenizer):
    """Its template writes who speaks."""

    def encode_chat(self, messages, thinking=False, tools=()):
        named = [{**message, "content": f"{message.get('name', '')}:{message['content']}"} for message in messages]
        return super().encode_chat(named)


class NamingToolTokenizer(NamingTokenizer):
    knows_tools = True


def test_long_names_are_measured_where_the_template_reads_them_and_nowhere_else():
    messages = ({**user("a"), "name": "Ann"}, {**user("b"), "name": LONG}, {**user("c"), "name": LONG})
    tokenizer = NamingToolTokenizer()
    with pytest.raises(ContextOverflow, match="has more than 1600 tokens"):
        Conversations().prompt(Call("planner", messages), tokenizer)
    assert tokenizer.given < 2000
    for unread in (NamingTokenizer(), CountingTokenizer()):  # a template that knows no tools is given no names
        Conversations().prompt(Call("planner", messages), unread)
        assert unread.given < 200


def test_of_long_thoughts_that_the_template_keeps_the_beginning_alone_is_read():
    """A body of tags alone kept everybody waiting for twenty seconds, and took gigabytes."""
    for thought in (THOUGHT, {"role": "assistant", "content": TAG * 100_000}):
        tokenizer = CountingTokenizer()
        with pytest.raises(ContextOverflow, match="has more than 1600 tokens"):
            Conversations().prompt(Call("planner", (user("a"), thought, user("b"))), tokenizer)
        assert tokenizer.given < 2000


def test_ids_of_functions_are_told_apart_from_ids_that_were_made_too():
    given = Counter()
    asked = [reply("", *(FunctionCall(id_, NAME, {}) for id_ in ids)) for ids in (["a", "a"], ["a_2"], ["a", "a_2"])]
    made = [function.id for one in asked for function in with_own_ids(one, given).tool_calls]
    assert len({*made}) == len(made) and made[:2] == ["a", "a_2"]
