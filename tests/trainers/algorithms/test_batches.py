"""What every algorithm does with a batch."""

import gc
import math
from dataclasses import replace

import numpy as np
import pytest
from test_retrospective import episode
from train_samples import grouped, sample

from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.advantages.batches import with_advantages, with_credit
from coachrl.trainers.algorithms.advantages.groups import Groups, of_task
from coachrl.trainers.algorithms.advantages.importance import weighed
from coachrl.trainers.algorithms.advantages.tokens import Tokens


def test_advantages_are_one_value_for_all_tokens_or_one_for_each_and_0_where_none_is_given():
    batch = grouped([sample(name, length=3) for name in ("all", "each", "none")])
    [all_, each, none] = with_advantages(batch, {"all": 2.0, "each": np.array([1.0, 2.0, 3.0])}).samples["a"]
    assert all_.advantages_L.tolist() == [2, 2, 2] and each.advantages_L.tolist() == [1, 2, 3]
    assert none.advantages_L.tolist() == [0, 0, 0] and none.mask_L.all() and none.advantages_L.dtype == np.float32


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        (
            {"x": np.zeros(2)},
            r"the advantage of action x is an array of \(2,\): it must .* each of its 3 tokens",
        ),
        ({"x": "good"}, "the advantage of action x is 'good': it must be one number"),
        ({"x": "1"}, "the advantage of action x is '1': it must be one number"),
        ({"x": None}, "the advantage of action x is no finite number"),
        ({"x": 1.0, "z": 2.0}, "given for 'z', which is no action of the step"),
        ({"y": math.nan}, "the advantage of action y is no finite number"),
        ({"y": 1e39}, "the advantage of action y is no finite number of 32 bits"),
        ({"x": 1.0, "y": np.array([0.0, 1.0, math.inf])}, "the advantage of action y is no finite number"),
        (np.zeros(4), r"advantages have the shape \(4,\), and the samples 6 tokens in all"),
    ],
)
def test_advantages_that_cannot_be_trained_on_are_refused_by_their_action(advantages, said):
    with pytest.raises(ConfigError, match=said):
        with_advantages(grouped([sample("x", length=3), sample("y", length=3)]), advantages)


def test_what_is_left_out_is_masked_counted_and_without_advantage():
    batch = with_advantages(grouped([sample("x"), sample("y")]), {"x": 1.0, "y": 1.0}, leave_out={"y": "too easy"})
    [x, y] = batch.samples["a"]
    assert x.mask_L.all() and not y.mask_L.any() and not y.advantages_L.any() and batch.masked == {"too easy": 1}


def test_groups_of_one_are_not_counted_among_those_without_spread():
    samples = [sample(name, task=task) for name, task in zip("uvwxy", "ppqqr", strict=True)]
    groups = Groups(samples, {"u": 1.0, "v": 3.0, "w": 2.0, "x": 2.0, "y": 5.0}, of_task)
    batch = with_advantages(grouped(samples), {}, groups=groups)
    assert (batch.groups, batch.groups_of_one, batch.groups_without_spread) == (3, 1, 1)


def test_what_is_left_out_has_no_advantage_though_the_tokens_were_laid_out_before():
    team = [sample("x", length=2), sample("y", length=3)]
    batch = with_advantages(grouped(team), np.ones(5), tokens=Tokens(team), leave_out={"x": "too easy"})
    assert [s.advantages_L.tolist() for s in batch.samples["a"]] == [[0, 0], [1, 1, 1]]


def test_importance_weights_of_replies_that_one_side_finds_impossible_are_numbers():
    """Ratios of e^800 and e^-800, which no float holds."""
    logprobs_L = np.array([0.0, -800.0], dtype=np.float32)
    one = replace(sample("a", length=2), old_logprobs_L=logprobs_L[::-1].copy(), trainer_logprobs_L=logprobs_L)
    found = weighed(with_advantages(grouped([one]), {"a": 2.0}), 1.5)
    assert found.samples["a"][0].advantages_L.tolist() == pytest.approx([3.0, 0.0])
    assert found.metrics == pytest.approx(
        {"importance_clipped": 0.5, "importance_gap": 800.0, "importance_weight": 0.75}
    )


def test_importance_weights_are_cut_at_the_cap_and_told_of_what_is_trained_on_alone():
    """The trainer finds three tokens twice, half and 1.5 times as likely as the sampler did; a fourth is masked."""
    ratios = np.array([2.0, 0.5, 1.5, 8.0])
    one = sample("a", length=4)
    one = replace(
        one,
        trainer_logprobs_L=(one.old_logprobs_L + np.log(ratios)).astype(np.float32),
        mask_L=np.array([1, 1, 1, 0], dtype=np.float32),
    )
    out = replace(sample("b", length=4, masked="truncated"), trainer_logprobs_L=one.trainer_logprobs_L)
    batch = with_advantages(grouped([one, out]), {"a": 2.0})
    found = weighed(batch, 1.5)
    [first, _] = found.samples["a"]
    assert first.advantages_L[:3].tolist() == pytest.approx([3.0, 1.0, 3.0])
    assert first.old_logprobs_L is one.trainer_logprobs_L and first.advantages_L.dtype == np.float32
    assert found.metrics["importance_weight"] == pytest.approx(3.5 / 3)
    assert found.metrics["importance_gap"] == pytest.approx((2 * math.log(2) + math.log(1.5)) / 3, rel=1e-6)
    assert weighed(batch, 1.6).metrics["importance_clipped"] == pytest.approx(1 / 3)
    assert weighed(batch, 1.4).metrics["importance_clipped"] == pytest.approx(2 / 3)
    unknown = with_advantages(grouped([replace(one, trainer_logprobs_L=None)]), {"a": 2.0})
    with pytest.raises(ValueError, match=r"importance weights need the trainer's log-probs"):
        weighed(unknown, 1.5)


def test_each_policy_has_its_own_samples_with_their_own_advantages():
    team = [sample("x", policy="one"), sample("y", policy="two"), sample("z", policy="one", length=2)]
    samples = with_advantages(grouped(team), {"x": 1.0, "y": 2.0, "z": 3.0}).samples
    assert {policy: [s.advantages_L.tolist() for s in group] for policy, group in samples.items()} == {
        "one": [[1], [3, 3]],
        "two": [[2]],
    }


def test_a_reader_is_shown_the_mean_over_trained_tokens_and_why_an_action_was_left_out():
    """Of three tokens the middle one is masked; a reward of 0 is a reward; a candidate has its credit as well."""
    played = episode("e", 3)
    played = replace(played, rejected_candidates=(replace(played.actions[0], id="e/0.1"),))
    partly = replace(sample("e/0", length=3), mask_L=np.array([1, 0, 1], np.float32))
    team = [partly, sample("e/1", masked="truncated"), sample("e/0.1")]
    batch = with_advantages(grouped(team), {"e/0": np.array([1.0, 9.0, 4.0]), "e/0.1": -2.0})
    [shown] = with_credit([played], {"e/0": 0.0, "e/1": 7.0, "e/0.1": 3.0}, batch)
    first, cut, foreign = (action.credit for action in shown.actions)
    assert (first.reward, first.advantage, first.left_out) == (0.0, 2.5, None)
    assert (cut.reward, cut.advantage, cut.left_out) == (7.0, None, "truncated")
    assert foreign is None, "an action that no policy of the run wrote"
    [candidate] = shown.rejected_candidates
    assert (candidate.credit.reward, candidate.credit.advantage) == (3.0, -2.0)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_a_batch_as_it_was_before(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with_advantages(grouped([sample("x")]), {"x": 1.0})
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
