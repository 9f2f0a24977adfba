"""What the plain data can say of itself: what calls took in all, who plays, and in which order."""

import dataclasses

import numpy as np

from coachrl.testing.actions import make_action
from coachrl.types import (
    CoachScore,
    CriterionScore,
    Episode,
    Outcome,
    Role,
    TrainSample,
    Usage,
    policy_names,
)

ONE = Usage(1, 10, 5, 2, 3, 0.25, 1.5, 1)
OTHER = Usage(2, 100, 50, 20, 30, 0.5, 2.5, 0)


def test_usages_add_up_in_every_field() -> None:
    both = dataclasses.astuple(ONE + OTHER)
    assert both == tuple(a + b for a, b in zip(dataclasses.astuple(ONE), dataclasses.astuple(OTHER), strict=True))
    assert sum([ONE, OTHER], Usage()) == ONE + OTHER == OTHER + ONE


def test_an_unknown_price_makes_the_sum_unknown_whichever_side_it_is_on() -> None:
    unknown = dataclasses.replace(ONE, cost_usd=None)
    assert (unknown + OTHER).cost_usd is None and (OTHER + unknown).cost_usd is None
    assert (unknown + OTHER).tokens_in == 110


def test_a_score_of_which_nothing_else_is_said_was_asked_for_once() -> None:
    assert CoachScore("e/0", "scored", 7.0).usage == Usage(attempts=1, cost_usd=0.0)


def test_policies_are_named_once_in_order_and_external_models_are_none() -> None:
    roles = [Role("a", "two"), Role("b", "one"), Role("c", "two"), Role("d", "d", external="openai/x")]
    assert policy_names(roles) == ["two", "one"]


def test_candidates_of_one_state_stand_side_by_side_in_the_order_in_which_they_were_drawn() -> None:
    def action(index: int, candidate: int):  # type: ignore[no-untyped-def]
        return dataclasses.replace(make_action("a", index=index), candidate=candidate)

    followed, rejected = (action(0, 1), action(1, 0)), (action(1, 2), action(1, 1), action(0, 0))
    episode = Episode("e", "t", "k", "p", followed, Outcome(True), rejected_candidates=rejected)
    found = [(one.index, one.candidate) for one in episode.all_actions]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_what_is_said_beside_a_score_for_people() -> None:
    criteria = (CriterionScore("method", 2.0, 7.25), CriterionScore("duty", 1.0, 10.0))
    score = CoachScore("e/0", "scored", 8.0, contribution=3.0, disagreement=1.25, criteria=criteria)
    assert score.remarks == ("method 7.25", "duty 10", "contribution +3", "members differ by 1.2")
    assert dataclasses.replace(score, contribution=-0.5, disagreement=None, criteria=()).remarks == (
        "contribution -0.5",
    )
    assert CoachScore("e/0", "scored", 8.0).remarks == ()


def test_a_forward_pass_reads_prompt_and_response() -> None:
    tokens, floats = np.arange(3), np.zeros(2, np.float32)
    assert TrainSample("p", "e/0", "e", "t", "r", 0, 0, tokens, tokens[:2], floats, floats).length == 5


def test_the_digest_of_an_action_is_of_what_it_was_asked_and_what_it_replied():
    digests = {make_action(text=text, prompt_text=asked).digest for text in ("Yes.", "No.") for asked in ("A?", "B?")}
    assert len(digests) == 4 and all(digest[0] == "d" for digest in digests)
    assert make_action(text="half \ud800").digest
