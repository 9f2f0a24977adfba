"""Samples over ranks: nothing lost, equal places, like numbers of tokens."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.trainers.openrlhf.balance import share_out


@given(
    tokens=st.lists(st.integers(2, 5000), min_size=1, max_size=80),
    ranks=st.integers(1, 8),
    micro_batch=st.integers(1, 4),
    minibatch=st.none() | st.integers(1, 32),
)
def test_every_sample_has_one_place_and_every_rank_as_many_places(tokens, ranks, micro_batch, minibatch):
    shares = share_out(tokens, ranks, micro_batch, minibatch)
    placed = [place for rank in shares.ranks for place in rank if place is not None]
    assert sorted(placed) == list(range(len(tokens)))
    assert {len(rank) for rank in shares.ranks} == {shares.steps * shares.per_step}
    assert shares.per_step % micro_batch == 0
    assert shares.steps == (math.ceil(len(tokens) / minibatch) if minibatch else 1)
    assert shares.padding == shares.steps * shares.per_step * ranks - len(tokens)
    assert shares.padding < shares.steps * ranks * micro_batch  # not one micro-batch more than needed


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=80), st.integers(1, 8))
def test_ranks_differ_by_no_more_than_the_longest_sample(tokens, ranks):
    loads = [sum(tokens[i] for i in rank if i is not None) for rank in share_out(tokens, ranks, 1).ranks]
    assert max(loads) <= sum(tokens) / ranks + max(tokens)


def test_long_and_short_samples_meet():
    shares = share_out([900, 100, 800, 200, 700, 300], ranks=3, micro_batch=1)
    assert sorted(sorted(rank) for rank in shares.ranks) == [[0, 1], [2, 3], [4, 5]]


def test_no_sample_is_an_error():
    with pytest.raises(ValueError, match="no sample"):
        share_out([], 2, 1)
