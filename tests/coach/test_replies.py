"""How the reply of a coach model is read, piece by piece and at the bounds of each."""

import pytest

from coachrl.coach.replies import (
    bare,
    check_end,
    json_objects,
    last_statements,
    number_within,
    own_words,
    shown,
    statement_lines,
    undecorated,
)
from coachrl.errors import CoachError


def test_a_megabyte_is_read_and_no_more() -> None:
    assert own_words("a" * (1 << 20)) == "a" * (1 << 20)
    with pytest.raises(CoachError, match="1,048,577 characters, of which at most 1,048,576 are read"):
        own_words("a" * ((1 << 20) + 1))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (" \u00a0\na\u200b\n", "a"),
        ("a</think>b</think>c", "c"),
        ("a <think> b", "a <think> b"),  # it neither begins nor ends its line
        ("<analysis>a</analysis>b", "<analysis>a</analysis>b"),  # thinking aloud is the model's own word
        ("a</s></answer>\n<|im_end|>\n", "a"),
        ("a</s>b", "a</s>b"),
        ("a" + "</s>" * 21, "a</s>"),  # more is no ending, and would take long
        ("\u2000\u200da\u200d\u2000", "a"),
        ("<thinker>\na", "<thinker>\na"),
        ("\u200ea\u200f", "a"),
        ('{"a": "its </think> is missing"}\n', '{"a": "its </think> is missing"}'),
        ('{"a": "b</think>"} c', '"} c'),
        ("<|channel|>analysis<|message|>b<|channel|>final <|constrain|>json<|message|>a", "a"),
    ],
)
def test_hidden_thoughts_and_closing_marks_are_no_words_of_a_reply(reply: str, words: str) -> None:
    assert own_words(reply) == words


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "the reply is empty"),
        (" \n", "the reply is empty"),
        ("a</think> ", "nothing but hidden thoughts"),
        ("- <think>a", "nothing but hidden thoughts"),
        ("b\n- <think>a", "they were never closed"),
        ("<think>a</think>b\n<reflection>", "they were never closed"),
    ],
)
def test_a_reply_that_holds_no_words_of_its_own_says_why(reply: str, reason: str) -> None:
    with pytest.raises(CoachError, match=reason):
        own_words(reply)


def test_of_statements_that_say_the_same_the_last_stands() -> None:
    lines = statement_lines("SCORE", "NOTE")
    found = last_statements(
        lines, "SCORE: 1\nnote = x\nSCORE: 1\nNOTE: y\n> SCORE: 2\nmy SCORE: 3", lambda match: match["key"]
    )
    assert [(one.key, one.value, one.start) for one in found] == [
        ("note", " x", 9),
        ("SCORE", " 1", 18),
        ("NOTE", " y", 27),
    ]


def test_objects_begin_a_line_and_outer_ones_alone_are_found() -> None:
    text = 'x {"a": 0}\n {"a": {\n"b": 1}}, {"c": 2}\n{broken\n{"A": 1, "a": 2}\n{"d": 3}'
    assert list(json_objects(text)) == [({"a": {"b": 1}}, 28), ({}, 63), ({"d": 3}, 72)]
    assert list(json_objects('{"a":\n{"b": 1}}')) == [({"a": {"b": 1}}, 15)]


def test_a_thousand_objects_are_read_and_no_more() -> None:
    assert len(list(json_objects("{}\n" * 1000))) == 1000
    with pytest.raises(CoachError, match="more than 1,000 JSON objects"):
        list(json_objects("{}\n" * 1001))


def test_after_a_hundred_beginnings_of_no_object_one_more_is_looked_at_and_no_further() -> None:
    assert list(json_objects("{\n" * 100 + "{}" + " " * 20_000)) == [({}, 202)]
    assert list(json_objects("{\n" * 101 + "{}" + " " * 20_000)) == []


@pytest.mark.parametrize("after", ["", "\n```\n", "**\n", "```json", "```JSON", "\n---", "\u200b.", " ~~~ "])
def test_emphasis_and_fences_may_follow_a_verdict(after: str) -> None:
    check_end(f"ABSTAIN{after}", len("ABSTAIN"), "verdict")


@pytest.mark.parametrize("after", ["x", "\n1", "!", "\nxml", " (no)"])
def test_nothing_else_may_follow_a_verdict(after: str) -> None:
    with pytest.raises(CoachError, match="the reply does not end in its verdict: "):
        check_end(f"ABSTAIN{after}", len("ABSTAIN"), "verdict")


@pytest.mark.parametrize(
    ("value", "number"),
    [("-10", -10), ("\u22123", -3), ("\u20113", -3), ("10.", 10), (".5", 0.5), ("+3/10", 3),
     ("3 / 10.0", 3), ("3 Points (so so)", 3), (7, 7.0),
     ("ABSTAIN", None), ("**abstain** (no log)", None), ("(" + " " * 200 + "4)", 4)],
)  # fmt: skip
def test_a_number_may_be_decorated(value: object, number: float | None) -> None:
    assert number_within(value, "K", -10, 10) == number


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("10.01", "K is outside -10 to 10: '10.01'"),
        (-11, "K is outside -10 to 10: '-11'"),
        ("3/5", "K is not one number from -10 to 10: '3/5'"),
        ("3 (of 4)", "K is not one number from -10 to 10"),
        ("0" * 301, "K is not one number from -10 to 10"),
        (None, "K is not one number from -10 to 10: 'None'"),
        (True, "K is not one number from -10 to 10: 'True'"),
    ],
)
def test_what_is_no_number_of_the_range_is_named(value: object, reason: str) -> None:
    with pytest.raises(CoachError) as caught:
        number_within(value, "K", -10, 10)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("[8].", "8"),
        ("**[8]**.", "8"),
        (r"$\boxed{8}$", "8"),
        ("(<8>)", "8"),
        ("(([8]))", "[8]"),
        ("(8", "(8"),
        ("**'8'**", "8"),
        ("", ""),
    ],
)
def test_two_pairs_of_brackets_are_taken_off(value: str, inside: str) -> None:
    assert bare(value) == inside


def test_what_is_shown_of_a_reply_is_one_short_line() -> None:
    assert shown("a" * 80) == repr("a" * 80) and shown("a" * 81) == repr("a" * 80 + "...")
    assert shown("a\n  b") == "'a b'" and shown("a" + " " * 798 + "bc") == "'a b'"
    assert undecorated("\n **a** b_ \u3000") == "a** b"
