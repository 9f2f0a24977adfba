"""Episodes become training samples: whose they are, what is masked, and why."""

from dataclasses import replace

import numpy as np
import pytest

from coachrl.config import TrainConfig
from coachrl.prompts import parse_prompt
from coachrl.testing.actions import make_action
from coachrl.trainers.masking import training_samples
from coachrl.trainers.samples import to_samples
from coachrl.types import Episode, Outcome, Role

ASK = parse_prompt("---\nfields: [problem]\n---\n{{problem}}", "ask")


def action(name, *, role="a", policy="shared", index=0, finish_reason="stop", infra_error=None, candidate=0):
    return make_action(
        role,
        id=name,
        index=index,
        policy=policy,
        turn=index,
        prompt_ids=(1, 2, 3),
        response_ids=(4, 5),
        logprobs=(-0.5, -0.25),
        finish_reason=finish_reason,
        weights_version=7,
        infra_error=infra_error,
        candidate=candidate,
    )


def episode(*actions, rejected=()):
    return Episode("e", "t", "k", "p", actions, Outcome(True), rejected_candidates=tuple(rejected))


def only(samples):
    (sample,) = samples["shared"]
    return sample


def test_a_sample_holds_what_its_action_read_wrote_and_drew_with():
    sample = only(to_samples([episode(action("e/3", index=3))]))
    assert (sample.action_id, sample.episode_id, sample.task_id, sample.role) == ("e/3", "e", "t", "a")
    assert (sample.turn, sample.index, sample.masked_because) == (3, 3, None)
    assert sample.prompt_ids_P.tolist() == [1, 2, 3] and sample.response_ids_L.tolist() == [4, 5]
    assert sample.old_logprobs_L.tolist() == [-0.5, -0.25] and sample.mask_L.tolist() == [1, 1]
    assert sample.old_logprobs_L.dtype == sample.mask_L.dtype == np.float32


def test_two_roles_on_one_policy_train_it_together_in_the_order_of_the_actions():
    played = episode(action("e/0"), action("e/1", role="b", index=1), action("e/2", policy="own", index=2))
    samples = to_samples([played, replace(played, id="f")])
    assert [sample.action_id for sample in samples["shared"]] == ["e/0", "e/1", "e/0", "e/1"]
    assert [sample.role for sample in samples["shared"]] == ["a", "b", "a", "b"]
    assert [sample.episode_id for sample in samples["own"]] == ["e", "f"]


def test_rejected_candidates_are_samples_too():
    rejected = [action("e/0.1", candidate=1)]
    assert [s.action_id for s in to_samples([episode(action("e/0.0"), rejected=rejected)])["shared"]] == [
        "e/0.0",
        "e/0.1",
    ]


def test_what_no_policy_wrote_is_no_sample():
    foreign = make_action("b", id="e/1", index=1, policy="shared", response_ids=())
    assert [s.action_id for s in to_samples([episode(action("e/0"), foreign)])["shared"]] == ["e/0"]


@pytest.mark.parametrize(
    ("finish_reason", "infra_error", "mask_truncated", "reason"),
    [
        ("stop", None, True, None),
        ("length", None, True, "truncated"),
        ("length", None, False, None),
        ("stop", "infrastructure", True, "infrastructure"),
        ("stop", "infrastructure", False, "infrastructure"),
        ("length", "infrastructure", True, "infrastructure"),
    ],
)
def test_what_must_not_be_trained_on_keeps_its_place_with_a_mask_of_zeros(
    finish_reason, infra_error, mask_truncated, reason
):
    played = episode(action("e/0", finish_reason=finish_reason, infra_error=infra_error))
    sample = only(to_samples([played], mask_truncated))
    assert sample.masked_because == reason
    assert sample.mask_L.tolist() == ([0, 0] if reason else [1, 1])


def test_nothing_of_an_episode_that_broke_is_trained_on():
    sample = only(to_samples([replace(episode(action("e/0")), infra_error="timeout: 9 s")]))
    assert sample.masked_because == "infrastructure" and not sample.mask_L.any()


OWES = (Role("a", "p", ASK, required_files=("x",)), Role("b", "p", ASK, needed_files=("x",), required_files=("y",)))
READS = (OWES[0], Role("b", "p", ASK, needed_files=("x",)))  # and hands nothing on


@pytest.mark.parametrize(
    ("parts", "blocked"),
    [
        ([("a", (), ("x",)), ("b", ("x",), ("x", "y"))], []),
        ([("a", (), ()), ("b", (), ()), ("b", (), ())], ["e/1", "e/2"]),
        ([("a", (), ()), ("b", (), ("x", "y"))], []),  # it made all of it itself
        ([("a", (), ("x",)), ("b", ("x",), ()), ("b", (), ())], []),  # it took away what it had been given
        ([("a", (), ()), ("b", (), ("x",)), ("b", ("x",), ("x",))], ["e/1"]),
    ],
)
def test_who_waits_for_a_file_in_vain_is_left_out_where_the_run_says_so(parts, blocked):
    actions = [
        replace(action(f"e/{index}", role=role, index=index), files_before=before, files_after=after)
        for index, (role, before, after) in enumerate(parts)
    ]
    for mask_blocked in (True, False):
        samples = training_samples([episode(*actions)], OWES, TrainConfig(mask_blocked=mask_blocked))
        left_out = {s.action_id: s.masked_because for s in samples["shared"] if not s.mask_L.any()}
        assert left_out == (dict.fromkeys(blocked, "blocked") if mask_blocked else {})


def test_who_owes_no_file_has_not_left_all_that_it_owes():
    waits = replace(action("e/0", role="b"), files_before=("z",), files_after=("z",))
    samples = training_samples([episode(waits)], READS, TrainConfig(mask_blocked=True))
    assert only(samples).masked_because == "blocked"
