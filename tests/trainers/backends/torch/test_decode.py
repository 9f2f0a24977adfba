from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch.engine import decode
from coachrl.trainers.backends.torch.engine.decode import (
    Request,
    generate_batch,
    prefix_to_share,
    shared_prefix_length,
)
from coachrl.trainers.backends.torch.engine.sampling import draw
from coachrl.trainers.backends.torch.engine.slots import SlotCache
from coachrl.trainers.backends.torch.policy import load_model
from coachrl.types import SamplingParams

EOS = frozenset({257})


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, torch.float32, torch.device("cpu"))


def prompts(count, prefix=(), seed=0):
    rng = np.random.default_rng(seed)
    return [(*prefix, *rng.integers(0, 256, rng.integers(1, 30)).tolist()) for _ in range(count)]


def requests(count, prefix=(), **sampling):
    return [
        Request(prompt, SamplingParams(**{"max_new_tokens": 24, "seed": i} | sampling))
        for i, prompt in enumerate(prompts(count, prefix))
    ]


def run(model, batch):
    return generate_batch(model, batch, EOS, weights_version=3)


def plain_logprobs(model, request, reply, temperature=1.0):
    """Log-probabilities of a reply from one forward pass over the whole text, without any cache."""
    ids = torch.tensor([[*request.prompt_ids, *reply.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].double() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_plain_forward_pass(model, temperature):
    batch = requests(12, temperature=temperature)
    for request, reply in zip(batch, run(model, batch), strict=True):
        expected = plain_logprobs(model, request, reply, temperature)
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)
        assert reply.weights_version == 3


def test_a_batch_of_one_equals_a_batch_of_many(model):
    batch = [
        *requests(4),
        *requests(4, temperature=0.0),
        *requests(3, temperature=1.3, max_new_tokens=7),
        *requests(3, top_p=0.7, max_new_tokens=40),
    ]
    together = run(model, batch)
    for request, reply in zip(batch, together, strict=True):
        (alone,) = run(model, [request])
        assert alone.token_ids == reply.token_ids
        assert alone.finish_reason == reply.finish_reason
        np.testing.assert_allclose(alone.logprobs, reply.logprobs, atol=1e-4)


def test_greedy_is_the_argmax_of_a_plain_forward_pass(model):
    for request, reply in zip(batch := requests(5, temperature=0.0), run(model, batch), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *reply.token_ids]])
        with torch.no_grad():
            expected = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].argmax(-1)
        assert reply.token_ids == tuple(expected.tolist())
        assert set(reply.logprobs) == {0.0}


