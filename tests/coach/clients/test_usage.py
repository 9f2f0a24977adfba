"""What a provider says that a call took, and what it cannot have meant."""

from functools import partial
from typing import Any

import pytest

from coachrl.coach.clients.base import Reply
from coachrl.coach.clients.base import with_usage as counted
from coachrl.types import Usage

with_usage = partial(counted, most_in=1000, most_out=500)
REPLY = Reply("PROCESS_SCORE: 8", "m", Usage(attempts=1, latency_s=2.0))


def test_counts_stand_on_the_usage_beside_what_is_known_already() -> None:
    reply = with_usage(REPLY, 100, 20, 5, 40)
    assert reply.usage == Usage(1, 100, 20, 5, 40, 0.0, 2.0) and reply.usage_known


def test_no_more_is_thinking_than_there_was_and_what_cannot_be_cached_is_no_discount() -> None:
    usage = with_usage(REPLY, 100, 20, 50, 400).usage
    assert (usage.tokens_thinking, usage.tokens_cached) == (20, 0)


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out"),
    [
        *((None, 5), (0, 5), (10, None), (10, 0), (-1, 5), (10, -5), ("many", 5), (True, 5), (float("nan"), 5)),
        *((10**400, 5), (1001, 5), (10, 501), (10, float("inf"))),
    ],
)
def test_what_cannot_be_is_no_usage(tokens_in: Any, tokens_out: Any) -> None:
    reply = with_usage(REPLY, tokens_in, tokens_out, 0, 0)
    assert not reply.usage_known
    assert reply.usage == REPLY.usage


def test_as_much_as_could_be_is_believed() -> None:
    assert with_usage(REPLY, 1000, 500, -5, float("nan")).usage == Usage(1, 1000, 500, 0, 0, 0.0, 2.0)


def test_a_reply_without_text_may_be_of_no_tokens() -> None:
    assert with_usage(Reply("", "m"), 10, 0, 0, 0).usage_known
