from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from made_samples import train_sample

from coachrl.trainers.backends.torch import logprobs
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.attention import KeyValues
from coachrl.trainers.backends.torch.engine.proof import use_shared_prefix
from coachrl.trainers.backends.torch.logprobs import micro_batches, plain_head, shared_prefix, token_logprobs
from coachrl.trainers.backends.torch.policy import load_model

CPU = torch.device("cpu")
PREFIX = list(range(60, 100))


@pytest.fixture(scope="module", params=["padded batches", "shared prefix"])
def model(tiny_model, request):
    model = load_model(tiny_model, torch.float32, CPU)
    assert request.param == "padded batches" or use_shared_prefix(model)
    return model


def sample(i, prompt, response, mask=1.0, role="solver"):
    return train_sample(
        prompt, response, np.arange(len(response)), mask, policy="p", action_id=f"e/{i}", role=role, index=i
    )


def samples(count=7, prefix=(), role="solver"):
    rng = np.random.default_rng(len(prefix))

    def draw(low, high):
        return rng.integers(0, 256, rng.integers(low, high)).tolist()

    return [sample(i, [*prefix, *draw(1, 9)], draw(1, 12), role=role) for i in range(count)]


def plain(model, one, temperature=1.0):
    ids = torch.from_numpy(np.concatenate([one.prompt_ids_P, one.response_ids_L]))[None]
    every = (model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
    chosen = torch.from_numpy(np.flatnonzero(one.mask_L)) + len(one.prompt_ids_P) - 1
    return every[chosen].gather(1, ids[0, 1:][chosen][:, None])[:, 0], -(every.exp() * every).sum(-1)[chosen]


@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["no prefix", "shared prefix"])
@pytest.mark.parametrize("max_tokens", [1, 120, 100_000])
def test_values_and_gradients_equal_a_plain_forward_pass(model, monkeypatch, prefix, max_tokens):
    monkeypatch.setattr(logprobs, "_HEAD_ELEMENTS", 258 * 5)  # five positions at a time
    group = [*samples(7, prefix), sample(7, [*prefix, 1, 2], [3, 4, 5, 6], mask=[1, 0, 0, 1])]
    weight = {one.action_id: 0.3 + one.index for one in group}
    model.zero_grad()
    sum(weight[one.action_id] * plain(model, one)[0].sum() for one in group).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    seen = []
    for batch in chain.from_iterable(micro_batches(group, max_tokens, CPU)):
        assert batch.prefix_1S.tolist() == [prefix]
        values, entropies = token_logprobs(model, batch)
        assert not entropies.requires_grad
        counts = [int(one.mask_L.sum()) for one in batch.samples]
        for one, part, entropy in zip(batch.samples, values.split(counts), entropies.split(counts), strict=True):
            logprob, expected_entropy = plain(model, one)
            torch.testing.assert_close(part, logprob, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(entropy, expected_entropy, atol=1e-4, rtol=1e-4)
            seen.append(one.action_id)
        weights = torch.cat(
            [torch.full((n,), weight[one.action_id]) for one, n in zip(batch.samples, counts, strict=True)]
        )
        (weights * values).sum().backward()
    assert sorted(seen) == sorted(weight)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-3, rtol=1e-3)
    model.zero_grad(set_to_none=True)


def test_a_prefix_is_run_once_for_all_micro_batches_and_its_gradient_is_whole(tiny_model):
    model = load_model(tiny_model, torch.float32, CPU)
    group = samples(9, PREFIX)
    sum(plain(model, one)[0].sum() for one in group).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    assert use_shared_prefix(model)
    fed = []
    model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"]), with_kwargs=True
    )
    (batches,) = micro_batches(group, 80, CPU)
    assert len(batches) > 2
    prefix = shared_prefix(model, batches)
    for batch in batches:
        token_logprobs(model, batch, prefix=prefix)[0].sum().backward()
    prefix.backward()
    own = sum(len(one.prompt_ids_P) + len(one.response_ids_L) - len(PREFIX) for one in group)
    assert sum(ids.numel() for ids in fed) == len(PREFIX) + own  # nothing twice, and no padding
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-3, rtol=1e-3)