def test_a_shared_prefix_changes_nothing(model, monkeypatch):
    prefix = tuple(range(40, 90))
    batch = requests(8, prefix)
    assert decode.prefix_to_share([request.prompt_ids for request in batch]) >= len(prefix)
    shared = run(model, batch)
    monkeypatch.setattr(decode, "prefix_to_share", lambda prompts: 0)
    apart = run(model, batch)
    for one, other in zip(shared, apart, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_equal_prompts_share_all_but_the_last_token(model):
    prompt = tuple(range(30))
    batch = [Request(prompt, SamplingParams(16, seed=seed)) for seed in range(4)]
    replies = run(model, batch)
    assert len({reply.token_ids for reply in replies}) == 4  # only the seed differs
    assert replies[2].token_ids == run(model, [batch[2]])[0].token_ids


def test_the_output_layer_is_not_copied_for_each_row(tiny_model):
    model = load_model(tiny_model, torch.bfloat16, torch.device("cpu")).requires_grad_(False)
    batch = [Request((*range(40), i, i), SamplingParams(2, seed=i)) for i in range(16)]
    with torch.profiler.profile(record_shapes=True) as profile:
        generate_batch(model, batch, frozenset(), 0)
    vocabulary = model.config.vocab_size
    multiplied = [event.input_shapes for event in profile.events() if event.name in ("aten::mm", "aten::bmm")]
    by_output_layer = [shapes for shapes in multiplied if any(vocabulary in shape for shape in shapes)]
    assert by_output_layer
    assert all(len(shape) == 2 for shapes in by_output_layer for shape in shapes if shape)


def test_the_seed_fixes_the_reply_and_a_longer_limit_extends_it(model):
    (request,) = requests(1, max_new_tokens=8)
    (longer,) = requests(1, max_new_tokens=30)
    (reply,), (again,), (extended,) = (run(model, [r]) for r in (request, request, longer))
    assert reply == again
    assert extended.token_ids[: len(reply.token_ids)] == reply.token_ids


def test_a_reply_ends_with_its_end_of_turn_token(model):
    replies = run(model, requests(64, max_new_tokens=120))
    reasons = {reply.finish_reason for reply in replies}
    for reply in replies:
        ends = [i for i, token in enumerate(reply.token_ids) if token in EOS]
        assert ends == ([len(reply.token_ids) - 1] if reply.finish_reason == "stop" else [])
        assert len(reply.logprobs) == len(reply.token_ids)
        assert reply.finish_reason == "stop" or len(reply.token_ids) == 120
    assert reasons == {"stop", "length"}  # both were seen, and rows left the batch at different times


def test_a_reply_that_is_given_up_ends_and_changes_no_other(model):
    whole = run(model, requests(3, max_new_tokens=60))
    batch = requests(3, max_new_tokens=60)
    batch[1].given_up.set()
    replies = run(model, batch)
    assert len(replies[1].token_ids) < len(whole[1].token_ids)
    assert [replies[0].token_ids, replies[2].token_ids] == [whole[0].token_ids, whole[2].token_ids]


def test_more_than_one_token_may_end_a_reply(model):
    (reply,) = generate_batch(model, requests(1, temperature=0.0), EOS, 0)
    (ended,) = generate_batch(model, requests(1, temperature=0.0), EOS | {reply.token_ids[3]}, 0)
    assert ended.finish_reason == "stop"
    assert ended.token_ids == reply.token_ids[: reply.token_ids.index(reply.token_ids[3]) + 1]


def test_the_drawn_tokens_follow_the_distribution():
    logits = torch.tensor([2.0, 0.0, 1.0, -30.0]).repeat(4000, 1)
    noise = torch.from_numpy(np.random.default_rng(0).random(4000))
    tokens, logprobs = draw(logits, torch.full((4000,), 0.5), torch.ones(4000), noise)
    expected = torch.softmax(logits[0] / 0.5, -1)
    share = torch.bincount(tokens, minlength=4) / 4000
    assert torch.allclose(share, expected, atol=0.02)
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-5)


def test_the_most_likely_token_is_in_every_nucleus():
    noise = torch.tensor([0.9], dtype=torch.float64)
    tokens, logprobs = draw(torch.tensor([[0.0, 3.0, 1.0]]), torch.ones(1), torch.zeros(1), noise)
    assert (tokens.tolist(), logprobs.tolist()) == ([1], [0.0])


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    noise=st.floats(0, 1, exclude_max=True),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.1, 3.0),
)
def test_only_tokens_of_the_nucleus_are_drawn(seed, noise, top_p, temperature):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (1, 50)))
    logits[0, seed % 50] = -torch.inf
    tokens, logprobs = draw(
        logits, torch.tensor([temperature]), torch.tensor([top_p]), torch.tensor([noise], dtype=torch.float64)
    )
    probabilities = torch.softmax(logits[0].float() / temperature, -1)
    order = probabilities.argsort(descending=True)
    mass_before = probabilities[order].cumsum(0) - probabilities[order]
    nucleus = order[mass_before < top_p + 1e-5]
    assert tokens.item() in nucleus.tolist()
    assert probabilities[tokens.item()] > 0
    if top_p < 1:
        assert logprobs.item() >= probabilities[tokens.item()].log().item() - 1e-5  # renormalised, so never less
    else:
        assert logprobs.item() == pytest.approx(probabilities[tokens.item()].log().item(), abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "noise", "token"),
    [([0, 1, 1], 0.0, 1), ([0, 1, 1], 0.5, 2), ([1, 0, 1], 0.5, 2), ([1, 1, 0], 0.999, 1), ([1, 1, 2], 0.5, 2)],
)
def test_a_token_begins_where_the_sum_of_those_before_it_ends_and_one_without_weight_is_never_drawn(
    weights, noise, token
):
    logits = torch.tensor([weights], dtype=torch.float64).log()
    tokens, _ = draw(logits, torch.ones(1), torch.ones(1), torch.tensor([noise], dtype=torch.float64))
    assert tokens.tolist() == [token]


