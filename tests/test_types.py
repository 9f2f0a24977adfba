"""What the plain data can say of itself: what calls took in all."""

import dataclasses

from coachrl.types import CoachScore, Usage

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