def test_micro_batches_keep_to_the_budget():
    group = [*samples(20, PREFIX), *samples(5, role="verifier")]
    of_roles = list(micro_batches(group, 100, CPU))
    assert len(of_roles) == 2
    batches = list(chain.from_iterable(of_roles))
    assert len(batches) > 2
    for batch in batches:
        assert len({one.role for one in batch.samples}) == 1  # roles have different prefixes
        assert batch.prefix_1S.numel() + len(batch.samples) * max(batch.lengths) <= 100 or len(batch.samples) == 1
    assert sum(len(batch.samples) for batch in batches) == 25


def test_gather_follows_the_selected_tokens():
    one = sample(0, [1, 2], [3, 4, 5], mask=[1, 0, 1])
    ([masked],), ([everything],) = (list(micro_batches([one], 100, CPU, all_tokens=every)) for every in (False, True))
    assert masked.gather([one.old_logprobs_L]).tolist() == [0, 2]
    assert masked.targets_N.tolist() == [3, 5]
    assert masked.places_N.tolist() == [1, 3]
    assert everything.gather([one.old_logprobs_L]).tolist() == [0, 1, 2]


def test_architectures_that_change_their_logits_are_seen(model):
    assert plain_head(model)
    from transformers import Gemma2Config, Gemma2ForCausalLM

    capped = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.5, initializer_range=1.0,
        )
    ).eval()  # fmt: skip
    assert not plain_head(capped)


def test_log_probabilities_are_those_of_the_temperature_drawn_at(model):
    group = samples(3, PREFIX)
    [[batch]] = micro_batches(group, 100_000, CPU)
    with torch.no_grad():
        values, _ = token_logprobs(model, batch, temperature=0.7)
        expected = torch.cat([plain(model, one, 0.7)[0] for one in batch.samples])
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=1e-4)


def test_an_update_does_not_keep_the_scores_of_its_attention(tiny_model):
    model = load_model(tiny_model, torch.float32, CPU)
    assert use_shared_prefix(model)
    [[batch]] = micro_batches(samples(7, PREFIX), 100_000, CPU)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape[-1:]) or x, lambda x: x):
        token_logprobs(model, batch)
    assert kept
    assert (len(PREFIX) + max(batch.lengths),) not in kept


@pytest.mark.parametrize("shared", [0, 5, 300])
@pytest.mark.parametrize("keep_graph", [True, False], ids=["training", "no gradients"])
def test_attention_as_one_kernel_is_that_in_pieces(shared, keep_graph):
    """What a GPU runs, by the products that stand in for its kernel on a CPU."""
    generator = torch.Generator().manual_seed(shared)

    def drawn(*shape):
        return torch.randn(shape, generator=generator, requires_grad=keep_graph)

    query, keys, values = drawn(3, 2, 3, 290, 16), drawn(3, 2, 290, 16), drawn(3, 2, 290, 16)
    prefix = KeyValues(drawn(2, shared, 16), drawn(2, shared, 16)) if shared else None
    assert not attention._can_fuse(query, keys, values)
    pieces, fused = (
        attend(query, keys, values, prefix) for attend in (attention._attention_in_pieces, attention._fused_attention)
    )
    torch.testing.assert_close(fused, pieces, atol=1e-5, rtol=1e-4)
    if keep_graph:
        inputs, weights = [query, keys, values, *(prefix or ())], torch.randn(query.shape, generator=generator)
        expected = torch.autograd.grad(pieces, inputs, weights)
        torch.testing.assert_close(torch.autograd.grad(fused, inputs, weights), expected, atol=1e-4, rtol=1e-3)