@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.95, 0.2])
def test_of_a_large_vocabulary_tokens_are_drawn_by_the_whole_distribution(top_p):
    """More tokens than are summed up, or sorted, at once: each row is held against an inverse of its own sums."""
    chances = np.random.default_rng(0).permutation(np.arange(1.0, 3001.0))
    noises = (0.0, 0.1, 0.5, 0.97, 0.9999)
    tokens, logprobs = draw(
        torch.from_numpy(np.log(chances))[None].repeat(5, 1),
        torch.ones(5),
        torch.full((5,), top_p),
        torch.tensor(noises, dtype=torch.float64),
    )
    order = np.argsort(-chances) if top_p < 1 else np.arange(3000)
    sorted_ = chances[order] / chances.sum()
    kept = np.where(sorted_.cumsum() - sorted_ < top_p, sorted_, 0.0)
    for noise, token, logprob in zip(noises, tokens.tolist(), logprobs.tolist(), strict=True):
        expected = np.searchsorted(kept.cumsum(), noise * kept.sum(), side="right")
        place = int(np.flatnonzero(order == token)[0])
        assert abs(place - expected) <= 1, "to the rounding of float32"
        assert logprob == pytest.approx(np.log(kept[place] / kept.sum()), abs=1e-3)


@pytest.mark.parametrize(
    ("noise", "token", "chance"), [(0, 2, 5 / 8), (0.62, 2, 5 / 8), (0.63, 0, 3 / 8), (0.99, 0, 3 / 8)]
)
def test_the_nucleus_holds_the_token_that_fills_it_and_none_after_it(noise, token, chance):
    logits = torch.tensor([[0.3, 0.2, 0.5]]).log()
    tokens, logprobs = draw(logits, torch.ones(1), torch.tensor([0.6]), torch.tensor([noise], dtype=torch.float64))
    assert tokens.tolist() == [token]
    assert logprobs.exp().item() == pytest.approx(chance)


def test_a_nucleus_that_is_full_takes_no_further_token():
    """Four tokens of a quarter each, exact in floats: two of them are a half, and any further one would be more."""
    noise = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.999], dtype=torch.float64)
    tokens, logprobs = draw(torch.zeros(5, 4), torch.ones(5), torch.full((5,), 0.5), noise)
    first, second = tokens[0].item(), tokens[-1].item()
    assert tokens.tolist() == [first, first, second, second, second] and first != second
    assert logprobs.exp().tolist() == [pytest.approx(0.5)] * 5


def test_each_row_is_drawn_by_its_own_temperature_and_nucleus():
    """One row of each kind side by side: greedy, by a nucleus, by all, and colder."""
    logits = torch.tensor([[0.3, 0.2, 0.5]]).log().repeat(4, 1)
    noise = torch.full((4,), 0.99, dtype=torch.float64)
    tokens, logprobs = draw(logits, torch.tensor([0.0, 1.0, 1.0, 0.5]), torch.tensor([0.6, 0.6, 1.0, 1.0]), noise)
    assert tokens.tolist() == [2, 0, 2, 2]
    assert logprobs.exp().tolist() == pytest.approx([1.0, 3 / 8, 0.5, 25 / 38])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=2, max_size=5))
def test_shared_prefix_length(prompts):
    length = shared_prefix_length(prompts)
    assert all(prompt[:length] == prompts[0][:length] for prompt in prompts)
    assert all(len(prompt) > length for prompt in prompts)
    longer = length + 1
    assert min(map(len, prompts)) == longer or len({tuple(prompt[:longer]) for prompt in prompts}) > 1


def test_a_prefix_is_run_once_where_it_is_long_and_of_several():
    same = list(range(16))
    assert prefix_to_share([[*same, 1], [*same, 2, 3]]) == 16 and prefix_to_share([same, [*same, 7]]) == 0
    assert prefix_to_share([[*same, 1]]) == prefix_to_share([[9, *same], same]) == 0


def test_rows_from_the_end_take_the_slots_of_those_that_leave():
    cache = SlotCache({}, 6, torch.device("cpu"))
    cache.enter({}, [1, 2, 3, 4, 5, 6])
    assert cache.keep([0, 2, 3, 5]) == [0, 5, 2, 3]
    assert cache.begin_step().tolist() == [1, 6, 3, 4]
    assert cache.keep([1, 2]) == [2, 1] and cache.begin_step().tolist() == [4, 7]
    cache.enter({}, [2])
    open_slots = [(cache._mask[slot].flatten() == 0).sum().item() for slot in range(3)]
    assert open_slots == [5, 8, 2] and cache.keep([]) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_is_drawn_from_logits_that_are_not_finite(value, temperature):
    logits = torch.zeros(2, 300)
    logits[1, 7] = value
    with pytest.raises(PolicyError, match="a model's logits are not finite"):
        draw(logits, torch.full((2,), temperature), torch.ones(2), torch.rand(2, generator=torch.manual_seed(0)))
