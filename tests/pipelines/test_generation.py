"""Where a reply stops, and what its text begins with: one token a character."""

import pytest

from coachrl.pipelines.generation import listening, opening, reply_text, stopped_at, token_listener
from coachrl.testing.scripted import CharacterTokenizer
from coachrl.types import Example, Generation, Role

TOKENS = CharacterTokenizer()


def drawn(text):
    ids = (*map(ord, text), 0)
    return Generation(ids, tuple(-float(place) for place in range(len(ids))), "length", 3)


@pytest.mark.parametrize(
    ("stops", "kept"),
    [(["END"], "one END"), (["no", "STOP", "END"], "one END"), (["o"], "o"), (["STOP"], "one END two STOP")],
)
def test_a_reply_ends_with_the_token_that_completes_the_first_of_the_texts(stops, kept):
    reply = drawn("one END two STOP three")
    cut = stopped_at(reply, TOKENS, stops)
    assert cut.token_ids == tuple(map(ord, kept)) and cut.logprobs == reply.logprobs[: len(kept)]
    assert (cut.finish_reason, cut.weights_version) == ("stop", 3)


@pytest.mark.parametrize("stops", [[], ["never"]])
def test_a_reply_without_such_a_text_stays_as_it_is(stops):
    reply = drawn("one")
    assert stopped_at(reply, TOKENS, stops) is reply


@pytest.mark.parametrize(
    ("prompt", "begun"), [("ask <think>\n", "<think>\n"), ("ask <think> no", "[call]"), ("", "[call]")]
)
def test_thinking_that_the_prompt_opens_and_what_is_forced_belong_to_the_text(prompt, begun):
    assert reply_text(TOKENS, tuple(map(ord, prompt)), tuple(map(ord, "7")), "[call]") == f"{begun}7"


def test_examples_come_before_what_is_asked():
    role = Role("a", "a", examples=(Example("1 + 1", "2"), Example("2 + 2", "4")))
    assert [(said["role"], said["content"]) for said in opening(role, "3 + 3")] == [
        ("user", "1 + 1"),
        ("assistant", "2"),
        ("user", "2 + 2"),
        ("assistant", "4"),
        ("user", "3 + 3"),
    ]


def test_somebody_listens_as_long_as_the_block_lasts():
    with listening(print):
        assert token_listener() is print
    assert token_listener() is None
