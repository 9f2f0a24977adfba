"""Samples over ranks: nothing lost, as many micro-batches, like numbers of tokens."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.seeding import generator
from coachrl.trainers.backends.openrlhf.rollout.balance import EngineChoice, share_out

TOKENS = st.lists(st.integers(2, 5000), min_size=1, max_size=80)


@given(TOKENS, st.integers(1, 8), st.integers(64, 20_000))
def test_every_sample_has_one_place_in_micro_batches_under_the_budget(tokens, ranks, budget):
    shares = share_out(tokens, ranks, budget)
    batches = [batch for rank in shares.ranks for batch in rank]
    assert sorted(place for batch in batches for place in batch) == list(range(len(tokens)))
    assert all(len(batch) <= 1 or sum(tokens[i] for i in batch) <= budget for batch in batches)


@given(TOKENS, st.integers(1, 8), st.integers(64, 20_000))
def test_every_rank_runs_as_many_micro_batches_and_one_of_them_none_without_samples(tokens, ranks, budget):
    shares = share_out(tokens, ranks, budget)
    assert len({len(rank) for rank in shares.ranks}) == 1
    assert any(all(rank) for rank in shares.ranks)
    assert shares.padding == sum(not batch for rank in shares.ranks for batch in rank)


@given(TOKENS, st.integers(1, 8))
def test_ranks_differ_by_no_more_than_the_longest_sample(tokens, ranks):
    loads = [sum(tokens[i] for batch in rank for i in batch) for rank in share_out(tokens, ranks, 8192).ranks]
    assert max(loads) - min(loads) <= max(tokens)


def test_long_and_short_samples_meet():
    shares = share_out([900, 100, 800, 200, 700, 300], ranks=3, budget=1000)
    assert sorted(shares.ranks) == [((0, 1),), ((2, 3),), ((4, 5),)]


def test_short_samples_share_a_pass_and_a_long_one_has_its_own():
    assert share_out([40, 3000, 50, 60], ranks=1, budget=100).ranks == (((1,), (3, 0), (2,)),)


def test_no_sample_is_an_error():
    with pytest.raises(ValueError, match="no sample"):
        share_out([], 2, 1000)


def play(workers, episodes, engines, turns, seed=0):
    """Each worker's episodes take turns of replies and of waiting, as long as each other on average. Requests by
    engine, and the share of an episode's later requests that went to the engine of the one before."""
    random = generator(seed, "time")
    choices = [EngineChoice(engines, generator(seed, "worker", worker)) for worker in range(workers)]
    due = [(random.exponential(), worker, episode, None) for worker in range(workers) for episode in range(episodes)]
    heapq.heapify(due)
    homes, requests, at_home = {}, [0] * engines, []
    while sum(requests) < workers * episodes * turns:
        now, worker, episode, busy = heapq.heappop(due)
        if busy is not None:
            choices[worker].in_flight[busy] -= 1
            heapq.heappush(due, (now + random.exponential(), worker, episode, None))
            continue
        home = homes.get((worker, episode))
        chosen = choices[worker].choose(home)
        at_home += [] if home is None else [chosen == home]
        homes[worker, episode] = chosen
        choices[worker].in_flight[chosen] += 1
        requests[chosen] += 1
        heapq.heappush(due, (now + random.exponential(), worker, episode, chosen))
    return requests, sum(at_home) / max(len(at_home), 1)


def test_requests_of_eight_workers_are_spread_over_eight_engines():
    """First turns: an episode has no engine of its own yet."""
    requests = sum(np.array(play(8, 4, 8, turns=1, seed=seed)[0]) for seed in range(50))
    shares = requests / requests.sum()
    assert min(shares) > 0.1 and max(shares) < 0.15, shares


def test_an_episode_stays_with_its_engine_and_the_load_stays_even():
    totals, stays = zip(*[play(8, 4, 8, turns=20, seed=seed) for seed in range(50)], strict=True)
    shares = sum(map(np.array, totals)) / np.sum(totals)
    assert min(shares) > 0.1 and max(shares) < 0.15, shares
    assert min(stays) > 0.9


@pytest.mark.parametrize(("workers", "episodes"), [(1, 2000), (8, 250)])
def test_of_two_thousand_episodes_nearly_all_turns_find_their_prompts_cached_and_engines_are_alike(workers, episodes):
    requests, stays = play(workers, episodes, engines=8, turns=10)
    assert max(requests) < 1.05 * np.mean(requests) and min(requests) > 0.95 * np.mean(requests)
    assert stays > 0.95


@pytest.mark.parametrize(
    ("fewest", "busiest_home"),
    [(0, 2), (1, 3), (3, 5), (4, 8), (100, 120)],  # two more at least, or twice the root of the fewest
)
def test_an_engine_much_busier_than_others_is_left(fewest, busiest_home):
    choice = EngineChoice(3, generator(0))
    choice.in_flight = [busiest_home, fewest, busiest_home]
    assert choice.choose(home=0) == 0
    choice.in_flight[0] += 1
    assert choice.choose(home=0) == 1


def test_equal_seeds_choose_alike():
    drawn = [EngineChoice(8, generator(seed)).choose() for seed in range(20)]
    assert drawn == [EngineChoice(8, generator(seed)).choose() for seed in range(20)]
    assert len(set(drawn)) > 4
